#include "engine/batch_order.h"

enum status batch_order_skim(struct batch_order *order, struct batch_reader *reader,
                             struct batch_row *out, bool *found, struct error *err)
{
    for (;;) {
        TRY(batch_reader_skim(reader, out, found, err));
        if (*found && (order->class_count <= 1 || order->class_of[out->index] == order->now))
            return STATUS_OK;
        if (!*found && ++order->now >= order->class_count)
            return STATUS_OK;
        if (!*found)
            TRY(batch_reader_rewind(reader, err));
    }
}

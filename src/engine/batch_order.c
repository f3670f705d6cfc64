#include "engine/batch_order.h"

#define WATCH_ROWS 4096

static bool is_of_now(const struct batch_order *order, int64_t row)
{
    if (order->class_count <= 1)
        return true;
    int class = row < order->row_count ? order->class_of[row] : order->class_count - 1;
    return class == order->now;
}

enum status batch_order_skim(struct batch_order *order, struct batch_reader *reader,
                             struct batch_row *out, bool *found, struct error *err)
{
    for (;;) {
        TRY(batch_reader_skim(reader, out, found, err));
        if (*found && is_of_now(order, out->index))
            return STATUS_OK;
        if (!*found && ++order->now >= order->class_count)
            return STATUS_OK;
        if (!*found)
            TRY(batch_reader_rewind(reader, err));
        if (++order->passed_over % WATCH_ROWS == 0)
            TRY(watch_ask(&order->watch, err));
    }
}

#include "engine/batch_order.h"

#include <stdio.h>
#include <stdlib.h>

#define WATCH_ROWS 4096

static bool is_of_now(const struct batch_order *order, int64_t row)
{
    return order->class_count <= 1 || order->class_of[row] == order->now;
}

static int class_end(const struct batch_order *order)
{
    return order->class_end > 0 ? order->class_end : order->class_count;
}

enum status batch_order_skim(struct batch_order *order, struct batch_reader *reader,
                             struct batch_row *out, bool *found, struct error *err)
{
    for (;;) {
        TRY(batch_reader_skim(reader, out, found, err));
        if (*found && is_of_now(order, out->index))
            return STATUS_OK;
        if (!*found && ++order->now < order->class_count)
            TRY(batch_reader_rewind(reader, err));
        if (!*found && order->now >= class_end(order))
            return STATUS_OK;
        if (++order->passed_over % WATCH_ROWS == 0)
            TRY(watch_ask(&order->watch, err));
    }
}

/* ---- As text --------------------------------------------------------------------------------- */

void batch_staying_format(char out[BATCH_STAYING_TEXT_BYTES], const struct batch_staying *staying)
{
    size_t length = 0;
    for (int i = 0; i < staying->bin_count; i++)
        length += (size_t)snprintf(out + length, BATCH_STAYING_TEXT_BYTES - length, "%s%d",
                                   i > 0 ? "," : "", staying->classes.of_bin[i]);
    snprintf(out + length, BATCH_STAYING_TEXT_BYTES - length, ";%u", staying->stays);
}

/* A number below `end` and what stands behind it; -1: there is none. */
static long number_parse(const char **text, long end)
{
    char *rest;
    if (**text < '0' || **text > '9')
        return -1;
    long value = strtol(*text, &rest, 10);
    *text = rest;
    return value < end ? value : -1;
}

bool batch_staying_parse(struct batch_staying *out, const char *text)
{
    struct batch_staying staying = {.bin_count = 0};
    for (char before = ','; before == ','; before = *text++) {
        long class = number_parse(&text, PLAN_BINS_MAX);
        if (class < 0 || staying.bin_count == PLAN_BINS_MAX)
            return false;
        staying.classes.of_bin[staying.bin_count++] = (int)class;
        if (class >= staying.classes.count)
            staying.classes.count = (int)class + 1;
    }
    long stays = text[-1] == ';' ? number_parse(&text, 1L << staying.classes.count) : -1;
    if (stays < 0 || *text != '\0')
        return false;
    staying.stays = (unsigned)stays;
    *out = staying;
    return true;
}

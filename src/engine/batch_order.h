/* The order in which the rows of a batch are started: classes of rows, one after another, each in
 * the order of the file. The file is read once for each class. */
#ifndef PHASOR_ENGINE_BATCH_ORDER_H
#define PHASOR_ENGINE_BATCH_ORDER_H

#include "base/watch.h"
#include "engine/batch_reader.h"
#include "planner/plan_mix.h"

/* A zero one is the order of the file. */
struct batch_order {
    const uint8_t *class_of; /* of each row of the file, borrowed: below class_count */
    int class_count;
    int class_end;      /* rows of classes from this one on are for later: a part (batch_parts.h)
                         * ends there; 0: class_count */
    unsigned stays;     /* of each class a bit: see sequence_request.stays */
    struct watch watch; /* asked now and then while rows of other classes are passed over */
    int now;            /* the class whose rows are given */
    int64_t passed_over;
};

/* Which bins of a mix (planner/plan_mix.h) are of which class, and which classes stay: as a record
 * keeps it, "1,0,0;2". */
struct batch_staying {
    int bin_count; /* 0: none stay */
    struct plan_classes classes;
    unsigned stays;
};
#define BATCH_STAYING_TEXT_BYTES 64
void batch_staying_format(char out[BATCH_STAYING_TEXT_BYTES], const struct batch_staying *staying);
bool batch_staying_parse(struct batch_staying *out, const char *text);

static inline bool batch_order_stays(const struct batch_order *order)
{
    return (order->stays >> order->now & 1) != 0;
}

/* The next row, as batch_reader_skim gives it; *found = false behind the last of the last class,
 * after which it is not called again, unless class_end is a later one by then. The reader is at its
 * first row when this is first called, and is used by nobody else. The watch's failure, if it has
 * one. */
enum status batch_order_skim(struct batch_order *order, struct batch_reader *reader,
                             struct batch_row *out, bool *found, struct error *err) MUST_CHECK;

#endif

#include "two_ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "comm/box.h"
#include "layout/packing.h"

#define ROWS     8192
#define COLUMNS  16384 /* 256 MiB of weights for each rank, far more than caches hold */
#define PRODUCTS 4     /* in a window */
#define WINDOWS  5
#define MEETINGS 100 /* in a window */
#define BYTES    4096

struct measure {
    struct box *box;
    struct comm *comms[2];
    bool is_alone;
    bool is_all_reduce;
    struct {
        void *weights;
        float *in, *out;
        double begin, end;
    } ranks[2];
};

static enum status rank_fill(void *context, int rank, struct error *err)
{
    struct measure *measure = context;
    struct device *device = box_device(measure->box, rank);
    size_t bytes = (size_t)packed_bytes(ROWS, COLUMNS, DTYPE_BF16);
    TRY(device->ops->memory_get(device, &measure->ranks[rank].weights, bytes, "weights", err));
    TRY(device->ops->memory_get(device, (void **)&measure->ranks[rank].in, COLUMNS * sizeof(float),
                                "a row", err));
    TRY(device->ops->memory_get(device, (void **)&measure->ranks[rank].out, ROWS * sizeof(float),
                                "a row", err));
    memset(measure->ranks[rank].weights, 0, bytes); /* pages that were never written are one */
    memset(measure->ranks[rank].in, 0, COLUMNS * sizeof(float));
    memset(measure->ranks[rank].out, 0, ROWS * sizeof(float));
    return STATUS_OK;
}

static void rank_release(struct measure *measure, int rank)
{
    struct device *device = box_device(measure->box, rank);
    device->ops->memory_free(device, measure->ranks[rank].weights);
    device->ops->memory_free(device, measure->ranks[rank].in);
    device->ops->memory_free(device, measure->ranks[rank].out);
}

/* Products of one row, as decode has them. */
static enum status rank_read(void *context, int rank, struct error *err)
{
    struct measure *measure = context;
    struct device *device = box_device(measure->box, rank);
    struct op_matmul op = {.out = measure->ranks[rank].out,
                           .in = measure->ranks[rank].in,
                           .weight = {.data = measure->ranks[rank].weights,
                                      .dtype = DTYPE_BF16,
                                      .packing = PACK_OUTPUT,
                                      .rows = ROWS,
                                      .columns = COLUMNS},
                           .row_count = 1,
                           .out_stride = ROWS,
                           .in_stride = COLUMNS};
    measure->ranks[rank].begin = system_seconds();
    for (int i = 0; i < PRODUCTS && (rank == 0 || !measure->is_alone); i++)
        device->ops->matmul(device->stream, &op);
    TRY(device->ops->synchronize(device->stream, err));
    measure->ranks[rank].end = system_seconds();
    return STATUS_OK;
}

static enum status rank_meet(void *context, int rank, struct error *err)
{
    static const int64_t counts[2] = {BYTES, BYTES};
    struct measure *measure = context;
    struct device *device = box_device(measure->box, rank);
    char *out = (char *)measure->ranks[rank].out, *in = (char *)measure->ranks[rank].in;
    measure->ranks[rank].begin = system_seconds();
    for (int i = 0; i < MEETINGS; i++) {
        if (measure->is_all_reduce)
            comm_all_reduce(measure->comms[rank], device->stream,
                            &(struct comm_all_reduce){(float *)out, (float *)in,
                                                      BYTES / (int)sizeof(float), 0});
        else
            comm_all_gather(measure->comms[rank], device->stream,
                            &(struct comm_all_gather){out, in, counts, 0});
    }
    TRY(device->ops->synchronize(device->stream, err));
    measure->ranks[rank].end = system_seconds();
    return STATUS_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of windows, from when the first rank begins until the last one ends. */
static enum status measure_seconds(double *out, struct measure *measure,
                                   enum status (*work)(void *context, int rank, struct error *err),
                                   struct error *err)
{
    double seconds[WINDOWS + 1];
    for (int i = 0; i <= WINDOWS; i++) {
        TRY(box_run(measure->box, work, measure, err));
        double begin = fmin(measure->ranks[0].begin, measure->ranks[1].begin);
        seconds[i] = fmax(measure->ranks[0].end, measure->ranks[1].end) - begin;
    }
    qsort(seconds + 1, WINDOWS, sizeof seconds[0], by_value); /* the first is to warm up */
    *out = seconds[1 + WINDOWS / 2];
    return STATUS_OK;
}

static enum status measure_all(struct two_ranks *out, struct measure *measure,
                               const struct comm_links *links, struct error *err)
{
    double bytes = (double)packed_bytes(ROWS, COLUMNS, DTYPE_BF16) * PRODUCTS, seconds;
    double needed = links->latency_seconds + BYTES / links->bytes_per_second;
    TRY(box_run(measure->box, rank_fill, measure, err));
    measure->is_alone = true;
    TRY(measure_seconds(&seconds, measure, rank_read, err));
    out->alone_bytes_per_second = bytes / seconds;
    measure->is_alone = false;
    TRY(measure_seconds(&seconds, measure, rank_read, err));
    out->both_bytes_per_second = 2 * bytes / seconds;
    TRY(comm_create(measure->comms, box_domain(measure->box), (int[]){0, 1}, 2, err));
    TRY(measure_seconds(&seconds, measure, rank_meet, err));
    out->meeting_seconds = fmax(seconds / MEETINGS - needed, 0);
    measure->is_all_reduce = true;
    TRY(measure_seconds(&seconds, measure, rank_meet, err));
    /* Two steps, and half of the bytes twice. */
    out->all_reduce_seconds = fmax(seconds / MEETINGS - needed - links->latency_seconds, 0);
    return STATUS_OK;
}

enum status two_ranks_measure(struct two_ranks *out, const struct comm_links *links,
                              struct error *err)
{
    struct measure measure = {.box = NULL};
    TRY(box_open(&measure.box,
                 &(struct box_params){.rank_count = 2, .thread_count = 2, .links = *links}, err));
    enum status status = measure_all(out, &measure, links, err);
    for (int rank = 0; rank < 2; rank++) {
        comm_destroy(measure.comms[rank]);
        rank_release(&measure, rank);
    }
    box_close(measure.box);
    return status;
}

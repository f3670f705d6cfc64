/* What is neither an operation nor a collective: copies from the host, alone and while ranks
 * exchange, memory, and the host's own step. */
#include <math.h>

#include "base/memory.h"
#include "base/system.h"
#include "measure/meter_state.h"

/* ---- Copies from the host -------------------------------------------------------------------- */

static void copy_on(struct meter_rank *rank, struct stream *stream, int64_t bytes)
{
    char *place = meter_next_weights(rank);
    struct op_copy copy = {.out = place, .in = rank->staging, .bytes = bytes};
    rank->device->ops->copy(stream, &copy);
}

static void put_copy(struct meter_rank *rank, const struct meter_job *job)
{
    copy_on(rank, rank->device->stream, job->bytes);
}

/* One behind the other through all weights. */
static void copies_spread(struct meter *meter)
{
    for (int r = 0; r < meter->rank_count; r++) {
        meter->ranks[r].variant_bytes = METER_STAGING_BYTES;
        meter->ranks[r].variant_count = meter->ranks[r].weight_bytes / METER_STAGING_BYTES;
    }
}

enum status meter_host_to_device(double *out, struct meter *meter, struct error *err)
{
    struct meter_job job = {.put = put_copy, .bytes = METER_STAGING_BYTES};
    struct measured found;
    copies_spread(meter);
    TRY(meter_sample(&found, meter, &job, err));
    *out = (double)METER_STAGING_BYTES / found.seconds;
    return STATUS_OK;
}

/* ---- And while ranks exchange ---------------------------------------------------------------- */

#define BUSY_ROUNDS       7
#define BUSY_COPIES_MAX   64
#define BUSY_COPY_SECONDS 10e-3
/* Exchanges last so many times as long as the copies alone, so that there are some beside every
 * copy: on one link both take twice as long. */
#define BUSY_COVER         3.0
#define BUSY_EXCHANGES_MAX 1024

struct side {
    struct stream *stream;
    struct event *begins;
    int64_t counts[COMM_RANKS_MAX], places[COMM_RANKS_MAX]; /* of the exchange */
    double begin, end;
};

struct busy {
    struct meter *meter;
    struct side *sides; /* [ranks] */
    int copies, exchanges;
};

static void exchange(struct meter_rank *rank, const struct side *side)
{
    comm_all_to_all_v(rank->all, rank->device->stream,
                      &(struct comm_all_to_all_v){.out = rank->out,
                                                  .in = rank->in,
                                                  .send_counts = side->counts,
                                                  .send_offsets = side->places,
                                                  .receive_counts = side->counts,
                                                  .receive_offsets = side->places});
}

static enum status rank_copies(void *context, int index, struct error *err)
{
    struct busy *busy = context;
    struct meter_rank *rank = &busy->meter->ranks[index];
    struct side *side = &busy->sides[index];
    const struct device_ops *ops = rank->device->ops;
    double *begin = &side->begin, *end = &side->end;
    meter_together(busy->meter, index);
    ops->event_record(rank->device->stream, side->begins);
    ops->event_wait(side->stream, side->begins);
    ops->call(side->stream, meter_mark, &begin, sizeof begin);
    for (int i = 0; i < busy->copies; i++)
        copy_on(rank, side->stream, METER_STAGING_BYTES);
    ops->call(side->stream, meter_mark, &end, sizeof end);
    for (int i = 0; i < busy->exchanges; i++)
        exchange(rank, side);
    /* The second, too, is done when we return, for what is put on it is this call's. */
    struct error other;
    enum status copies = ops->synchronize(side->stream, err);
    enum status exchanges =
        ops->synchronize(rank->device->stream, copies == STATUS_OK ? err : &other);
    return copies == STATUS_OK ? exchanges : copies;
}

/* Seconds of the slowest rank's copies, beside so many exchanges. */
static enum status copies_take(double *out, struct busy *busy, int exchanges, struct error *err)
{
    busy->exchanges = exchanges;
    *out = 0;
    TRY(box_run(busy->meter->params.box, rank_copies, busy, err));
    for (int r = 0; r < busy->meter->rank_count; r++)
        *out = fmax(*out, busy->sides[r].end - busy->sides[r].begin);
    return STATUS_OK;
}

static enum status busy_begin(struct busy *busy, int64_t part, struct error *err)
{
    struct meter *meter = busy->meter;
    TRY(memory_get((void **)&busy->sides, (size_t)meter->rank_count, sizeof *busy->sides,
                   "what is measured", err));
    for (int r = 0; r < meter->rank_count; r++) {
        struct side *side = &busy->sides[r];
        struct device *device = meter->ranks[r].device;
        for (int m = 0; m < meter->rank_count; m++) {
            side->counts[m] = part;
            side->places[m] = m * part;
        }
        TRY(device->ops->stream_create(device, &side->stream, STREAM_LOW, err));
        TRY(device->ops->event_create(device, &side->begins, err));
    }
    copies_spread(meter);
    return STATUS_OK;
}

static void busy_end(struct busy *busy)
{
    for (int r = 0; busy->sides != NULL && r < busy->meter->rank_count; r++) {
        struct device *device = busy->meter->ranks[r].device;
        device->ops->stream_destroy(device, busy->sides[r].stream);
        device->ops->event_destroy(device, busy->sides[r].begins);
    }
    memory_free(busy->sides);
}

static enum status busy_rounds(double *slower, struct busy *busy, double exchange_seconds,
                               struct error *err)
{
    double alone[BUSY_ROUNDS], beside[BUSY_ROUNDS];
    struct measured without, with;
    TRY(copies_take(&alone[0], busy, 0, err));
    double covering = BUSY_COVER * alone[0] / exchange_seconds;
    int exchanges = (int)fmax(1, fmin(covering, BUSY_EXCHANGES_MAX));
    for (int i = 0; i < BUSY_ROUNDS; i++) {
        TRY(copies_take(&alone[i], busy, 0, err));
        TRY(copies_take(&beside[i], busy, exchanges, err));
    }
    measured_of(&without, alone, BUSY_ROUNDS);
    measured_of(&with, beside, BUSY_ROUNDS);
    *slower = with.seconds / without.seconds;
    return STATUS_OK;
}

/* Both are measured on the stream of low priority, in turn. */
enum status meter_host_to_device_busy(double *out, struct meter *meter, double alone,
                                      struct error *err)
{
    struct busy busy = {.meter = meter};
    struct measured exchange;
    double slower = 1;
    int ranks = meter->rank_count;
    *out = alone;
    if (ranks == 1)
        return STATUS_OK;
    int64_t bytes = meter_collective_bytes_max(meter) / 2;
    bytes = bytes < METER_STAGING_BYTES ? bytes : METER_STAGING_BYTES;
    bytes = meter_collective_bytes(GROUP_ALL_TO_ALL, ranks, bytes);
    struct collective_shape shape = {
        .op = GROUP_ALL_TO_ALL, .size = ranks, .bytes = bytes, .fullest = 1};
    TRY(meter_collective(&exchange, meter, &shape, err));
    double copies = BUSY_COPY_SECONDS * alone / (double)METER_STAGING_BYTES;
    busy.copies = (int)fmax(1, fmin(copies, BUSY_COPIES_MAX));
    enum status status = busy_begin(&busy, bytes / (ranks - 1), err);
    if (status == STATUS_OK)
        status = busy_rounds(&slower, &busy, exchange.seconds, err);
    busy_end(&busy);
    *out = alone / fmax(slower, 1);
    return status;
}

/* ---- Memory, and the host -------------------------------------------------------------------- */

/* A product of one row, with half of all weights. */
enum status meter_memory(double *out, struct meter *meter, struct error *err)
{
    enum { INPUTS = 2048 };
    struct work_shape work = {.kind = WORK_MATMUL, .dtype = DTYPE_BF16, .dims = {1, 16, INPUTS}};
    struct measured found;
    int64_t outputs = meter->ranks[0].weight_bytes / 2 / (2 * INPUTS) / PACK_BLOCK * PACK_BLOCK;
    int64_t most = meter->activation_bytes / (int64_t)sizeof(float) / PACK_BLOCK * PACK_BLOCK;
    work.dims[1] = outputs < most ? outputs : most;
    TRY(meter_work(&found, meter, &work, err));
    *out = work_shape_bytes(&work) / found.seconds;
    return STATUS_OK;
}

static enum status rank_nothing(void *context, int index, struct error *err)
{
    struct meter *meter = context;
    struct device *device = meter->ranks[index].device;
    return device->ops->synchronize(device->stream, err);
}

enum status meter_host_step(struct measured *out, struct meter *meter, struct error *err)
{
    enum { STEPS = 32 };
    double seconds[METER_SAMPLES_MAX];
    int count = 0;
    for (; count < METER_SAMPLES_MAX; count++) {
        double begin = system_seconds();
        for (int i = 0; i < STEPS; i++)
            TRY(box_run(meter->params.box, rank_nothing, meter, err));
        seconds[count] = (system_seconds() - begin) / STEPS;
    }
    measured_of(out, seconds, count);
    return STATUS_OK;
}

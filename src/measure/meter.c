#include "measure/meter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/system.h"
#include "measure/meter_state.h"

#define TOGETHER_BYTES ((int64_t)64)
#define LAUNCHES_AHEAD 5 /* samples that are put on a stream before it is waited for */

struct meter_params meter_params_default(struct box *box, uint64_t memory_bytes)
{
    return (struct meter_params){.box = box,
                                 .memory_bytes = memory_bytes,
                                 .settled = 0.01,
                                 .point_seconds = 0.25,
                                 .sample_seconds = 2e-3};
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* Small numbers of any sign: as bf16, and as f32, whose upper half is one of them. As int4 they are
 * any nibbles. */
static void staging_fill(char *staging, int rank)
{
    struct random random = {.seed = 1 + (uint64_t)rank};
    uint16_t *values = (uint16_t *)staging;
    for (int64_t i = 0; i < METER_STAGING_BYTES / 2; i++) {
        double unit = random_unit(random_next(&random));
        values[i] = bf16_from_f32((float)(unit - 0.5) * 0.1f);
    }
}

static void memory_fill(struct meter_rank *rank, char *memory, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += METER_STAGING_BYTES) {
        int64_t part = bytes - at < METER_STAGING_BYTES ? bytes - at : METER_STAGING_BYTES;
        struct op_copy copy = {.out = memory + at, .in = rank->staging, .bytes = part};
        rank->device->ops->copy(rank->device->stream, &copy);
    }
}

/* Every rank's memory is first touched by its own threads. */
static enum status rank_fill(void *context, int index, struct error *err)
{
    struct meter *meter = context;
    struct meter_rank *rank = &meter->ranks[index];
    staging_fill(rank->staging, index);
    memory_fill(rank, rank->weights, rank->weight_bytes);
    memory_fill(rank, (char *)rank->in, meter->activation_bytes);
    memory_fill(rank, (char *)rank->out, meter->activation_bytes);
    return rank->device->ops->synchronize(rank->device->stream, err);
}

static enum status rank_get(struct meter *meter, int index, struct error *err)
{
    static const char what[] = "what is measured";
    struct meter_rank *rank = &meter->ranks[index];
    const struct device_ops *ops;
    rank->device = box_device(meter->params.box, index);
    ops = rank->device->ops;
    TRY(ops->memory_get(rank->device, (void **)&rank->weights, (size_t)rank->weight_bytes, what,
                        err));
    TRY(ops->memory_get(rank->device, (void **)&rank->in, (size_t)meter->activation_bytes, what,
                        err));
    TRY(ops->memory_get(rank->device, (void **)&rank->out, (size_t)meter->activation_bytes, what,
                        err));
    return ops->host_memory_get(rank->device, (void **)&rank->staging, (size_t)METER_STAGING_BYTES,
                                what, err);
}

static enum status meter_fill(struct meter *meter, struct error *err)
{
    struct comm *ends[COMM_RANKS_MAX];
    int ranks[COMM_RANKS_MAX];
    int64_t bytes =
        (int64_t)(meter->params.memory_bytes / (uint64_t)meter->rank_count / METER_PARTS / 64 * 64);
    meter->activation_bytes = bytes;
    TRY(memory_get((void **)&meter->ranks, (size_t)meter->rank_count, sizeof *meter->ranks,
                   "the ranks", err));
    for (int r = 0; r < meter->rank_count; r++) {
        meter->ranks[r].weight_bytes = METER_WEIGHT_PARTS * bytes;
        meter->together[r] = TOGETHER_BYTES;
        ranks[r] = r;
        TRY(rank_get(meter, r, err));
    }
    TRY(comm_create(ends, box_domain(meter->params.box), ranks, meter->rank_count, err));
    for (int r = 0; r < meter->rank_count; r++)
        meter->ranks[r].all = ends[r];
    return box_run(meter->params.box, rank_fill, meter, err);
}

enum status meter_create(struct meter **out, const struct meter_params *params, struct error *err)
{
    struct meter *meter;
    int rank_count = box_rank_count(params->box);
    ASSERT(params->memory_bytes >= METER_RANK_BYTES_MIN * (uint64_t)rank_count);
    TRY(memory_get((void **)&meter, 1, sizeof *meter, "what measures", err));
    meter->params = *params;
    meter->rank_count = rank_count;
    enum status status = meter_fill(meter, err);
    if (status != STATUS_OK) {
        meter_destroy(meter);
        return status;
    }
    *out = meter;
    return STATUS_OK;
}

void meter_destroy(struct meter *meter)
{
    if (meter == NULL)
        return;
    meter_groups_destroy(meter);
    for (int r = 0; meter->ranks != NULL && r < meter->rank_count; r++) {
        struct meter_rank *rank = &meter->ranks[r];
        if (rank->device == NULL)
            continue;
        comm_destroy(rank->all);
        rank->device->ops->host_memory_free(rank->device, rank->staging);
        rank->device->ops->memory_free(rank->device, rank->weights);
        rank->device->ops->memory_free(rank->device, rank->in);
        rank->device->ops->memory_free(rank->device, rank->out);
    }
    memory_free(meter->ranks);
    memory_free(meter);
}

/* ---- Samples --------------------------------------------------------------------------------- */

enum status meter_mark(void *argument, struct error *err)
{
    (void)err;
    **(double **)argument = system_seconds();
    return STATUS_OK;
}

void meter_together(struct meter *meter, int index)
{
    struct meter_rank *rank = &meter->ranks[index];
    char *bytes = (char *)rank->out;
    comm_all_gather(rank->all, rank->device->stream,
                    &(struct comm_all_gather){.out = bytes,
                                              .in = bytes + index * TOGETHER_BYTES,
                                              .counts = meter->together});
}

static void put_sample(struct meter *meter, int index, struct mark *mark)
{
    struct meter_rank *rank = &meter->ranks[index];
    const struct device_ops *ops = rank->device->ops;
    double *begin = &mark->begin, *end = &mark->end;
    meter_together(meter, index);
    ops->call(rank->device->stream, meter_mark, &begin, sizeof begin);
    for (int i = 0; i < meter->job.launch_count; i++)
        meter->job.put(rank, &meter->job);
    ops->call(rank->device->stream, meter_mark, &end, sizeof end);
}

static enum status rank_sample(void *context, int index, struct error *err)
{
    struct meter *meter = context;
    struct meter_rank *rank = &meter->ranks[index];
    for (int i = 0; i < meter->job.sample_count; i++)
        put_sample(meter, index, &rank->marks[meter->job.first_sample + i]);
    return rank->device->ops->synchronize(rank->device->stream, err);
}

/* Seconds of a launch in one sample: of the slowest rank, from when it began itself. Ranks that
 * share a core may run one after another, each as if alone: then from when the first began. */
static double sample_seconds(const struct meter *meter, int sample)
{
    double slowest = 0, begin = INFINITY, end = 0;
    for (int r = 0; r < meter->rank_count; r++) {
        const struct mark *mark = &meter->ranks[r].marks[sample];
        slowest = fmax(slowest, mark->end - mark->begin);
        begin = fmin(begin, mark->begin);
        end = fmax(end, mark->end);
    }
    return (meter->params.shares_cores ? end - begin : slowest) / meter->job.launch_count;
}

static enum status take(struct meter *meter, int first, int count, struct error *err)
{
    meter->job.first_sample = first;
    meter->job.sample_count = count;
    return box_run(meter->params.box, rank_sample, meter, err);
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void measured_of(struct measured *out, double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, compare_seconds);
    /* A clock may stand still for less than its tick: no time is none. */
    double median = fmax(seconds[count / 2], 1e-10);
    double quartiles = seconds[count * 3 / 4] - seconds[count / 4];
    *out = (struct measured){median, quartiles / median, count};
}

/* The median of n normal values strays by 1.25 deviations over the root of n, and a deviation is
 * what lies between the quartiles over 1.35. */
static bool is_settled(const struct meter *meter, const struct measured *now)
{
    return now->spread * 0.93 / sqrt(now->repeats) < meter->params.settled;
}

/* Launches of a sample, from one that is not counted: pages are there, and caches as in a run. */
static enum status launches_find(struct meter *meter, double *expected, struct error *err)
{
    meter->job.launch_count = 1;
    TRY(take(meter, 0, 2, err));
    double one = fmax(sample_seconds(meter, 1), 1e-7);
    double wanted = ceil(meter->params.sample_seconds / one);
    meter->job.launch_count = (int)(wanted < METER_LAUNCHES_MAX ? wanted : METER_LAUNCHES_MAX);
    *expected = one * meter->job.launch_count;
    return STATUS_OK;
}

enum status meter_sample(struct measured *out, struct meter *meter, const struct meter_job *job,
                         struct error *err)
{
    double seconds[METER_SAMPLES_MAX], expected, begin = system_seconds();
    int count = 0;
    meter->job = *job;
    meter->job.meter = meter;
    TRY(launches_find(meter, &expected, err));
    int ahead = expected * LAUNCHES_AHEAD < meter->params.point_seconds ? LAUNCHES_AHEAD : 1;
    do {
        TRY(take(meter, count, ahead, err));
        count += ahead;
        for (int i = 0; i < count; i++)
            seconds[i] = sample_seconds(meter, i);
        measured_of(out, seconds, count);
    } while (count + ahead <= METER_SAMPLES_MAX &&
             (count < METER_SAMPLES_MIN ||
              (!is_settled(meter, out) && system_seconds() - begin < meter->params.point_seconds)));
    return STATUS_OK;
}

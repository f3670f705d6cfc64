/* Times the shared table of cases (tests/kernels/cases.h) on a device of this machine; see
 * bench/README.md.
 *
 * Inside the timed window: as many launches of one operation in a row as take BATCH_SECONDS, at
 * least one (route: one), and one synchronize of the stream, which costs as much as a small
 * operation. Each launch of a product has the next of several copies of its data, so that weights,
 * which a model reads once a step, are in no cache. Just before and just behind the window memory
 * is read, for the limit that the operation met. Outside: making the data, warming up, putting
 * route's logits back. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system.h"
#include "head.h"
#include "target.h"
#include "workload.h"
#include "workload_memory.h"

#define SAMPLES_MAX   201
#define BATCH_SECONDS 4e-3
#define BATCH_MAX     1000
#define COPIES_MAX    128

/* ---- One case ------------------------------------------------------------------------------ */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* An operation with its data, several times. */
struct copies {
    struct workload workloads[COPIES_MAX];
    int count, next;
};

/* A model reads other weights with each launch, so these fill the target's copy_bytes; what other
 * operations read has come to the caches shortly before. */
static int copies_wanted(const struct target *target, enum kernel_op op, double bytes)
{
    if (op != OP_MATMUL && op != OP_FFN_UP && op != OP_FFN_DOWN)
        return 1;
    double wanted = fmin(target->copy_bytes / bytes, COPIES_MAX);
    return wanted < 1 ? 1 : (int)wanted;
}

static void copies_create(struct copies *out, const struct target *target, enum kernel_op op,
                          const struct kernel_case *c)
{
    workload_create(&out->workloads[0], op, c);
    out->next = 0;
    out->count = copies_wanted(target, op, out->workloads[0].bytes);
    for (int i = 1; i < out->count; i++)
        workload_create(&out->workloads[i], op, c);
    for (int i = 0; i < out->count; i++)
        workload_launch(&out->workloads[i], target->device); /* warm: pages are there */
}

static void copies_destroy(struct copies *copies)
{
    for (int i = 0; i < copies->count; i++)
        workload_destroy(&copies->workloads[i]);
}

static struct workload *copies_next(struct copies *copies)
{
    copies->next = (copies->next + 1) % copies->count;
    return &copies->workloads[copies->next];
}

/* Seconds of one launch, of `count` in a row. */
static double time_launches(struct device *device, struct copies *copies, int count)
{
    double start = system_seconds();
    for (int i = 1; i < count; i++)
        workload_put(copies_next(copies), device);
    workload_launch(copies_next(copies), device);
    return (system_seconds() - start) / count;
}

static int launches_of_batch(struct device *device, struct copies *copies)
{
    double seconds = INFINITY;
    for (int i = 0; i < 3; i++)
        seconds = fmin(seconds, time_launches(device, copies, 1));
    if (copies->workloads[0].op == OP_ROUTE || seconds * 2 > BATCH_SECONDS)
        return 1;
    seconds = time_launches(device, copies, 16);
    return seconds * BATCH_MAX < BATCH_SECONDS ? BATCH_MAX : (int)ceil(BATCH_SECONDS / seconds);
}

/* Of one launch, in increasing order each. */
struct samples {
    int count;
    double seconds[SAMPLES_MAX];
    double share[SAMPLES_MAX]; /* of the bandwidth beside it */
};

static void take_samples(const struct target *target, struct copies *copies, struct samples *out)
{
    const int batch = launches_of_batch(target->device, copies);
    const double bytes = copies->workloads[0].bytes;
    const double end = system_seconds() + target->case_seconds;
    double before = target_read_gbytes(target);
    for (out->count = 0; out->count < SAMPLES_MAX && (out->count < 5 || system_seconds() < end);) {
        if (copies->workloads[0].op == OP_ROUTE)
            workload_reset(&copies->workloads[0]);
        workload_memory_settle();
        double seconds = time_launches(target->device, copies, batch);
        double behind = target_read_gbytes(target);
        out->seconds[out->count] = seconds;
        double read_seconds = (1 / before + 1 / behind) / 2 * 1e-9; /* of a byte */
        out->share[out->count++] = bytes * read_seconds / seconds;
        before = behind;
    }
    qsort(out->seconds, (size_t)out->count, sizeof *out->seconds, compare_doubles);
    qsort(out->share, (size_t)out->count, sizeof *out->share, compare_doubles);
}

static void time_case(const struct target *target, enum kernel_op op, const struct kernel_case *c)
{
    static struct samples samples;
    static struct copies copies;
    char name[160];
    case_describe(name, sizeof name, op, c);
    copies_create(&copies, target, op, c);
    take_samples(target, &copies, &samples);
    const struct workload *workload = &copies.workloads[0];
    const double *seconds = samples.seconds;
    double median = seconds[samples.count / 2];
    double spread = (seconds[samples.count * 3 / 4] - seconds[samples.count / 4]) / median;
    double gflops = workload->flops / median * 1e-9, gbytes = workload->bytes / median * 1e-9;
    printf("%-84s %10.1f us %5.1f %% %8.2f GFLOP/s %5.1f %% %7.2f GB/s %5.1f %%\n", name,
           median * 1e6, spread * 100, gflops, 100 * gflops / target->gflops, gbytes,
           100 * samples.share[samples.count / 2]);
    fflush(stdout);
    copies_destroy(&copies);
}

static enum status do_nothing(void *argument, struct error *err)
{
    (void)argument;
    (void)err;
    return STATUS_OK;
}

/* What the stream itself costs: calls that do nothing, in a row, and one that is waited for. */
static void time_stream(struct device *device)
{
    struct error err;
    double row[SAMPLES_MAX], alone[SAMPLES_MAX];
    for (int i = 0; i < SAMPLES_MAX; i++) {
        double start = system_seconds();
        for (int call = 0; call < BATCH_MAX; call++)
            device->ops->call(device->stream, do_nothing, NULL, 0);
        ASSERT(device->ops->synchronize(device->stream, &err) == STATUS_OK);
        row[i] = (system_seconds() - start) / BATCH_MAX;
        start = system_seconds();
        device->ops->call(device->stream, do_nothing, NULL, 0);
        ASSERT(device->ops->synchronize(device->stream, &err) == STATUS_OK);
        alone[i] = system_seconds() - start;
    }
    qsort(row, SAMPLES_MAX, sizeof *row, compare_doubles);
    qsort(alone, SAMPLES_MAX, sizeof *alone, compare_doubles);
    printf("%-84s %10.3f us in a row, %.1f us with a synchronize\n", "call of nothing",
           row[SAMPLES_MAX / 2] * 1e6, alone[SAMPLES_MAX / 2] * 1e6);
}

/* ---- Command line -------------------------------------------------------------------------- */

static void print_header(int argc, char **argv, const struct target *target)
{
    bench_print_head(argc, argv);
    printf("# device: %s; clock: CLOCK_MONOTONIC\n", target->description);
    printf("# limits: %.1f GFLOP/s (%s), %.1f GB/s (%s)\n", target->gflops, target->gflops_how,
           target_read_gbytes(target), target->gbytes_how);
    printf("# median of one launch, interquartile range, then rates and their share of the limits, "
           "of the\n# bandwidth the median of the windows' shares; far more than 100 %% of it: the "
           "data stayed in the caches\n");
}

int main(int argc, char **argv)
{
    const char *filter = argc > 2 ? argv[2] : "";
    struct target target;
    int failed = target_open(&target, argc, argv);
    if (failed != 0)
        return failed;
    print_header(argc, argv, &target);
    if (filter[0] == 0)
        time_stream(target.device);
    for (int op = 0; op < OP_COUNT; op++) {
        for (size_t i = 0; i < case_lists[op]->count; i++) {
            const struct kernel_case *c = &case_lists[op]->cases[i];
            if (c->use == target.use && strstr(case_lists[op]->name, filter) != NULL)
                time_case(&target, (enum kernel_op)op, c);
        }
    }
    target_close(&target);
    return 0;
}

/* Times the shared table of cases (tests/kernels/cases.h) on a device of this machine; see
 * bench/README.md.
 *
 * Inside the timed window: as many launches of one operation in a row as take BATCH_SECONDS, at
 * least one (route: one), and one synchronize of the stream, which costs as much as a small
 * operation. Outside: making the data, warming up, putting route's logits back. */
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
#define BATCH_SECONDS 1e-3
#define BATCH_MAX     1000

/* ---- One case ------------------------------------------------------------------------------ */

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one launch, of `count` in a row. */
static double time_launches(struct device *device, struct workload *workload, int count)
{
    double start = system_seconds();
    for (int i = 1; i < count; i++)
        workload_put(workload, device);
    workload_launch(workload, device);
    return (system_seconds() - start) / count;
}

static int launches_of_batch(struct device *device, struct workload *workload)
{
    double seconds = time_launches(device, workload, 1);
    if (workload->op == OP_ROUTE || seconds * 2 > BATCH_SECONDS)
        return 1;
    seconds = time_launches(device, workload, 16);
    return seconds * BATCH_MAX < BATCH_SECONDS ? BATCH_MAX : (int)ceil(BATCH_SECONDS / seconds);
}

static void time_case(const struct target *target, enum kernel_op op, const struct kernel_case *c)
{
    struct device *device = target->device;
    static double seconds[SAMPLES_MAX];
    char name[160];
    int count = 0;
    struct workload workload;
    case_describe(name, sizeof name, op, c);
    workload_create(&workload, op, c);
    workload_launch(&workload, device); /* warm: pages are there, caches are as in a loop */
    int batch = launches_of_batch(device, &workload);
    for (double begin = system_seconds();
         count < SAMPLES_MAX && (count < 5 || system_seconds() - begin < target->case_seconds);
         count++) {
        if (op == OP_ROUTE)
            workload_reset(&workload);
        workload_memory_settle();
        seconds[count] = time_launches(device, &workload, batch);
    }
    qsort(seconds, (size_t)count, sizeof *seconds, compare_seconds);
    double median = seconds[count / 2];
    double spread = (seconds[count * 3 / 4] - seconds[count / 4]) / median;
    double gflops = workload.flops / median * 1e-9, gbytes = workload.bytes / median * 1e-9;
    printf("%-84s %10.1f us %5.1f %% %8.2f GFLOP/s %5.1f %% %7.2f GB/s %5.1f %%\n", name,
           median * 1e6, spread * 100, gflops, 100 * gflops / target->gflops, gbytes,
           100 * gbytes / target->gbytes);
    fflush(stdout);
    workload_destroy(&workload);
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
    qsort(row, SAMPLES_MAX, sizeof *row, compare_seconds);
    qsort(alone, SAMPLES_MAX, sizeof *alone, compare_seconds);
    printf("%-84s %10.3f us in a row, %.1f us with a synchronize\n", "call of nothing",
           row[SAMPLES_MAX / 2] * 1e6, alone[SAMPLES_MAX / 2] * 1e6);
}

/* ---- Command line -------------------------------------------------------------------------- */

static void print_header(int argc, char **argv, const struct target *target)
{
    bench_print_head(argc, argv);
    printf("# device: %s; clock: CLOCK_MONOTONIC\n", target->description);
    printf("# limits: %.1f GFLOP/s (%s), %.1f GB/s (%s)\n", target->gflops, target->gflops_how,
           target->gbytes, target->gbytes_how);
    printf("# median of one launch, interquartile range, then rates and their share of the limits;"
           "\n# more than 100 %% of the bandwidth: the data stayed in the caches from launch to "
           "launch\n");
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
    device_destroy(target.device);
    return 0;
}

/* Times the shared table of cases (tests/kernels/cases.h) on this machine; see bench/README.md.
 *
 * Inside the timed window: as many launches of one operation in a row as take BATCH_SECONDS, at
 * least one (route: one), and one synchronize of the stream, which costs as much as a small
 * operation. Outside: making the data, warming up, putting route's logits back. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/system.h"
#include "device/thread_team.h"
#include "head.h"
#include "kernels/cpu/kernels.h"
#include "workload.h"

#define SAMPLES_MAX      201
#define SECONDS_PER_CASE 0.5
#define BATCH_SECONDS    1e-3
#define BATCH_MAX        1000
#define BANDWIDTH_BYTES  (512ll << 20)
#define PEAK_ROUNDS      2000000
#define BANDWIDTH_ROUNDS 9
#define STREAMS          4
#define STREAM_AHEAD     32 /* lines */

/* Vectors as in kernels/cpu/simd.h, aligned here. */
typedef float v16 __attribute__((vector_size(64)));

struct limits {
    double gflops; /* f32 multiply and add from registers */
    double gbytes; /* read from memory */
};

/* ---- What the machine can do --------------------------------------------------------------- */

/* Independent chains hide the latency of a multiply-add: 4 cycles on two ports want 8 registers.
 * One loop for each instruction set; that of the kernels that are timed runs. */
#if defined(PHASOR_X86_KERNELS)
#define FOR_AVX512 __attribute__((target("avx512f,prefer-vector-width=512")))
#define FOR_AVX2   __attribute__((target("avx2,fma")))
#else
#define FOR_AVX512
#define FOR_AVX2
#endif

#define DEFINE_PEAK(name, attributes, chains)                                                      \
    attributes static float peak_##name(int64_t rounds)                                            \
    {                                                                                              \
        v16 sum[chains], factor, term, total = {0};                                                \
        for (int i = 0; i < 16; i++) {                                                             \
            factor[i] = 0.999f;                                                                    \
            term[i] = 0.001f;                                                                      \
        }                                                                                          \
        for (int c = 0; c < (chains); c++)                                                         \
            sum[c] = term * (float)c;                                                              \
        for (int64_t round = 0; round < rounds; round++) {                                         \
            _Pragma("GCC unroll 16") for (int c = 0; c < (chains); c++) sum[c] =                   \
                sum[c] * factor + term;                                                            \
        }                                                                                          \
        for (int c = 0; c < (chains); c++)                                                         \
            total += sum[c];                                                                       \
        return total[0] + total[15];                                                               \
    }
DEFINE_PEAK(avx512, FOR_AVX512, 16) /* 16 registers of 32 */
DEFINE_PEAK(avx2, FOR_AVX2, 6)      /* 12 of 16 */
DEFINE_PEAK(plain, , 3)             /* 12 of 16 */

struct peak {
    float (*loop)(int64_t rounds);
    float sink[1024];
};

static void peak_work(void *context, int worker)
{
    struct peak *peak = context;
    peak->sink[worker] = peak->loop(PEAK_ROUNDS);
}

static double measure_gflops(struct thread_team *team, const char *kernels)
{
    static struct peak peak;
    int chains = 3;
    peak.loop = peak_plain;
    if (strstr(kernels, "avx512") != NULL) {
        peak.loop = peak_avx512;
        chains = 16;
    } else if (strstr(kernels, "avx2") != NULL) {
        peak.loop = peak_avx2;
        chains = 6;
    }
    double best = INFINITY;
    for (int i = 0; i < 5; i++) {
        double start = system_seconds();
        thread_team_run(team, peak_work, &peak);
        best = fmin(best, system_seconds() - start);
    }
    return 2.0 * 16 * chains * PEAK_ROUNDS * thread_team_size(team) / best * 1e-9;
}

struct stream_sum {
    const v16 *lines;
    int64_t line_count;
    int worker_count;
    float sink[1024];
};

/* As the kernels read weights: STREAMS runs of lines at a time, each asked for some lines ahead. */
static void stream_work(void *context, int worker)
{
    struct stream_sum *sum = context;
    int64_t length = sum->line_count / sum->worker_count / STREAMS;
    const v16 *at = sum->lines + length * STREAMS * worker;
    v16 total[STREAMS] = {{0}};
    for (int64_t line = 0; line < length; line++) {
        for (int i = 0; i < STREAMS; i++) {
            __builtin_prefetch(at + i * length + line + STREAM_AHEAD);
            total[i] += at[i * length + line];
        }
    }
    for (int i = 1; i < STREAMS; i++)
        total[0] += total[i];
    sum->sink[worker] = total[0][0] + total[0][7];
}

static double measure_gbytes(struct thread_team *team)
{
    static struct stream_sum sum;
    /* As device memory: huge pages where the system has them. */
    float *values =
        mmap(NULL, BANDWIDTH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT(values != MAP_FAILED);
    (void)madvise(values, BANDWIDTH_BYTES, MADV_HUGEPAGE);
    for (int64_t i = 0; i < BANDWIDTH_BYTES / 4; i++)
        values[i] = 1;
    sum.lines = (const v16 *)values;
    sum.line_count = BANDWIDTH_BYTES / (int64_t)sizeof(v16);
    sum.worker_count = thread_team_size(team);
    double best = INFINITY;
    for (int i = 0; i < BANDWIDTH_ROUNDS; i++) {
        double start = system_seconds();
        thread_team_run(team, stream_work, &sum);
        best = fmin(best, system_seconds() - start);
    }
    munmap(values, BANDWIDTH_BYTES);
    return (double)BANDWIDTH_BYTES / best * 1e-9;
}

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

static void time_case(struct device *device, enum kernel_op op, const struct kernel_case *c,
                      const struct limits *limits)
{
    static double seconds[SAMPLES_MAX];
    char name[160];
    int count = 0;
    struct workload workload;
    case_describe(name, sizeof name, op, c);
    workload_create(&workload, op, c);
    workload_launch(&workload, device); /* warm: pages are there, caches are as in a loop */
    int batch = launches_of_batch(device, &workload);
    for (double begin = system_seconds();
         count < SAMPLES_MAX && (count < 5 || system_seconds() - begin < SECONDS_PER_CASE);
         count++) {
        if (op == OP_ROUTE)
            workload_reset(&workload);
        seconds[count] = time_launches(device, &workload, batch);
    }
    qsort(seconds, (size_t)count, sizeof *seconds, compare_seconds);
    double median = seconds[count / 2];
    double spread = (seconds[count * 3 / 4] - seconds[count / 4]) / median;
    double gflops = workload.flops / median * 1e-9, gbytes = workload.bytes / median * 1e-9;
    printf("%-84s %10.1f us %5.1f %% %8.2f GFLOP/s %5.1f %% %7.2f GB/s %5.1f %%\n", name,
           median * 1e6, spread * 100, gflops, 100 * gflops / limits->gflops, gbytes,
           100 * gbytes / limits->gbytes);
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

static void print_header(int argc, char **argv, const struct device *device, int threads,
                         const struct limits *limits)
{
    bench_print_head(argc, argv);
    printf("# device: %s, %d threads; clock: CLOCK_MONOTONIC\n", device->ops->name, threads);
    printf("# limits: %.1f GFLOP/s (f32 multiply-add in registers), %.1f GB/s (sum over 512 MiB)\n",
           limits->gflops, limits->gbytes);
    printf("# median of one launch, interquartile range, then rates and their share of the limits;"
           "\n# more than 100 %% of the bandwidth: the data stayed in the caches from launch to "
           "launch\n");
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    const char *filter = argc > 2 ? argv[2] : "";
    const char *set = argc > 3 ? argv[3] : NULL;
    if (threads <= 0)
        threads = thread_team_cpu_count();
    if (threads > 1024 || cpu_kernels_choose(set) == NULL) {
        fprintf(stderr,
                "usage: bench_kernels [threads, 0: all] [operation or \"\"] "
                "[plain | avx2 | avx512 | avx512vnni | avx512bf16, where the machine has it]\n");
        return 2;
    }
    struct device *device;
    struct thread_team *team;
    struct error err;
    int first_cpu = threads == thread_team_cpu_count() ? 0 : -1; /* as a run pins its threads */
    struct cpu_share share = {.thread_count = threads, .first_cpu = first_cpu};
    if (device_cpu_create_with(&device, &share, cpu_kernels_choose(set), &err) != STATUS_OK ||
        thread_team_create(&team, threads, first_cpu, &err) != STATUS_OK) {
        fprintf(stderr, "bench_kernels: %s\n", err.message);
        return 1;
    }
    struct limits limits = {measure_gflops(team, device->ops->name), measure_gbytes(team)};
    thread_team_destroy(team);
    print_header(argc, argv, device, threads, &limits);
    if (filter[0] == 0)
        time_stream(device);
    for (int op = 0; op < OP_COUNT; op++) {
        for (size_t i = 0; i < case_lists[op]->count; i++) {
            const struct kernel_case *c = &case_lists[op]->cases[i];
            if (c->use == FOR_BENCH && strstr(case_lists[op]->name, filter) != NULL)
                time_case(device, (enum kernel_op)op, c, &limits);
        }
    }
    device_destroy(device);
    return 0;
}

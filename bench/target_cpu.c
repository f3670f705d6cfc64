/* The CPU: cores of this machine, and the kernels of one instruction set. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/system.h"
#include "device/thread_team.h"
#include "kernels/cpu/kernels.h"
#include "target.h"

#define BANDWIDTH_BYTES  (512ll << 20)
#define PEAK_ROUNDS      2000000
#define BANDWIDTH_ROUNDS 9
#define STREAMS          4
#define STREAM_AHEAD     32 /* lines */

/* One register each, as in kernels/cpu/simd.h. */
typedef float v16 __attribute__((vector_size(64)));
typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));

/* Independent chains hide the latency of a multiply-add: 4 cycles on two ports want 8 registers.
 * One loop for each instruction set; that of the kernels that are timed runs. */
#if defined(PHASOR_X86_KERNELS)
#define FOR_AVX512 __attribute__((target("avx512f,prefer-vector-width=512")))
#define FOR_AVX2   __attribute__((target("avx2,fma")))
#else
#define FOR_AVX512
#define FOR_AVX2
#endif

#define DEFINE_PEAK(name, attributes, v, chains)                                                   \
    attributes static float peak_##name(int64_t rounds)                                            \
    {                                                                                              \
        v sum[chains], factor = (v){0} + 0.999f, term = (v){0} + 0.001f, total = {0};              \
        for (int c = 0; c < (chains); c++)                                                         \
            sum[c] = term * (float)c;                                                              \
        for (int64_t round = 0; round < rounds; round++) {                                         \
            _Pragma("GCC unroll 16") for (int c = 0; c < (chains); c++) sum[c] =                   \
                sum[c] * factor + term;                                                            \
        }                                                                                          \
        for (int c = 0; c < (chains); c++)                                                         \
            total += sum[c];                                                                       \
        return total[0] + total[3];                                                                \
    }
DEFINE_PEAK(avx512, FOR_AVX512, v16, 16) /* of 32 registers */
DEFINE_PEAK(avx2, FOR_AVX2, v8, 12)      /* of 16 */
DEFINE_PEAK(plain, , v4, 12)             /* of 16 */

#if defined(PHASOR_BF16_KERNELS)
/* bf16 pairs: what the kernels' rate on them is limited by, where the processor has them. */
__attribute__((target("avx512f,avx512bf16,prefer-vector-width=512"))) static float
peak_pairs(int64_t rounds)
{
    v16 sum[16] = {{0}}, ones;
    const uint32_t pair =
        0x3A803A80;              /* 2^-10 twice: products far from the smallest numbers, which */
    for (int i = 0; i < 16; i++) /* some processors are slow at */
        memcpy((char *)&ones + 4 * i, &pair, sizeof pair);
    for (int64_t round = 0; round < rounds; round++) {
        _Pragma("GCC unroll 16") for (int c = 0; c < 16; c++) __asm__("vdpbf16ps %1, %1, %0" :
                                                                      "+v"(sum[c]) : "v"(ones));
    }
    /* Unrolled, too, or the sums would be in memory. */
    _Pragma("GCC unroll 16") for (int c = 1; c < 16; c++) sum[0] += sum[c];
    return sum[0][0];
}
#endif

struct peak {
    float (*loop)(int64_t rounds);
    float sink[1024];
};

static void peak_work(void *context, int worker)
{
    struct peak *peak = context;
    peak->sink[worker] = peak->loop(PEAK_ROUNDS);
}

/* 1e9 flops a second of all workers. */
static double peak_of(struct thread_team *team, struct peak *peak, double flops_of_round)
{
    double best = INFINITY;
    for (int i = 0; i < 5; i++) {
        double start = system_seconds();
        thread_team_run(team, peak_work, peak);
        best = fmin(best, system_seconds() - start);
    }
    return flops_of_round * PEAK_ROUNDS * thread_team_size(team) / best * 1e-9;
}

static double measure_gflops(struct thread_team *team, const char *kernels)
{
    static struct peak peak;
    int floats = 12 * 4;
    peak.loop = peak_plain;
    if (strstr(kernels, "avx512") != NULL || strstr(kernels, "amx") != NULL) {
        peak.loop = peak_avx512;
        floats = 16 * 16;
    } else if (strstr(kernels, "avx2") != NULL) {
        peak.loop = peak_avx2;
        floats = 12 * 8;
    }
    return peak_of(team, &peak, 2.0 * floats);
}

/* NaN where the processor or the build has them not. */
static double measure_pairs(struct thread_team *team)
{
#if defined(PHASOR_BF16_KERNELS)
    static struct peak peak = {.loop = peak_pairs};
    if (cpu_kernels_choose("avx512bf16") != NULL)
        return peak_of(team, &peak, 4.0 * 16 * 16);
#endif
    (void)team;
    return NAN;
}

struct line {
    v4 values[4];
};

struct stream_sum {
    const struct line *lines;
    int64_t line_count;
    int worker_count;
    float sink[1024];
};

/* As the kernels read weights: STREAMS runs of lines at a time, each asked for some lines ahead. */
static void stream_work(void *context, int worker)
{
    struct stream_sum *sum = context;
    int64_t length = sum->line_count / sum->worker_count / STREAMS;
    const struct line *at = sum->lines + length * STREAMS * worker;
    v4 total[STREAMS] = {{0}};
    for (int64_t line = 0; line < length; line++) {
        for (int i = 0; i < STREAMS; i++) {
            __builtin_prefetch(at + i * length + line + STREAM_AHEAD);
            const v4 *values = at[i * length + line].values;
            total[i] += (values[0] + values[1]) + (values[2] + values[3]);
        }
    }
    for (int i = 1; i < STREAMS; i++)
        total[0] += total[i];
    sum->sink[worker] = total[0][0] + total[0][3];
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
    sum.lines = (const struct line *)values;
    sum.line_count = BANDWIDTH_BYTES / (int64_t)sizeof(struct line);
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

int target_open(struct target *out, int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    const char *set = argc > 3 ? argv[3] : NULL;
    if (threads <= 0)
        threads = thread_team_cpu_count();
    if (threads > 1024 || cpu_kernels_choose(set) == NULL) {
        fprintf(
            stderr,
            "usage: bench_kernels [threads, 0: all] [operation or \"\"] "
            "[plain | avx2 | avx512 | avx512vnni | avx512bf16 | amx, where the machine has it]\n");
        return 2;
    }
    struct thread_team *team;
    struct error err;
    int first_cpu = threads == thread_team_cpu_count() ? 0 : -1; /* as a run pins its threads */
    struct cpu_share share = {.thread_count = threads, .first_cpu = first_cpu};
    if (device_cpu_create_with(&out->device, &share, cpu_kernels_choose(set), &err) != STATUS_OK ||
        thread_team_create(&team, threads, first_cpu, &err) != STATUS_OK) {
        fprintf(stderr, "bench_kernels: %s\n", err.message);
        return 1;
    }
    out->use = FOR_BENCH;
    out->case_seconds = 0.5;
    out->gflops = measure_gflops(team, out->device->ops->name);
    out->gflops_how = "f32 multiply-add in registers";
    out->gbytes = measure_gbytes(team);
    out->gbytes_how = "sum over 512 MiB";
    double pairs = measure_pairs(team);
    int length = snprintf(out->description, sizeof out->description, "%s, %d threads",
                          out->device->ops->name, threads);
    if (!isnan(pairs))
        snprintf(out->description + length, sizeof out->description - (size_t)length,
                 ", bf16 pairs in registers %.1f GFLOP/s", pairs);
    thread_team_destroy(team);
    return 0;
}

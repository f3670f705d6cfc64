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

#define READING_BYTES (512ll << 20)
#define SLICE_BYTES   (64ll << 20) /* more than the caches hold that threads have to themselves */
#define PEAK_ROUNDS   2000000

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

/* One slice of the memory is read at a time, the next one the next time, so that none of it is in a
 * cache; what was in there goes. */
struct reading {
    struct line *lines;
    int64_t slice; /* that is read */
    int worker_count;
    float sink[1024];
};

/* Each thread its part, in two places at a time, line by line: the processor asks for what comes.
 */
static void read_work(void *context, int worker)
{
    struct reading *reading = context;
    const int64_t slice_lines = SLICE_BYTES / (int64_t)sizeof(struct line);
    const int64_t count = slice_lines / reading->worker_count / 2;
    const struct line *line = reading->lines + reading->slice * slice_lines + 2 * count * worker;
    v4 total[8] = {{0}};
    for (int64_t i = 0; i < count; i++) {
        for (int v = 0; v < 4; v++) {
            total[v] += line[i].values[v];
            total[4 + v] += line[count + i].values[v];
        }
    }
    for (int v = 1; v < 8; v++)
        total[0] += total[v];
    reading->sink[worker] = total[0][0] + total[0][3];
}

static void no_work(void *context, int worker)
{
    (void)context;
    (void)worker;
}

static struct thread_team *read_team;
static struct reading reading;

static void reading_open(struct thread_team *team)
{
    /* As device memory: huge pages where the system has them. */
    void *memory =
        mmap(NULL, READING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT(memory != MAP_FAILED);
    (void)madvise(memory, READING_BYTES, MADV_HUGEPAGE);
    for (int64_t i = 0; i < READING_BYTES / 4; i++)
        ((float *)memory)[i] = 1;
    reading.lines = memory;
    reading.worker_count = thread_team_size(team);
    read_team = team;
}

double target_read_gbytes(const struct target *target)
{
    (void)target;
    reading.slice = (reading.slice + 1) % (READING_BYTES / SLICE_BYTES);
    thread_team_run(read_team, no_work, NULL); /* wakes the threads */
    double start = system_seconds();
    thread_team_run(read_team, read_work, &reading);
    return (double)SLICE_BYTES / (system_seconds() - start) * 1e-9;
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
    if (first_cpu == 0)
        thread_pin(pthread_self(), 0); /* the other threads have the other CPUs */
    out->use = FOR_BENCH;
    out->copy_bytes = 256 << 20;
    out->case_seconds = 0.5;
    out->gflops = measure_gflops(team, out->device->ops->name);
    out->gflops_how = "f32 multiply-add in registers";
    reading_open(team);
    out->gbytes_how = "reading 64 MiB, as beside each window";
    double pairs = measure_pairs(team);
    int length = snprintf(out->description, sizeof out->description, "%s, %d threads",
                          out->device->ops->name, threads);
    if (!isnan(pairs))
        snprintf(out->description + length, sizeof out->description - (size_t)length,
                 ", bf16 pairs in registers %.1f GFLOP/s", pairs);
    return 0;
}

void target_close(struct target *target)
{
    munmap(reading.lines, READING_BYTES);
    thread_team_destroy(read_team);
    device_destroy(target->device);
}

/* What bench_kernels times: the CPU (target_cpu.c) or, as bench_gpu, a GPU (target_gpu.c). */
#ifndef PHASOR_BENCH_TARGET_H
#define PHASOR_BENCH_TARGET_H

#include "cases.h"
#include "device/device.h"

/* A device, and what it can do, measured in this run. */
struct target {
    struct device *device; /* target_close destroys it */
    enum case_use use;     /* which cases */
    double case_seconds;   /* that the windows of a case may take together */
    double copy_bytes;     /* that the copies of an operation's data fill; 0: there is one */
    char description[240];
    double gflops; /* 1e9 flops a second */
    const char *gflops_how;
    const char *gbytes_how; /* what target_read_gbytes measures */
};

/* As the command line says. Returns 0, or an exit code after having said why on standard error. */
int target_open(struct target *out, int argc, char **argv);
void target_close(struct target *target);

/* 1e9 bytes a second that its memory gives now. What is in a CPU's caches is not in there behind
 * it. That of a GPU, which does not change, is measured once, by target_open. */
double target_read_gbytes(const struct target *target);

#endif

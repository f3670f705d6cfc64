/* What bench_kernels times: the CPU (target_cpu.c) or, as bench_gpu, a GPU (target_gpu.c). */
#ifndef PHASOR_BENCH_TARGET_H
#define PHASOR_BENCH_TARGET_H

#include "cases.h"
#include "device/device.h"

/* A device, and what it can do, measured in this run. */
struct target {
    struct device *device; /* the caller's, to destroy */
    enum case_use use;     /* which cases */
    double case_seconds;   /* that the windows of a case may take together */
    char description[240];
    double gflops; /* 1e9 flops a second */
    const char *gflops_how;
    double gbytes; /* 1e9 bytes a second */
    const char *gbytes_how;
};

/* As the command line says. Returns 0, or an exit code after having said why on standard error. */
int target_open(struct target *out, int argc, char **argv);

#endif

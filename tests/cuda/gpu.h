/* The GPUs of tests that hold for any: emulated ones (gpu_emulated.c), or the machine's own
 * (tests/gpu/gpu_real.c). Of the emulated, the kind and the order of work can be set, and all is
 * counted; of the others what can be neither set nor counted is passed over. */
#ifndef PHASOR_TESTS_CUDA_GPU_H
#define PHASOR_TESTS_CUDA_GPU_H

#include <stdbool.h>
#include <stdint.h>

/* In which order the threads of a block, and the blocks of a grid, come to run. */
enum gpu_order { GPU_FORWARD, GPU_REVERSE, GPU_RANDOM };

/* From here on there are so many GPUs, or as many of these as the machine has; returns how many.
 * Ends the test where there is none. */
int gpu_count_use(int wanted);

/* From here on a GPU that is opened is of this kind: 70, 75, 80, 86 or 90, as 10 x major + minor.
 * Returns what it is; 0: it is nearer to another of them, and a test of this one has nothing to do
 * (a real one of 80 is what it is by tests of 86). */
int gpu_capability_use(int capability);

/* The order of a kernel's threads, and by which seed streams come to run. */
void gpu_order_use(enum gpu_order order, uint64_t stream_seed);

/* By the GPUs' clock. From the first on that of emulated ones stands but while a kernel waits for
 * it, so that how busy the host is makes no difference; false: that of real ones goes on. */
bool gpu_clock_use(void);
double gpu_seconds(void);

/* Fails the test unless at least so many kernels have run since the start of the process. */
void gpu_check_kernels(uint64_t least);
void gpu_check_no_kernels(void);

/* Memory, streams and events that there are; GPU_PIECES_UNKNOWN where they cannot be counted. */
uint64_t gpu_pieces(void);
#define GPU_PIECES_UNKNOWN UINT64_MAX

/* Bytes that copies have taken from the host's memory or brought to it, where that was not pinned;
 * 0 where they cannot be counted. */
uint64_t gpu_pageable_bytes(void);

/* Graphs that were launched since the start of the process; GPU_PIECES_UNKNOWN likewise. */
uint64_t gpu_graphs(void);

/* How often a stream was waited for, likewise. */
uint64_t gpu_waits(void);

/* Fails it where memory, streams or events are left. */
void gpu_check_nothing_left(void);

#endif

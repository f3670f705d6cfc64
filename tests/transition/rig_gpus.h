/* The devices of rigs, which the program has chosen: rig_no_gpus.c or cuda_transition/rig_gpus.c.
 */
#ifndef PHASOR_TESTS_TRANSITION_RIG_GPUS_H
#define PHASOR_TESTS_TRANSITION_RIG_GPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The GPU of each rank, until the next call; NULL: ranks are shares of the CPU. */
const int *rig_gpus(int rank_count);

/* Of `count` cases of a test that runs whole passes: the first, and from each to the next. Emulated
 * GPUs take seconds for a pass, so that in the quick tier the printed seed chooses one in some;
 * real ones take all. */
size_t rig_case_first(size_t count);
size_t rig_case_step(void);

/* From each n to the next of a sweep whose n are thousands: reads of a checkpoint's rows, operations
 * of any device. On emulated GPUs it is the quick tier's in both: every n would take hours there, and
 * is the CPU's; what fails of a GPU's own calls is tried for every n (cuda_transition). */
uint64_t rig_sweep_step(uint64_t quick_step);

/* A test that repeats what is drawn at random makes one repeat of so many: of emulated GPUs a few,
 * in the full tier too, where each case takes its share of an hour. */
int64_t rig_repeat_step(void);

/* Whether GPUs have more pieces of memory, pinned ones of the host among them, than when it was
 * asked before; or so it may be, where they cannot be counted. */
bool rig_gpu_has_more(void);

/* Of the copies of GPUs: see tests/cuda/gpu.h. */
uint64_t rig_gpu_pageable_bytes(void);

#endif

/* How many cases transitions on GPUs take, and what these count: rig_gpus.h. */
#include "rig_gpus.h"

#include "gpu.h"
#include "sweep.h"

/* A pass on emulated GPUs takes seconds. Programs for real ones are built to take every case
 * (tests/CMakeLists.txt). */
#ifndef RIG_QUICK_STEP
#define RIG_QUICK_STEP 16
#endif

size_t rig_case_step(void)
{
    return (size_t)sweep_step(RIG_QUICK_STEP);
}

uint64_t rig_sweep_step(uint64_t quick_step)
{
    return quick_step;
}

int64_t rig_repeat_step(void)
{
    return RIG_QUICK_STEP;
}

size_t rig_case_first(size_t count)
{
    size_t step = rig_case_step();
    return (size_t)sweep_first(step < count ? step : count) - 1;
}

bool rig_gpu_has_more(void)
{
    static uint64_t before;
    uint64_t now = gpu_pieces();
    bool has_more = now > before || now == GPU_PIECES_UNKNOWN;
    before = now;
    return has_more;
}

uint64_t rig_gpu_pageable_bytes(void)
{
    return gpu_pageable_bytes();
}

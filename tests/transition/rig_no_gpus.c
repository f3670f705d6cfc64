#include "rig_gpus.h"

#include "sweep.h"

const int *rig_gpus(int rank_count)
{
    (void)rank_count;
    return NULL;
}

size_t rig_case_first(size_t count)
{
    (void)count;
    return 0;
}

size_t rig_case_step(void)
{
    return 1;
}

uint64_t rig_sweep_step(uint64_t quick_step)
{
    return sweep_step(quick_step);
}

int64_t rig_repeat_step(void)
{
    return 1;
}

bool rig_gpu_has_more(void)
{
    return false;
}

uint64_t rig_gpu_pageable_bytes(void)
{
    return 0;
}

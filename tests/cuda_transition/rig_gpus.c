/* The transitions of tests/transition on GPUs: now all ranks on one, now on two, now on one each,
 * and on emulated ones each time in another order of streams and of a kernel's threads. */
#include "rig_gpus.h"

#include "comm/comm.h"
#include "gpu.h"
#include "sweep.h"

const int *rig_gpus(int rank_count)
{
    static int gpus[COMM_RANKS_MAX];
    static uint64_t calls;
    static const enum gpu_order orders[] = {GPU_FORWARD, GPU_REVERSE, GPU_RANDOM};
    const int wanted[] = {1, 2, rank_count};
    uint64_t draw = calls++ + sweep_first(1000); /* a cold start draws twice, a rig once */
    int there = gpu_count_use(COMM_RANKS_MAX), used = wanted[(draw + draw / 3) % 3];
    used = used < there ? used : there;
    for (int r = 0; r < rank_count; r++)
        gpus[r] = r % used;
    gpu_order_use(orders[draw / 2 % 3], draw % 5);
    return gpus;
}

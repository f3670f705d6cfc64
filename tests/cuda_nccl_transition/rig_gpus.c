/* The transitions of tests/transition between GPUs that NCCL joins (its stub): each rank is on one
 * of its own, in another order of streams each time, and starts its groups of calls at random. */
#include "rig_gpus.h"

#include "comm/comm.h"
#include "gpu.h"
#include "nccl_stub_use.h"
#include "sweep.h"

const int *rig_gpus(int rank_count)
{
    static int gpus[COMM_RANKS_MAX];
    static uint64_t calls;
    uint64_t draw = calls++ + sweep_first(1000);
    gpu_count_use(rank_count);
    for (int r = 0; r < rank_count; r++)
        gpus[r] = r;
    stub()->jitter_set(draw % 4);
    gpu_order_use(GPU_FORWARD, draw % 5);
    return gpus;
}

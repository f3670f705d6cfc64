/* What is asked of a row of logits first: its largest, and whether all are numbers. A block has a
 * row. */
#ifndef PHASOR_KERNELS_CUDA_LOGITS_CUH
#define PHASOR_KERNELS_CUDA_LOGITS_CUH

#include "kernels/cuda/parts.cuh"

/* Whether `a` takes the place of `b`. */
__device__ inline bool is_before(struct chosen a, struct chosen b)
{
    if (a.at == CHOSEN_BROKEN || b.at == CHOSEN_BROKEN)
        return b.at != CHOSEN_BROKEN;
    if (a.at == CHOSEN_NONE || b.at == CHOSEN_NONE)
        return a.at != CHOSEN_NONE;
    return a.score > b.score || (a.score == b.score && a.at < b.at);
}

__device__ inline struct chosen chosen_of(float value, int64_t at)
{
    const struct chosen none = {-INFINITY, CHOSEN_NONE, -INFINITY};
    const struct chosen broken = {NAN, CHOSEN_BROKEN, NAN};
    const struct chosen here = {(double)value, (int32_t)at, value};
    return !(value < INFINITY) ? broken : value == -INFINITY ? none : here;
}

__device__ inline struct chosen warp_first(struct chosen best)
{
    for (int step = WARP / 2; step > 0; step /= 2) {
        struct chosen other;
        other.score = __shfl_xor_sync(ALL_LANES, best.score, step);
        other.at = __shfl_xor_sync(ALL_LANES, best.at, step);
        other.logit = __shfl_xor_sync(ALL_LANES, best.logit, step);
        if (is_before(other, best))
            best = other;
    }
    return best;
}

/* Of the block's threads, to all of them; `kept` has room for each warp, and is not in use. */
__device__ inline struct chosen block_first(struct chosen best, struct chosen *kept)
{
    best = warp_first(best);
    if (lane_id() == 0)
        kept[warp_id()] = best;
    __syncthreads();
    return warp_first(lane_id() < (int)(blockDim.x / WARP) ? kept[lane_id()]
                                                           : chosen_of(-INFINITY, 0));
}

/* To all threads. */
__device__ inline struct chosen row_largest(const float *in, int64_t dim, struct chosen *kept)
{
    struct chosen best = chosen_of(-INFINITY, 0);
    for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) {
        struct chosen here = chosen_of(in[i], i);
        if (is_before(here, best))
            best = here;
    }
    return block_first(best, kept);
}

#endif

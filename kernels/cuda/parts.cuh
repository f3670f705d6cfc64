/* What kernels of several families share: conversions, vector loads, sums over warps and blocks. */
#ifndef PHASOR_KERNELS_CUDA_PARTS_CUH
#define PHASOR_KERNELS_CUDA_PARTS_CUH

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cuda/kernel.cuh"

#define WARP      32
#define ALL_LANES 0xFFFFFFFFu

/* ops.h and packing.h are C: their inline functions are for the host. */
__device__ inline int64_t device_ceil_div(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit;
}

__device__ inline int64_t device_round_up(int64_t value, int64_t unit)
{
    return device_ceil_div(value, unit) * unit;
}

__device__ inline int lane_id()
{
    return (int)(threadIdx.x % WARP);
}

__device__ inline int warp_id()
{
    return (int)(threadIdx.x / WARP);
}

__device__ inline float bf16_widen(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

/* To nearest, ties to even; NaN stays NaN. One instruction from sm_80 on. */
__device__ inline uint16_t bf16_round(float value)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__device__ inline uint32_t bf16_pair(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word); /* as a whole: its halves would each take a register */
    return word;
}

/* The first and the second value of a pair of bf16. */
__device__ inline float pair_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

__device__ inline float pair_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xFFFF0000u);
}

/* To nearest, ties to even; NaN stays NaN. */
__device__ inline uint32_t half_pair(float low, float high)
{
    __half2 pair = __floats2half2_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

/* Value `index` of an array of f32 or bf16. */
template <bool BF16> __device__ inline float value_load(const void *from, int64_t index)
{
    return BF16 ? bf16_widen(((const uint16_t *)from)[index]) : ((const float *)from)[index];
}

template <bool BF16> __device__ inline void value_store(void *to, int64_t index, float value)
{
    if (BF16)
        ((uint16_t *)to)[index] = bf16_round(value);
    else
        ((float *)to)[index] = value;
}

/* Sums over all lanes, in an order of their own. */
template <class T> __device__ inline T warp_sum(T value)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

__device__ inline float warp_max(float value)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

/* One instruction from sm_80 on. */
__device__ inline uint32_t warp_largest(uint32_t value)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(ALL_LANES, value);
#else
    for (int step = WARP / 2; step > 0; step /= 2)
        value = max(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
#endif
}

__device__ inline uint32_t warp_least(uint32_t value)
{
    return ~warp_largest(~value);
}

/* The lanes that have the same value. */
__device__ inline unsigned warp_equals(int value)
{
#if defined(__CUDA_ARCH__)
    return __match_any_sync(ALL_LANES, value);
#else
    unsigned equals = 0;
    for (int lane = 0; lane < WARP; lane++)
        equals |= (unsigned)(__shfl_sync(ALL_LANES, value, lane) == value) << lane;
    return equals;
#endif
}

/* Over a block of whole warps; every thread gets it. `kept` is [WARP] of shared memory, that the
 * block has no other use for before its next barrier. */
template <class T> __device__ inline T block_sum(T value, T *kept)
{
    value = warp_sum(value);
    if (lane_id() == 0)
        kept[warp_id()] = value;
    __syncthreads();
    return warp_sum(lane_id() < (int)(blockDim.x / WARP) ? kept[lane_id()] : T(0));
}

/* Sum over lanes 0 .. this one. */
__device__ inline int warp_prefix(int value)
{
    for (int step = 1; step < WARP; step *= 2) {
        int before = __shfl_up_sync(ALL_LANES, value, step);
        if (lane_id() >= step)
            value += before;
    }
    return value;
}

/* Of the threads before this one, how many say yes; *all: how many of the block do. Every thread
 * of the block calls it. `kept` is [WARP] of shared memory. */
__device__ inline int block_rank(bool yes, int *all, int *kept)
{
    unsigned voters = __ballot_sync(ALL_LANES, yes);
    int before = __popc(voters & ((1u << lane_id()) - 1));
    __syncthreads(); /* all have read what the last call left */
    if (lane_id() == 0)
        kept[warp_id()] = __popc(voters);
    __syncthreads();
    int count = lane_id() < (int)(blockDim.x / WARP) ? kept[lane_id()] : 0;
    int sums = warp_prefix(count);
    *all = __shfl_sync(ALL_LANES, sums, WARP - 1);
    return before + __shfl_sync(ALL_LANES, sums - count, warp_id());
}

/* x / (1 + e^-x), with the accurate exponential. The division is one that does not branch, so that
 * several go on at once: a quotient by the reciprocal, and what it lacks. Beyond 2^126 a divisor
 * counts as that, which gives 0 within 2^-119, and an infinite x has no remainder. */
__device__ inline float silu(float x)
{
    float divisor = fminf(1.0f + expf(-x), 0x1p126f);
    float reciprocal = __fdividef(1.0f, divisor), quotient = x * reciprocal;
    float rest = fmaf(-quotient, divisor, x);
    return rest == rest ? fmaf(rest, reciprocal, quotient) : quotient;
}

/* Blocks for `count` pieces of work. */
static inline unsigned grid_for(int64_t count, int64_t per_block)
{
    return (unsigned)ceil_div(count, per_block);
}

#endif

#include "planted.h"

#include <simt.h>

/* ---- Right ----------------------------------------------------------------------------------- */

template <bool BARRIER> __global__ void reverse(int *out, const int *in, int count)
{
    KERNEL_SHARED(int, values);
    int first = blockIdx.x * blockDim.x, last = min(count - first, (int)blockDim.x) - 1;
    int i = threadIdx.x;
    if (i <= last)
        values[i] = in[first + i];
    if (BARRIER)
        __syncthreads();
    if (i <= last)
        out[first + i] = values[last - i];
}

void planted_reverse(int *out, const int *in, int count, bool barrier, cudaStream_t stream)
{
    dim3 grid((count + 63) / 64);
    if (barrier)
        KERNEL_LAUNCH((reverse<true>), grid, 64, 64 * sizeof(int), stream, out, in, count);
    else
        KERNEL_LAUNCH((reverse<false>), grid, 64, 64 * sizeof(int), stream, out, in, count);
}

/* A warp that runs ahead writes its next number while others have not read this one. */
template <bool BARRIER> __global__ void rounds(int *out)
{
    __shared__ int kept[4];
    int warp = threadIdx.x / 32;
    for (int round = 0; round < PLANTED_ROUNDS; round++) {
        if (threadIdx.x % 32 == 0)
            kept[warp] = 10 * round + warp;
        __syncthreads();
        atomicAdd(&out[round], kept[0] + kept[1] + kept[2] + kept[3]);
        for (int i = 0; i < 16; i++)
            __syncwarp();
        if (BARRIER)
            __syncthreads();
    }
}

void planted_rounds(int *out, bool barrier, cudaStream_t stream)
{
    if (barrier)
        KERNEL_LAUNCH((rounds<true>), 1, 128, 0, stream, out);
    else
        KERNEL_LAUNCH((rounds<false>), 1, 128, 0, stream, out);
}

__device__ float warp_sum(float value)
{
    for (int lanes = 16; lanes > 0; lanes /= 2)
        value += __shfl_xor_sync(0xFFFFFFFFu, value, lanes);
    return value;
}

__global__ void __launch_bounds__(1024) sum(float *out, const float *in, int count)
{
    __shared__ float of_warps[32];
    int i = threadIdx.x;
    float value = warp_sum(i < count ? in[i] : 0);
    if (i % 32 == 0)
        of_warps[i / 32] = value;
    __syncthreads();
    value = warp_sum(i % 32 < (int)blockDim.x / 32 ? of_warps[i % 32] : 0);
    if (i == 0)
        *out = value;
}

void planted_sum(float *out, const float *in, int count, cudaStream_t stream)
{
    KERNEL_LAUNCH((sum), 1, (count + 31) / 32 * 32, 0, stream, out, in, count);
}

__global__ void indices(int *out)
{
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int right = threadIdx.x < 4 && threadIdx.y < 3 && threadIdx.z < 2 && blockDim.x == 4 &&
                blockDim.y == 3 && blockDim.z == 2;
    KERNEL_SHARED(int, seen);
    seen[thread] = right;
    if (__syncthreads_and(right) && thread == 0) {
        int total = 0;
        for (int i = 0; i < 24; i++)
            total += seen[i];
        out[block] = 1000 * block + total;
    }
}

void planted_indices(int *out, cudaStream_t stream)
{
    KERNEL_LAUNCH((indices), dim3(2, 3, 4), dim3(4, 3, 2), 24 * sizeof(int), stream, out);
}

__global__ void votes(int *out)
{
    const unsigned all = 0xFFFFFFFFu;
    int i = threadIdx.x;
    out[VOTE_SHUFFLE * 64 + i] = __shfl_sync(all, i, 5, 8);
    out[VOTE_UP * 64 + i] = __shfl_up_sync(all, i, 3, 16);
    out[VOTE_DOWN * 64 + i] = __shfl_down_sync(all, i, 3, 16);
    out[VOTE_XOR * 64 + i] = (int)__shfl_xor_sync(all, (double)i, 9);
    __syncwarp();
    out[VOTE_BALLOT * 64 + i] = (int)__ballot_sync(all, i % 3 == 0);
    out[VOTE_ANY * 64 + i] = __any_sync(all, i == 40);
    out[VOTE_ALL * 64 + i] = __all_sync(all, i < 40);
    out[VOTE_BLOCK_COUNT * 64 + i] = __syncthreads_count(i % 3 == 0);
    out[VOTE_BLOCK_OR * 64 + i] = __syncthreads_or(i == 40);
    out[VOTE_BLOCK_AND * 64 + i] = __syncthreads_and(i < 40);
}

void planted_votes(int *out, cudaStream_t stream)
{
    KERNEL_LAUNCH((votes), 1, 64, 0, stream, out);
}

__global__ void atomics(int *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&out[0], i);
    atomicMax(&out[1], i);
    atomicMin(&out[2], -i);
    atomicExch(&out[3], 7);
    atomicCAS(&out[4], 0, 5);
    atomicOr(&out[5], 1 << i % 32);
    atomicAnd(&out[6], ~(1 << i % 16));
}

void planted_atomics(int *out, cudaStream_t stream)
{
    KERNEL_LAUNCH((atomics), 8, 32, 0, stream, out);
}

__global__ void add(int *out, const int *in, int count, int more)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        out[i] = in[i] + more;
}

void planted_add(int *out, const int *in, int count, int more, cudaStream_t stream)
{
    KERNEL_LAUNCH((add), (count + 63) / 64, 64, 0, stream, out, in, count, more);
}

__global__ void big(int *out, int count)
{
    KERNEL_SHARED(int, values);
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        values[i] = i;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        out[i] = values[count - 1 - i];
}

void planted_big(int *out, int threads, int shared_bytes, bool allow, cudaStream_t stream)
{
    if (allow && cudaFuncSetAttribute(big, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      shared_bytes) != cudaSuccess)
        return;
    KERNEL_LAUNCH((big), 1, threads, shared_bytes, stream, out, shared_bytes / (int)sizeof(int));
}

/* ---- Wrong ----------------------------------------------------------------------------------- */

__global__ void barrier_left_out(int *out)
{
    if (threadIdx.x >= 32)
        return;
    __syncthreads(); /* wrong */
    out[threadIdx.x] = 1;
}

__global__ void barrier_elsewhere(int *out)
{
    if (threadIdx.x >= 32)
        __syncthreads(); /* right */
    else
        __syncthreads(); /* wrong */
    out[threadIdx.x] = 1;
}

__global__ void warp_at_barrier(int *out)
{
    if (threadIdx.x % 2 == 0)
        __syncwarp();
    __syncthreads(); /* wrong */
    out[threadIdx.x] = 1;
}

__global__ void mask_without_self(int *out)
{
    out[threadIdx.x] = __shfl_sync(0xFFFFu, 1, 0); /* wrong */
}

__global__ void mask_of_returned(int *out)
{
    if (threadIdx.x % 32 >= 16)
        return;
    out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, 1, 1); /* wrong */
}

__global__ void mask_of_nobody(int *out)
{
    out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, 1, 1); /* wrong */
}

__global__ void masks_differ(int *out)
{
    unsigned mask = threadIdx.x % 32 < 16 ? 0xFFFFFFFFu : 0xFFFF0001u;
    out[threadIdx.x] = __shfl_xor_sync(mask, 1, 1); /* wrong */
}

__global__ void shuffle_from_outside(int *out)
{
    if (threadIdx.x % 32 < 16)
        out[threadIdx.x] = __shfl_down_sync(0xFFFFu, 1, 8); /* wrong */
}

__global__ void operations_differ(int *out)
{
    if (threadIdx.x % 2 == 0)
        out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, 1, 2); /* wrong */
    else
        out[threadIdx.x] = __any_sync(0xFFFFFFFFu, 1); /* wrong */
}

__global__ void wait_for_nobody(int *out)
{
    KERNEL_SHARED(uint8_t, values);
    if (threadIdx.x == 0)
        values[0] = values[1] = 0;
    __syncthreads();
    if (threadIdx.x >= 32)
        values[1] = 1;
    else
        simt_wait_while(&values[threadIdx.x % 2], 0); /* wrong */
    out[threadIdx.x] = 1;
}

__global__ void out_of_bounds(int *out)
{
    out[threadIdx.x + 1] = 1; /* wrong */
}

__global__ void shared_out_of_bounds(int *out)
{
    KERNEL_SHARED(int, values);
    values[threadIdx.x + 1] = 1; /* wrong */
    out[threadIdx.x] = values[threadIdx.x];
}

void planted_bug(enum planted_bug bug, int *out, cudaStream_t stream)
{
    static void (*const kernels[BUG_COUNT])(int *) = {
        barrier_left_out,  barrier_elsewhere, warp_at_barrier, mask_without_self,
        mask_of_returned,  mask_of_nobody,    masks_differ,    shuffle_from_outside,
        operations_differ, wait_for_nobody,   out_of_bounds,   shared_out_of_bounds};
    int threads = bug == BUG_MASK_OF_NOBODY ? 24 : 64;
    KERNEL_LAUNCH((kernels[bug]), 1, threads, 64 * sizeof(int), stream, out);
}

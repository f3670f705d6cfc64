/* Time on a stream: what lets ranks on one GPU meet links that are as slow as those between GPUs
 * would be (src/comm/virtual.c). One thread; it sleeps, so that it takes no place from others. */
#include "kernels/cuda/kernel.cuh"

#if defined(SIMT_HOST)
#include <time.h>
#endif

#define NAP_NANOSECONDS 500u

/* Of a clock that the whole GPU shares. */
__device__ static uint64_t nanoseconds(void)
{
#if defined(SIMT_HOST)
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#else
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#endif
}

__device__ static void nap(void)
{
#if !defined(SIMT_HOST)
    __nanosleep(NAP_NANOSECONDS);
#endif
}

__global__ void pace_begin_kernel(uint64_t *began)
{
    *began = nanoseconds();
}

/* A clock that was set back would let it wait longer than it should, but no longer than that. */
__global__ void pace_end_kernel(const uint64_t *began, uint64_t duration)
{
    uint64_t come = nanoseconds(), since = come > *began ? come - *began : 0;
    uint64_t left = since < duration ? duration - since : 0;
    while (nanoseconds() - come < left)
        nap();
}

cudaError_t cuda_pace_begin(const struct cuda_launch *launch, uint64_t *began)
{
    KERNEL_LAUNCH((pace_begin_kernel), 1, 1, 0, launch->stream, began);
    return cudaGetLastError();
}

cudaError_t cuda_pace_end(const struct cuda_launch *launch, const uint64_t *began,
                          uint64_t nanoseconds)
{
    KERNEL_LAUNCH((pace_end_kernel), 1, 1, 0, launch->stream, began, nanoseconds);
    return cudaGetLastError();
}

/* Time on a stream: what lets ranks on one GPU meet links that are as slow as those between GPUs
 * would be (src/comm/virtual.c). One thread; it sleeps, so that it takes no place from others. */
#include "kernels/cuda/kernel.cuh"

#define NAP_NANOSECONDS 500u

/* Of a clock that the whole GPU shares. */
__device__ static uint64_t nanoseconds(void)
{
#if defined(SIMT_HOST)
    return simt::nanoseconds();
#else
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#endif
}

/* Several streams may take the link at once: each behind those that were before it. */
__global__ void pace_begin_kernel(uint64_t *until, unsigned long long *link, uint64_t duration)
{
    unsigned long long now = nanoseconds(), seen = *link, last, next;
    do {
        last = seen;
        next = (last > now ? last : now) + duration;
        seen = atomicCAS(link, last, next);
    } while (seen != last);
    *until = next;
}

__global__ void pace_end_kernel(const uint64_t *until, uint64_t delay)
{
    while (nanoseconds() < *until + delay)
        __nanosleep(NAP_NANOSECONDS);
}

cudaError_t cuda_pace_begin(const struct cuda_launch *launch, uint64_t *until, uint64_t *link,
                            uint64_t nanoseconds)
{
    KERNEL_LAUNCH((pace_begin_kernel), 1, 1, 0, launch->stream, until,
                  reinterpret_cast<unsigned long long *>(link), nanoseconds);
    return cudaGetLastError();
}

cudaError_t cuda_pace_end(const struct cuda_launch *launch, const uint64_t *until,
                          uint64_t nanoseconds)
{
    KERNEL_LAUNCH((pace_end_kernel), 1, 1, 0, launch->stream, until, nanoseconds);
    return cudaGetLastError();
}

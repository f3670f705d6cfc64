/* Time on a stream: what lets ranks on one GPU meet links that are as slow as those between GPUs
 * would be (src/comm/virtual.c). One thread; it sleeps, so that it takes no place from others. */
#include "kernels/cuda/kernel.cuh"

#define NAP_NANOSECONDS 500u

/* More than collectives that run at once take of a link ahead. A link that is taken for longer than
 * that is so by a clock that was set back since, and free: else all would wait until it has come
 * there again. */
#define BACKLOG_NANOSECONDS 10000000000u

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
__global__ void pace_begin_kernel(cuda_pace *out, unsigned long long *link, uint64_t duration)
{
    unsigned long long now = nanoseconds(), seen = *link, last, next;
    do {
        last = seen;
        bool is_taken = last > now && last - now <= BACKLOG_NANOSECONDS;
        next = (is_taken ? last : now) + duration;
        seen = atomicCAS(link, last, next);
    } while (seen != last);
    *out = {next, next - now};
}

/* A clock that was set back lets it wait for as long as it would have at the beginning, no longer.
 */
__global__ void pace_end_kernel(const cuda_pace *pace, uint64_t delay)
{
    uint64_t come = nanoseconds(), now = come;
    for (; now < pace->until + delay && now - come < pace->left + delay; now = nanoseconds())
        __nanosleep(NAP_NANOSECONDS);
}

cudaError_t cuda_pace_begin(const struct cuda_launch *launch, struct cuda_pace *out, uint64_t *link,
                            uint64_t nanoseconds)
{
    KERNEL_LAUNCH((pace_begin_kernel), 1, 1, 0, launch->stream, out,
                  reinterpret_cast<unsigned long long *>(link), nanoseconds);
    return cudaGetLastError();
}

cudaError_t cuda_pace_end(const struct cuda_launch *launch, const struct cuda_pace *pace,
                          uint64_t nanoseconds)
{
    KERNEL_LAUNCH((pace_end_kernel), 1, 1, 0, launch->stream, pace, nanoseconds);
    return cudaGetLastError();
}

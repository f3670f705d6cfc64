/* Copies into shared memory that run beside the threads, the barriers in shared memory by which
 * some warps of a block hand it to others, and clusters of blocks that share them; on sm_90
 * (compiled for sm_90a). For the host their meaning: a copy is there at once, and a block is its
 * cluster. */
#ifndef PHASOR_KERNELS_CUDA_ASYNC_CUH
#define PHASOR_KERNELS_CUDA_ASYNC_CUH

#include "kernels/cuda/parts.cuh"

#if !defined(SIMT_HOST) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ASYNC_PTX 1
#else
#define ASYNC_PTX 0
#endif

/* Blocks of a cluster. KERNEL_CLUSTER stands behind __launch_bounds__. */
#if defined(SIMT_HOST)
#define CLUSTER 1
#define KERNEL_CLUSTER
#else
#define CLUSTER        2
#define KERNEL_CLUSTER __cluster_dims__(CLUSTER, 1, 1)
#endif

/* The block's dynamic shared memory, where it is aligned to more than KERNEL_SHARED's. */
#if defined(SIMT_HOST)
#define KERNEL_SHARED_ALIGNED(type, name, align)                                                   \
    type *name = (type *)(((uintptr_t)::simt::dynamic_shared + (align)-1) & -(uintptr_t)(align))
#define SHARED_SLACK(align) (align)
#else
#define KERNEL_SHARED_ALIGNED(type, name, align)                                                   \
    extern __shared__ __align__(align)                                                             \
    unsigned char kernel_shared_aligned[];                                                         \
    type *name = reinterpret_cast<type *>(kernel_shared_aligned)
#define SHARED_SLACK(align) 0
#endif

#if !defined(SIMT_HOST)
__device__ inline uint32_t shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}
#endif

/* A barrier of phases: one ends when `arrivals` have arrived and all bytes that were announced are
 * there. */
struct phase_barrier {
#if defined(SIMT_HOST)
    int8_t arrivals, missing;
    uint8_t parity; /* of the phase that has not ended */
    int32_t bytes;
#else
    uint64_t state;
#endif
};

#if defined(SIMT_HOST)
static inline void phase_end(struct phase_barrier *barrier)
{
    if (barrier->missing > 0 || barrier->bytes > 0)
        return;
    barrier->missing = barrier->arrivals;
    barrier->parity ^= 1;
}
#endif

/* One thread; the others see it behind a barrier of the block. */
__device__ inline void phase_init(struct phase_barrier *barrier, int arrivals)
{
#if defined(SIMT_HOST)
    *barrier = {};
    barrier->arrivals = (int8_t)arrivals;
    barrier->missing = (int8_t)arrivals;
#elif ASYNC_PTX
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
#endif
}

__device__ inline void phase_arrive(struct phase_barrier *barrier)
{
#if defined(SIMT_HOST)
    barrier->missing--;
    phase_end(barrier);
#elif ASYNC_PTX
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
#endif
}

/* Arrives, and announces so many bytes of bulk_copy. */
__device__ inline void phase_arrive_bytes(struct phase_barrier *barrier, int bytes)
{
#if defined(SIMT_HOST)
    barrier->bytes += bytes;
    phase_arrive(barrier);
#elif ASYNC_PTX
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
#endif
}

/* Until the phase of this parity has ended: the first one's is 0, and that of the one before it,
 * which nobody waits for, 1. */
__device__ inline void phase_wait(struct phase_barrier *barrier, uint32_t parity)
{
#if defined(SIMT_HOST)
    simt_wait_while(&barrier->parity, (uint8_t)parity);
#elif ASYNC_PTX
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
#endif
}

/* Behind phase_init, before a barrier of the block and one of the cluster: copies and other blocks
 * find what it made. */
__device__ inline void phase_init_fence()
{
#if ASYNC_PTX
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "fence.proxy.async.shared::cta;" ::
                     : "memory");
#endif
}

/* phase_arrive at the same place in the shared memory of block `rank` of the cluster: it says that
 * this thread is done with what stood there. What it wrote the other block need not see: a release
 * for the cluster would wait for all its writes to global memory, too, each time. */
__device__ inline void phase_arrive_cluster(struct phase_barrier *barrier, int rank)
{
#if defined(SIMT_HOST)
    (void)rank;
    phase_arrive(barrier);
#elif ASYNC_PTX
    asm volatile("{\n"
                 ".reg .b32 at;\n"
                 "mapa.shared::cluster.u32 at, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [at];\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(rank)
                 : "memory");
#endif
}

/* Which block of its cluster this is. */
__device__ inline int cluster_rank()
{
#if defined(SIMT_HOST)
    return 0;
#elif ASYNC_PTX
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
#else
    return 0;
#endif
}

/* All threads of the cluster's blocks. */
__device__ inline void cluster_sync()
{
#if ASYNC_PTX
    asm volatile("barrier.cluster.arrive;\n"
                 "barrier.cluster.wait;" ::
                     : "memory");
#endif
}

/* A thread copies bytes that lie together (addresses and count multiples of 16); the barrier's
 * phase waits for them where they were announced. */
__device__ inline void bulk_copy(void *to, const void *from, int bytes,
                                 struct phase_barrier *barrier)
{
#if defined(SIMT_HOST)
    memcpy(to, from, (size_t)bytes);
    barrier->bytes -= bytes;
    phase_end(barrier);
#elif ASYNC_PTX
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
#endif
}

/* The same into all blocks of the cluster, at the same places; each one's own barrier waits. */
__device__ inline void bulk_copy_cluster(void *to, const void *from, int bytes,
                                         struct phase_barrier *barrier)
{
#if defined(SIMT_HOST)
    bulk_copy(to, from, bytes, barrier);
#elif ASYNC_PTX
    if (CLUSTER == 1) {
        bulk_copy(to, from, bytes, barrier);
        return;
    }
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier)),
                 "h"((uint16_t)((1 << CLUSTER) - 1))
                 : "memory");
#endif
}

/* All threads of four warps from now on have so many registers. */
template <int COUNT> __device__ inline void registers_give()
{
#if ASYNC_PTX
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

template <int COUNT> __device__ inline void registers_take()
{
#if ASYNC_PTX
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

#endif

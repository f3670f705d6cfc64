/* A rank's share of its GPU's multiprocessors, where several ranks are on one: so the kernels of
 * one rank do not stand in the way of another's, and each computes as fast as a smaller GPU would.
 * By green contexts with streams of their own, which the driver has since CUDA 12.5, in builds by
 * 12.5 and newer. Memory, caches and copy engines stay everybody's. NVIDIA's
 * words do not say that streams of one green context may be used by several threads, as a rank's
 * are; on an H200 they may. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_PARTITION_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_PARTITION_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "device/device.h"

struct cuda_partition {
    void *context;       /* CUgreenCtx; NULL: the rank's streams have the whole GPU */
    int multiprocessors; /* that its streams have */
};

/* Of the GPU with so many multiprocessors, which is the thread's, the share of one of its sharers.
 * Never fails: where there are no green contexts, the GPU cannot be cut in so many parts, or a
 * stream of one does not do what streams do, the share is the whole. */
void cuda_partition_init(struct cuda_partition *out, const struct gpu_share *share, int capability,
                         int multiprocessors);

/* How many multiprocessors each sharer would have for itself, of the GPU that is the thread's: all
 * shares are opened at once, and closed. So a driver that counts parts and does not give them, or
 * gives some of them, or gives such as are of no use, has none before ranks are opened, as behind
 * it. 0: a share would be the whole. */
int cuda_partition_expect(const struct gpu_share *share, int capability);

/* Behind all its streams. */
void cuda_partition_deinit(struct cuda_partition *partition);

/* As cudaStreamCreateWithPriority makes it, not blocking. */
cudaError_t cuda_partition_stream(const struct cuda_partition *partition, cudaStream_t *out,
                                  int priority);

#endif

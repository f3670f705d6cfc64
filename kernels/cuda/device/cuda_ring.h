/* Small arrays of the host on their way to a stream's kernels: written to pinned memory, and copied
 * from there in the stream's order. One half is written while copies read the other. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_RING_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_RING_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct cuda_ring_memory {
    char *host, *device; /* two halves each */
};

/* Each is at most half of the next. */
#define CUDA_RING_OUTGROWN_MAX 16

struct cuda_ring {
    int ordinal;
    cudaStream_t stream;
    struct cuda_ring_memory memory;
    size_t half_bytes;
    size_t used; /* of the half that is written */
    int half;
    cudaEvent_t left[2]; /* recorded when the ring left that half: what reads it has run */
    struct cuda_ring_memory outgrown[CUDA_RING_OUTGROWN_MAX]; /* was too small: see cuda_blocks.h */
    int outgrown_count;
};

/* A ring that is zero; what a failure leaves, deinit frees. */
enum status cuda_ring_init(struct cuda_ring *ring, int ordinal, cudaStream_t stream,
                           struct error *err) MUST_CHECK;
void cuda_ring_deinit(struct cuda_ring *ring); /* nothing is on the stream */

/* Room for `bytes` bytes, to be written by the caller, and then sent: *device is where kernels
 * behind cuda_ring_send on the stream read them. Waits for the stream when the ring is full. Where
 * it is too small it goes on in larger memory, and what it had stays until the end. */
enum status cuda_ring_take(struct cuda_ring *ring, size_t bytes, void **host, void **device,
                           struct error *err) MUST_CHECK;
enum status cuda_ring_send(struct cuda_ring *ring, void *device, const void *host, size_t bytes,
                           struct error *err) MUST_CHECK;

#endif

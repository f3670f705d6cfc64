#include "kernels/cuda/device/cuda_ring.h"

#include "base/checked.h"
#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_pinned.h"

/* A feed-forward operation of 64 experts sends 14 KiB: some ten layers in each half. */
#define HALF_BYTES ((size_t)256 << 10)

/* Each piece begins where any of the arrays may. */
#define PIECE_ALIGNMENT 64

static void memory_release(struct cuda_ring *ring)
{
    (void)cudaFreeHost(ring->host);
    (void)cudaFree(ring->device);
    (void)cudaGetLastError();
    ring->host = ring->device = NULL;
    ring->half_bytes = 0;
}

static enum status memory_make(struct cuda_ring *ring, size_t half_bytes, struct error *err)
{
    TRY(cuda_pinned_malloc(ring->ordinal, (void **)&ring->host, 2 * half_bytes, err));
    CUDA_TRY(ring->ordinal, cudaMalloc((void **)&ring->device, 2 * half_bytes), err);
    ring->half_bytes = half_bytes;
    ring->used = 0;
    return STATUS_OK;
}

enum status cuda_ring_init(struct cuda_ring *ring, int ordinal, cudaStream_t stream,
                           struct error *err)
{
    ring->ordinal = ordinal;
    ring->stream = stream;
    for (int half = 0; half < 2; half++)
        CUDA_TRY(ordinal, cudaEventCreateWithFlags(&ring->left[half], cudaEventDisableTiming), err);
    return memory_make(ring, HALF_BYTES, err);
}

void cuda_ring_deinit(struct cuda_ring *ring)
{
    memory_release(ring);
    for (int half = 0; half < 2; half++) {
        if (ring->left[half] != NULL)
            (void)cudaEventDestroy(ring->left[half]);
    }
    (void)cudaGetLastError();
}

/* Goes on in the other half, once what reads it has run. */
static enum status half_change(struct cuda_ring *ring, struct error *err)
{
    CUDA_TRY(ring->ordinal, cudaEventRecord(ring->left[ring->half], ring->stream), err);
    CUDA_TRY(ring->ordinal, cudaEventSynchronize(ring->left[1 - ring->half]), err);
    ring->half = 1 - ring->half;
    ring->used = 0;
    return STATUS_OK;
}

/* Everything that reads the ring has run before its memory goes. */
static enum status grow(struct cuda_ring *ring, size_t bytes, struct error *err)
{
    size_t half_bytes = ring->half_bytes > 0 ? ring->half_bytes : HALF_BYTES;
    while (half_bytes < bytes)
        half_bytes *= 2;
    CUDA_TRY(ring->ordinal, cudaStreamSynchronize(ring->stream), err);
    memory_release(ring);
    return memory_make(ring, half_bytes, err);
}

enum status cuda_ring_take(struct cuda_ring *ring, size_t bytes, void **host, void **device,
                           struct error *err)
{
    size_t whole = (size_t)round_up((int64_t)bytes, PIECE_ALIGNMENT);
    if (whole > ring->half_bytes)
        TRY(grow(ring, whole, err));
    else if (ring->used + whole > ring->half_bytes)
        TRY(half_change(ring, err));
    size_t at = (size_t)ring->half * ring->half_bytes + ring->used;
    *host = ring->host + at;
    *device = ring->device + at;
    ring->used += whole;
    return STATUS_OK;
}

enum status cuda_ring_send(struct cuda_ring *ring, void *device, const void *host, size_t bytes,
                           struct error *err)
{
    CUDA_TRY(ring->ordinal,
             cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, ring->stream), err);
    return STATUS_OK;
}

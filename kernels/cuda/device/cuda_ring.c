#include "kernels/cuda/device/cuda_ring.h"

#include "base/checked.h"
#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_pinned.h"

/* A feed-forward operation of 64 experts sends 14 KiB: some ten layers in each half. */
#define HALF_BYTES ((size_t)256 << 10)

/* Each piece begins where any of the arrays may. */
#define PIECE_ALIGNMENT 64

static void memory_release(struct cuda_ring_memory memory)
{
    (void)cudaFreeHost(memory.host);
    (void)cudaFree(memory.device);
    (void)cudaGetLastError();
}

static enum status memory_get_both(struct cuda_ring_memory *out, int ordinal, size_t bytes,
                                   struct error *err)
{
    TRY(cuda_pinned_malloc(ordinal, (void **)&out->host, bytes, err));
    CUDA_TRY(ordinal, cudaMalloc((void **)&out->device, bytes), err);
    return STATUS_OK;
}

static enum status memory_make(struct cuda_ring *ring, size_t half_bytes, struct error *err)
{
    struct cuda_ring_memory memory = {NULL, NULL};
    enum status status = memory_get_both(&memory, ring->ordinal, 2 * half_bytes, err);
    if (status != STATUS_OK) {
        memory_release(memory);
        return status;
    }
    ring->memory = memory;
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
    memory_release(ring->memory);
    while (ring->outgrown_count > 0)
        memory_release(ring->outgrown[--ring->outgrown_count]);
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

/* What reads the memory that was too small may not have run: it stays. */
static enum status grow(struct cuda_ring *ring, size_t bytes, struct error *err)
{
    struct cuda_ring_memory old = ring->memory;
    size_t half_bytes = ring->half_bytes;
    while (half_bytes < bytes)
        half_bytes *= 2;
    ASSERT(ring->outgrown_count < CUDA_RING_OUTGROWN_MAX);
    TRY(memory_make(ring, half_bytes, err));
    ring->outgrown[ring->outgrown_count++] = old;
    return STATUS_OK;
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
    *host = ring->memory.host + at;
    *device = ring->memory.device + at;
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

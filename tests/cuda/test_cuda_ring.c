/* Host arrays on their way to kernels: what arrives is what was written, however far the stream is
 * behind. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "cuda_tools.h"
#include "kernels/cuda/device/cuda_ring.h"
#include "simt_control.h"

TestSuite(cuda_ring, .timeout = 300);

#define PIECES 400

/* Sends a piece of `bytes` of one value, and has the stream copy what arrived to `out`. */
static void piece_send(struct cuda_ring *ring, char *out, size_t bytes, int value)
{
    struct error err;
    void *host, *device;
    cr_assert_eq(cuda_ring_take(ring, bytes, &host, &device, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(((uintptr_t)host | (uintptr_t)device) % 64, 0);
    memset(host, value, bytes);
    cr_assert_eq(cuda_ring_send(ring, device, host, bytes, &err), STATUS_OK);
    cr_assert_eq(cudaMemcpyAsync(out, device, bytes, cudaMemcpyDeviceToHost, ring->stream),
                 cudaSuccess);
}

static void pieces_check(uint64_t seed, size_t bytes_max)
{
    struct random random = {.seed = seed};
    struct cuda_ring ring = {0};
    struct error err;
    cudaStream_t stream;
    size_t bytes[PIECES];
    char *out[PIECES];
    simt_stream_seed_set(seed);
    cr_assert_eq(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    cr_assert_eq(cuda_ring_init(&ring, 0, stream, &err), STATUS_OK);
    for (int i = 0; i < PIECES; i++) {
        bytes[i] = 1 + (size_t)(random_next(&random) % bytes_max);
        out[i] = memory_alloc(bytes[i], 1);
        piece_send(&ring, out[i], bytes[i], i % 251);
    }
    cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
    for (int i = 0; i < PIECES; i++) {
        for (size_t b = 0; b < bytes[i]; b++)
            cr_assert_eq(out[i][b], (char)(i % 251), "seed %d, piece %d", (int)seed, i);
        memory_free(out[i]);
    }
    cuda_ring_deinit(&ring);
    cr_assert_eq(cudaStreamDestroy(stream), cudaSuccess);
    cr_assert_eq(simt_live_count(), 0);
}

Test(cuda_ring, small_pieces_go_round)
{
    for (uint64_t seed = 0; seed < 6; seed++)
        pieces_check(seed, 20 << 10);
}

/* Pieces that no half has room for: the ring grows. */
Test(cuda_ring, grows_with_what_it_carries)
{
    for (uint64_t seed = 0; seed < 2; seed++)
        pieces_check(seed, 600 << 10);
}

/* It leaves its memory only when what reads it has run, even where a free does not wait. */
Test(cuda_ring, grows_where_frees_do_not_wait)
{
    simt_free_waits_set(false);
    for (uint64_t seed = 0; seed < 2; seed++)
        pieces_check(seed, 600 << 10);
}

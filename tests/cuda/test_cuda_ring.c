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

/* What reads memory that was too small finds it, where a free would not wait for it. */
Test(cuda_ring, grows_where_frees_do_not_wait)
{
    simt_free_waits_set(false);
    for (uint64_t seed = 0; seed < 2; seed++)
        pieces_check(seed, 600 << 10);
}

static void ring_open(struct cuda_ring *ring)
{
    struct error err;
    cudaStream_t stream;
    *ring = (struct cuda_ring){0};
    cr_assert_eq(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    cr_assert_eq(cuda_ring_init(ring, 0, stream, &err), STATUS_OK);
}

static void ring_close(struct cuda_ring *ring)
{
    cr_assert_eq(cudaStreamSynchronize(ring->stream), cudaSuccess);
    cuda_ring_deinit(ring);
    cr_assert_eq(cudaStreamDestroy(ring->stream), cudaSuccess);
    cr_assert_eq(simt_live_count(), 0);
}

/* To free memory may be to wait for another GPU, which waits for this one. */
Test(cuda_ring, frees_nothing_while_it_grows)
{
    struct cuda_ring ring;
    char *out = memory_alloc(4 << 20, 1);
    ring_open(&ring);
    uint64_t freed = simt_free_count(), waits = simt_wait_count();
    for (size_t bytes = 128 << 10; bytes <= 4 << 20; bytes *= 2)
        piece_send(&ring, out, bytes, 1);
    cr_expect_eq(simt_free_count(), freed);
    cr_expect_eq(simt_wait_count(), waits);
    ring_close(&ring);
    memory_free(out);
}

/* One that cannot grow is as it was: what fits goes on. */
Test(cuda_ring, that_cannot_grow_stays)
{
    struct cuda_ring ring;
    struct error err;
    void *host, *device;
    char *out = memory_alloc(1000, 1);
    ring_open(&ring);
    uint64_t live = simt_live_count();
    for (uint64_t call = 1; call <= 2; call++) { /* the host's memory, the device's */
        simt_fail_at(call, cudaErrorMemoryAllocation);
        cr_assert_eq(cuda_ring_take(&ring, 4 << 20, &host, &device, &err), STATUS_NO_MEMORY);
        cr_assert_not(simt_fail_is_ahead());
        cr_assert_eq(simt_live_count(), live);
        piece_send(&ring, out, 1000, (int)call);
        cr_assert_eq(cudaStreamSynchronize(ring.stream), cudaSuccess);
        cr_assert_eq(out[999], (char)call);
    }
    ring_close(&ring);
    memory_free(out);
}

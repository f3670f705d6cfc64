/* The engine that runs a grid on the host; for simt.h and simt_runtime.cpp. */
#ifndef PHASOR_TESTS_SIMT_SIMT_ENGINE_H
#define PHASOR_TESTS_SIMT_SIMT_ENGINE_H

#include <cstddef>
#include <cstdint>
#include <functional>

#include <cuda_runtime_api.h>

namespace simt {

/* A place in a kernel's source. */
struct site {
    const char *file;
    int line;
};

enum warp_kind {
    WARP_SYNC,
    WARP_BALLOT,
    WARP_SHUFFLE,
    WARP_SHUFFLE_UP,
    WARP_SHUFFLE_DOWN,
    WARP_SHUFFLE_XOR
};

/* What a lane brings to an operation of its warp. */
struct warp_call {
    warp_kind kind;
    unsigned mask;
    uint64_t value;
    int lane_or_delta;
    int width;
};

struct block_votes {
    int any, all, count;
};

/* Of the thread that runs. One grid runs at a time (simt_runtime.cpp holds a lock). */
extern uint3 thread_index, block_index;
extern dim3 block_size, grid_size;
extern unsigned char *dynamic_shared;

block_votes barrier(int predicate, site at);
/* Until other threads of the block have made it another value. */
void wait_while(const uint8_t *watched, uint8_t unwanted, site at);
uint64_t warp(const warp_call &call, site at);

/* Runs thread() for each thread of each block. */
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &thread);

/* Puts a grid on a stream, as <<<>>> does: what is wrong with it is told by cudaGetLastError. */
void launch_grid(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
                 cudaStream_t stream, std::function<void()> thread);

/* The clock that all GPUs share, for kernels; a nap may take no time of the host's. */
uint64_t nanoseconds();
void nap(uint64_t nanoseconds);

/* The next of a sequence of random numbers; the state is never 0. */
inline uint64_t random_next(uint64_t &state)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

inline uint64_t random_start(uint64_t seed)
{
    return (seed + 1) * 0x9E3779B97F4A7C15u | 1;
}

} // namespace simt

#endif

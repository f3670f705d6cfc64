#include "gpu.h"

#include <criterion/criterion.h>
#include <cuda_runtime_api.h>

#include "base/system.h"

/* Criterion runs each test in a process of its own, and so each begins with CUDA. */
static int capability_of_first(void)
{
    int major = 0, minor = 0;
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    cr_assert_eq(error, cudaSuccess, "%s", cudaGetErrorString(error));
    return 10 * major + minor;
}

int gpu_count_use(int wanted)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    cr_assert_eq(error, cudaSuccess, "%s", cudaGetErrorString(error));
    return wanted < count ? wanted : count;
}

int gpu_capability_use(int capability)
{
    int found = capability_of_first();
    int nearest = found < 75 ? 70 : found < 80 ? 75 : found < 90 ? 86 : 90;
    return capability == nearest ? found : 0;
}

void gpu_order_use(enum gpu_order order, uint64_t stream_seed)
{
    (void)order;
    (void)stream_seed;
}

bool gpu_clock_use(void)
{
    return false;
}

double gpu_seconds(void)
{
    return system_seconds();
}

void gpu_check_kernels(uint64_t least)
{
    (void)least;
}

void gpu_check_no_kernels(void)
{
}

uint64_t gpu_pageable_bytes(void)
{
    return 0;
}

uint64_t gpu_pieces(void)
{
    return GPU_PIECES_UNKNOWN;
}

uint64_t gpu_graphs(void)
{
    return GPU_PIECES_UNKNOWN;
}

uint64_t gpu_waits(void)
{
    return GPU_PIECES_UNKNOWN;
}

void gpu_check_nothing_left(void)
{
}

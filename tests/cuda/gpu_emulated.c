#include "gpu.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#include "simt_control.h"

/* An NCCL that the machine may have would look for real ones. */
__attribute__((constructor)) static void nccl_leave_out(void)
{
    setenv("PHASOR_NCCL", "off", 0);
}

int gpu_count_use(int wanted)
{
    simt_device_count_set(wanted);
    return wanted;
}

int gpu_capability_use(int capability)
{
    cr_assert(simt_capability_set(capability));
    return capability;
}

void gpu_order_use(enum gpu_order order, uint64_t stream_seed)
{
    static const enum simt_order orders[] = {SIMT_FORWARD, SIMT_REVERSE, SIMT_RANDOM};
    static uint64_t seed; /* another one each time */
    simt_order_set(orders[order], ++seed);
    simt_stream_seed_set(stream_seed);
}

bool gpu_clock_use(void)
{
    simt_clock_by_naps();
    return true;
}

double gpu_seconds(void)
{
    return (double)simt_clock_nanoseconds() * 1e-9;
}

void gpu_check_kernels(uint64_t least)
{
    cr_assert_geq(simt_kernel_count(), least);
}

void gpu_check_no_kernels(void)
{
    cr_assert_eq(simt_kernel_count(), 0);
}

uint64_t gpu_pageable_bytes(void)
{
    return simt_pageable_bytes();
}

uint64_t gpu_pieces(void)
{
    return simt_live_count();
}

uint64_t gpu_graphs(void)
{
    return simt_graph_launches();
}

uint64_t gpu_waits(void)
{
    return simt_wait_count();
}

void gpu_check_nothing_left(void)
{
    cr_assert_eq(simt_live_count(), 0);
}

/* Pinned memory lies on the node of its GPU, whatever takes it, and the thread that takes it has
 * its own policy again. */
#include <criterion/criterion.h>
#include <linux/mempolicy.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_tools.h"
#include "device/peers.h"
#include "kernels/cuda/device/cuda_pinned.h"
#include "kernels/cuda/device/cuda_reach.h"
#include "numa_fake.h"
#include "simt_control.h"
#include "workload.h"

#define GPUS 3

static const int nodes[GPUS] = {2, 0, -1};
static const char *const bus_ids[GPUS] = {"0000:1a:00.0", "0000:1b:00.0", "0000:1c:00.0"};
static atomic_int right[GPUS], wrong[GPUS];

/* On the thread that allocates. */
static void look(int gpu)
{
    bool is_right = nodes[gpu] < 0 ? numa_fake_mode() != MPOL_PREFERRED
                                   : numa_fake_mode() == MPOL_PREFERRED &&
                                         numa_fake_nodes() == 1ul << nodes[gpu];
    atomic_fetch_add(is_right ? &right[gpu] : &wrong[gpu], 1);
}

static void init(void)
{
    numa_fake_use();
    numa_fake_device(bus_ids[0], "2\n");
    numa_fake_device(bus_ids[1], "0\n");
    numa_fake_device(bus_ids[2], "-1\n");
    simt_device_count_set(GPUS);
    simt_on_pinned(look);
}
TestSuite(cuda_pinned, .init = init, .fini = numa_fake_remove, .timeout = 300);

static struct device *gpu_open(int gpu)
{
    struct device *device;
    struct error err;
    cr_assert_eq(device_cuda_create(&device, &(struct gpu_share){.ordinal = gpu}, &err), STATUS_OK,
                 "%s", err.message);
    return device;
}

static void expect_own_policy(void)
{
    cr_expect(numa_fake_mode() == MPOL_INTERLEAVE && numa_fake_nodes() == 6);
}

Test(cuda_pinned, all_of_a_gpu_lies_on_its_node)
{
    numa_fake_policy_set(MPOL_INTERLEAVE, 6);
    for (int gpu = 0; gpu < GPUS; gpu++) {
        struct device *device = gpu_open(gpu);
        void *memory;
        struct error err;
        cr_expect_eq(device->ops->host_node(device), nodes[gpu]);
        cr_expect_str_eq(device->ops->peers->bus_id(device), bus_ids[gpu]);
        cr_assert_eq(device->ops->host_memory_get(device, &memory, 100, "a test", &err), STATUS_OK);
        expect_own_policy();
        device->ops->host_memory_free(device, memory);
        device_destroy(device);
        cr_expect_geq(right[gpu], 3, "ring, stages and this, but %d", right[gpu]);
        cr_expect_eq(wrong[gpu], 0, "%d", wrong[gpu]);
    }
    cr_expect_eq(cuda_node(999), -1);
}

Test(cuda_pinned, a_failure_leaves_the_policy)
{
    struct device *device = gpu_open(0);
    void *memory;
    struct error err;
    numa_fake_policy_set(MPOL_INTERLEAVE, 6);
    cr_assert_eq(device->ops->host_memory_get(device, &memory, (size_t)1 << 41, "a test", &err),
                 STATUS_NO_MEMORY);
    cr_expect_not_null(strstr(err.message, "cudaMallocHost on cuda:0"), "%s", err.message);
    expect_own_policy();
    device_destroy(device);
}

/* One that has segments. */
static const struct kernel_case *attention_case(void)
{
    const struct kernel_case *c = case_lists[OP_ATTENTION]->cases;
    while (c->use != FOR_TEST || c->segments[0].token_count != 1)
        c++;
    return c;
}

/* Arrays of the host that a graph's kernels read. */
Test(cuda_pinned, arrays_of_a_graph)
{
    struct workload w;
    struct device *device = gpu_open(0);
    int before = 0;
    workload_create(&w, OP_ATTENTION, attention_case());
    for (int step = 0; step < 2; step++) {
        before = right[0];
        workload_reset(&w);
        device->ops->repeat(device->stream, true);
        for (int i = 0; i < 4; i++)
            workload_put(&w, device);
        device->ops->repeat(device->stream, false);
        synchronize_ok(device, device->stream);
    }
    cr_expect_eq(simt_graph_launches(), 1);
    cr_expect_gt(right[0], before); /* in the step that is captured */
    cr_expect_eq(wrong[0], 0);
    workload_destroy(&w);
    device_destroy(device);
}

/* What is copied from there is not taken through memory of the driver's. */
Test(cuda_pinned, memory_that_the_host_has)
{
    const size_t bytes = 4 * 4096;
    struct device *device = gpu_open(0);
    const struct device_ops *ops = device->ops;
    struct error err;
    void *out, *in = aligned_alloc(4096, bytes);
    cr_assert_eq(ops->memory_get(device, &out, bytes, "a test", &err), STATUS_OK);
    memset(in, 1, bytes);
    for (int n = 1; n <= 2; n++) { /* of cudaSetDevice, and of cudaHostRegister */
        simt_fail_at((uint64_t)n, cudaErrorMemoryAllocation);
        cr_assert_eq(ops->host_memory_pin(device, in, bytes, "a test", &err), STATUS_NO_MEMORY);
    }
    cr_expect_str_eq(err.message, "cannot pin 16384 bytes for a test: cudaHostRegister on cuda:0: "
                                  "out of memory (cudaErrorMemoryAllocation)");
    for (int pinned = 0; pinned < 2; pinned++) {
        uint64_t before = simt_pageable_bytes();
        if (pinned)
            cr_assert_eq(ops->host_memory_pin(device, in, bytes, "a test", &err), STATUS_OK);
        ops->copy(device->stream, &(struct op_copy){.out = out, .in = in, .bytes = (int64_t)bytes});
        synchronize_ok(device, device->stream);
        cr_expect_eq(simt_pageable_bytes() - before, pinned ? 0 : bytes);
    }
    cr_expect(ops->host_memory_unpin(device, in));
    cr_assert_eq(ops->host_memory_pin(device, in, bytes, "a test", &err), STATUS_OK);
    simt_fail_at(2, cudaErrorUnknown); /* of cudaHostUnregister, which the emulated one has done */
    cr_expect(!ops->host_memory_unpin(device, in));
    ops->memory_free(device, out);
    free(in);
    device_destroy(device);
    cr_expect_eq(simt_live_count(), 0);
}

/* Who unpins it would wait for a GPU that hangs. */
Test(cuda_pinned, memory_that_stays_so)
{
    struct error err;
    void *memory = aligned_alloc(4096, 4096);
    cr_assert_eq(cuda_pinned_keep(0, memory, 4096, "a test", &err), STATUS_OK);
    cuda_give_up();
    cr_expect(!cuda_pinned_leave(0, memory));
    free(memory); /* which a test may */
}

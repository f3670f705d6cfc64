/* A rank's share of a GPU's multiprocessors: which it has, and that without green contexts, or
 * where anything of them fails, it has all. Builds before CUDA 12.5 have no shares, and these tests
 * nothing to look at. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/device/cuda_partition.h"
#include "simt_control.h"

TestSuite(cuda_partition, .timeout = 60);

#if CUDART_VERSION >= 12050

static struct cuda_partition partition_get(int capability, int multiprocessors, int sharers,
                                           int index)
{
    struct cuda_partition partition;
    simt_multiprocessors_set(multiprocessors);
    cr_assert_eq(cudaSetDevice(0), cudaSuccess);
    cuda_partition_init(&partition,
                        &(struct gpu_share){.sharer_count = sharers, .sharer_index = index},
                        capability, multiprocessors);
    return partition;
}

static const struct {
    int capability, multiprocessors, sharers, each; /* all of them: it is not cut */
} shares[] = {
    {90, 132, 4, 32},   {90, 132, 2, 64},  {90, 132, 8, 16}, {90, 132, 16, 8}, {90, 132, 17, 132},
    {90, 132, 1, 132},  {90, 132, 0, 132}, {80, 108, 4, 26}, {86, 84, 8, 10},  {80, 108, 27, 4},
    {80, 108, 28, 108}, {75, 40, 4, 10},   {70, 80, 8, 10},  {75, 4, 2, 2},    {75, 4, 4, 4},
};

Test(cuda_partition, sharers_have_equal_parts)
{
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        for (int index = 0; index < shares[i].sharers; index++) {
            struct cuda_partition partition = partition_get(
                shares[i].capability, shares[i].multiprocessors, shares[i].sharers, index);
            int expected = partition.context != NULL ? shares[i].each : 0;
            struct gpu_share share = {.sharer_count = shares[i].sharers, .sharer_index = index};
            cr_expect_eq(cuda_partition_expect(&share, shares[i].capability), expected);
            cr_expect_eq(partition.multiprocessors, shares[i].each, "sm_%d, %d over %d: %d",
                         shares[i].capability, shares[i].multiprocessors, shares[i].sharers,
                         partition.multiprocessors);
            cr_expect_eq(partition.context != NULL, shares[i].each < shares[i].multiprocessors);
            cuda_partition_deinit(&partition);
            cr_expect_eq(simt_live_count(), 0);
        }
    }
}

/* The multiprocessors of a stream that the partition makes. */
static unsigned first_of(const struct cuda_partition *partition)
{
    cudaStream_t stream;
    unsigned first = 0, count = 0;
    cr_assert_eq(cuda_partition_stream(partition, &stream, 0), cudaSuccess);
    cr_expect(simt_stream_part(stream, &first, &count));
    cr_expect_eq((int)count, partition->multiprocessors);
    cr_assert_eq(cudaStreamDestroy(stream), cudaSuccess);
    return first;
}

Test(cuda_partition, parts_do_not_overlap)
{
    struct cuda_partition partitions[4];
    for (int index = 0; index < 4; index++)
        partitions[index] = partition_get(90, 132, 4, index);
    for (int index = 0; index < 4; index++)
        cr_expect_eq(first_of(&partitions[index]), 32u * (unsigned)index);
    for (int index = 0; index < 4; index++)
        cuda_partition_deinit(&partitions[index]);
    cr_expect_eq(simt_live_count(), 0);
}

/* Clusters may lie so that there are fewer parts of a size than multiprocessors would have it. */
Test(cuda_partition, parts_that_are_too_few_become_smaller)
{
    simt_green_uneven_above(24);
    struct cuda_partition partition = partition_get(90, 128, 4, 3);
    cr_expect_eq(partition.multiprocessors, 24);
    cuda_partition_deinit(&partition);
}

static void expect_uncut(enum simt_green kind)
{
    simt_green_set(kind);
    struct cuda_partition partition = partition_get(90, 132, 4, 1);
    cr_expect_null(partition.context);
    cr_expect_eq(partition.multiprocessors, 132);
    cudaStream_t stream;
    cr_expect_eq(cuda_partition_stream(&partition, &stream, 0), cudaSuccess);
    cr_expect_eq(cudaStreamDestroy(stream), cudaSuccess);
    cuda_partition_deinit(&partition);
    cr_expect_eq(simt_live_count(), 0);
}

Test(cuda_partition, a_driver_without_green_contexts)
{
    expect_uncut(SIMT_GREEN_NONE);
}

Test(cuda_partition, a_driver_whose_green_contexts_have_no_streams)
{
    expect_uncut(SIMT_GREEN_12_4);
}

/* What the driver counts, and gives, and that does not do what streams do. */
Test(cuda_partition, parts_that_are_of_no_use)
{
    static const enum simt_green kinds[] = {SIMT_GREEN_WITHOUT_RECORDS, SIMT_GREEN_WITHOUT_WAITS};
    for (int i = 0; i < 2; i++) {
        simt_green_set(kinds[i]);
        struct cuda_partition partition = partition_get(90, 132, 4, 1);
        cr_expect_null(partition.context, "%d", i);
        cr_expect_eq(partition.multiprocessors, 132);
        cr_expect_eq(cuda_partition_expect(&(struct gpu_share){.sharer_count = 4}, 90), 0);
        cr_expect_eq(simt_live_count(), 0);
    }
}

/* Whichever call fails once, for whichever of the sharers: there are as many parts, or none. */
Test(cuda_partition, parts_are_expected_that_all_can_have)
{
    const struct gpu_share share = {.sharer_count = 4};
    int none = 0;
    bool is_ahead = false;
    simt_multiprocessors_set(132);
    cr_assert_eq(cudaSetDevice(0), cudaSuccess);
    for (int n = 1; !is_ahead; n++) {
        simt_green_fail_at((uint64_t)n);
        int part = cuda_partition_expect(&share, 90);
        is_ahead = simt_green_fail_is_ahead();
        simt_green_fail_at(0);
        cr_expect(part == 32 || part == 0, "at %d: %d", n, part);
        cr_expect(!is_ahead || part == 32);
        none += part == 0;
        cr_expect_eq(simt_live_count(), 0, "at %d", n);
        cr_expect_eq(cudaGetLastError(), cudaSuccess, "at %d", n);
    }
    cr_expect_geq(none, 4 * 5, "%d", none);
}

/* Its entry points are looked up once: streams come and go with what was found then. */
Test(cuda_partition, a_driver_is_asked_once)
{
    struct cuda_partition partition = partition_get(90, 132, 4, 1);
    simt_green_set(SIMT_GREEN_NONE);
    cr_expect_eq(first_of(&partition), 32);
    cuda_partition_deinit(&partition);
    cr_expect_eq(simt_live_count(), 0);
}

/* Nothing is left, and the thread has no error that a later call would tell. */
static void expect_whole(const struct cuda_partition *partition, int n)
{
    cr_expect_null(partition->context, "at %d", n);
    cr_expect_eq(partition->multiprocessors, 132, "at %d", n);
    cr_expect_eq(simt_live_count(), 0, "at %d", n);
    cr_expect_eq(cudaGetLastError(), cudaSuccess, "at %d", n);
}

Test(cuda_partition, each_call_of_the_driver_may_fail)
{
    int n = 1;
    for (;; n++) {
        simt_green_fail_at((uint64_t)n);
        struct cuda_partition partition = partition_get(90, 132, 4, 3);
        bool is_ahead = simt_green_fail_is_ahead();
        simt_green_fail_at(0);
        if (is_ahead) {
            cr_expect_not_null(partition.context);
            cuda_partition_deinit(&partition);
            break;
        }
        /* A split that fails is tried with fewer multiprocessors each. */
        if (partition.context != NULL) {
            cr_expect_lt(partition.multiprocessors, 32, "at %d", n);
            cuda_partition_deinit(&partition);
        } else {
            expect_whole(&partition, n);
        }
        cr_expect_eq(simt_live_count(), 0, "at %d", n);
    }
    cr_expect_gt(n, 5, "only %d calls", n - 1);
}

/* What the trial puts on a stream. */
Test(cuda_partition, each_call_of_the_runtime_may_fail)
{
    int n = 1;
    for (;; n++) {
        cr_assert_eq(cudaSetDevice(0), cudaSuccess);
        struct cuda_partition partition;
        simt_multiprocessors_set(132);
        simt_fail_at((uint64_t)n, cudaErrorInvalidResourceHandle);
        cuda_partition_init(&partition, &(struct gpu_share){.sharer_count = 4}, 90, 132);
        bool is_ahead = simt_fail_is_ahead();
        simt_fail_at(0, cudaSuccess);
        if (is_ahead) {
            cuda_partition_deinit(&partition);
            break;
        }
        if (partition.context != NULL) /* what is freed is gone anyway */
            cuda_partition_deinit(&partition);
        else
            expect_whole(&partition, n);
        cr_expect_eq(simt_live_count(), 0, "at %d", n);
    }
    cr_expect_gt(n, 7, "only %d calls", n - 1);
}

Test(cuda_partition, a_device_says_how_much_of_its_gpu_it_has)
{
    static const struct {
        int multiprocessors;
        bool is_whole;
        int part;
        const char *says;
    } gpus[] = {{40, false, 20, ", 20 of 40 multiprocessors)"},
                {40, true, 0, ", sm_75)"},
                {2, false, 0, ", sm_75)"}};
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        struct device *device;
        struct error err;
        simt_multiprocessors_set(gpus[i].multiprocessors);
        struct gpu_share share = {
            .sharer_count = 2, .sharer_index = 1, .is_whole = gpus[i].is_whole};
        cr_assert_eq(device_cuda_create(&device, &share, &err), STATUS_OK, "%s", err.message);
        cr_expect_not_null(strstr(device->ops->name, gpus[i].says), "%s", device->ops->name);
        cr_expect_eq(device_cuda_part(device), gpus[i].part);
        device_destroy(device);
        cr_expect_eq(simt_live_count(), 0); /* its streams went before its part */
    }
}

#endif

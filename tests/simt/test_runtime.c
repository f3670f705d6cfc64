/* The stand-in for the CUDA runtime: order, memory, and errors as the real one has them. */
#include <criterion/criterion.h>
#include <string.h>
#include <time.h>

#include "planted.h"
#include "simt_control.h"

TestSuite(simt_runtime, .timeout = 60);

#define COUNT 64

static cudaStream_t stream_open(void)
{
    cudaStream_t stream;
    cr_assert_eq(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    return stream;
}

static int *memory_open(void)
{
    void *memory;
    cr_assert_eq(cudaMalloc(&memory, COUNT * sizeof(int)), cudaSuccess);
    return memory;
}

/* Which the host looks at, too. */
static int *pinned_open(void)
{
    void *memory;
    cr_assert_eq(cudaMallocHost(&memory, COUNT * sizeof(int)), cudaSuccess);
    return memory;
}

Test(simt_runtime, memory_holds_what_nobody_takes_for_a_value)
{
    cudaStream_t stream = stream_open();
    void *kinds[2];
    cr_assert_eq(cudaMalloc(&kinds[0], 100), cudaSuccess);
    cr_assert_eq(cudaMallocHost(&kinds[1], 100), cudaSuccess);
    for (int i = 0; i < 2; i++) {
        unsigned char values[100] = {0};
        cr_assert_eq((uintptr_t)kinds[i] % 256, 0);
        cr_assert_eq(cudaMemcpyAsync(values, kinds[i], 100, cudaMemcpyDefault, stream),
                     cudaSuccess);
        cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
        for (int n = 0; n < 100; n++)
            cr_assert_eq(values[n], 0xFF);
    }
    cr_assert_eq(cudaStreamDestroy(stream), cudaSuccess);
    cr_assert_eq(simt_live_count(), 2);
    cr_assert_eq(cudaFree(kinds[0]), cudaSuccess);
    cr_assert_eq(cudaFreeHost(kinds[1]), cudaSuccess);
    cr_assert_eq(cudaFree(NULL), cudaSuccess);
    cr_assert_eq(simt_live_count(), 0);
    cr_assert_eq(cudaMalloc(&kinds[0], SIZE_MAX), cudaErrorMemoryAllocation);
    cr_assert_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
    cr_assert_eq(cudaGetLastError(), cudaSuccess);
}

/* A stream and an event are of the GPU that was the thread's: what CUDA refuses is refused. */
Test(simt_runtime, of_several_gpus)
{
    cudaStream_t streams[2];
    cudaEvent_t events[2];
    int *memory[2], host[COUNT];
    simt_device_count_set(2);
    cr_assert_eq(cudaSetDevice(2), cudaErrorInvalidDevice);
    cr_assert_eq(cudaGetLastError(), cudaErrorInvalidDevice);
    for (int d = 0; d < 2; d++) {
        cr_assert_eq(cudaSetDevice(d), cudaSuccess);
        streams[d] = stream_open();
        memory[d] = memory_open();
        cr_assert_eq(cudaEventCreateWithFlags(&events[d], cudaEventDefault), cudaSuccess);
    }
    planted_add(memory[0], memory[0], COUNT, 1, streams[0]); /* the thread's GPU is 1 */
    cr_assert_eq(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    planted_add(memory[1], memory[1], COUNT, 1, streams[1]);
    cr_assert_eq(cudaGetLastError(), cudaSuccess);
    cr_assert_eq(cudaEventRecord(events[0], streams[1]), cudaErrorInvalidResourceHandle);
    cr_assert_eq(cudaEventRecord(events[1], streams[1]), cudaSuccess);
    cr_assert_eq(cudaStreamWaitEvent(streams[0], events[1], 0), cudaSuccess);
    cr_assert_eq(simt_peer_bytes(), 0);
    cr_assert_eq(cudaMemcpyAsync(memory[0] + 1, memory[1], 12, cudaMemcpyDefault, streams[0]),
                 cudaSuccess);
    cr_assert_eq(cudaMemcpyAsync(host, memory[1], 8, cudaMemcpyDefault, streams[0]), cudaSuccess);
    cr_assert_eq(cudaMemcpyAsync(memory[0], memory[0] + 2, 4, cudaMemcpyDefault, streams[0]),
                 cudaSuccess);
    cr_assert_eq(simt_peer_bytes(), 12);
    for (int d = 0; d < 2; d++) {
        cr_assert_eq(cudaStreamDestroy(streams[d]), cudaSuccess);
        cr_assert_eq(cudaEventDestroy(events[d]), cudaSuccess);
        cr_assert_eq(cudaFree(memory[d]), cudaSuccess);
    }
}

/* Without a seed nothing runs before somebody waits; a stream is in order for every seed. */
Test(simt_runtime, a_stream_is_a_queue)
{
    cudaStream_t stream = stream_open();
    int *a = pinned_open(), *b = pinned_open();
    for (uint64_t seed = 0; seed < 6; seed++) {
        simt_stream_seed_set(seed);
        int values[COUNT] = {0};
        memset(a, 0, COUNT * sizeof(int));
        for (int add = 1; add <= 10; add++)
            planted_add(add % 2 ? b : a, add % 2 ? a : b, COUNT, add, stream);
        cr_assert_eq(cudaMemcpyAsync(values, a, sizeof values, cudaMemcpyDefault, stream),
                     cudaSuccess);
        if (seed == 0)
            cr_assert_eq(a[0], 0);
        cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
        cr_assert_eq(values[COUNT - 1], 55);
    }
    cr_assert_eq(cudaFreeHost(a), cudaSuccess);
    cr_assert_eq(cudaFreeHost(b), cudaSuccess);
    cr_assert_eq(cudaStreamDestroy(stream), cudaSuccess);
}

Test(simt_runtime, an_event_has_a_time)
{
    cudaStream_t stream = stream_open();
    cudaEvent_t from, to;
    float milliseconds;
    cr_assert_eq(cudaEventCreateWithFlags(&from, cudaEventDefault), cudaSuccess);
    cr_assert_eq(cudaEventCreateWithFlags(&to, cudaEventDefault), cudaSuccess);
    cr_assert_eq(cudaEventSynchronize(from), cudaSuccess); /* never recorded */
    cr_assert_eq(cudaEventElapsedTime(&milliseconds, from, to), cudaErrorInvalidResourceHandle);
    cr_assert_eq(cudaEventRecord(from, stream), cudaSuccess);
    cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    cr_assert_eq(cudaEventRecord(to, stream), cudaSuccess);
    cr_assert_eq(cudaEventElapsedTime(&milliseconds, from, to), cudaErrorNotReady);
    cr_assert_eq(cudaEventSynchronize(to), cudaSuccess);
    cr_assert_eq(cudaEventElapsedTime(&milliseconds, from, to), cudaSuccess);
    cr_assert_geq(milliseconds, 10);
    cudaEventDestroy(to);
    cr_assert_eq(cudaEventCreateWithFlags(&to, cudaEventDisableTiming), cudaSuccess);
    cr_assert_eq(cudaEventRecord(to, stream), cudaSuccess);
    cr_assert_eq(cudaEventSynchronize(to), cudaSuccess);
    cr_assert_eq(cudaEventElapsedTime(&milliseconds, from, to), cudaErrorInvalidResourceHandle);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    cudaStreamDestroy(stream);
    cr_assert_eq(simt_live_count(), 0);
}

Test(simt_runtime, a_launch_that_cannot_be_is_refused)
{
    cudaStream_t stream = stream_open();
    void *memory;
    cr_assert_eq(cudaMallocHost(&memory, 60 << 10), cudaSuccess);
    planted_big(memory, 1025, 1024, false, stream);
    cr_assert_eq(cudaGetLastError(), cudaErrorInvalidConfiguration);
    planted_big(memory, 0, 1024, false, stream);
    cr_assert_eq(cudaGetLastError(), cudaErrorInvalidConfiguration);
    planted_big(memory, 32, 60 << 10, false, stream);
    cr_assert_eq(cudaGetLastError(), cudaErrorInvalidValue);
    planted_big(memory, 32, 65 << 10, true, stream);
    cr_assert_eq(cudaGetLastError(), cudaErrorInvalidValue);
    planted_big(memory, 32, 60 << 10, true, stream);
    cr_assert_eq(cudaGetLastError(), cudaSuccess);
    cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
    cr_assert_eq(((int *)memory)[0], (60 << 10) / 4 - 1);
    cr_assert_eq(simt_kernel_count(), 1);
    planted_big(memory, 32, 50 << 10, true, stream); /* takes from who was allowed more */
    cr_assert_eq(cudaGetLastError(), cudaErrorInvalidValue);
    cudaFreeHost(memory);
    cudaStreamDestroy(stream);
}

/* For each call of a small program: it fails, and nothing is left behind. */
static cudaError_t program(void)
{
    cudaStream_t stream = NULL;
    void *memory = NULL;
    cudaError_t error = cudaSetDevice(0);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1);
    if (error == cudaSuccess)
        error = cudaMalloc(&memory, COUNT * sizeof(int));
    if (error == cudaSuccess) {
        planted_add(memory, memory, COUNT, 1, stream);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    cudaFree(memory);
    if (stream != NULL)
        cudaStreamDestroy(stream);
    return error;
}

Test(simt_runtime, each_call_may_fail)
{
    for (uint64_t n = 1; n <= 5; n++) {
        simt_fail_at(n, cudaErrorUnknown);
        cr_assert_eq(program(), cudaErrorUnknown, "%d", (int)n);
        cr_assert_eq(simt_live_count(), 0);
        cr_assert_eq(cudaGetLastError(), n == 4 ? cudaSuccess : cudaErrorUnknown, "%d", (int)n);
    }
    simt_fail_at(8, cudaErrorUnknown); /* beyond the last */
    cr_assert_eq(program(), cudaSuccess);
    simt_device_count_set(0);
    cr_assert_eq(program(), cudaErrorNoDevice);
}

/* The others on the device never run, and whoever waits for them comes back. */
Test(simt_runtime, a_kernel_may_break_the_device)
{
    cudaStream_t one = stream_open(), other = stream_open();
    cudaEvent_t event;
    int *memory = pinned_open();
    memset(memory, 0, COUNT * sizeof(int));
    cr_assert_eq(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    simt_fail_kernel_at(1, cudaErrorIllegalAddress);
    planted_add(memory, memory, COUNT, 1, one);
    cr_assert_eq(cudaEventRecord(event, one), cudaSuccess);
    cr_assert_eq(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
    planted_add(memory, memory, COUNT, 1, other);
    cr_assert_eq(cudaGetLastError(), cudaSuccess); /* it shows later */
    cr_assert_eq(cudaStreamSynchronize(other), cudaErrorIllegalAddress);
    cr_assert_eq(memory[0], 1);
    planted_add(memory, memory, COUNT, 1, one);
    cr_assert_eq(cudaGetLastError(), cudaErrorIllegalAddress);
    cr_assert_eq(cudaStreamSynchronize(one), cudaErrorIllegalAddress);
    cr_assert_eq(cudaEventDestroy(event), cudaErrorIllegalAddress);
    cr_assert_eq(cudaFreeHost(memory), cudaErrorIllegalAddress);
    cr_assert_eq(cudaStreamDestroy(one), cudaErrorIllegalAddress);
    cr_assert_eq(cudaStreamDestroy(other), cudaErrorIllegalAddress);
    cr_assert_eq(simt_live_count(), 0);
    simt_fail_kernel_at(0, cudaSuccess);
    cr_assert_eq(cudaGetLastError(), cudaErrorIllegalAddress);
    cr_assert_eq(program(), cudaSuccess);
}

/* What is queued reads memory that was freed, unless who frees it waits. */
Test(simt_runtime, frees_need_not_wait)
{
    for (int waits = 0; waits < 2; waits++) {
        cudaStream_t stream = stream_open();
        cudaEvent_t event;
        int *a = memory_open(), values[COUNT] = {0};
        cr_assert_eq(cudaMemsetAsync(a, 0, COUNT * sizeof(int), stream), cudaSuccess);
        cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
        simt_free_waits_set(waits);
        cr_assert_eq(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
        cr_assert_eq(cudaEventRecord(event, stream), cudaSuccess);
        cr_assert_eq(cudaMemcpyAsync(values, a, sizeof values, cudaMemcpyDefault, stream),
                     cudaSuccess);
        cr_assert_eq(cudaFree(a), cudaSuccess);
        cr_assert_eq(cudaEventDestroy(event), cudaSuccess);
        cr_assert_eq(simt_live_count(), 1);
        cr_assert_eq(cudaStreamDestroy(stream), cudaSuccess);
        cr_assert_eq(values[COUNT - 1], waits ? 0 : -1);
    }
    cr_assert_eq(simt_live_count(), 0);
}

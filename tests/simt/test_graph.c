/* Graphs of the stand-in for the CUDA runtime: nothing of a capture runs before its launch, each
 * launch does all of it anew, and what CUDA forbids while a stream captures is refused. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "planted.h"
#include "simt_control.h"

TestSuite(simt_graph, .timeout = 60);

#define COUNT 64

static cudaStream_t stream_open(void)
{
    cudaStream_t stream;
    cr_assert_eq(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    return stream;
}

static int *pinned_open(void)
{
    void *memory;
    cr_assert_eq(cudaMallocHost(&memory, COUNT * sizeof(int)), cudaSuccess);
    return memset(memory, 0, COUNT * sizeof(int));
}

static void capture_begin(cudaStream_t stream)
{
    cr_assert_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
}

/* Ends the capture, which holds. */
static cudaGraphExec_t capture_end(cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    cr_assert_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cr_assert_eq(cudaGraphInstantiateWithFlags(&ready, graph, 0), cudaSuccess);
    cr_assert_eq(cudaGraphDestroy(graph), cudaSuccess);
    return ready;
}

/* Copies read what stands there when a launch runs; arguments of kernels are those of the capture.
 */
Test(simt_graph, each_launch_does_all_of_it)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        cudaStream_t stream = stream_open();
        int *in = pinned_open(), *middle = pinned_open(), *out = pinned_open();
        uint64_t kernels = simt_kernel_count(), launches = simt_graph_launches();
        simt_stream_seed_set(seed);
        in[5] = 1;
        capture_begin(stream);
        cr_assert_eq(cudaMemcpyAsync(middle, in, COUNT * sizeof(int), cudaMemcpyDefault, stream),
                     cudaSuccess);
        planted_add(middle, middle, COUNT, 10, stream);
        planted_add(out, middle, COUNT, 100, stream);
        cudaGraphExec_t ready = capture_end(stream);
        cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
        cr_assert(middle[5] == 0 && out[5] == 0 && simt_kernel_count() == kernels);
        for (int i = 1; i <= 3; i++) {
            in[5] = i;
            cr_assert_eq(cudaGraphLaunch(ready, stream), cudaSuccess);
            planted_add(out, out, COUNT, 1000, stream); /* behind it */
            if (seed == 0)
                cr_assert_eq(simt_kernel_count(), kernels + (uint64_t)(i - 1) * 3);
            cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
            cr_assert_eq(out[5], 1110 + i, "launch %d: %d", i, out[5]);
        }
        cr_assert_eq(simt_kernel_count(), kernels + 9);
        cr_assert_eq(simt_graph_launches(), launches + 3);
        cr_assert_eq(simt_live_count(), 5);
        cr_assert_eq(cudaGraphExecDestroy(ready), cudaSuccess);
        cudaFreeHost(in);
        cudaFreeHost(middle);
        cudaFreeHost(out);
        cudaStreamDestroy(stream);
        cr_assert_eq(simt_live_count(), 0);
    }
    cr_assert_eq(simt_graph_instances(), 4);
}

/* One that is destroyed behind its launch has done its work nevertheless. */
Test(simt_graph, a_launch_outlives_the_graph)
{
    cudaStream_t stream = stream_open();
    int *memory = pinned_open();
    capture_begin(stream);
    planted_add(memory, memory, COUNT, 1, stream);
    cudaGraphExec_t ready = capture_end(stream);
    cr_assert_eq(cudaGraphLaunch(ready, stream), cudaSuccess);
    cr_assert_eq(cudaGraphExecDestroy(ready), cudaSuccess);
    cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
    cr_assert_eq(memory[0], 1);
    cudaFreeHost(memory);
    cudaStreamDestroy(stream);
}

/* An event that a graph records is one for the streams and the host, anew at each launch. */
Test(simt_graph, records_for_all)
{
    cudaStream_t stream = stream_open(), other = stream_open();
    int *memory = pinned_open();
    cudaEvent_t from, to;
    float milliseconds;
    cr_assert_eq(cudaEventCreateWithFlags(&from, cudaEventDefault), cudaSuccess);
    cr_assert_eq(cudaEventCreateWithFlags(&to, cudaEventDefault), cudaSuccess);
    cr_assert_eq(cudaEventRecordWithFlags(from, stream, cudaEventRecordExternal),
                 cudaErrorIllegalState); /* nothing is captured */
    capture_begin(stream);
    cr_assert_eq(cudaEventRecordWithFlags(from, stream, cudaEventRecordExternal), cudaSuccess);
    planted_add(memory, memory, COUNT, 1, stream);
    cr_assert_eq(cudaEventRecordWithFlags(to, stream, cudaEventRecordExternal), cudaSuccess);
    cudaGraphExec_t ready = capture_end(stream);
    cr_assert_eq(cudaEventElapsedTime(&milliseconds, from, to), cudaErrorInvalidResourceHandle);
    for (int i = 1; i <= 2; i++) {
        cr_assert_eq(cudaGraphLaunch(ready, stream), cudaSuccess);
        cr_assert_eq(cudaEventQuery(to), cudaErrorNotReady);
        cr_assert_eq(cudaStreamWaitEvent(other, to, 0), cudaSuccess);
        planted_add(memory, memory, COUNT, 10, other);
        cr_assert_eq(cudaStreamSynchronize(other), cudaSuccess);
        cr_assert_eq(memory[0], 11 * i);
        cr_assert_eq(cudaEventElapsedTime(&milliseconds, from, to), cudaSuccess);
        cr_assert_geq(milliseconds, 0);
    }
    cr_assert_eq(cudaGraphExecDestroy(ready), cudaSuccess);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    cudaFreeHost(memory);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
    cr_assert_eq(simt_live_count(), 0);
}

/* What makes a capture invalid: the call itself is refused. */
enum forbidden {
    SYNCHRONIZE,
    SYNCHRONIZE_OTHER,
    ALLOCATE,
    ALLOCATE_HOST,
    FREE,
    ASK,
    WAIT_FOR_EVENT,
    WAIT_ON_STREAM,
    RECORD_WITHIN,
    LAUNCH_GRAPH,
    FORBIDDEN_COUNT
};

struct captured {
    cudaStream_t stream, other;
    cudaEvent_t event;
    void *memory;
    cudaGraphExec_t ready;
};

static cudaError_t forbidden_do(struct captured *c, enum forbidden what)
{
    void *memory;
    switch (what) {
    case SYNCHRONIZE:
        return cudaStreamSynchronize(c->stream);
    case SYNCHRONIZE_OTHER:
        return cudaStreamSynchronize(c->other);
    case ALLOCATE:
        return cudaMalloc(&memory, 1);
    case ALLOCATE_HOST:
        return cudaMallocHost(&memory, 1);
    case FREE:
        return cudaFreeHost(c->memory);
    case ASK:
        return cudaEventQuery(c->event);
    case WAIT_FOR_EVENT:
        return cudaEventSynchronize(c->event);
    case WAIT_ON_STREAM:
        return cudaStreamWaitEvent(c->stream, c->event, 0);
    case RECORD_WITHIN:
        return cudaEventRecord(c->event, c->stream);
    default:
        return cudaGraphLaunch(c->ready, c->stream);
    }
}

Test(simt_graph, refuses_what_a_capture_forbids)
{
    struct captured c = {.stream = stream_open(), .other = stream_open()};
    cudaGraph_t graph;
    int *memory = pinned_open();
    c.memory = memory;
    cr_assert_eq(cudaEventCreateWithFlags(&c.event, cudaEventDisableTiming), cudaSuccess);
    capture_begin(c.stream);
    c.ready = capture_end(c.stream);
    uint64_t live = simt_live_count();
    for (int what = 0; what < FORBIDDEN_COUNT; what++) {
        (void)cudaGetLastError();
        capture_begin(c.stream);
        planted_add(memory, memory, COUNT, 1, c.stream);
        cr_assert_eq(cudaGetLastError(), cudaSuccess);
        cr_assert_eq(forbidden_do(&c, (enum forbidden)what),
                     what == WAIT_ON_STREAM ? cudaErrorStreamCaptureIsolation
                                            : cudaErrorStreamCaptureUnsupported,
                     "%d", what);
        planted_add(memory, memory, COUNT, 1, c.stream);
        cudaGetLastError();
        planted_add(memory, memory, COUNT, 1, c.stream);
        cr_assert_eq(cudaGetLastError(), cudaErrorStreamCaptureInvalidated, "%d", what);
        cr_assert_eq(cudaMemsetAsync(memory, 1, 1, c.stream), cudaErrorStreamCaptureInvalidated);
        cr_assert_eq(cudaStreamEndCapture(c.stream, &graph), cudaErrorStreamCaptureInvalidated);
        cr_assert_null(graph);
        cr_assert_eq(cudaStreamSynchronize(c.stream), cudaSuccess); /* it is over */
        cr_assert_eq(memory[0], 0, "%d", what);
        cr_assert_eq(simt_live_count(), live);
    }
    cudaGraphExecDestroy(c.ready);
    cudaEventDestroy(c.event);
    cudaFreeHost(memory);
    cudaStreamDestroy(c.stream);
    cudaStreamDestroy(c.other);
}

static void *from_another_thread(void *context)
{
    struct captured *c = context;
    cudaGraph_t graph;
    void *memory;
    cr_assert_eq(cudaMallocHost(&memory, 1), cudaSuccess); /* its thread alone is bound */
    cr_assert_eq(cudaFreeHost(memory), cudaSuccess);
    cr_assert_eq(cudaStreamSynchronize(c->other), cudaSuccess);
    cr_assert_eq(cudaStreamEndCapture(c->stream, &graph), cudaErrorStreamCaptureWrongThread);
    return NULL;
}

Test(simt_graph, a_capture_is_its_threads)
{
    struct captured c = {.stream = stream_open(), .other = stream_open()};
    cudaGraph_t graph;
    pthread_t thread;
    int *memory = pinned_open();
    cr_assert_eq(cudaStreamEndCapture(c.stream, &graph), cudaErrorIllegalState);
    capture_begin(c.stream);
    cr_assert_eq(cudaStreamBeginCapture(c.stream, cudaStreamCaptureModeThreadLocal),
                 cudaErrorIllegalState);
    cr_assert_eq(pthread_create(&thread, NULL, from_another_thread, &c), 0);
    pthread_join(thread, NULL);
    planted_add(memory, memory, COUNT, 7, c.other); /* is not captured */
    planted_add(memory, memory, COUNT, 1, c.stream);
    cudaGraphExec_t ready = capture_end(c.stream);
    cr_assert_eq(cudaStreamSynchronize(c.other), cudaSuccess);
    cr_assert_eq(memory[0], 7);
    cr_assert_eq(cudaGraphLaunch(ready, c.other), cudaSuccess); /* on any stream */
    cr_assert_eq(cudaStreamSynchronize(c.other), cudaSuccess);
    cr_assert_eq(memory[0], 8);
    cudaGraphExecDestroy(ready);
    capture_begin(c.stream);
    cr_assert_eq(cudaStreamDestroy(c.stream), cudaSuccess); /* and its capture */
    cr_assert_eq(cudaStreamSynchronize(c.other), cudaSuccess);
    cudaFreeHost(memory);
    cudaStreamDestroy(c.other);
    cr_assert_eq(simt_live_count(), 0);
}

/* For each call of a small program: it fails, and nothing is left behind. */
static cudaError_t program(int *memory, cudaStream_t stream)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    (void)cudaGetLastError();
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess)
        return error;
    planted_add(memory, memory, COUNT, 1, stream);
    cudaError_t launched = cudaGetLastError();
    error = cudaStreamEndCapture(stream, &graph);
    error = launched != cudaSuccess ? launched : error;
    if (error == cudaSuccess)
        error = cudaGraphInstantiateWithFlags(&ready, graph, 0);
    if (error == cudaSuccess)
        error = cudaGraphLaunch(ready, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    if (ready != NULL)
        cudaGraphExecDestroy(ready);
    if (graph != NULL)
        cudaGraphDestroy(graph);
    return error;
}

Test(simt_graph, each_call_may_fail)
{
    cudaStream_t stream = stream_open();
    int *memory = pinned_open();
    for (uint64_t n = 1; n <= 6; n++) {
        memset(memory, 0, COUNT * sizeof(int));
        simt_fail_at(n, cudaErrorUnknown);
        cr_assert_eq(program(memory, stream), cudaErrorUnknown, "%d", (int)n);
        cr_assert_eq(simt_live_count(), 2);
        cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess, "%d", (int)n); /* none is left */
        cr_assert_eq(memory[0], n == 6, "%d", (int)n);
    }
    simt_fail_at(9, cudaErrorUnknown); /* beyond the last */
    cr_assert_eq(program(memory, stream), cudaSuccess);
    cr_assert_eq(memory[0], 2);
    simt_fail_at(0, cudaSuccess);
    cudaFreeHost(memory);
    cudaStreamDestroy(stream);
}

/* A kernel of a graph breaks its device as any does. */
Test(simt_graph, a_kernel_of_it_may_break_the_device)
{
    cudaStream_t stream = stream_open();
    int *memory = pinned_open();
    capture_begin(stream);
    planted_add(memory, memory, COUNT, 1, stream);
    planted_add(memory, memory, COUNT, 1, stream);
    cudaGraphExec_t ready = capture_end(stream);
    simt_fail_kernel_at(1, cudaErrorIllegalAddress);
    cr_assert_eq(cudaGraphLaunch(ready, stream), cudaSuccess);
    cr_assert_eq(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    cr_assert_eq(memory[0], 1);
    cr_assert_eq(cudaGraphLaunch(ready, stream), cudaErrorIllegalAddress);
    cr_assert_eq(cudaGraphExecDestroy(ready), cudaErrorIllegalAddress);
    simt_fail_kernel_at(0, cudaSuccess);
    cudaFreeHost(memory);
    cudaStreamDestroy(stream);
    cr_assert_eq(simt_live_count(), 0);
}

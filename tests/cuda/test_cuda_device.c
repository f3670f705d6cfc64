/* What only a CUDA device has: a GPU that is missing or breaks, memory that is not the host's, work
 * that is behind its commands. Streams and events of any device: tests/device. */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cuda_tools.h"
#include "device/peers.h"
#include "simt_control.h"

TestSuite(cuda_device, .timeout = 300);

#define DIM 64

static const struct gpu_share gpu, gpu_1 = {.ordinal = 1}, gpu_none = {.ordinal = -1};

/* Pinned memory, which kernels reach and the host looks at. */
static float *values_get(struct device *device)
{
    struct error err;
    void *out;
    cr_assert_eq(device->ops->host_memory_get(device, &out, DIM * sizeof(float), "a test", &err),
                 STATUS_OK, "%s", err.message);
    return out;
}

static void values_set(float *values, float value)
{
    for (int i = 0; i < DIM; i++)
        values[i] = value;
}

static void put_add(struct device *device, struct stream *stream, float *out, const float *in)
{
    device->ops->add(stream, &(struct op_add){out, in, 1, DIM});
}

/* ---- What a machine may lack ----------------------------------------------------------------- */

Test(cuda_device, says_what_it_is)
{
    struct device *device = device_open(1);
    cr_assert_str_eq(device->ops->name, "cuda:0 (emulated GPU, sm_75)");
    device_destroy(device);
}

Test(cuda_device, asks_for_queues_for_many_streams)
{
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    device_destroy(device_open(1));
    cr_assert_str_eq(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

Test(cuda_device, leaves_queues_that_were_asked_for)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "12", 1);
    device_destroy(device_open(1));
    cr_assert_str_eq(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "12");
}

/* Before it is opened; `memory_left` is what a rank then has. */
Test(cuda_device, says_what_it_would_be)
{
    const struct gpu_share shared = {.ordinal = 1, .sharer_count = 3};
    struct gpu_description found;
    struct device *beside, *device;
    struct error err;
    void *held;
    simt_device_count_set(2);
    simt_global_bytes_set((size_t)64 << 20);
    simt_multiprocessors_set(32);
    cr_assert(simt_capability_set(86));
    cr_assert_eq(device_cuda_create(&beside, &gpu_1, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(beside->ops->memory_get(beside, &held, (size_t)16 << 20, "a test", &err),
                 STATUS_OK);
    cr_assert_eq(device_cuda_describe(&found, &shared, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(device_cuda_create(&device, &shared, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(found.memory_left, device->ops->memory_left(device));
    cr_expect_lt(found.memory_left, ((uint64_t)15 << 20) + 1);
    device_destroy(device);
    beside->ops->memory_free(beside, held);
    device_destroy(beside);
    cr_expect_str_eq(found.name, "emulated GPU");
    cr_expect_eq(found.capability, 86);
    cr_expect_eq(found.multiprocessors, 32);
    cr_expect_eq(found.part, CUDART_VERSION >= 12050 ? 10 : 0);
    cr_expect_eq(found.memory_bytes, (uint64_t)64 << 20);
    cr_expect_eq(found.driver, CUDART_VERSION);
    cr_expect_eq(found.runtime, CUDART_VERSION);
    cr_assert_eq(device_cuda_describe(&found, &gpu_none, &err), STATUS_UNSUPPORTED);
    simt_device_count_set(0);
    cr_assert_eq(device_cuda_describe(&found, &gpu, &err), STATUS_UNSUPPORTED);
    cr_assert_not_null(strstr(err.message, "no CUDA-capable device"), "%s", err.message);
}

Test(cuda_device, each_call_of_a_description_may_fail)
{
    uint64_t n = 1;
    for (bool is_ahead = false; !is_ahead; n++) {
        struct gpu_description found;
        struct error err = {.message = ""};
        simt_fail_at(n, cudaErrorUnknown);
        enum status status = device_cuda_describe(&found, &gpu, &err);
        is_ahead = simt_fail_is_ahead();
        simt_fail_at(0, cudaSuccess);
        cr_assert_eq(status == STATUS_OK, is_ahead, "call %d: %s", (int)n, err.message);
        cr_assert(is_ahead || strstr(err.message, "cuda:0") != NULL, "%s", err.message);
    }
    cr_assert_gt(n, 5);
}

Test(cuda_device, that_is_not_there)
{
    struct device *device = NULL;
    struct error err;
    cr_assert_eq(device_cuda_create(&device, &gpu_1, &err), STATUS_UNSUPPORTED);
    cr_assert_str_eq(err.message, "there is no cuda:1: this machine has 1 GPUs, counted from 0 "
                                  "(CUDA_VISIBLE_DEVICES may hide some)");
    cr_assert_eq(device_cuda_create(&device, &gpu_none, &err), STATUS_UNSUPPORTED);
    simt_device_count_set(0);
    cr_assert_eq(device_cuda_create(&device, &gpu, &err), STATUS_UNSUPPORTED);
    cr_assert_str_eq(err.message,
                     "cuda:0 cannot be used: no CUDA-capable device is detected; it needs an "
                     "NVIDIA GPU and its driver (nvidia-smi shows them), of version 525 or newer "
                     "for CUDA 12, 580 for 13");
    cr_assert_null(device);
    cr_assert_eq(cudaGetLastError(), cudaSuccess);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void check_use(struct device *device, uint64_t bytes, uint64_t peak)
{
    struct device_memory use = device->ops->memory_use(device);
    cr_assert(use.bytes == bytes && use.peak_bytes == peak, "%d bytes, peak %d", (int)use.bytes,
              (int)use.peak_bytes);
}

Test(cuda_device, memory_is_counted_as_asked_for)
{
    struct device *device = device_open(1);
    struct error err;
    void *a, *b, *none, *host;
    uint64_t live = simt_live_count();
    cr_assert_eq(device->ops->memory_get(device, &a, 100, "a", &err), STATUS_OK);
    cr_assert_eq(device->ops->memory_get(device, &b, 5000, "b", &err), STATUS_OK);
    cr_assert_eq(device->ops->memory_get(device, &none, 0, "none", &err), STATUS_OK);
    cr_assert_eq(device->ops->host_memory_get(device, &host, 1000, "host", &err), STATUS_OK);
    cr_assert(none != NULL && none != a && none != b);
    cr_assert_eq(((uintptr_t)a | (uintptr_t)b | (uintptr_t)none | (uintptr_t)host) % 64, 0);
    check_use(device, 5100, 5100);
    device->ops->memory_free(device, b);
    check_use(device, 100, 5100);
    device->ops->memory_free(device, a);
    device->ops->memory_free(device, none);
    device->ops->memory_free(device, NULL);
    device->ops->host_memory_free(device, host);
    device->ops->host_memory_free(device, NULL);
    check_use(device, 0, 5100);
    cr_assert_eq(simt_live_count(), live);
    device_destroy(device);
}

/* A sixteenth of what is free when a device is opened stays; the rest is for those who share the
 * GPU, alike. */
Test(cuda_device, memory_that_is_left)
{
    struct device *first, *second;
    struct gpu_share shared = {.sharer_count = 2};
    struct error err;
    void *piece, *none = NULL;
    simt_global_bytes_set((size_t)4 << 20);
    cr_assert_eq(device_cuda_create(&first, &gpu, &err), STATUS_OK, "%s", err.message);
    uint64_t whole = first->ops->memory_left(first);
    cr_assert_leq(whole, 15 << 18);
    cr_assert_eq(first->ops->memory_get(first, &piece, 1 << 21, "a test", &err), STATUS_OK);
    cr_assert_eq(first->ops->memory_left(first), whole - (1 << 21));
    cr_assert_eq(device_cuda_create(&second, &shared, &err), STATUS_OK, "%s", err.message);
    cr_assert_leq(second->ops->memory_left(second), 15 << 16);
    cr_assert_eq(second->ops->memory_get(second, &none, 1 << 20, "a test", &err), STATUS_NO_MEMORY);
    device_destroy(second);
    first->ops->memory_free(first, piece);
    device_destroy(first);
}

/* A refusal leaves nothing behind: not even the runtime's last error, which a later launch would
 * take for its own. */
Test(cuda_device, memory_that_cannot_be_had)
{
    struct device *device = device_open(1);
    struct error err;
    void *out = &err;
    cr_assert_eq(device->ops->memory_get(device, &out, SIZE_MAX, "a test", &err), STATUS_NO_MEMORY);
    cr_assert_str_eq(err.message, "cannot allocate 18446744073709551615 bytes for a test: "
                                  "of cuda:0 this rank has 16106127360 bytes, of which 0 are in "
                                  "use");
    simt_fail_at(2, cudaErrorMemoryAllocation);
    cr_assert_eq(device->ops->memory_get(device, &out, 100, "a test", &err), STATUS_NO_MEMORY);
    cr_assert_str_eq(err.message,
                     "cannot allocate 100 bytes for a test: cudaMalloc on cuda:0: out of memory "
                     "(cudaErrorMemoryAllocation)");
    cr_assert_eq(device->ops->host_memory_get(device, &out, SIZE_MAX, "a test", &err),
                 STATUS_NO_MEMORY);
    cr_assert_not_null(strstr(err.message, "cudaMallocHost on cuda:0"));
    cr_assert_eq(out, &err);
    check_use(device, 0, 0);
    cr_assert_eq(cudaGetLastError(), cudaSuccess);
    device_destroy(device);
}

/* ---- Each call may fail ---------------------------------------------------------------------- */

/* A device with all there is, and one addition on each stream. */
struct whole {
    struct device *device;
    struct stream *low;
    struct event *event;
    void *values, *pinned;
};

static enum status whole_run(struct whole *whole, struct error *err)
{
    TRY(device_cuda_create(&whole->device, &gpu, err));
    struct device *device = whole->device;
    const struct device_ops *ops = device->ops;
    TRY(ops->stream_create(device, &whole->low, STREAM_LOW, err));
    TRY(ops->event_create(device, &whole->event, err));
    TRY(ops->memory_get(device, &whole->values, DIM * sizeof(float), "a test", err));
    TRY(ops->host_memory_get(device, &whole->pinned, DIM * sizeof(float), "a test", err));
    values_set(whole->pinned, 1);
    ops->stage(device->stream, 2, -1);
    ops->copy(
        device->stream,
        &(struct op_copy){.out = whole->values, .in = whole->pinned, .bytes = DIM * sizeof(float)});
    ops->event_record(device->stream, whole->event);
    ops->event_wait(whole->low, whole->event);
    put_add(device, whole->low, whole->values, whole->pinned);
    ops->copy(
        whole->low,
        &(struct op_copy){.out = whole->pinned, .in = whole->values, .bytes = DIM * sizeof(float)});
    TRY(ops->synchronize(device->stream, err));
    TRY(ops->synchronize(whole->low, err));
    return ops->event_synchronize(whole->event, err);
}

/* Nothing is on it any more, whether it has failed or not. */
static void drain(struct device *device, struct stream *stream)
{
    struct error known;
    if (device->ops->synchronize(stream, &known) != STATUS_OK)
        return;
}

static void whole_close(struct whole *whole)
{
    struct device *device = whole->device;
    if (device == NULL)
        return;
    drain(device, device->stream);
    if (whole->low != NULL)
        drain(device, whole->low);
    device->ops->host_memory_free(device, whole->pinned);
    device->ops->memory_free(device, whole->values);
    device->ops->event_destroy(device, whole->event);
    device->ops->stream_destroy(device, whole->low);
    device_destroy(device);
}

/* The n-th call of the runtime fails, for every n: a status that names the call or says what cannot
 * be used, nothing left behind, and no one who waits for ever. What a failed stream has not done is
 * done by no one. */
Test(cuda_device, each_call_of_the_runtime_may_fail)
{
    uint64_t live = memory_counters_get().live_count;
    uint64_t n, failures = 0;
    for (n = 1; failures < n; n++) {
        struct whole whole = {0};
        struct error err = {STATUS_OK, ""};
        simt_fail_at(n, cudaErrorUnknown);
        enum status status = whole_run(&whole, &err);
        if (status == STATUS_OK) {
            cr_assert_eq(((float *)whole.pinned)[DIM - 1], 2, "at %d", (int)n);
        } else {
            cr_assert(status == STATUS_IO || status == STATUS_UNSUPPORTED, "at %d", (int)n);
            cr_assert(strstr(err.message, "cuda:0") != NULL &&
                          (status == STATUS_UNSUPPORTED || strstr(err.message, "cuda") != NULL),
                      "at %d: %s", (int)n, err.message);
            failures = n;
        }
        whole_close(&whole);
        simt_fail_at(0, cudaSuccess);
        cr_assert_eq(simt_live_count(), 0, "at %d", (int)n);
        cr_assert_eq(memory_counters_get().live_count, live, "at %d", (int)n);
        if (n > failures + 40) /* of those that destroy, nobody is told */
            break;
    }
    cr_assert_gt(failures, 300); /* the marks of the stages alone are 512 */
}

Test(cuda_device, each_allocation_may_fail)
{
    uint64_t live = memory_counters_get().live_count;
    enum status status = STATUS_NO_MEMORY;
    for (uint64_t n = 1; status != STATUS_OK; n++) {
        struct whole whole = {0};
        struct error err;
        memory_fail_at(n, 0);
        status = whole_run(&whole, &err);
        memory_fail_at(0, 0);
        cr_assert(status == STATUS_OK ? n > 5 : status == STATUS_NO_MEMORY, "%d at %d", (int)status,
                  (int)n);
        whole_close(&whole);
        cr_assert_eq(memory_counters_get().live_count, live, "at %d", (int)n);
        cr_assert_eq(simt_live_count(), 0, "at %d", (int)n);
    }
}

/* ---- A kernel that breaks its GPU ------------------------------------------------------------ */

struct report {
    atomic_int count;
    struct error last;
};

static void report_failure(void *context, const struct error *err)
{
    struct report *report = context;
    report->last = *err;
    atomic_fetch_add(&report->count, 1);
}

Test(cuda_device, a_broken_gpu_is_the_failure_of_its_streams)
{
    struct device *device = device_open(1);
    struct stream *other = stream_open(device, STREAM_NORMAL);
    struct event *event = event_open(device);
    struct report report = {0};
    struct error err;
    atomic_int calls = 0;
    float *a = values_get(device), *b = values_get(device);
    values_set(a, 1);
    values_set(b, 1);
    device->ops->on_failure(device, report_failure, &report);
    simt_fail_kernel_at(2, cudaErrorIllegalAddress);
    put_add(device, device->stream, a, b);
    put_add(device, device->stream, a, b);
    put_add(device, device->stream, a, b);
    put_count(device, device->stream, &calls); /* behind what has failed */
    device->ops->event_record(device->stream, event);
    device->ops->event_wait(other, event);
    put_add(device, other, b, a);
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "cudaStreamSynchronize on cuda:0: an illegal memory access was "
                                  "encountered (cudaErrorIllegalAddress)");
    cr_assert_eq(device->ops->synchronize(other, &err), STATUS_IO);
    cr_assert_not_null(strstr(err.message, "cudaErrorIllegalAddress"));
    cr_assert_eq(atomic_load(&calls), 0);
    cr_assert_eq(atomic_load(&report.count), 2);
    cr_assert_eq(a[0], 3); /* the third did not run */
    cr_assert_eq(b[0], 1);
    cr_assert_eq(device->ops->event_synchronize(event, &err), STATUS_IO);
    cr_assert_not_null(strstr(err.message, "cudaErrorIllegalAddress"));
    device->ops->event_destroy(device, event);
    device->ops->host_memory_free(device, a);
    device->ops->host_memory_free(device, b);
    device->ops->stream_destroy(device, other);
    device_destroy(device);
    cr_assert_eq(simt_live_count(), 0);
    simt_fail_kernel_at(0, cudaSuccess); /* the process lives, and a whole GPU can be used */
    (void)cudaGetLastError();
    device_destroy(device_open(1));
}

Test(cuda_device, a_launch_that_fails_names_its_operation)
{
    struct device *device = device_open(1);
    struct error err;
    float *a = values_get(device);
    put_add(device, device->stream, a, a);
    synchronize_ok(device, device->stream);
    simt_fail_at(1, cudaErrorUnknown);
    put_add(device, device->stream, a, a);
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "cuda_add on cuda:0: emulated (an emulated error)");
    device->ops->host_memory_free(device, a);
    device_destroy(device);
}

/* ---- Work that is behind its commands -------------------------------------------------------- */

static enum status policy_work(void *argument, struct error *err)
{
    (void)err;
    **(int **)argument = sched_getscheduler(0);
    return STATUS_OK;
}

/* The GPU's stream is low; the thread only launches, and must not be kept from it by the host. */
Test(cuda_device, a_low_stream_has_a_thread_of_normal_priority)
{
    struct device *device = device_open(1);
    struct stream *low = stream_open(device, STREAM_LOW);
    int policy = -1, *to = &policy;
    device->ops->call(low, policy_work, &to, sizeof to);
    synchronize_ok(device, low);
    cr_assert_eq(policy, sched_getscheduler(0)); /* as this one's */
    device->ops->stream_destroy(device, low);
    device_destroy(device);
}

/* Streams hand a value to and fro: each adds to what the other has. */
static bool handovers_are_right(bool wait)
{
    struct device *device = device_open(1);
    struct stream *streams[2] = {device->stream, stream_open(device, STREAM_LOW)};
    struct event *events[2] = {event_open(device), event_open(device)};
    float *values[2] = {values_get(device), values_get(device)};
    values_set(values[0], 1);
    values_set(values[1], 1);
    for (int i = 0; i < 16; i++) {
        int at = i % 2;
        if (wait)
            device->ops->event_wait(streams[at], events[1 - at]);
        put_add(device, streams[at], values[at], values[1 - at]);
        device->ops->event_record(streams[at], events[at]);
    }
    for (int i = 0; i < 2; i++)
        synchronize_ok(device, streams[i]);
    bool right = values[0][0] == 1597 && values[1][DIM - 1] == 2584; /* Fibonacci's */
    for (int i = 0; i < 2; i++) {
        device->ops->host_memory_free(device, values[i]);
        device->ops->event_destroy(device, events[i]);
    }
    device->ops->stream_destroy(device, streams[1]);
    device_destroy(device);
    return right;
}

Test(cuda_device, events_order_the_gpus_work)
{
    int unordered_right = 0;
    for (uint64_t seed = 0; seed < 6; seed++) {
        simt_stream_seed_set(seed);
        cr_assert(handovers_are_right(true), "seed %d", (int)seed);
        unordered_right += handovers_are_right(false);
    }
    cr_assert_lt(unordered_right, 6);
}

Test(cuda_device, an_event_holds_the_host_until_the_gpu_is_there)
{
    simt_device_count_set(2);
    struct device *device = device_open(1);
    struct event *event = event_open(device);
    struct error err;
    float *a = values_get(device);
    for (uint64_t seed = 0; seed < 6; seed++) {
        simt_stream_seed_set(seed);
        values_set(a, 1);
        put_add(device, device->stream, a, a);
        device->ops->event_record(device->stream, event);
        cr_assert_eq(cudaSetDevice((int)seed % 2), cudaSuccess); /* a thread may be another GPU's */
        event_synchronize_ok(device, event);
        cr_assert_eq(a[DIM - 1], 2, "seed %d", (int)seed);
    }
    simt_fail_at(2, cudaErrorUnknown); /* nobody may take it for passed */
    cr_assert_eq(device->ops->event_synchronize(event, &err), STATUS_IO);
    cr_assert_not_null(strstr(err.message, "cudaEventSynchronize on cuda:0"), "%s", err.message);
    simt_fail_at(0, cudaSuccess);
    device->ops->event_destroy(device, event);
    device->ops->host_memory_free(device, a);
    device_destroy(device);
}

static enum status look_work(void *argument, struct error *err)
{
    const float *values = *(const float **)argument;
    return values[DIM - 1] == 3 ? STATUS_OK
                                : error_set(err, STATUS_INTERNAL, "%g", (double)values[DIM - 1]);
}

Test(cuda_device, a_call_sees_what_came_before)
{
    struct device *device = device_open(1);
    float *a = values_get(device), *b = values_get(device);
    for (uint64_t seed = 0; seed < 6; seed++) {
        simt_stream_seed_set(seed);
        values_set(a, 1);
        values_set(b, 1);
        put_add(device, device->stream, a, b);
        put_add(device, device->stream, a, b);
        device->ops->call(device->stream, look_work, &a, sizeof a);
        synchronize_ok(device, device->stream);
    }
    device->ops->host_memory_free(device, a);
    device->ops->host_memory_free(device, b);
    device_destroy(device);
}

/* A copy reads and writes any memory, in the stream's order. */
Test(cuda_device, copies_between_host_and_gpu)
{
    struct device *device = device_open(1);
    struct error err;
    float *host = values_get(device);
    void *memory;
    cr_assert_eq(device->ops->memory_get(device, &memory, DIM * sizeof(float), "a test", &err),
                 STATUS_OK);
    float *values = memory;
    const int64_t bytes = DIM * sizeof(float);
    values_set(host, 4);
    device->ops->copy(device->stream, &(struct op_copy){.out = values, .in = host, .bytes = bytes});
    put_add(device, device->stream, values, values);
    device->ops->copy(device->stream, &(struct op_copy){.out = host, .in = values, .bytes = bytes});
    device->ops->copy(device->stream, &(struct op_copy){.out = NULL, .in = NULL, .bytes = 0});
    synchronize_ok(device, device->stream);
    cr_assert(host[0] == 8 && host[DIM - 1] == 8);
    device->ops->host_memory_free(device, host);
    device->ops->memory_free(device, values);
    device_destroy(device);
}

Test(cuda_device, an_event_may_not_be_asked)
{
    struct device *device = device_open(1);
    struct event *event;
    struct error err;
    bool is_reached;
    cr_assert_eq(device->ops->event_create(device, &event, &err), STATUS_OK);
    for (uint64_t n = 1; n <= 2; n++) {
        simt_fail_at(n, cudaErrorUnknown);
        cr_assert_eq(device->ops->peers->reached(event, &is_reached, &err), STATUS_IO);
    }
    cr_expect_not_null(strstr(err.message, "cudaEventQuery on cuda:0"), "%s", err.message);
    device->ops->event_destroy(device, event);
    device_destroy(device);
}

/* An event of a CUDA device: one of the runtime, and how far the streams' threads have come with
 * it. A wait is put on the GPU's stream once the record is on its own: the host's counter says
 * when. */
#include "base/memory.h"
#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_reach.h"
#include "kernels/cuda/device/cuda_stream.h"

struct cuda_event {
    struct event base;
    cudaEvent_t event;
    int ordinal;
};

static struct cuda_event *cuda_of(struct event *event)
{
    return (struct cuda_event *)event;
}

enum status cuda_event_record(struct stream *stream, struct event *event, struct error *err)
{
    const struct cuda_stream *cuda = cuda_stream_of(stream);
    CUDA_TRY(cuda->common->ordinal, cudaEventRecord(cuda_of(event)->event, cuda->launch.stream),
             err);
    return STATUS_OK;
}

enum status cuda_event_follow(struct stream *stream, struct event *event, struct error *err)
{
    const struct cuda_stream *cuda = cuda_stream_of(stream);
    CUDA_TRY(cuda->common->ordinal,
             cudaStreamWaitEvent(cuda->launch.stream, cuda_of(event)->event, 0), err);
    return STATUS_OK;
}

enum status cuda_event_reached(struct event *event, bool *out, struct error *err)
{
    CUDA_TRY(cuda_of(event)->ordinal, cudaSetDevice(cuda_of(event)->ordinal), err);
    cudaError_t error = cudaEventQuery(cuda_of(event)->event);
    *out = error == cudaSuccess;
    if (error != cudaSuccess && error != cudaErrorNotReady)
        return cuda_error_set(err, cuda_of(event)->ordinal, "cudaEventQuery", error);
    (void)cudaGetLastError();
    return STATUS_OK;
}

static void event_record(struct stream *stream, struct event *event)
{
    struct error failure = {.message = ""};
    cuda_stream_check(stream, cuda_event_record(stream, event, &failure), &failure);
}

static void event_follow(struct stream *stream, struct event *event)
{
    struct error failure = {.message = ""};
    cuda_stream_check(stream, cuda_event_follow(stream, event, &failure), &failure);
}

static const struct event_kind cuda_event_kind = {.record = event_record, .follow = event_follow};

static enum status event_open(struct cuda_event *event, int ordinal, struct error *err)
{
    event->ordinal = ordinal;
    CUDA_TRY(ordinal, cudaSetDevice(ordinal), err);
    CUDA_TRY(ordinal, cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming), err);
    return STATUS_OK;
}

enum status cuda_event_create(struct device *device, struct event **out, struct error *err)
{
    struct cuda_event *event;
    TRY(memory_get((void **)&event, 1, sizeof *event, "an event", err));
    enum status status = event_open(event, cuda_stream_of(device->stream)->common->ordinal, err);
    if (status != STATUS_OK) {
        memory_free(event);
        return status;
    }
    command_event_init(&event->base, &cuda_event_kind);
    *out = &event->base;
    return STATUS_OK;
}

void cuda_event_destroy(struct device *device, struct event *event)
{
    (void)device;
    if (event == NULL)
        return;
    command_event_deinit(event);
    if (!cuda_is_stuck())
        (void)cudaEventDestroy(cuda_of(event)->event);
    (void)cudaGetLastError();
    memory_free(event);
}

enum status cuda_event_synchronize(struct event *event, struct error *err)
{
    TRY(command_event_synchronize(event, err));
    /* Else a thread of the host that has chosen no GPU would make a context on the first. */
    CUDA_TRY(cuda_of(event)->ordinal, cudaSetDevice(cuda_of(event)->ordinal), err);
    CUDA_TRY(cuda_of(event)->ordinal, cudaEventSynchronize(cuda_of(event)->event), err);
    return STATUS_OK;
}

#include "kernels/cuda/device/cuda_stream.h"

#include <string.h>

#include "base/memory.h"
#include "base/trace.h"
#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_reach.h"

/* ---- The stream's thread --------------------------------------------------------------------- */

void cuda_stream_check(struct stream *stream, enum status status, struct error *failure)
{
    if (status == STATUS_OK)
        return;
    failure->status = status;
    command_stream_fail(stream, failure);
}

/* Each thread tells the runtime which GPU it means. */
static void gpu_take(struct stream *stream)
{
    struct cuda_stream *cuda = cuda_stream_of(stream);
    struct error failure = {.message = ""};
    if (cuda->is_current)
        return;
    cuda->is_current = true;
    cudaError_t error = cudaSetDevice(cuda->common->ordinal);
    if (error != cudaSuccess)
        cuda_stream_check(stream,
                          cuda_error_set(&failure, cuda->common->ordinal, "cudaSetDevice", error),
                          &failure);
}

/* Stage by stage: so a rank whose GPU works is seen to move, however far its thread is ahead. */
static enum status stages_follow(struct cuda_stream *cuda, struct error *err)
{
    for (int i = 0; i < cuda->stages.mark_count; i++) {
        CUDA_TRY(cuda->common->ordinal, cudaEventSynchronize(cuda->stages.marks[i]), err);
        command_stream_moved(&cuda->base);
    }
    return STATUS_OK;
}

enum status cuda_stream_settle(struct stream *stream, struct error *err)
{
    struct cuda_stream *cuda = cuda_stream_of(stream);
    enum status followed = stages_follow(cuda, err);
    CUDA_TRY(cuda->common->ordinal, cudaStreamSynchronize(cuda->launch.stream), err);
    if (followed != STATUS_OK)
        return followed;
    return cuda_stages_settle(&cuda->stages, err);
}

static const struct stream_kind cuda_kind = {.resume = gpu_take, .settle = cuda_stream_settle};

enum status cuda_stream_scratch(struct cuda_stream *cuda, size_t bytes, struct error *err)
{
    struct cuda_launch *launch = &cuda->launch;
    if (bytes <= launch->scratch_bytes)
        return STATUS_OK;
    TRY(cuda_stream_settle(&cuda->base, err));
    CUDA_TRY(cuda->common->ordinal, cudaFree(launch->scratch), err);
    launch->scratch = NULL;
    launch->scratch_bytes = 0;
    CUDA_TRY(cuda->common->ordinal, cudaMalloc(&launch->scratch, bytes), err);
    launch->scratch_bytes = bytes;
    return STATUS_OK;
}

/* ---- Stages ---------------------------------------------------------------------------------- */

static enum status stage_change(struct cuda_stream *cuda, int stage, struct error *err)
{
    if (cuda_stages_are_full(&cuda->stages, 0))
        TRY(cuda_stream_settle(&cuda->base, err));
    return cuda_stages_change(&cuda->stages, stage, err);
}

struct stage_mark {
    int stage;
    int64_t layer;
};

static void stage_run(struct stream *stream, const void *argument)
{
    const struct stage_mark *mark = argument;
    struct error failure = {.message = ""};
    cuda_stream_check(stream, stage_change(cuda_stream_of(stream), mark->stage, &failure),
                      &failure);
    trace_stage(mark->stage, mark->layer);
}

void cuda_stream_stage(struct stream *stream, int stage, int64_t layer)
{
    ASSERT(stage >= 0 && stage < DEVICE_STAGES);
    command_stream_put(stream, COMMAND_SKIP, NULL, stage_run, &(struct stage_mark){stage, layer},
                       sizeof(struct stage_mark));
}

void cuda_stream_stage_totals(const struct stream *stream, struct stage_total totals[DEVICE_STAGES])
{
    const struct cuda_stages *stages = &cuda_stream_of(stream)->stages;
    memcpy(totals, stages->totals, sizeof stages->totals);
}

void cuda_stream_count_weights(struct cuda_stream *cuda, uint64_t bytes)
{
    cuda->stages.totals[cuda->stages.stage].weight_bytes += bytes;
}

enum status cuda_stream_read_weights(struct cuda_stream *cuda, const int32_t *offsets,
                                     int64_t group_count, uint64_t group_bytes, struct error *err)
{
    if (cuda_stages_are_full(&cuda->stages, group_count))
        TRY(cuda_stream_settle(&cuda->base, err));
    return cuda_stages_read(&cuda->stages, offsets, group_count, group_bytes, err);
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* The GPU's streams of the host's priorities: what is low gives way to all others. */
static enum status stream_open(struct cuda_stream *cuda, enum stream_priority priority,
                               struct error *err)
{
    int ordinal = cuda->common->ordinal, least, greatest;
    CUDA_TRY(ordinal, cudaSetDevice(ordinal), err);
    CUDA_TRY(ordinal, cudaDeviceGetStreamPriorityRange(&least, &greatest), err);
    CUDA_TRY(ordinal,
             cudaStreamCreateWithPriority(&cuda->launch.stream, cudaStreamNonBlocking,
                                          priority == STREAM_LOW ? least : greatest),
             err);
    TRY(cuda_ring_init(&cuda->ring, ordinal, cuda->launch.stream, err));
    return cuda_stages_init(&cuda->stages, ordinal, cuda->launch.stream, err);
}

/* Nothing is on it that has not run. */
static void stream_close(struct cuda_stream *cuda)
{
    if (cuda_is_stuck()) {
        memory_free(cuda);
        return;
    }
    (void)cudaSetDevice(cuda->common->ordinal);
    if (cuda->launch.stream != NULL)
        (void)cudaStreamSynchronize(cuda->launch.stream);
    cuda_stages_deinit(&cuda->stages);
    cuda_ring_deinit(&cuda->ring);
    (void)cudaFree(cuda->launch.scratch);
    if (cuda->launch.stream != NULL)
        (void)cudaStreamDestroy(cuda->launch.stream);
    (void)cudaGetLastError();
    memory_free(cuda);
}

enum status cuda_stream_create(struct stream **out, const struct cuda_common *common,
                               enum stream_priority priority, struct error *err)
{
    struct cuda_stream *cuda;
    enum status status;
    TRY(memory_get((void **)&cuda, 1, sizeof *cuda, "a stream", err));
    cuda->base.kind = &cuda_kind;
    cuda->base.owner = &common->owner;
    cuda->base.priority = priority;
    cuda->common = common;
    cuda->launch = common->launch;
    TRY_GOTO(stream_open(cuda, priority, err), failed);
    TRY_GOTO(command_stream_init(&cuda->base, -1, err), failed);
    *out = &cuda->base;
    return STATUS_OK;

failed:
    stream_close(cuda);
    return status;
}

uint64_t cuda_stream_bytes(void)
{
    return sizeof(struct cuda_stream);
}

void cuda_stream_destroy(struct stream *stream)
{
    if (stream == NULL)
        return;
    command_stream_deinit(stream);
    stream_close(cuda_stream_of(stream));
}

#include "kernels/cuda/device/cuda_stream.h"

#include <string.h>

#include "base/memory.h"
#include "base/trace.h"
#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_reach.h"

/* Each larger scratch memory waits for the GPU, and is another to the graphs: that of a context
 * that grows in decode is got twice as large, up to where that would be much; from there on a
 * quarter larger. What NCCL's collectives need is less (NCCL_SCRATCH_MAX of comm/nccl.h). */
#define SCRATCH_DOUBLED_MAX ((size_t)16 << 20)

#define SPIN_CPUS 8

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
    cuda->graphs.settled++;
    return cuda_stages_settle(&cuda->stages, err);
}

static void catch_up(struct stream *stream)
{
    cuda_graphs_catch_up(cuda_stream_of(stream));
}

static const struct stream_kind cuda_kind = {
    .resume = gpu_take, .catch_up = catch_up, .settle = cuda_stream_settle};

/* ---- Scratch memory -------------------------------------------------------------------------- */

/* More than `bytes` where that is not much more than there is: who asks for a little more will do
 * so again, and each time graphs are captured anew. */
static size_t scratch_generous(const struct cuda_stream *cuda, size_t bytes)
{
    size_t had = cuda->launch.scratch_bytes;
    size_t grown = had < SCRATCH_DOUBLED_MAX ? 2 * had : had + had / 4;
    return grown > bytes ? grown : bytes;
}

static enum status scratch_get(void **out, size_t *got, const struct cuda_stream *cuda,
                               size_t bytes, struct error *err)
{
    *got = scratch_generous(cuda, bytes);
    if (*got > bytes && cudaMalloc(out, *got) == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError(); /* what is asked for may be there */
    *got = bytes;
    CUDA_TRY(cuda->common->ordinal, cudaMalloc(out, bytes), err);
    return STATUS_OK;
}

/* The stream has settled. Little is kept, to free nothing while others are about to launch a
 * collective; all of it is less than what came last. */
static enum status scratch_leave(struct cuda_stream *cuda, struct error *err)
{
    void *old = cuda->launch.scratch; /* is gone, whatever is said of it */
    bool is_little = cuda->launch.scratch_bytes < SCRATCH_DOUBLED_MAX;
    cuda->launch.scratch = NULL;
    cuda->launch.scratch_bytes = 0;
    if (old != NULL && is_little && cuda->outgrown_count < CUDA_OUTGROWN_MAX)
        cuda->outgrown[cuda->outgrown_count++] = old;
    else
        CUDA_TRY(cuda->common->ordinal, cudaFree(old), err);
    return STATUS_OK;
}

static enum status outgrown_free(struct cuda_stream *cuda, struct error *err)
{
    while (cuda->outgrown_count > 0)
        CUDA_TRY(cuda->common->ordinal, cudaFree(cuda->outgrown[--cuda->outgrown_count]), err);
    return STATUS_OK;
}

/* Where there is no room beside what is there, which then has to go first. */
static enum status scratch_exchange(void **out, size_t *got, struct cuda_stream *cuda, size_t bytes,
                                    struct error *err)
{
    size_t had = cuda->launch.scratch_bytes;
    struct error ignored;
    TRY(scratch_leave(cuda, err));
    TRY(outgrown_free(cuda, err));
    enum status status = scratch_get(out, got, cuda, bytes, err);
    if (status == STATUS_OK)
        return STATUS_OK;
    void *same = NULL;
    size_t again = 0;
    if (had > 0 && scratch_get(&same, &again, cuda, had, &ignored) == STATUS_OK) {
        cuda->launch.scratch = same; /* as much as it was */
        cuda->launch.scratch_bytes = had;
    }
    return status;
}

static enum status scratch_grow(struct cuda_stream *cuda, size_t bytes, bool is_needed,
                                struct error *err)
{
    void *more = NULL;
    size_t got = 0;
    TRY(cuda_stream_settle(&cuda->base, err));
    enum status status = scratch_get(&more, &got, cuda, bytes, err);
    if (status == STATUS_OK) {
        status = scratch_leave(cuda, err);
    } else if (status == STATUS_NO_MEMORY && is_needed) {
        status = scratch_exchange(&more, &got, cuda, bytes, err);
        if (status != STATUS_OK)
            return status;
    }
    if (more == NULL)
        return status;
    cuda->launch.scratch = more;
    cuda->launch.scratch_bytes = got;
    return status;
}

enum status cuda_stream_scratch(struct cuda_stream *cuda, size_t bytes, struct error *err)
{
    return bytes <= cuda->launch.scratch_bytes ? STATUS_OK : scratch_grow(cuda, bytes, true, err);
}

enum status cuda_stream_scratch_ask(struct cuda_stream *cuda, size_t bytes, struct error *err)
{
    unsigned freed = atomic_load(&cuda->common->freed);
    bool was_refused =
        cuda->refused_bytes > 0 && bytes >= cuda->refused_bytes && freed == cuda->refused_freed;
    if (bytes <= cuda->launch.scratch_bytes || was_refused || cuda->graphs.capturing != NULL)
        return STATUS_OK;
    enum status status = scratch_grow(cuda, bytes, false, err);
    if (status != STATUS_NO_MEMORY)
        return status;
    cuda->refused_bytes = bytes;
    cuda->refused_freed = freed;
    return STATUS_OK;
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

enum status cuda_stream_send(struct cuda_stream *cuda, const void **out,
                             const struct cuda_array *array, struct error *err)
{
    size_t bytes = cuda_array_bytes(array);
    void *host, *device;
    *out = cuda_graphs_array(&cuda->graphs, array);
    if (*out != NULL)
        return STATUS_OK;
    TRY(cuda_ring_take(&cuda->ring, bytes, &host, &device, err));
    cuda_array_write(array, host, device, true);
    *out = device;
    return cuda_ring_send(&cuda->ring, device, host, bytes, err);
}

/* ---- Launches -------------------------------------------------------------------------------- */

static void repeat_run(struct stream *stream, const void *argument)
{
    cuda_graphs_repeat(cuda_stream_of(stream), *(const bool *)argument);
}

void cuda_stream_repeat(struct stream *stream, bool begins)
{
    command_stream_put(stream, COMMAND_SKIP, NULL, repeat_run, &begins, sizeof begins);
}

static void launch_run(struct stream *stream, const void *argument)
{
    const struct cuda_launch_once *launch = argument;
    struct cuda_stream *cuda = cuda_stream_of(stream);
    struct error failure = {.message = ""};
    if (!cuda_graphs_put_off(cuda, launch))
        cuda_stream_check(stream, launch->kind->launch(cuda, launch->op, &failure), &failure);
    else if (!launch->kind->is_stage)
        trace_name(""); /* it has done nothing yet */
}

void cuda_stream_put(struct stream *stream, const char *name, const struct cuda_launch_kind *kind,
                     const void *op)
{
    struct cuda_launch_once launch; /* its bytes behind the operation's are not used */
    ASSERT(kind->bytes <= sizeof launch.op);
    launch.kind = kind;
    memcpy(launch.op, op, kind->bytes);
    command_stream_put(stream, COMMAND_LAUNCH, name, launch_run, &launch,
                       offsetof(struct cuda_launch_once, op) + kind->bytes);
}

/* ---- Stages ---------------------------------------------------------------------------------- */

struct stage_mark {
    int64_t stage, layer;
};

static enum status stage_launch(struct cuda_stream *cuda, const void *op, struct error *err)
{
    const struct stage_mark *mark = op;
    trace_stage((int)mark->stage, mark->layer);
    if (cuda_stages_are_full(&cuda->stages))
        TRY(cuda_stream_settle(&cuda->base, err));
    return cuda_stages_change(&cuda->stages, (int)mark->stage, err);
}

static const struct cuda_launch_kind stage_kind = {
    .launch = stage_launch, .bytes = sizeof(struct stage_mark), .is_stage = true};

void cuda_stream_stage(struct stream *stream, int stage, int64_t layer)
{
    ASSERT(stage >= 0 && stage < DEVICE_STAGES);
    cuda_stream_put(stream, NULL, &stage_kind, &(struct stage_mark){stage, layer});
}

void cuda_stream_stage_totals(const struct stream *stream, struct stage_total totals[DEVICE_STAGES])
{
    const struct cuda_stages *stages = &cuda_stream_of(stream)->stages;
    memcpy(totals, stages->totals, sizeof stages->totals);
}

enum status cuda_stream_read_weights(struct cuda_stream *cuda, uint64_t group_bytes,
                                     struct error *err)
{
    if (cuda_stages_are_full(&cuda->stages))
        TRY(cuda_stream_settle(&cuda->base, err));
    cuda->launch.groups_with_rows = cuda_stages_read(&cuda->stages, group_bytes);
    return STATUS_OK;
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
             cuda_partition_stream(&cuda->common->partition, &cuda->launch.stream,
                                   priority == STREAM_LOW ? least : greatest),
             err);
    TRY(cuda_ring_init(&cuda->ring, ordinal, cuda->launch.stream, err));
    return cuda_stages_init(&cuda->stages, ordinal, cuda->launch.stream, err);
}

/* Between two steps of decode the thread would sleep, and the GPU wait until it has woken. Ranks
 * have a stream each and others beside, so that only where CPUs are many one is likely to be free.
 */
static bool may_spin(enum stream_priority priority)
{
    return priority != STREAM_LOW && thread_team_cpu_count() >= SPIN_CPUS;
}

/* Nothing is on it that has not run. */
static void stream_close(struct cuda_stream *cuda)
{
    struct error ignored;
    if (cuda_is_stuck()) {
        memory_free(cuda);
        return;
    }
    (void)cudaSetDevice(cuda->common->ordinal);
    if (cuda->launch.stream != NULL)
        (void)cudaStreamSynchronize(cuda->launch.stream);
    cuda_graphs_deinit(&cuda->graphs);
    cuda_stages_deinit(&cuda->stages);
    cuda_ring_deinit(&cuda->ring);
    (void)cudaFree(cuda->launch.scratch);
    (void)outgrown_free(cuda, &ignored);
    (void)cudaFree(cuda->pace);
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
    cuda->base.spin = may_spin(priority);
    cuda->common = common;
    cuda->launch = common->launch;
    cuda_graphs_init(&cuda->graphs);
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

#include "kernels/cpu/device/cpu_stream.h"

#include <string.h>

#include "base/memory.h"
#include "base/system.h"

struct cpu_stream {
    struct stream base;
    const struct cpu_common *common;
    struct thread_team *team;

    /* Of the stream's thread; the host reads it when everything has run. */
    bool holds_turn;
    int stage;
    double stage_began; /* by system_seconds */
    struct stage_total stage_totals[DEVICE_STAGES];

    struct share share; /* of the operation that runs */
};

static struct cpu_stream *cpu_of(const struct stream *stream)
{
    return (struct cpu_stream *)stream;
}

/* ---- Turns ----------------------------------------------------------------------------------- */

static void turn_take(struct stream *stream)
{
    struct cpu_stream *cpu = cpu_of(stream);
    struct turn *turn = stream->owner->device->turn;
    if (turn == NULL || cpu->holds_turn)
        return;
    turn->take(turn, stream->owner->device);
    cpu->holds_turn = true;
}

static void turn_give(struct stream *stream)
{
    struct cpu_stream *cpu = cpu_of(stream);
    struct turn *turn = stream->owner->device->turn;
    if (turn == NULL || !cpu->holds_turn)
        return;
    cpu->holds_turn = false;
    turn->give(turn, stream->owner->device);
}

/* A command that waits gives the turn, and the next one takes it. */
static const struct stream_kind cpu_kind = {.resume = turn_take, .pause = turn_give};

/* ---- Operations ------------------------------------------------------------------------------ */

struct launch {
    share_work *work;
    const struct cpu_kernels *kernels;
    const void *op;
    struct share *share;
};

static void launch_work(void *context, int worker)
{
    (void)worker;
    struct launch *launch = context;
    launch->work(launch->kernels, launch->op, launch->share);
}

void cpu_stream_share(struct stream *stream, share_work *work, const void *op)
{
    struct cpu_stream *cpu = cpu_of(stream);
    struct launch launch = {work, cpu->common->kernels, op, &cpu->share};
    int threads = cpu->team != NULL ? thread_team_size(cpu->team) : 1;
    record_threads(threads);
    share_begin(&cpu->share, threads);
    if (cpu->team != NULL)
        thread_team_share(cpu->team, launch_work, &launch);
    else
        launch_work(&launch, 0);
}

struct cpu_pool *cpu_stream_pool(struct stream *stream)
{
    return cpu_of(stream)->common->pool;
}

/* Commands, and pieces of operations. */
uint64_t cpu_stream_progress(const struct stream *stream)
{
    return command_stream_progress(stream) +
           (uint64_t)atomic_load_explicit(&cpu_of(stream)->share.next, memory_order_relaxed);
}

/* ---- Stages ---------------------------------------------------------------------------------- */

struct stage_mark {
    int stage;
    int64_t layer;
};

static void stage_run(struct stream *stream, const void *argument)
{
    const struct stage_mark *mark = argument;
    struct cpu_stream *cpu = cpu_of(stream);
    double now = system_seconds();
    cpu->stage_totals[cpu->stage].seconds += now - cpu->stage_began;
    cpu->stage_began = now;
    cpu->stage = mark->stage;
    trace_stage(mark->stage, mark->layer);
}

void cpu_stream_stage(struct stream *stream, int stage, int64_t layer)
{
    ASSERT(stage >= 0 && stage < DEVICE_STAGES);
    trace_stage(stage, layer); /* of what the host does for it */
    command_stream_put(stream, COMMAND_KEEP, NULL, stage_run, &(struct stage_mark){stage, layer},
                       sizeof(struct stage_mark));
}

void cpu_stream_stage_totals(const struct stream *stream, struct stage_total totals[DEVICE_STAGES])
{
    memcpy(totals, cpu_of(stream)->stage_totals, sizeof cpu_of(stream)->stage_totals);
}

void cpu_stream_count_weights(struct stream *stream, uint64_t bytes)
{
    struct cpu_stream *cpu = cpu_of(stream);
    cpu->stage_totals[cpu->stage].weight_bytes += bytes;
    trace_bytes(bytes);
}

/* ---- Life ------------------------------------------------------------------------------------ */

enum status cpu_stream_create(struct stream **out, const struct cpu_stream_params *params,
                              struct error *err)
{
    struct cpu_stream *cpu;
    TRY(memory_get((void **)&cpu, 1, sizeof *cpu, "a stream", err));
    cpu->base.kind = &cpu_kind;
    cpu->base.owner = &params->common->owner;
    cpu->base.priority = params->priority;
    cpu->common = params->common;
    cpu->team = params->team;
    cpu->stage_began = system_seconds();
    enum status status = command_stream_init(&cpu->base, params->cpu, err);
    if (status != STATUS_OK) {
        memory_free(cpu);
        return status;
    }
    *out = &cpu->base;
    return STATUS_OK;
}

void cpu_stream_destroy(struct stream *stream)
{
    if (stream == NULL)
        return;
    command_stream_deinit(stream);
    memory_free(stream);
}

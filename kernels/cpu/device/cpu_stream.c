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
    int64_t layer;      /* of the stage */
    double stage_began; /* by system_seconds */
    struct stage_total stage_totals[DEVICE_STAGES];

    struct share share; /* of the operation that runs */
    struct {
        const struct cpu_operation *operation; /* NULL: none is held */
        struct command_part place;
        struct share share;
        _Alignas(16) unsigned char op[CPU_HELD_BYTES];
    } held;
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

/* One or two operations that the workers share, each with what its workers took for it. */
struct launch {
    const struct cpu_kernels *kernels;
    int count;
    struct {
        const struct cpu_operation *operation;
        const void *op;
        struct share *share;
        atomic_llong nanoseconds; /* of all workers; of two operations alone */
    } of[2];
};

static void launch_work(void *context, int worker)
{
    struct launch *launch = context;
    double begin = launch->count > 1 ? system_seconds() : 0;
    for (int i = 0; i < launch->count; i++) {
        int which = (worker + i) % launch->count;
        launch->of[which].operation->work(launch->kernels, launch->of[which].op,
                                          launch->of[which].share);
        if (launch->count == 1)
            return;
        double end = system_seconds();
        atomic_fetch_add(&launch->of[which].nanoseconds, (long long)((end - begin) * 1e9));
        begin = end;
    }
}

static void launch_add(struct launch *launch, const struct cpu_operation *operation, const void *op,
                       struct share *share)
{
    int i = launch->count++;
    launch->of[i].operation = operation;
    launch->of[i].op = op;
    launch->of[i].share = share;
}

static int worker_count(const struct cpu_stream *cpu)
{
    return cpu->team != NULL ? thread_team_size(cpu->team) : 1;
}

static void launch_run(struct cpu_stream *cpu, struct launch *launch)
{
    for (int i = 0; i < launch->count; i++)
        share_begin(launch->of[i].share, worker_count(cpu));
    if (cpu->team != NULL)
        thread_team_share(cpu->team, launch_work, launch);
    else
        launch_work(launch, 0);
}

bool cpu_stream_hold(struct stream *stream, const struct cpu_operation *operation, const void *op,
                     size_t bytes, uint64_t weight_bytes)
{
    struct cpu_stream *cpu = cpu_of(stream);
    ASSERT(cpu->held.operation == NULL && bytes <= sizeof cpu->held.op);
    if (worker_count(cpu) == 1)
        return false;
    cpu->held.operation = operation;
    cpu->held.place = (struct command_part){
        .name = operation->name,
        .stage = cpu->stage,
        .layer = cpu->layer,
        .bytes = weight_bytes,
    };
    memcpy(cpu->held.op, op, bytes);
    record_drop();
    trace_name(""); /* the command has done nothing yet */
    return true;
}

/* The operation that was held had so much of the time since `begin` as of what the workers took:
 * in the totals of its stage, in trace and recording. */
static void held_account(struct cpu_stream *cpu, const struct launch *launch, double begin)
{
    struct command_part *part = &cpu->held.place;
    double now = system_seconds();
    double held = (double)atomic_load(&launch->of[0].nanoseconds);
    double all = held + (double)atomic_load(&launch->of[1].nanoseconds);
    double seconds = all > 0 ? (now - begin) * held / all : 0;
    part->end = begin + seconds;
    cpu->stage_totals[part->stage].seconds += seconds;
    cpu->stage_began += seconds;
    if (record_is_on())
        cpu->held.operation->record(&cpu->base, cpu->held.op);
    command_stream_cut(&cpu->base, part);
}

void cpu_stream_share(struct stream *stream, const struct cpu_operation *operation, const void *op)
{
    struct cpu_stream *cpu = cpu_of(stream);
    struct launch launch = {.kernels = cpu->common->kernels};
    record_threads(worker_count(cpu));
    if (cpu->held.operation != NULL) {
        ASSERT(cpu->held.operation == operation);
        launch_add(&launch, operation, cpu->held.op, &cpu->held.share);
        launch_add(&launch, operation, op, &cpu->share);
        double begin = system_seconds();
        launch_run(cpu, &launch);
        held_account(cpu, &launch, begin);
        cpu->held.operation = NULL;
    } else {
        launch_add(&launch, operation, op, &cpu->share);
        launch_run(cpu, &launch);
    }
    if (record_is_on())
        operation->record(stream, op);
}

void cpu_stream_alone(struct stream *stream, const struct cpu_operation *operation, const void *op)
{
    struct cpu_stream *cpu = cpu_of(stream);
    ASSERT(cpu->held.operation == NULL);
    share_begin(&cpu->share, 1);
    operation->work(cpu->common->kernels, op, &cpu->share);
    if (record_is_on())
        operation->record(stream, op);
}

struct cpu_pool *cpu_stream_pool(struct stream *stream)
{
    return cpu_of(stream)->common->pool;
}

/* Commands, and pieces of operations. */
uint64_t cpu_stream_progress(const struct stream *stream)
{
    return command_stream_progress(stream) +
           (uint64_t)atomic_load_explicit(&cpu_of(stream)->share.next, memory_order_relaxed) +
           (uint64_t)atomic_load_explicit(&cpu_of(stream)->held.share.next, memory_order_relaxed);
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
    cpu->layer = mark->layer;
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

uint64_t cpu_stream_bytes(void)
{
    return sizeof(struct cpu_stream);
}

void cpu_stream_destroy(struct stream *stream)
{
    if (stream == NULL)
        return;
    command_stream_deinit(stream);
    memory_free(stream);
}

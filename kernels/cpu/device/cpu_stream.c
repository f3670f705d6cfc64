#define _GNU_SOURCE
#include "kernels/cpu/device/cpu_stream.h"

#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/perturb.h"
#include "base/system.h"

/* A power of two. A layer is some twenty commands; 256 let the host be ten layers ahead, and take
 * 80 KiB. */
#define RING_COMMANDS 256

struct call {
    enum status (*work)(void *argument, struct error *err);
    _Alignas(16) unsigned char argument[STREAM_CALL_BYTES];
};

struct command {
    const char *name;
    command_run *run;
    enum command_kind kind;
    _Alignas(16) unsigned char argument[sizeof(struct call)];
};

struct stream {
    const struct cpu_common *common;
    struct thread_team *team;
    enum stream_priority priority;
    struct trace_lane *lane;
    pthread_t thread;
    bool spin;

    /* Commands pushed and popped since the start; they wrap around. The slot of a command belongs
     * to the stream's thread from the moment `pushed` counts it until `popped` does. */
    _Alignas(64) atomic_uint pushed; /* written by the host */
    unsigned popped_seen;            /* the host's last look at `popped` */
    struct sleepers idle;            /* the stream's thread, until something is pushed */
    atomic_bool stopping;
    _Alignas(64) atomic_uint popped; /* written by the stream's thread */
    unsigned pushed_seen;            /* its last look at `pushed` */
    atomic_uint wanted;              /* the value of `popped` that the host waits for */
    struct sleepers host_waiting;

    /* Of the stream's thread; the host reads it when everything has run. */
    bool holds_turn;
    int stage;
    double stage_began; /* by system_seconds */
    struct stage_total stage_totals[DEVICE_STAGES];
    struct error failure; /* status STATUS_OK: none */

    struct share share; /* of the operation that runs */
    struct command ring[RING_COMMANDS];
};

/* ---- The stream's thread --------------------------------------------------------------------- */

static void turn_take(struct stream *stream)
{
    struct turn *turn = stream->common->turn;
    if (turn == NULL || stream->holds_turn)
        return;
    turn->take(turn, stream->common->device);
    stream->holds_turn = true;
}

static void turn_give(struct stream *stream)
{
    struct turn *turn = stream->common->turn;
    if (turn == NULL || !stream->holds_turn)
        return;
    stream->holds_turn = false;
    turn->give(turn, stream->common->device);
}

void cpu_stream_wait(struct stream *stream, struct sleepers *sleepers,
                     bool (*ready)(const void *context), const void *context)
{
    if (ready(context))
        return;
    turn_give(stream);
    sleepers_wait(sleepers, stream->spin, ready, context);
}

static void stream_fail(struct stream *stream, const struct error *failure)
{
    const struct cpu_common *common = stream->common;
    stream->failure = *failure;
    if (common->on_failure != NULL)
        common->on_failure(common->on_failure_context, &stream->failure);
}

static void call_run(struct stream *stream, const void *argument)
{
    /* In its slot, which is this thread's now: the work may write to its argument. */
    struct call *call = (struct call *)argument;
    struct error failure = {.message = ""};
    enum status status = call->work(call->argument, &failure);
    if (status == STATUS_OK)
        return;
    failure.status = status;
    stream_fail(stream, &failure);
}

static void command_finish(struct stream *stream)
{
    atomic_fetch_add_explicit(&stream->share.next, 1, memory_order_relaxed);
    unsigned popped = atomic_load_explicit(&stream->popped, memory_order_relaxed) + 1;
    atomic_store(&stream->popped, popped);
    /* The host writes `wanted` before it looks at `popped`: either it sees this one, or this sees
     * what it wants. */
    if (atomic_load(&stream->wanted) == popped)
        sleepers_wake(&stream->host_waiting);
}

/* As low as the system lets a thread be: it runs where a CPU would be idle. */
static void thread_make_low(void)
{
    struct sched_param none = {0};
    if (sched_setscheduler(0, SCHED_IDLE, &none) != 0)
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
}

static bool has_something_to_do(const void *context)
{
    const struct stream *stream = context;
    return atomic_load(&stream->pushed) != atomic_load(&stream->popped) ||
           atomic_load(&stream->stopping);
}

/* Waits for a command; NULL: the stream is being destroyed, and nothing is left. */
static struct command *command_next(struct stream *stream)
{
    unsigned popped = atomic_load_explicit(&stream->popped, memory_order_relaxed);
    if (popped == stream->pushed_seen) {
        if (!has_something_to_do(stream)) {
            turn_give(stream);
            sleepers_wait(&stream->idle, stream->spin, has_something_to_do, stream);
        }
        stream->pushed_seen = atomic_load(&stream->pushed);
    }
    return popped == stream->pushed_seen ? NULL : &stream->ring[popped % RING_COMMANDS];
}

static void command_do(struct stream *stream, const struct command *command)
{
    double begin = trace_begin();
    command->run(stream, command->argument);
    if (command->name != NULL)
        trace_add_named(begin, command->name);
}

static void *stream_main(void *context)
{
    struct stream *stream = context;
    if (stream->priority == STREAM_LOW)
        thread_make_low();
    trace_lane_use(stream->lane);
    struct command *command;
    while ((command = command_next(stream)) != NULL) {
        turn_take(stream);
        perturb();
        if (command->kind == COMMAND_KEEP || stream->failure.status == STATUS_OK)
            command_do(stream, command);
        command_finish(stream);
    }
    turn_give(stream);
    return NULL;
}

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
    struct launch launch = {work, stream->common->kernels, op, &stream->share};
    share_begin(&stream->share, stream->team != NULL ? thread_team_size(stream->team) : 1);
    if (stream->team != NULL)
        thread_team_share(stream->team, launch_work, &launch);
    else
        launch_work(&launch, 0);
}

/* ---- The host's thread ----------------------------------------------------------------------- */

static bool host_is_served(const void *context)
{
    const struct stream *stream = context;
    return (int)(atomic_load(&stream->popped) - atomic_load(&stream->wanted)) >= 0;
}

/* Returns when `popped` has come to `target`. The host has no CPU of its own: it does not spin. */
static void host_wait(struct stream *stream, unsigned target)
{
    atomic_store(&stream->wanted, target);
    sleepers_wait(&stream->host_waiting, false, host_is_served, stream);
}

/* The next slot, when there is a free one; a full ring is waited for until half of it is free, so
 * that host and stream do not wake each other for each command. */
static struct command *slot_get(struct stream *stream)
{
    unsigned pushed = atomic_load_explicit(&stream->pushed, memory_order_relaxed);
    if (pushed - stream->popped_seen == RING_COMMANDS)
        stream->popped_seen = atomic_load(&stream->popped);
    if (pushed - stream->popped_seen == RING_COMMANDS) {
        host_wait(stream, pushed - RING_COMMANDS / 2);
        stream->popped_seen = atomic_load(&stream->popped);
    }
    return &stream->ring[pushed % RING_COMMANDS];
}

static void slot_push(struct stream *stream)
{
    unsigned pushed = atomic_load_explicit(&stream->pushed, memory_order_relaxed);
    atomic_store_explicit(&stream->pushed, pushed + 1, memory_order_release);
    sleepers_wake(&stream->idle);
}

void cpu_stream_put(struct stream *stream, enum command_kind kind, const char *name,
                    command_run *run, const void *argument, size_t bytes)
{
    struct command *command = slot_get(stream);
    ASSERT(bytes <= sizeof command->argument);
    command->name = name;
    command->run = run;
    command->kind = kind;
    memcpy(command->argument, argument, bytes);
    slot_push(stream);
}

void cpu_stream_call(struct stream *stream, enum status (*work)(void *argument, struct error *err),
                     const void *argument, size_t bytes)
{
    struct call call; /* its bytes behind the argument's are not used */
    call.work = work;
    ASSERT(bytes <= sizeof call.argument);
    if (bytes > 0)
        memcpy(call.argument, argument, bytes);
    cpu_stream_put(stream, COMMAND_SKIP, "call", call_run, &call,
                   offsetof(struct call, argument) + bytes);
}

enum status cpu_stream_synchronize(struct stream *stream, struct error *err)
{
    host_wait(stream, atomic_load(&stream->pushed));
    if (stream->failure.status != STATUS_OK && err != NULL)
        *err = stream->failure;
    return stream->failure.status;
}

uint64_t cpu_stream_progress(const struct stream *stream)
{
    return (uint64_t)atomic_load_explicit(&stream->share.next, memory_order_relaxed);
}

struct stage_mark {
    int stage;
    int64_t layer;
};

static void stage_run(struct stream *stream, const void *argument)
{
    const struct stage_mark *mark = argument;
    double now = system_seconds();
    stream->stage_totals[stream->stage].seconds += now - stream->stage_began;
    stream->stage_began = now;
    stream->stage = mark->stage;
    trace_stage(mark->stage, mark->layer);
}

void cpu_stream_stage(struct stream *stream, int stage, int64_t layer)
{
    ASSERT(stage >= 0 && stage < DEVICE_STAGES);
    cpu_stream_put(stream, COMMAND_KEEP, NULL, stage_run, &(struct stage_mark){stage, layer},
                   sizeof(struct stage_mark));
}

void cpu_stream_stage_totals(const struct stream *stream, struct stage_total totals[DEVICE_STAGES])
{
    memcpy(totals, stream->stage_totals, sizeof stream->stage_totals);
}

void cpu_stream_count_weights(struct stream *stream, uint64_t bytes)
{
    stream->stage_totals[stream->stage].weight_bytes += bytes;
    trace_bytes(bytes);
}

struct host_work {
    void (*work)(void *context, int worker);
    void *context;
};

static void host_work_run(struct stream *stream, const void *argument)
{
    const struct host_work *host = argument;
    thread_team_run(stream->team, host->work, host->context);
}

void cpu_stream_host_run(struct stream *stream, void (*work)(void *context, int worker),
                         void *context)
{
    cpu_stream_put(stream, COMMAND_KEEP, "host work", host_work_run,
                   &(struct host_work){work, context}, sizeof(struct host_work));
    host_wait(stream, atomic_load(&stream->pushed));
}

enum status cpu_stream_create(struct stream **out, const struct cpu_stream_params *params,
                              struct error *err)
{
    struct stream *stream;
    TRY(memory_get((void **)&stream, 1, sizeof *stream, "a stream", err));
    stream->common = params->common;
    stream->team = params->team;
    stream->priority = params->priority;
    stream->spin = params->cpu >= 0;
    stream->stage_began = system_seconds();
    stream->lane = trace_lane_add(params->common->trace, params->common->rank,
                                  params->priority == STREAM_LOW ? "beside" : "passes");
    int failure = pthread_create(&stream->thread, NULL, stream_main, stream);
    if (failure != 0) {
        memory_free(stream);
        return error_set_errno(err, failure, "cannot start the thread of a stream");
    }
    thread_pin(stream->thread, params->cpu);
    *out = stream;
    return STATUS_OK;
}

void cpu_stream_destroy(struct stream *stream)
{
    if (stream == NULL)
        return;
    atomic_store(&stream->stopping, true);
    sleepers_wake(&stream->idle);
    pthread_join(stream->thread, NULL);
    memory_free(stream);
}

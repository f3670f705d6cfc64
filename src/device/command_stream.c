#define _GNU_SOURCE
#include "device/command_stream.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/perturb.h"

/* ---- The stream's thread --------------------------------------------------------------------- */

static void stream_pause(struct stream *stream)
{
    if (stream->kind->pause != NULL)
        stream->kind->pause(stream);
}

void command_stream_wait(struct stream *stream, struct sleepers *sleepers,
                         bool (*ready)(const void *context), const void *context)
{
    if (ready(context))
        return;
    stream_pause(stream);
    sleepers_wait(sleepers, stream->spin, ready, context);
}

void command_stream_fail(struct stream *stream, const struct error *failure)
{
    const struct stream_owner *owner = stream->owner;
    if (stream->failure.status != STATUS_OK)
        return;
    stream->failure = *failure;
    if (owner->on_failure != NULL)
        owner->on_failure(owner->on_failure_context, &stream->failure);
}

static void fail_unless_ok(struct stream *stream, enum status status, struct error *failure)
{
    if (status == STATUS_OK)
        return;
    failure->status = status;
    command_stream_fail(stream, failure);
}

static void settle_run(struct stream *stream, const void *argument)
{
    (void)argument;
    const struct stream_owner *owner = stream->owner;
    struct error failure = {.message = ""};
    enum status status = stream->kind->settle(stream, &failure);
    if (status == STATUS_OK && owner->on_settled != NULL)
        status = owner->on_settled(owner->on_settled_context, &failure);
    fail_unless_ok(stream, status, &failure);
}

static void call_ahead_run(struct stream *stream, const void *argument)
{
    /* In its slot, which is this thread's now: the work may write to its argument. */
    struct command_call *call = (struct command_call *)argument;
    struct error failure = {.message = ""};
    fail_unless_ok(stream, call->work(call->argument, &failure), &failure);
}

static void call_run(struct stream *stream, const void *argument)
{
    if (stream->kind->settle != NULL)
        settle_run(stream, NULL);
    if (stream->failure.status == STATUS_OK)
        call_ahead_run(stream, argument);
}

void command_stream_moved(struct stream *stream)
{
    atomic_fetch_add_explicit(&stream->finished, 1, memory_order_relaxed);
}

static void command_finish(struct stream *stream)
{
    command_stream_moved(stream);
    unsigned popped = atomic_load_explicit(&stream->popped, memory_order_relaxed) + 1;
    atomic_store(&stream->popped, popped);
    /* The host writes `wanted` before it looks at `popped`: either it sees this one, or this sees
     * what it wants. */
    if (atomic_load(&stream->wanted) == popped)
        sleepers_wake(&stream->host_waiting);
}

/* As low as the system lets a thread be: it runs where a CPU would be idle. Threads that it starts
 * are, too. */
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
            stream_pause(stream);
            sleepers_wait(&stream->idle, stream->spin, has_something_to_do, stream);
        }
        stream->pushed_seen = atomic_load(&stream->pushed);
    }
    return popped == stream->pushed_seen ? NULL : &stream->ring[popped % STREAM_RING_COMMANDS];
}

static void command_do(struct stream *stream, const struct command *command)
{
    stream->began = trace_begin();
    record_need(command->mark);
    record_begin();
    command->run(stream, command->argument);
    record_end(command->name != NULL ? command->name : "");
    if (command->name != NULL)
        trace_add_named(stream->began, command->name);
}

/* What a command of another kind does or lets others see stands behind all before it. */
static void command_take(struct stream *stream, const struct command *command)
{
    if (command->kind != COMMAND_LAUNCH && stream->kind->catch_up != NULL)
        stream->kind->catch_up(stream);
    if (command->kind == COMMAND_KEEP || stream->failure.status == STATUS_OK)
        command_do(stream, command);
}

void command_stream_cut(struct stream *stream, const struct command_part *part)
{
    struct trace_place here = trace_place();
    trace_stage(part->stage, part->layer);
    record_cut(part->name, (uint64_t)(part->end * 1e9));
    trace_add_until(stream->began, part->end, part->name, part->bytes);
    if (stream->began != 0)
        stream->began = part->end;
    trace_stage(here.stage, here.layer);
}

/* For who looks at threads, by `top -H`, perf or a debugger. */
static void thread_take_name(const struct stream *stream)
{
    char name[16]; /* what the system keeps */
    snprintf(name, sizeof name, stream->priority == STREAM_LOW ? "rank %d beside" : "rank %d",
             stream->owner->rank);
    (void)pthread_setname_np(pthread_self(), name);
}

static void *stream_main(void *context)
{
    struct stream *stream = context;
    const struct stream_kind *kind = stream->kind;
    thread_take_name(stream);
    if (stream->priority == STREAM_LOW && kind->settle == NULL)
        thread_make_low();
    trace_lane_use(stream->lane);
    struct command *command;
    while ((command = command_next(stream)) != NULL) {
        if (kind->resume != NULL)
            kind->resume(stream);
        perturb();
        command_take(stream, command);
        command_finish(stream);
    }
    if (kind->catch_up != NULL)
        kind->catch_up(stream);
    stream_pause(stream);
    return NULL;
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
    if (pushed - stream->popped_seen == STREAM_RING_COMMANDS)
        stream->popped_seen = atomic_load(&stream->popped);
    if (pushed - stream->popped_seen == STREAM_RING_COMMANDS) {
        host_wait(stream, pushed - STREAM_RING_COMMANDS / 2);
        stream->popped_seen = atomic_load(&stream->popped);
    }
    return &stream->ring[pushed % STREAM_RING_COMMANDS];
}

static void slot_push(struct stream *stream)
{
    unsigned pushed = atomic_load_explicit(&stream->pushed, memory_order_relaxed);
    atomic_store_explicit(&stream->pushed, pushed + 1, memory_order_release);
    sleepers_wake(&stream->idle);
}

void command_stream_put(struct stream *stream, enum command_kind kind, const char *name,
                        command_run *run, const void *argument, size_t bytes)
{
    struct record_mark mark = record_mark();
    struct command *command = slot_get(stream);
    ASSERT(bytes <= sizeof command->argument);
    command->mark = mark;
    command->name = name;
    command->run = run;
    command->kind = kind;
    if (bytes > 0)
        memcpy(command->argument, argument, bytes);
    slot_push(stream);
}

static void call_put(struct stream *stream, command_run *run,
                     enum status (*work)(void *argument, struct error *err), const void *argument,
                     size_t bytes)
{
    struct command_call call; /* its bytes behind the argument's are not used */
    call.work = work;
    ASSERT(bytes <= sizeof call.argument);
    if (bytes > 0)
        memcpy(call.argument, argument, bytes);
    command_stream_put(stream, COMMAND_SKIP, "call", run, &call,
                       offsetof(struct command_call, argument) + bytes);
}

void command_stream_call(struct stream *stream,
                         enum status (*work)(void *argument, struct error *err),
                         const void *argument, size_t bytes)
{
    call_put(stream, call_run, work, argument, bytes);
}

void command_stream_call_ahead(struct stream *stream,
                               enum status (*work)(void *argument, struct error *err),
                               const void *argument, size_t bytes)
{
    call_put(stream, call_ahead_run, work, argument, bytes);
}

/* Until all that was put on it has run. */
static void host_wait_for_all(struct stream *stream)
{
    record_pause();
    host_wait(stream, atomic_load(&stream->pushed));
    record_need(record_mark_of(stream->lane));
    record_resume();
}

enum status command_stream_synchronize(struct stream *stream, struct error *err)
{
    if (stream->kind->settle != NULL)
        command_stream_put(stream, COMMAND_KEEP, "settle", settle_run, NULL, 0);
    host_wait_for_all(stream);
    if (stream->failure.status != STATUS_OK && err != NULL)
        *err = stream->failure;
    return stream->failure.status;
}

uint64_t command_stream_progress(const struct stream *stream)
{
    return (uint64_t)atomic_load_explicit(&stream->finished, memory_order_relaxed);
}

struct host_work {
    struct thread_team *team;
    void (*work)(void *context, int worker);
    void *context;
};

static void host_work_run(struct stream *stream, const void *argument)
{
    (void)stream;
    const struct host_work *host = argument;
    record_threads(thread_team_size(host->team));
    thread_team_run(host->team, host->work, host->context);
}

void command_stream_host_run(struct stream *stream, struct thread_team *team,
                             void (*work)(void *context, int worker), void *context)
{
    command_stream_put(stream, COMMAND_KEEP, "host work", host_work_run,
                       &(struct host_work){team, work, context}, sizeof(struct host_work));
    host_wait_for_all(stream);
}

enum status command_stream_init(struct stream *stream, int cpu, struct error *err)
{
    stream->spin = stream->spin || cpu >= 0;
    stream->lane = trace_lane_add(stream->owner->trace, stream->owner->rank,
                                  stream->priority == STREAM_LOW ? "beside" : "passes");
    record_lane_set(stream->lane,
                    stream->priority == STREAM_LOW ? RECORD_LANE_LOW : RECORD_LANE_STREAM);
    int failure = pthread_create(&stream->thread, NULL, stream_main, stream);
    if (failure != 0)
        return error_set_errno(err, failure, "cannot start the thread of a stream");
    thread_pin(stream->thread, cpu);
    return STATUS_OK;
}

void command_stream_deinit(struct stream *stream)
{
    atomic_store(&stream->stopping, true);
    sleepers_wake(&stream->idle);
    pthread_join(stream->thread, NULL);
}

#include "kernels/cpu/device/cpu_event.h"

#include <stdatomic.h>
#include <time.h>

#include "base/memory.h"
#include "kernels/cpu/device/cpu_stream.h"

struct event {
    atomic_uint recorded; /* event_records put on a stream so far */
    atomic_uint reached;  /* the latest of them that a stream has come to */
    atomic_uint users;    /* commands on a stream that will touch the event */
    struct sleepers waiting;
};

/* One record, or the wait for it. */
struct mark {
    struct event *event;
    unsigned number;
};

static bool mark_is_reached(const void *context)
{
    const struct mark *mark = context;
    return (int)(atomic_load(&mark->event->reached) - mark->number) >= 0;
}

enum status cpu_event_create(struct device *device, struct event **out, struct error *err)
{
    (void)device;
    return memory_get((void **)out, 1, sizeof **out, "an event", err);
}

/* Waits for commands that still hold the event: one that was seen to be passed may not have been
 * left yet by the stream that passed it. They have no way to tell after their last touch, and it is
 * rare: so it looks again and again. */
void cpu_event_destroy(struct device *device, struct event *event)
{
    (void)device;
    if (event == NULL)
        return;
    while (atomic_load(&event->users) > 0)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    memory_free(event);
}

static void record_run(struct stream *stream, const void *argument)
{
    (void)stream;
    const struct mark *mark = argument;
    struct event *event = mark->event;
    /* Records on different streams may be reached in another order than they were put. */
    unsigned reached = atomic_load(&event->reached);
    while ((int)(mark->number - reached) > 0 &&
           !atomic_compare_exchange_weak(&event->reached, &reached, mark->number))
        ;
    sleepers_wake(&event->waiting);
    atomic_fetch_sub(&event->users, 1);
}

static void wait_run(struct stream *stream, const void *argument)
{
    const struct mark *mark = argument;
    cpu_stream_wait(stream, &mark->event->waiting, mark_is_reached, mark);
    atomic_fetch_sub(&mark->event->users, 1);
}

void cpu_event_record(struct stream *stream, struct event *event)
{
    struct mark mark = {event, atomic_fetch_add(&event->recorded, 1) + 1};
    atomic_fetch_add(&event->users, 1);
    cpu_stream_put(stream, COMMAND_KEEP, NULL, record_run, &mark, sizeof mark);
}

/* It is kept on a stream that has failed, so that what is recorded behind it still says that what
 * came before is over. */
void cpu_event_wait(struct stream *stream, struct event *event)
{
    struct mark mark = {event, atomic_load(&event->recorded)};
    if (mark_is_reached(&mark))
        return;
    atomic_fetch_add(&event->users, 1);
    cpu_stream_put(stream, COMMAND_KEEP, "wait for an event", wait_run, &mark, sizeof mark);
}

void cpu_event_synchronize(struct event *event)
{
    struct mark mark = {event, atomic_load(&event->recorded)};
    sleepers_wait(&event->waiting, false, mark_is_reached, &mark);
}

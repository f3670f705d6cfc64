#include "device/command_event.h"

#include <time.h>

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

void command_event_init(struct event *event, const struct event_kind *kind)
{
    *event = (struct event){.kind = kind, .lock = PTHREAD_MUTEX_INITIALIZER};
}

/* An event that was seen to be passed may not have been left yet by the stream that passed it.
 * Commands have no way to tell after their last touch, and it is rare: so it looks again and again.
 */
void command_event_deinit(struct event *event)
{
    while (atomic_load(&event->users) > 0)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    pthread_mutex_destroy(&event->lock);
}

static void record_run(struct stream *stream, const void *argument)
{
    const struct mark *mark = argument;
    struct event *event = mark->event;
    pthread_mutex_lock(&event->lock);
    /* Records on different streams may be reached in another order than they were put. */
    if (!mark_is_reached(mark)) {
        if (event->kind != NULL)
            event->kind->record(stream, event);
        event->mark = record_mark();
        atomic_store(&event->reached, mark->number);
    }
    pthread_mutex_unlock(&event->lock);
    sleepers_wake(&event->waiting);
    atomic_fetch_sub(&event->users, 1);
}

static void wait_run(struct stream *stream, const void *argument)
{
    const struct mark *mark = argument;
    struct event *event = mark->event;
    command_stream_wait(stream, &event->waiting, mark_is_reached, mark);
    record_drop();
    pthread_mutex_lock(&event->lock);
    record_need(event->mark);
    if (event->kind != NULL)
        event->kind->follow(stream, event);
    pthread_mutex_unlock(&event->lock);
    atomic_fetch_sub(&event->users, 1);
}

void command_event_record(struct stream *stream, struct event *event)
{
    struct mark mark = {event, atomic_fetch_add(&event->recorded, 1) + 1};
    atomic_fetch_add(&event->users, 1);
    command_stream_put(stream, COMMAND_KEEP, NULL, record_run, &mark, sizeof mark);
}

/* It is kept on a stream that has failed, so that what is recorded behind it still says that what
 * came before is over. */
void command_event_wait(struct stream *stream, struct event *event)
{
    struct mark mark = {event, atomic_load(&event->recorded)};
    if (event->kind == NULL && mark_is_reached(&mark) && !record_is_on())
        return;
    atomic_fetch_add(&event->users, 1);
    command_stream_put(stream, COMMAND_KEEP, "wait for an event", wait_run, &mark, sizeof mark);
}

/* Threads that lead the host do not fail. */
enum status command_event_synchronize(struct event *event, struct error *err)
{
    (void)err;
    struct mark mark = {event, atomic_load(&event->recorded)};
    record_pause();
    sleepers_wait(&event->waiting, false, mark_is_reached, &mark);
    pthread_mutex_lock(&event->lock);
    record_need(event->mark);
    pthread_mutex_unlock(&event->lock);
    record_resume();
    return STATUS_OK;
}

/* What the events of all devices have in common: how far command streams have come with the records
 * of it. A device whose commands only launch its work begins its own event with a struct event, and
 * records and follows the device's. */
#ifndef PHASOR_DEVICE_COMMAND_EVENT_H
#define PHASOR_DEVICE_COMMAND_EVENT_H

#include <pthread.h>
#include <stdatomic.h>

#include "device/command_stream.h"

/* On a stream's thread, one at a time for each event; NULL: what a stream has come to has run. A
 * record that comes to its stream behind a later one on another is left out. */
struct event_kind {
    void (*record)(struct stream *stream, struct event *event);
    void (*follow)(struct stream *stream, struct event *event); /* the record that was left last */
};

struct event {
    const struct event_kind *kind; /* NULL: neither */
    pthread_mutex_t lock;          /* of record and follow */
    atomic_uint recorded;          /* event_records put on a stream so far */
    atomic_uint reached;           /* the latest of them that a stream has come to */
    atomic_uint users;             /* commands on a stream that will touch the event */
    struct record_mark mark;       /* under the lock: where the stream stood that was left last */
    struct sleepers waiting;
};

void command_event_init(struct event *event, const struct event_kind *kind);

/* Waits for commands that still hold the event. */
void command_event_deinit(struct event *event);

/* As in device_ops, of what the streams' threads have come to. */
void command_event_record(struct stream *stream, struct event *event);
void command_event_wait(struct stream *stream, struct event *event);
enum status command_event_synchronize(struct event *event, struct error *err) MUST_CHECK;

#endif

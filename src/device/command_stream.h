/* What the streams of all devices have in common: a thread that takes commands from a ring, in
 * their order, until one fails. A device's own stream begins with a struct stream. */
#ifndef PHASOR_DEVICE_COMMAND_STREAM_H
#define PHASOR_DEVICE_COMMAND_STREAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/record.h"
#include "base/status.h"
#include "base/trace.h"
#include "device/device.h"
#include "device/sleepers.h"
#include "device/thread_team.h"

/* A power of two. A layer is some twenty commands; 256 let the host be ten layers ahead, and take
 * 80 KiB. */
#define STREAM_RING_COMMANDS 256

/* What a device does beside running commands, each on the stream's thread; NULL: nothing. */
struct stream_kind {
    void (*resume)(struct stream *stream); /* before each command */
    void (*pause)(struct stream *stream);  /* before the thread may sleep, and at its end */

    /* Does what commands of COMMAND_LAUNCH have put off: before every command of another kind, and
     * at the thread's end. A failure is the stream's, and drops what is left. */
    void (*catch_up)(struct stream *stream);

    /* Waits for what earlier commands have launched: before the work of `call`, and for
     * `synchronize`. With it, the work is done elsewhere, and there has the stream's priority: the
     * thread is of normal priority for any, so that its launches, and threads that others (NCCL)
     * start from it, are not kept from the host's cores. So is what a reload packs on it. */
    enum status (*settle)(struct stream *stream, struct error *err);
};

/* What all streams of a device share. */
struct stream_owner {
    struct device *device;
    struct trace *trace;                                        /* NULL: none */
    int rank;                                                   /* for the trace */
    void (*on_failure)(void *context, const struct error *err); /* NULL: nobody is told */
    void *on_failure_context;
    enum status (*on_settled)(void *context, struct error *err); /* peer_ops; NULL */
    void *on_settled_context;
};

/* A command's work, on the stream's thread; the argument is a copy. */
typedef void command_run(struct stream *stream, const void *argument);

enum command_kind {
    COMMAND_SKIP,   /* does nothing once the stream has failed */
    COMMAND_KEEP,   /* runs nevertheless */
    COMMAND_LAUNCH, /* as COMMAND_SKIP; may put off what it does, see stream_kind: nobody outside of
                     * the stream can tell before a command of another kind has run */
};

struct command_call {
    enum status (*work)(void *argument, struct error *err);
    _Alignas(16) unsigned char argument[STREAM_CALL_BYTES];
};

struct command {
    const char *name;
    command_run *run;
    enum command_kind kind;
    struct record_mark mark; /* where its host stood */
    _Alignas(16) unsigned char argument[sizeof(struct command_call)];
};

struct stream {
    const struct stream_kind *kind;
    const struct stream_owner *owner;
    enum stream_priority priority;
    bool spin;
    struct trace_lane *lane;
    double began; /* the command that runs; 0: no trace is kept */
    pthread_t thread;

    /* Commands pushed and popped since the start; they wrap around. The slot of a command belongs
     * to the stream's thread from the moment `pushed` counts it until `popped` does. */
    _Alignas(64) atomic_uint pushed; /* written by the host */
    unsigned popped_seen;            /* the host's last look at `popped` */
    struct sleepers idle;            /* the stream's thread, until something is pushed */
    atomic_bool stopping;
    _Alignas(64) atomic_uint popped; /* written by the stream's thread */
    atomic_uint_fast64_t finished;   /* and pieces of the one that runs: progress */
    unsigned pushed_seen;            /* its last look at `pushed` */
    atomic_uint wanted;              /* the value of `popped` that the host waits for */
    struct sleepers host_waiting;

    struct error failure; /* of the stream's thread; the host reads it when everything has run */
    struct command ring[STREAM_RING_COMMANDS];
};

/* Starts the thread of a stream that is zero but for kind, owner, priority and `spin`. `cpu` is
 * that of the thread, see thread_pin; -1: it is not pinned, and does not spin unless `spin` is set.
 * The system shows the thread as "rank 0", or "rank 0 beside" where the priority is low. */
enum status command_stream_init(struct stream *stream, int cpu, struct error *err) MUST_CHECK;

/* Runs what is on it, and ends the thread. */
void command_stream_deinit(struct stream *stream);

/* ---- For the host's thread ------------------------------------------------------------------- */

/* Blocks while the ring is full. `name` is for the trace, of static storage; NULL: not in it. */
void command_stream_put(struct stream *stream, enum command_kind kind, const char *name,
                        command_run *run, const void *argument, size_t bytes);

/* As in device_ops. */
void command_stream_call(struct stream *stream,
                         enum status (*work)(void *argument, struct error *err),
                         const void *argument, size_t bytes);
/* As in peer_ops. */
void command_stream_call_ahead(struct stream *stream,
                               enum status (*work)(void *argument, struct error *err),
                               const void *argument, size_t bytes);
enum status command_stream_synchronize(struct stream *stream, struct error *err) MUST_CHECK;

/* As in device_ops. */
uint64_t command_stream_progress(const struct stream *stream);

/* Runs work on the threads of the team now, also on a stream that has failed. */
void command_stream_host_run(struct stream *stream, struct thread_team *team,
                             void (*work)(void *context, int worker), void *context);

/* ---- For commands, on the stream's thread ---------------------------------------------------- */

/* The first failure stays, and is told to who asked for it. */
void command_stream_fail(struct stream *stream, const struct error *failure);

/* What a command that joins two operations did for the first of them, and until when: the rest of
 * its time is the second's. */
struct command_part {
    const char *name;
    double end; /* by system_seconds */
    int stage;
    int64_t layer;
    uint64_t bytes;
};

/* Ends the part in trace and recording, with what the recording was told of the command so far. */
void command_stream_cut(struct stream *stream, const struct command_part *part);

/* A piece of the command is done, for `progress`. */
void command_stream_moved(struct stream *stream);

/* Waits for others, as the last thing of a command but for what needs no `resume`. */
void command_stream_wait(struct stream *stream, struct sleepers *sleepers,
                         bool (*ready)(const void *context), const void *context);

#endif

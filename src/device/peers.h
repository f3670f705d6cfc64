/* What a device whose work runs behind its streams' threads (a GPU) offers to who joins ranks: work
 * that is put on a stream by that stream's thread, and events that order it behind the work of
 * other devices. src/comm/virtual.c is made of it, and src/comm/nccl.c of that and of a library
 * that puts its own work on the streams.
 */
#ifndef PHASOR_DEVICE_PEERS_H
#define PHASOR_DEVICE_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct device;
struct event;
struct stream;

#define PEERS_MAX 64

/* out[i] = in[0][i] + in[1][i] + ..., one after another in f32; out may be one of them. */
struct peer_sum {
    float *out;                 /* of the stream's device */
    const float *in[PEERS_MAX]; /* of a device each */
    const struct device *devices[PEERS_MAX];
    int in_count;  /* 1 .. PEERS_MAX */
    int64_t count; /* of values; 0 is allowed */
};

struct peer_ops {
    /* As device_ops.call, but what was put on the stream before may not have run yet: the work
     * itself touches no memory of a device. */
    void (*call)(struct stream *stream, enum status (*work)(void *argument, struct error *err),
                 const void *argument, size_t bytes);

    /* Where the device is on PCI: "0000:1a:00.0". */
    const char *(*bus_id)(const struct device *device);

    /* ---- For such work, on its own stream. None waits but `settle`, and `sum` and `pace_begin`
     * that take memory.
     */

    /* `event` is of the stream's device, from event_create, and recorded here alone. */
    enum status (*record)(struct stream *stream, struct event *event, struct error *err) MUST_CHECK;

    /* What comes later on the stream runs behind the last record of an event of any device; of one
     * that was never recorded, at once. */
    enum status (*wait)(struct stream *stream, struct event *event, struct error *err) MUST_CHECK;

    /* Between the memories of any two devices. */
    enum status (*copy)(struct stream *stream, void *out, const void *in, int64_t bytes,
                        struct error *err) MUST_CHECK;

    /* Reads memory of other devices by copies alone, piece by piece through some of its own. */
    enum status (*sum)(struct stream *stream, const struct peer_sum *op,
                       struct error *err) MUST_CHECK;

    /* Takes the link of the stream's rank for so long, by the device's clock, when what has taken
     * it before is done, on whatever stream. pace_end, which follows on the stream, holds it until
     * then, and `delay_seconds` longer. One begins when the one before has ended. */
    enum status (*pace_begin)(struct stream *stream, double seconds, struct error *err) MUST_CHECK;
    enum status (*pace_end)(struct stream *stream, double delay_seconds,
                            struct error *err) MUST_CHECK;

    /* Returns when all that is on the stream has run, or cannot run any more. */
    enum status (*settle)(struct stream *stream, struct error *err) MUST_CHECK;

    /* Memory of the stream's device until the stream's next operation: at least `bytes`. Settles
     * where it has to be got. */
    enum status (*scratch)(struct stream *stream, size_t bytes, void **out,
                           struct error *err) MUST_CHECK;

    /* From here on asked by each stream of the device that has settled: a failure is the stream's.
     * So work that was put on it and did not do what it should is not taken for done. NULL: nobody.
     * Set before anything is put on a stream. */
    void (*on_settled)(struct device *device,
                       enum status (*check)(void *context, struct error *err), void *context);

    /* ---- Any thread ---- */

    /* Whether the last record of an event has been reached. */
    enum status (*reached)(struct event *event, bool *out, struct error *err) MUST_CHECK;

    /* Copies from the other device's memory, put on streams of this one, go directly from here on
     * where the two can reach each other; else through the host, as before. One is tried:
     * STATUS_IO, with the cure, where it brings other bytes, or nothing for `patience_seconds`. In
     * the latter case devices give nothing back when they are destroyed, and none is opened any
     * more: to free memory would wait for that copy, too. `*can`: they say that they can. */
    enum status (*reach)(bool *can, const struct device *device, const struct device *other,
                         double patience_seconds, struct error *err) MUST_CHECK;

    /* Something on a GPU of this process does not end: likewise devices give nothing back from here
     * on, and none is opened. */
    void (*give_up)(void);

    /* For a library that uses the device itself: the number of the GPU, its stream (cudaStream_t),
     * and that it is the one that the calling thread means from here on. */
    int (*ordinal)(const struct device *device);
    void *(*native)(struct stream *stream);
    enum status (*use)(const struct device *device, struct error *err) MUST_CHECK;
};

#endif

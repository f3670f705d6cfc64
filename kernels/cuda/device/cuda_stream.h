/* A stream of a CUDA device: a command stream whose commands launch kernels on a stream of the CUDA
 * runtime, and do not wait for them. Before the work of `call`, and for `synchronize`, it settles:
 * it waits until they have run. Its low priority is one of the GPU's, and of its thread. Launches
 * of what repeats may be put off, and be one (cuda_graph.h). */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_STREAM_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_STREAM_H

#include <pthread.h>

#include "device/command_event.h"
#include "device/command_stream.h"
#include "kernels/cuda/device/cuda_graph.h"
#include "kernels/cuda/device/cuda_partition.h"
#include "kernels/cuda/device/cuda_pinned.h"
#include "kernels/cuda/device/cuda_ring.h"
#include "kernels/cuda/device/cuda_stages.h"
#include "kernels/cuda/launch.h"

/* Of a rank, where links are to be slow: until when it is taken, by the device's clock. */
struct cuda_link {
    pthread_mutex_t lock;
    uint64_t *until; /* of the device; NULL: nothing was paced yet */
};

/* What all streams of a device share. */
struct cuda_common {
    struct stream_owner owner;
    int ordinal;
    char bus_id[CUDA_BUS_ID_BYTES];
    struct cuda_partition partition;
    struct cuda_launch launch; /* without stream and scratch */
    struct cuda_link *link;
    atomic_uint freed; /* memory of the device or for it, so often: graphs may know it */
};

/* Each is at least half of the next, from some bytes on. */
#define CUDA_OUTGROWN_MAX 16

struct cuda_stream {
    struct stream base;
    const struct cuda_common *common;
    struct cuda_launch launch;
    bool is_current;        /* the GPU is its thread's */
    struct cuda_pace *pace; /* of the device; NULL: nothing was paced yet */
    struct cuda_ring ring;
    struct cuda_stages stages;
    struct cuda_graphs graphs;
    void *outgrown[CUDA_OUTGROWN_MAX]; /* scratch memory that was too small: see cuda_blocks.h */
    int outgrown_count;
    size_t refused_bytes; /* of scratch memory, when memory had been freed so often; 0: none were */
    unsigned refused_freed;
};

static inline struct cuda_stream *cuda_stream_of(const struct stream *stream)
{
    return (struct cuda_stream *)stream;
}

enum status cuda_stream_create(struct stream **out, const struct cuda_common *common,
                               enum stream_priority priority, struct error *err) MUST_CHECK;
void cuda_stream_destroy(struct stream *stream); /* runs what is on it; NULL is allowed */
uint64_t cuda_stream_bytes(void);

/* As in device_ops. */
void cuda_stream_repeat(struct stream *stream, bool begins);
void cuda_stream_stage(struct stream *stream, int stage, int64_t layer);
void cuda_stream_stage_totals(const struct stream *stream,
                              struct stage_total totals[DEVICE_STAGES]);

/* Puts a launch on the stream. `name` is for the trace; NULL: not in it. */
void cuda_stream_put(struct stream *stream, const char *name, const struct cuda_launch_kind *kind,
                     const void *op);

/* ---- For commands, on the stream's thread ---------------------------------------------------- */

/* The failure of a command is the stream's. */
void cuda_stream_check(struct stream *stream, enum status status, struct error *failure);

/* Waits until all that was put on the stream has run. */
enum status cuda_stream_settle(struct stream *stream, struct error *err) MUST_CHECK;

/* At least `bytes` of scratch memory in launch.scratch; larger memory is got when the stream has
 * settled. */
enum status cuda_stream_scratch(struct cuda_stream *cuda, size_t bytes,
                                struct error *err) MUST_CHECK;

/* The same for what does without, more slowly: where there is no memory for it, there is as much as
 * before. Nothing is asked for while a piece is captured, nor again before memory was freed. */
enum status cuda_stream_scratch_ask(struct cuda_stream *cuda, size_t bytes,
                                    struct error *err) MUST_CHECK;

/* A copy of an array for kernels that come behind it on the stream. */
enum status cuda_stream_send(struct cuda_stream *cuda, const void **out,
                             const struct cuda_array *array, struct error *err) MUST_CHECK;

/* Weights that the launch which comes reads, for the stage that stands: as cuda_stages_read. */
enum status cuda_stream_read_weights(struct cuda_stream *cuda, uint64_t group_bytes,
                                     struct error *err) MUST_CHECK;

/* ---- Events: see device_ops ------------------------------------------------------------------ */

enum status cuda_event_create(struct device *device, struct event **out,
                              struct error *err) MUST_CHECK;
void cuda_event_destroy(struct device *device, struct event *event);
enum status cuda_event_synchronize(struct event *event, struct error *err) MUST_CHECK;

/* For commands: as in peer_ops. */
enum status cuda_event_record(struct stream *stream, struct event *event,
                              struct error *err) MUST_CHECK;
enum status cuda_event_follow(struct stream *stream, struct event *event,
                              struct error *err) MUST_CHECK;

/* Any thread: as in peer_ops. */
enum status cuda_event_reached(struct event *event, bool *out, struct error *err) MUST_CHECK;

#endif

/* A stream of the CPU device: a thread that takes commands from a ring, in their order. */
#ifndef PHASOR_KERNELS_CPU_DEVICE_CPU_STREAM_H
#define PHASOR_KERNELS_CPU_DEVICE_CPU_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/trace.h"
#include "device/device.h"
#include "device/sleepers.h"
#include "device/thread_team.h"
#include "kernels/cpu/kernels.h"

/* What all streams of a device share. */
struct cpu_common {
    struct device *device;
    const struct cpu_kernels *kernels;
    struct turn *turn;   /* NULL: none */
    struct trace *trace; /* NULL: none */
    int rank;            /* for the trace */
    void (*on_failure)(void *context, const struct error *err);
    void *on_failure_context;
};

struct cpu_stream_params {
    const struct cpu_common *common; /* borrowed */
    struct thread_team *team;        /* borrowed; NULL: the stream's thread alone */
    enum stream_priority priority;
    int cpu; /* of the thread, see thread_pin; -1: it is not pinned, and does not spin */
};

enum status cpu_stream_create(struct stream **out, const struct cpu_stream_params *params,
                              struct error *err) MUST_CHECK;
void cpu_stream_destroy(struct stream *stream); /* runs what is on it; NULL is allowed */

/* ---- For the host's thread ------------------------------------------------------------------- */

/* A command's work, on the stream's thread; the argument is a copy. */
typedef void command_run(struct stream *stream, const void *argument);

enum command_kind {
    COMMAND_SKIP, /* does nothing once the stream has failed */
    COMMAND_KEEP  /* runs nevertheless */
};

/* Blocks while the ring is full. `name` is for the trace, of static storage; NULL: not in it. */
void cpu_stream_put(struct stream *stream, enum command_kind kind, const char *name,
                    command_run *run, const void *argument, size_t bytes);

void cpu_stream_call(struct stream *stream, enum status (*work)(void *argument, struct error *err),
                     const void *argument, size_t bytes);
enum status cpu_stream_synchronize(struct stream *stream, struct error *err) MUST_CHECK;
uint64_t cpu_stream_progress(const struct stream *stream); /* any thread */
void cpu_stream_stage(struct stream *stream, int stage, int64_t layer);
void cpu_stream_stage_totals(const struct stream *stream, struct stage_total totals[DEVICE_STAGES]);

/* Runs work on the device's threads now, also on a stream that has failed. */
void cpu_stream_host_run(struct stream *stream, void (*work)(void *context, int worker),
                         void *context);

/* ---- For commands, on the stream's thread ---------------------------------------------------- */

/* One worker's share of an operation. */
typedef void share_work(const struct cpu_kernels *kernels, const void *op, struct share *share);

void cpu_stream_share(struct stream *stream, share_work *work, const void *op);

/* Weights that the operation reads, for the stage that stands. */
void cpu_stream_count_weights(struct stream *stream, uint64_t bytes);

/* Waits for others, as the last thing of a command: the turn is given, and the next command takes
 * it.
 */
void cpu_stream_wait(struct stream *stream, struct sleepers *sleepers,
                     bool (*ready)(const void *context), const void *context);

#endif

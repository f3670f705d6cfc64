/* A stream of the CPU device: a command stream whose operations a team of threads shares. */
#ifndef PHASOR_KERNELS_CPU_DEVICE_CPU_STREAM_H
#define PHASOR_KERNELS_CPU_DEVICE_CPU_STREAM_H

#include <stdint.h>

#include "base/status.h"
#include "device/command_stream.h"
#include "device/device.h"
#include "device/thread_team.h"
#include "kernels/cpu/device/cpu_pool.h"
#include "kernels/cpu/kernels.h"

/* What all streams of a device share. */
struct cpu_common {
    struct stream_owner owner;
    const struct cpu_kernels *kernels;
    struct cpu_pool *pool;
};

struct cpu_stream_params {
    const struct cpu_common *common; /* borrowed */
    struct thread_team *team;        /* borrowed; NULL: the stream's thread alone */
    enum stream_priority priority;
    int cpu; /* as in command_stream_init */
};

enum status cpu_stream_create(struct stream **out, const struct cpu_stream_params *params,
                              struct error *err) MUST_CHECK;
void cpu_stream_destroy(struct stream *stream); /* runs what is on it; NULL is allowed */
uint64_t cpu_stream_bytes(void);

uint64_t cpu_stream_progress(const struct stream *stream); /* any thread */
void cpu_stream_stage(struct stream *stream, int stage, int64_t layer);
void cpu_stream_stage_totals(const struct stream *stream, struct stage_total totals[DEVICE_STAGES]);

/* ---- For commands, on the stream's thread ---------------------------------------------------- */

/* An operation that the workers share. */
struct cpu_operation {
    const char *name;
    /* One worker's share of it. */
    void (*work)(const struct cpu_kernels *kernels, const void *op, struct share *share);
    void (*record)(struct stream *stream, const void *op); /* tells a recording what it is */
};

/* Runs the operation, and the one that is held with it. */
void cpu_stream_share(struct stream *stream, const struct cpu_operation *operation, const void *op);

/* Runs the operation on the stream's thread alone. */
void cpu_stream_alone(struct stream *stream, const struct cpu_operation *operation, const void *op);

/* Keeps a copy of the operation, of `bytes` <= CPU_HELD_BYTES, which then runs with the next one of
 * its kind: half of the workers begin with it, the others with that one. `weight_bytes` is for the
 * trace. False where the stream has one thread, which would gain nothing: it is to run by itself.
 */
bool cpu_stream_hold(struct stream *stream, const struct cpu_operation *operation, const void *op,
                     size_t bytes, uint64_t weight_bytes);
#define CPU_HELD_BYTES 128

struct cpu_pool *cpu_stream_pool(struct stream *stream); /* of its device */

/* Weights that the operation reads, for the stage that stands. */
void cpu_stream_count_weights(struct stream *stream, uint64_t bytes);

#endif

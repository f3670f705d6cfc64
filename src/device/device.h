/* A device: memory of its own, and operations that run in the order of a stream.
 *
 * No part above asks which device it is. A new operation lands with its CPU form and its cases in
 * the shared table of cases (tests/kernels/cases.h) first.
 */
#ifndef PHASOR_DEVICE_DEVICE_H
#define PHASOR_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/ops.h"

struct device;
struct stream;

/* Operations are put on a stream and run in its order; they may have run when the call returns, or
 * not. They cannot fail in sight of their caller: the first failure stays with the stream, later
 * operations on it do nothing, and stream_synchronize reports it. */
struct device_ops {
    const char *name; /* "cpu (avx512)" */

    void (*embed)(struct stream *stream, const struct op_embed *op);
    void (*rms_norm)(struct stream *stream, const struct op_rms_norm *op);
    void (*add)(struct stream *stream, const struct op_add *op);
    void (*matmul)(struct stream *stream, const struct op_matmul *op);
    void (*rope_append)(struct stream *stream, const struct op_rope_append *op);
    void (*attention)(struct stream *stream, const struct op_attention *op);
    void (*route)(struct stream *stream, const struct op_route *op);
    void (*group)(struct stream *stream, const struct op_group *op);
    void (*ffn_up)(struct stream *stream, const struct op_ffn_up *op);
    void (*ffn_down)(struct stream *stream, const struct op_ffn_down *op);
    void (*combine)(struct stream *stream, const struct op_combine *op);
    void (*shared_add)(struct stream *stream, const struct op_shared_add *op);
    void (*gather)(struct stream *stream, const struct op_gather *op);

    /* Returns when everything put on the stream has run. */
    enum status (*synchronize)(struct stream *stream, struct error *err) MUST_CHECK;

    /* Memory of the device, aligned to 64, not zeroed. `what` names it in the sentence. */
    enum status (*memory_get)(struct device *device, void **out, size_t bytes, const char *what,
                              struct error *err) MUST_CHECK;
    void (*memory_free)(struct device *device, void *memory); /* NULL is allowed */

    /* A helper for host work on the device's cores (loading): see thread_team_run. */
    void (*host_run)(struct device *device, void (*work)(void *context, int worker), void *context);
    int (*host_workers)(const struct device *device);

    void (*destroy)(struct device *device);
};

struct device {
    const struct device_ops *ops;
    struct stream *stream; /* where the passes run */
};

/* The CPU as a device; always there. `thread_count` >= 1. kernels/cpu/cpu_device.c */
enum status device_cpu_create(struct device **out, int thread_count, struct error *err) MUST_CHECK;

static inline void device_destroy(struct device *device)
{
    if (device != NULL)
        device->ops->destroy(device);
}

#endif

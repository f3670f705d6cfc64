#include "kernels/cpu/device/cpu_launch.h"

#include "kernels/cpu/device/cpu_sort.h"
#include "kernels/cpu/device/cpu_stream.h"

/* An operation whose pieces the workers share. */
#define DEFINE_SHARED(name)                                                                        \
    static void name##_share(const struct cpu_kernels *kernels, const void *op,                    \
                             struct share *share)                                                  \
    {                                                                                              \
        kernels->name(op, share);                                                                  \
    }                                                                                              \
    static void name##_run(struct stream *stream, const void *op)                                  \
    {                                                                                              \
        cpu_stream_share(stream, name##_share, op);                                                \
    }                                                                                              \
    void cpu_##name(struct stream *stream, const struct op_##name *op)                             \
    {                                                                                              \
        cpu_stream_put(stream, COMMAND_SKIP, name##_run, op, sizeof *op);                          \
    }

/* One that is not worth a second thread. */
#define DEFINE_SINGLE(name)                                                                        \
    static void name##_run(struct stream *stream, const void *op)                                  \
    {                                                                                              \
        (void)stream;                                                                              \
        cpu_sort_##name(op);                                                                       \
    }                                                                                              \
    void cpu_##name(struct stream *stream, const struct op_##name *op)                             \
    {                                                                                              \
        cpu_stream_put(stream, COMMAND_SKIP, name##_run, op, sizeof *op);                          \
    }

DEFINE_SHARED(embed)
DEFINE_SHARED(rms_norm)
DEFINE_SHARED(add)
DEFINE_SHARED(matmul)
DEFINE_SHARED(rope_append)
DEFINE_SHARED(attention)
DEFINE_SHARED(route)
DEFINE_SINGLE(dispatch)
DEFINE_SINGLE(group)
DEFINE_SHARED(ffn_up)
DEFINE_SHARED(ffn_down)
DEFINE_SHARED(combine)
DEFINE_SHARED(shared_add)
DEFINE_SHARED(gather)
DEFINE_SHARED(copy)

#include "kernels/cpu/device/cpu_launch.h"

#include <string.h>

#include "base/record.h"
#include "kernels/cpu/device/cpu_record.h"
#include "kernels/cpu/device/cpu_sort.h"
#include "kernels/cpu/device/cpu_stream.h"

/* An operation whose pieces the workers share. */
#define DEFINE_OPERATION(name)                                                                     \
    static void name##_work(const struct cpu_kernels *kernels, const void *op,                     \
                            struct share *share)                                                   \
    {                                                                                              \
        kernels->name(op, share);                                                                  \
    }                                                                                              \
    static void name##_record(struct stream *stream, const void *op)                               \
    {                                                                                              \
        (void)stream;                                                                              \
        cpu_record_##name(op);                                                                     \
    }                                                                                              \
    static const struct cpu_operation name##_operation = {#name, name##_work, name##_record};

#define DEFINE_PUT(name)                                                                           \
    void cpu_##name(struct stream *stream, const struct op_##name *op)                             \
    {                                                                                              \
        command_stream_put(stream, COMMAND_SKIP, #name, name##_run, op, sizeof *op);               \
    }

#define DEFINE_SHARED(name)                                                                        \
    DEFINE_OPERATION(name)                                                                         \
    static void name##_run(struct stream *stream, const void *op)                                  \
    {                                                                                              \
        cpu_stream_share(stream, &name##_operation, op);                                           \
    }                                                                                              \
    DEFINE_PUT(name)

/* One by rows: a few are one piece, with which the stream's own thread is done before another would
 * have come. */
#define DEFINE_ROWS(name, row_count)                                                               \
    DEFINE_OPERATION(name)                                                                         \
    static void name##_run(struct stream *stream, const void *argument)                            \
    {                                                                                              \
        const struct op_##name *op = argument;                                                     \
        if (op->row_count <= PIECE_ROWS)                                                           \
            cpu_stream_alone(stream, &name##_operation, op);                                       \
        else                                                                                       \
            cpu_stream_share(stream, &name##_operation, op);                                       \
    }                                                                                              \
    DEFINE_PUT(name)

/* One half of networks, which may run with another. */
#define DEFINE_FFN(name)                                                                           \
    DEFINE_OPERATION(name)                                                                         \
    static void name##_run(struct stream *stream, const void *argument)                            \
    {                                                                                              \
        const struct op_##name *op = argument;                                                     \
        uint64_t bytes = name##_weight_bytes(op);                                                  \
        cpu_stream_count_weights(stream, bytes);                                                   \
        if (!op->joins_next || !cpu_stream_hold(stream, &name##_operation, op, sizeof *op, bytes)) \
            cpu_stream_share(stream, &name##_operation, op);                                       \
    }                                                                                              \
    DEFINE_PUT(name)

/* One that is not worth a second thread. */
#define DEFINE_SINGLE(name)                                                                        \
    static void name##_run(struct stream *stream, const void *op)                                  \
    {                                                                                              \
        (void)stream;                                                                              \
        if (record_is_on())                                                                        \
            cpu_record_##name(op);                                                                 \
        cpu_sort_##name(op);                                                                       \
    }                                                                                              \
    DEFINE_PUT(name)

static uint64_t matmul_weight_bytes(const struct op_matmul *op)
{
    return op->row_count > 0 ? (uint64_t)matrix_bytes(&op->weight) : 0;
}

/* Of the groups that have rows: those before are on the stream, so the offsets are there. */
static uint64_t ffn_up_weight_bytes(const struct op_ffn_up *op)
{
    int64_t bytes = 0;
    for (int64_t g = 0; g < op->group_count; g++) {
        if (op->offsets[g + 1] > op->offsets[g])
            bytes += matrix_bytes(&op->groups[g].gate) + matrix_bytes(&op->groups[g].up);
    }
    return (uint64_t)bytes;
}

static uint64_t ffn_down_weight_bytes(const struct op_ffn_down *op)
{
    int64_t bytes = 0;
    for (int64_t g = 0; g < op->group_count; g++) {
        if (op->offsets[g + 1] > op->offsets[g])
            bytes += matrix_bytes(&op->groups[g].down);
    }
    return (uint64_t)bytes;
}

DEFINE_ROWS(embed, token_count)
DEFINE_ROWS(rms_norm, row_count)
DEFINE_ROWS(add, row_count)
DEFINE_SHARED(rope_append)
DEFINE_SHARED(attention)
DEFINE_ROWS(route, token_count)
DEFINE_SINGLE(dispatch)
DEFINE_SINGLE(group)
DEFINE_FFN(ffn_up)
DEFINE_FFN(ffn_down)
DEFINE_ROWS(combine, token_count)
DEFINE_ROWS(shared_add, token_count)
DEFINE_SHARED(choose)
DEFINE_SHARED(candidates)
DEFINE_SHARED(gather)
DEFINE_SHARED(dequantize)

DEFINE_OPERATION(matmul)

static void matmul_run(struct stream *stream, const void *op)
{
    cpu_stream_count_weights(stream, matmul_weight_bytes(op));
    cpu_stream_share(stream, &matmul_operation, op);
}

DEFINE_PUT(matmul)

static void copy_work(const struct cpu_kernels *kernels, const void *op, struct share *share)
{
    kernels->copy(op, share);
}

static void copy_record(struct stream *stream, const void *op)
{
    cpu_record_copy(op, cpu_stream_pool(stream));
}

static const struct cpu_operation copy_operation = {"copy", copy_work, copy_record};

static void copy_run(struct stream *stream, const void *op)
{
    cpu_stream_share(stream, &copy_operation, op);
}

DEFINE_PUT(copy)

#define FILL_BYTES ((int64_t)256 * 1024) /* of a piece */

/* The C library's: no set of kernels has a better one. */
static void fill_work(const struct cpu_kernels *kernels, const void *argument, struct share *share)
{
    const struct op_fill *op = argument;
    int64_t at;
    (void)kernels;
    while ((at = share_take(share) * FILL_BYTES) < op->bytes) {
        int64_t left = op->bytes - at;
        memset((char *)op->out + at, op->byte, (size_t)(left < FILL_BYTES ? left : FILL_BYTES));
    }
}

static void fill_record(struct stream *stream, const void *op)
{
    (void)stream;
    cpu_record_fill(op);
}

static const struct cpu_operation fill_operation = {"fill", fill_work, fill_record};

static void fill_run(struct stream *stream, const void *op)
{
    cpu_stream_share(stream, &fill_operation, op);
}

DEFINE_PUT(fill)

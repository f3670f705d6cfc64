#include "kernels/cuda/device/cuda_operations.h"

#include <assert.h>
#include <string.h>

#include "kernels/cuda/device/cuda_copy.h"
#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_stream.h"

/* Bytes of an operation that mean nothing: behind its last member, or between two. They are set to
 * 0, so that equal operations are equal bytes. */
struct gap {
    size_t from, to;
};
#define GAP_TO(name, member, end)                                                                  \
    {                                                                                              \
        offsetof(struct op_##name, member) + sizeof(((struct op_##name *)0)->member), end          \
    }
#define GAP(name, member, next)  GAP_TO(name, member, offsetof(struct op_##name, next))
#define GAP_AT_END(name, member) GAP_TO(name, member, sizeof(struct op_##name))

/* A command that does NAME_launch on the stream's thread; cuda_put_NAME puts it there. NAME_array:
 * the array of the host that it names, or NULL. Behind it the gaps, each with a comma. */
#define DEFINE_PUT_WITH(name, name_array, ...)                                                     \
    static enum status name##_launch_any(struct cuda_stream *cuda, const void *op,                 \
                                         struct error *err)                                        \
    {                                                                                              \
        return name##_launch(cuda, op, err);                                                       \
    }                                                                                              \
    static const struct cuda_launch_kind name##_kind = {                                           \
        .launch = name##_launch_any, .bytes = sizeof(struct op_##name), .array = name_array};      \
    void cuda_put_##name(struct stream *stream, const struct op_##name *op)                        \
    {                                                                                              \
        static const struct gap gaps[] = {__VA_ARGS__{0, 0}};                                      \
        unsigned char bytes[sizeof *op];                                                           \
        memcpy(bytes, op, sizeof bytes);                                                           \
        for (const struct gap *gap = gaps; gap->to > 0; gap++)                                     \
            memset(bytes + gap->from, 0, gap->to - gap->from);                                     \
        cuda_stream_put(stream, #name, &name##_kind, bytes);                                       \
    }
#define DEFINE_PUT(name, ...) DEFINE_PUT_WITH(name, NULL, __VA_ARGS__)

/* One whose operation goes to its kernels as it is. */
#define DEFINE_PLAIN(name, ...)                                                                    \
    static enum status name##_launch(struct cuda_stream *cuda, const struct op_##name *op,         \
                                     struct error *err)                                            \
    {                                                                                              \
        CUDA_TRY(cuda->common->ordinal, cuda_##name(&cuda->launch, op), err);                      \
        return STATUS_OK;                                                                          \
    }                                                                                              \
    DEFINE_PUT(name, __VA_ARGS__)

/* One that keeps something between two kernels. */
#define DEFINE_WITH_SCRATCH(name, ...)                                                             \
    static enum status name##_launch(struct cuda_stream *cuda, const struct op_##name *op,         \
                                     struct error *err)                                            \
    {                                                                                              \
        TRY(cuda_stream_scratch(cuda, cuda_##name##_scratch(op), err));                            \
        CUDA_TRY(cuda->common->ordinal, cuda_##name(&cuda->launch, op), err);                      \
        return STATUS_OK;                                                                          \
    }                                                                                              \
    DEFINE_PUT(name, __VA_ARGS__)

DEFINE_PLAIN(embed, )
DEFINE_PLAIN(rms_norm, GAP_AT_END(rms_norm, epsilon), )
DEFINE_PLAIN(add, )
DEFINE_PLAIN(route, GAP_AT_END(route, normalize), )
DEFINE_WITH_SCRATCH(dispatch, )
DEFINE_WITH_SCRATCH(group, )
DEFINE_PLAIN(combine, )
DEFINE_PLAIN(shared_add, )
DEFINE_WITH_SCRATCH(choose, )
DEFINE_WITH_SCRATCH(candidates, )
DEFINE_PLAIN(gather, )
DEFINE_PLAIN(dequantize, GAP(dequantize, dtype, in), )

/* Products ask for scratch memory that grows with the rows of a pass, which no plan counts, and go
 * another way without it, to the same bits. */
static enum status matmul_launch(struct cuda_stream *cuda, const struct op_matmul *op,
                                 struct error *err)
{
    TRY(cuda_stream_scratch_ask(cuda, cuda_matmul_scratch(&cuda->launch, op), err));
    if (op->row_count > 0)
        cuda_stages_count(&cuda->stages, (uint64_t)matrix_bytes(&op->weight));
    CUDA_TRY(cuda->common->ordinal, cuda_matmul(&cuda->launch, op), err);
    return STATUS_OK;
}

static enum status copy_launch(struct cuda_stream *cuda, const struct op_copy *op,
                               struct error *err)
{
    return cuda_copy_put(cuda->common->ordinal, cuda->launch.stream, op, err);
}

static enum status fill_launch(struct cuda_stream *cuda, const struct op_fill *op,
                               struct error *err)
{
    if (op->bytes > 0)
        CUDA_TRY(cuda->common->ordinal,
                 cudaMemsetAsync(op->out, op->byte, (size_t)op->bytes, cuda->launch.stream), err);
    return STATUS_OK;
}

DEFINE_PUT(matmul, )
DEFINE_PUT(copy, )
DEFINE_PUT(fill, GAP_AT_END(fill, byte), )

/* ---- Two at once ------------------------------------------------------------------------------
 */

struct add_norm {
    struct op_add add;
    struct op_rms_norm norm;
};

static enum status add_norm_launch(struct cuda_stream *cuda, const void *op, struct error *err)
{
    const struct add_norm *of = op;
    CUDA_TRY(cuda->common->ordinal, cuda_add_norm(&cuda->launch, &of->add, &of->norm), err);
    return STATUS_OK;
}

static const struct cuda_launch_kind add_norm_kind = {.launch = add_norm_launch,
                                                      .bytes = sizeof(struct add_norm)};

bool cuda_operations_join(struct cuda_launch_once *out, const struct cuda_launch_once *first,
                          const struct cuda_launch_once *second)
{
    struct add_norm both;
    static_assert(sizeof both <= sizeof out->op, "it is a launch");
    if (first->kind != &add_kind || second->kind != &rms_norm_kind)
        return false;
    memcpy(&both.add, first->op, sizeof both.add);
    memcpy(&both.norm, second->op, sizeof both.norm);
    if (both.norm.in != both.add.out || both.norm.row_count != both.add.row_count ||
        both.norm.stride != both.add.stride)
        return false;
    out->kind = &add_norm_kind;
    memcpy(out->op, &both, sizeof both);
    return true;
}

/* ---- With arrays of the host ----------------------------------------------------------------- */

#define DEFINE_SEGMENTS_OF(name)                                                                   \
    static void name##_array(struct cuda_array *out, const void *op)                               \
    {                                                                                              \
        const struct op_##name *of = op;                                                           \
        *out = cuda_array_of_segments(of->segments, of->segment_count);                            \
    }
#define DEFINE_GROUPS_OF(name)                                                                     \
    static void name##_array(struct cuda_array *out, const void *op)                               \
    {                                                                                              \
        const struct op_##name *of = op;                                                           \
        *out = cuda_array_of_groups(of->groups, of->group_count);                                  \
    }
DEFINE_SEGMENTS_OF(rope_append)
DEFINE_SEGMENTS_OF(attention)
DEFINE_GROUPS_OF(ffn_up)
DEFINE_GROUPS_OF(ffn_down)

/* The operation with a copy in the array's place. */
static enum status segments_send(struct cuda_stream *cuda, const struct segment **segments,
                                 int64_t count, struct error *err)
{
    struct cuda_array array = cuda_array_of_segments(*segments, count);
    return cuda_stream_send(cuda, (const void **)segments, &array, err);
}

static enum status groups_send(struct cuda_stream *cuda, const struct ffn_weights **groups,
                               int64_t count, struct error *err)
{
    struct cuda_array array = cuda_array_of_groups(*groups, count);
    return cuda_stream_send(cuda, (const void **)groups, &array, err);
}

static enum status rope_append_launch(struct cuda_stream *cuda, const struct op_rope_append *op,
                                      struct error *err)
{
    struct op_rope_append sent = *op;
    struct cuda_segments sum = cuda_segments_of(op->segments, op->segment_count);
    if (op->segment_count == 0)
        return STATUS_OK;
    TRY(segments_send(cuda, &sent.segments, op->segment_count, err));
    CUDA_TRY(cuda->common->ordinal, cuda_rope_append(&cuda->launch, &sent, &sum), err);
    return STATUS_OK;
}

static enum status attention_launch(struct cuda_stream *cuda, const struct op_attention *op,
                                    struct error *err)
{
    struct op_attention sent = *op;
    struct cuda_segments sum = cuda_segments_of(op->segments, op->segment_count);
    if (op->segment_count == 0)
        return STATUS_OK;
    TRY(cuda_stream_scratch(cuda, cuda_attention_scratch(&cuda->launch, op, &sum), err));
    TRY(segments_send(cuda, &sent.segments, op->segment_count, err));
    CUDA_TRY(cuda->common->ordinal, cuda_attention(&cuda->launch, &sent, &sum), err);
    return STATUS_OK;
}

DEFINE_PUT_WITH(rope_append, rope_append_array, GAP(rope_append, kv.dtype, kv.kv_head_count),
                GAP(rope_append, norm_epsilon, rope), )
DEFINE_PUT_WITH(attention, attention_array, GAP(attention, kv.dtype, kv.kv_head_count), )

static enum status ffn_up_launch(struct cuda_stream *cuda, const struct op_ffn_up *op,
                                 struct error *err)
{
    struct op_ffn_up sent = *op;
    const struct ffn_weights *first = op->groups;
    if (op->group_count == 0)
        return STATUS_OK;
    TRY(cuda_stream_scratch_ask(cuda, cuda_ffn_up_scratch(&cuda->launch, op, first), err));
    TRY(cuda_stream_read_weights(
        cuda, (uint64_t)(matrix_bytes(&first->gate) + matrix_bytes(&first->up)), err));
    TRY(groups_send(cuda, &sent.groups, op->group_count, err));
    CUDA_TRY(cuda->common->ordinal, cuda_ffn_up(&cuda->launch, &sent, first), err);
    return STATUS_OK;
}

static enum status ffn_down_launch(struct cuda_stream *cuda, const struct op_ffn_down *op,
                                   struct error *err)
{
    struct op_ffn_down sent = *op;
    const struct ffn_weights *first = op->groups;
    if (op->group_count == 0)
        return STATUS_OK;
    TRY(cuda_stream_scratch_ask(cuda, cuda_ffn_down_scratch(&cuda->launch, op, first), err));
    TRY(cuda_stream_read_weights(cuda, (uint64_t)matrix_bytes(&first->down), err));
    TRY(groups_send(cuda, &sent.groups, op->group_count, err));
    CUDA_TRY(cuda->common->ordinal, cuda_ffn_down(&cuda->launch, &sent, first), err);
    return STATUS_OK;
}

DEFINE_PUT_WITH(ffn_up, ffn_up_array, GAP_AT_END(ffn_up, joins_next), )
DEFINE_PUT_WITH(ffn_down, ffn_down_array, GAP_AT_END(ffn_down, joins_next), )

#include "kernels/cuda/device/cuda_operations.h"

#include <string.h>

#include "kernels/cuda/device/cuda_copy.h"
#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_stream.h"

/* A command that does NAME_launch on the stream's thread; cuda_put_NAME puts it there. */
#define DEFINE_PUT(name)                                                                           \
    static void name##_run(struct stream *stream, const void *op)                                  \
    {                                                                                              \
        struct error failure = {.message = ""};                                                    \
        cuda_stream_check(stream, name##_launch(cuda_stream_of(stream), op, &failure), &failure);  \
    }                                                                                              \
    void cuda_put_##name(struct stream *stream, const struct op_##name *op)                        \
    {                                                                                              \
        command_stream_put(stream, COMMAND_SKIP, #name, name##_run, op, sizeof *op);               \
    }

/* One whose operation goes to its kernels as it is. */
#define DEFINE_PLAIN(name)                                                                         \
    static enum status name##_launch(struct cuda_stream *cuda, const struct op_##name *op,         \
                                     struct error *err)                                            \
    {                                                                                              \
        CUDA_TRY(cuda->common->ordinal, cuda_##name(&cuda->launch, op), err);                      \
        return STATUS_OK;                                                                          \
    }                                                                                              \
    DEFINE_PUT(name)

DEFINE_PLAIN(embed)
DEFINE_PLAIN(rms_norm)
DEFINE_PLAIN(add)
DEFINE_PLAIN(route)
DEFINE_PLAIN(dispatch)
DEFINE_PLAIN(group)
DEFINE_PLAIN(combine)
DEFINE_PLAIN(shared_add)
DEFINE_PLAIN(largest)
DEFINE_PLAIN(gather)
DEFINE_PLAIN(dequantize)

static enum status matmul_launch(struct cuda_stream *cuda, const struct op_matmul *op,
                                 struct error *err)
{
    if (op->row_count > 0)
        cuda_stream_count_weights(cuda, (uint64_t)matrix_bytes(&op->weight));
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

DEFINE_PUT(matmul)
DEFINE_PUT(copy)
DEFINE_PUT(fill)

/* ---- Segments -------------------------------------------------------------------------------- */

static int64_t page_count(const struct segment *segment)
{
    return ceil_div(segment->first_position + segment->token_count, KV_PAGE_TOKENS);
}

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* What the host knows of them, and how many pages they have together. */
static struct cuda_segments segments_sum(const struct segment *segments, int64_t count,
                                         int64_t *pages)
{
    struct cuda_segments sum = {0};
    *pages = 0;
    for (int64_t s = 0; s < count; s++) {
        const struct segment *segment = &segments[s];
        sum.token_count += segment->token_count;
        sum.tokens_max = max_of(sum.tokens_max, segment->token_count);
        sum.positions_max =
            max_of(sum.positions_max, segment->first_position + segment->token_count);
        *pages += page_count(segment);
    }
    return sum;
}

/* A copy of the segments and behind them of their pages, on the GPU. */
static enum status segments_send(struct cuda_stream *cuda, const struct segment **out,
                                 const struct segment *segments, int64_t count, int64_t pages,
                                 struct error *err)
{
    size_t segment_bytes = (size_t)count * sizeof *segments;
    size_t bytes = segment_bytes + (size_t)pages * sizeof *segments->pages;
    void *host, *device;
    TRY(cuda_ring_take(&cuda->ring, bytes, &host, &device, err));
    struct segment *copies = host;
    int32_t *host_pages = (int32_t *)((char *)host + segment_bytes);
    const int32_t *device_pages = (const int32_t *)((char *)device + segment_bytes);
    for (int64_t s = 0; s < count; s++) {
        int64_t own = page_count(&segments[s]);
        copies[s] = segments[s];
        copies[s].pages = device_pages;
        memcpy(host_pages, segments[s].pages, (size_t)own * sizeof *host_pages);
        host_pages += own;
        device_pages += own;
    }
    *out = device;
    return cuda_ring_send(&cuda->ring, device, host, bytes, err);
}

static enum status rope_append_launch(struct cuda_stream *cuda, const struct op_rope_append *op,
                                      struct error *err)
{
    struct op_rope_append sent = *op;
    int64_t pages;
    struct cuda_segments sum = segments_sum(op->segments, op->segment_count, &pages);
    if (op->segment_count == 0)
        return STATUS_OK;
    TRY(segments_send(cuda, &sent.segments, op->segments, op->segment_count, pages, err));
    CUDA_TRY(cuda->common->ordinal, cuda_rope_append(&cuda->launch, &sent, &sum), err);
    return STATUS_OK;
}

static enum status attention_launch(struct cuda_stream *cuda, const struct op_attention *op,
                                    struct error *err)
{
    struct op_attention sent = *op;
    int64_t pages;
    struct cuda_segments sum = segments_sum(op->segments, op->segment_count, &pages);
    if (op->segment_count == 0)
        return STATUS_OK;
    TRY(cuda_stream_scratch(cuda, cuda_attention_scratch(&cuda->launch, op, &sum), err));
    TRY(segments_send(cuda, &sent.segments, op->segments, op->segment_count, pages, err));
    CUDA_TRY(cuda->common->ordinal, cuda_attention(&cuda->launch, &sent, &sum), err);
    return STATUS_OK;
}

DEFINE_PUT(rope_append)
DEFINE_PUT(attention)

/* ---- Feed-forward networks ------------------------------------------------------------------- */

static enum status groups_send(struct cuda_stream *cuda, const struct ffn_weights **out,
                               const struct ffn_weights *groups, int64_t count, struct error *err)
{
    size_t bytes = (size_t)count * sizeof *groups;
    void *host, *device;
    TRY(cuda_ring_take(&cuda->ring, bytes, &host, &device, err));
    memcpy(host, groups, bytes);
    *out = device;
    return cuda_ring_send(&cuda->ring, device, host, bytes, err);
}

static enum status ffn_up_launch(struct cuda_stream *cuda, const struct op_ffn_up *op,
                                 struct error *err)
{
    struct op_ffn_up sent = *op;
    const struct ffn_weights *first = op->groups;
    if (op->group_count == 0)
        return STATUS_OK;
    TRY(cuda_stream_read_weights(cuda, op->offsets, op->group_count,
                                 (uint64_t)(matrix_bytes(&first->gate) + matrix_bytes(&first->up)),
                                 err));
    TRY(groups_send(cuda, &sent.groups, op->groups, op->group_count, err));
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
    TRY(cuda_stream_read_weights(cuda, op->offsets, op->group_count,
                                 (uint64_t)matrix_bytes(&first->down), err));
    TRY(groups_send(cuda, &sent.groups, op->groups, op->group_count, err));
    CUDA_TRY(cuda->common->ordinal, cuda_ffn_down(&cuda->launch, &sent, first), err);
    return STATUS_OK;
}

DEFINE_PUT(ffn_up)
DEFINE_PUT(ffn_down)

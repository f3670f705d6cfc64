/* Data of attention and of the append to its cache. */
#include <math.h>

#include "workload_data.h"

#define EPSILON 1e-5f

static int64_t segments_count(const struct kernel_case *c)
{
    int64_t count = 0;
    while (count < CASE_SEGMENTS_MAX && c->segments[count].token_count > 0)
        count++;
    return count;
}

/* Pages of all segments, shuffled among themselves and among as many unused ones. */
static struct segment *segments_new(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t count = segments_count(c), used = 0, row = 0;
    struct segment *segments = own(w, (size_t)count, sizeof *segments);
    for (int64_t s = 0; s < count; s++)
        used +=
            ceil_div(c->segments[s].first_position + c->segments[s].token_count, KV_PAGE_TOKENS);
    w->page_count = 2 * used;
    const int32_t *pages = shuffled_new(w, random, w->page_count);
    for (int64_t s = 0; s < count; s++) {
        segments[s] = (struct segment){
            .first_row = row,
            .token_count = c->segments[s].token_count,
            .first_position = c->segments[s].first_position,
            .pages = pages,
        };
        row += segments[s].token_count;
        pages += ceil_div(segments[s].first_position + segments[s].token_count, KV_PAGE_TOKENS);
    }
    w->row_count = row;
    return segments;
}

static void kv_set(void *to, enum dtype dtype, int64_t index, float value)
{
    if (dtype == DTYPE_BF16)
        ((uint16_t *)to)[index] = bf16_from_f32(value);
    else
        ((float *)to)[index] = value;
}

static void *kv_memory_new(struct workload *w, const struct kv_layer *kv)
{
    int64_t count = kv_page_values(kv) * w->page_count;
    void *memory = own(w, (size_t)count, (size_t)dtype_bytes(kv->dtype));
    for (int64_t i = 0; i < count; i++) {
        if (kv->dtype == DTYPE_BF16)
            ((uint16_t *)memory)[i] = POISON_BF16;
        else
            ((uint32_t *)memory)[i] = POISON_F32;
    }
    return memory;
}

static struct kv_layer kv_new(struct workload *w)
{
    const struct kernel_case *c = w->from;
    struct kv_layer kv = {
        .dtype = c->dtype, .kv_head_count = c->kv_head_count, .head_dim = c->head_dim};
    kv.keys = kv_memory_new(w, &kv);
    kv.values = kv_memory_new(w, &kv);
    return kv;
}

/* Writes random keys and values of positions 0 .. of a segment's sequence as the header of ops.h
 * lays them out; the padding of a value row is zero, that of a key is left poisoned. */
static void kv_write(struct kv_layer *kv, const struct segment *segment, struct random *random)
{
    int64_t dim_stride = round_up(kv->head_dim, PACK_BLOCK);
    for (int64_t p = 0; p < segment->first_position + segment->token_count; p++) {
        int64_t slot = p % KV_PAGE_TOKENS;
        for (int64_t head = 0; head < kv->kv_head_count; head++) {
            int64_t base = (segment->pages[p / KV_PAGE_TOKENS] * kv->kv_head_count + head) *
                           dim_stride * KV_PAGE_TOKENS;
            for (int64_t d = 0; d < dim_stride; d++) {
                bool inside = d < kv->head_dim;
                if (inside)
                    kv_set(kv->keys, kv->dtype, base + d * KV_PAGE_TOKENS + slot, uniform(random));
                kv_set(kv->values, kv->dtype, base + slot * dim_stride + d,
                       inside ? uniform(random) : 0);
            }
        }
    }
}

/* The heads lie as in the executor: q, k and v each begin at a multiple of 16. */
static struct qkv qkv_new(struct workload *w, struct random *random, float scale, bool is_output)
{
    const struct kernel_case *c = w->from;
    int64_t q = round_up(c->head_count * c->head_dim, PACK_BLOCK);
    int64_t kv = round_up(c->kv_head_count * c->head_dim, PACK_BLOCK);
    int64_t stride = q + 2 * kv + c->stride_extra;
    float *values = values_new(w, random, w->row_count * stride, scale);
    if (is_output)
        output_add(w, values, (size_t)(w->row_count * stride) * sizeof *values);
    return (struct qkv){
        .values = values,
        .stride = stride,
        .k_offset = q,
        .v_offset = q + kv,
        .head_count = c->head_count,
        .kv_head_count = c->kv_head_count,
        .head_dim = c->head_dim,
    };
}

void workload_rope_append(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    struct op_rope_append *op = &w->rope_append;
    *op = (struct op_rope_append){.segments = segments_new(w, random),
                                  .segment_count = segments_count(c),
                                  .norm_epsilon = EPSILON};
    op->qkv = qkv_new(w, random, 1, true);
    op->kv = kv_new(w);
    size_t kv_bytes = (size_t)(kv_page_values(&op->kv) * w->page_count * dtype_bytes(op->kv.dtype));
    output_add(w, op->kv.keys, kv_bytes);
    output_add(w, op->kv.values, kv_bytes);
    if (c->option) {
        op->q_norm = values_new(w, random, c->head_dim, 2);
        op->k_norm = values_new(w, random, c->head_dim, 2);
    }
    float *rope = own(w, (size_t)(w->row_count * c->head_dim), sizeof *rope);
    for (int64_t t = 0; t < w->row_count; t++) {
        for (int64_t i = 0; i < c->head_dim / 2; i++) {
            float angle = 3 * uniform(random);
            rope[t * c->head_dim + i] = cosf(angle);
            rope[t * c->head_dim + c->head_dim / 2 + i] = sinf(angle);
        }
    }
    op->rope = rope;
    w->bytes = (double)(w->row_count * c->head_dim *
                        (c->head_count * 8 + c->kv_head_count * (8 + 2 * dtype_bytes(c->dtype))));
    w->flops = 3.0 * (double)(w->row_count * c->head_dim * (c->head_count + c->kv_head_count));
}

/* Positions that a token at `position` sees. */
static int64_t seen_count(int64_t position, int64_t window)
{
    return window > 0 && window < position + 1 ? window : position + 1;
}

void workload_attention(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    struct op_attention *op = &w->attention;
    int64_t stride = stride_of(w, c->head_count * c->head_dim);
    *op = (struct op_attention){.segments = segments_new(w, random),
                                .segment_count = segments_count(c),
                                .window = c->window,
                                .out_stride = stride};
    op->qkv = qkv_new(w, random, 8, false); /* scores with some spread */
    op->kv = kv_new(w);
    op->out = output_new(w, w->row_count, stride);
    for (int64_t s = 0; s < op->segment_count; s++) {
        const struct segment *segment = &op->segments[s];
        kv_write(&op->kv, segment, random);
        int64_t first = segment->first_position, last = first + segment->token_count - 1;
        int64_t oldest = first + 1 - seen_count(first, c->window);
        w->bytes += (double)((last + 1 - oldest) * c->kv_head_count * c->head_dim * 2 *
                             dtype_bytes(c->dtype));
        for (int64_t p = first; p <= last; p++)
            w->flops += 4.0 * (double)(seen_count(p, c->window) * c->head_count * c->head_dim);
    }
}

/* Rotary position embedding, query and key norms, and the append to the KV cache. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

/* Tokens of a piece: of one segment, so that keys go to the cache by vectors of neighbours. */
#define PIECE_TOKENS 16

static void head_norm(float *head, const float *weight, int64_t dim, float epsilon)
{
    float scale = 1.0f / sqrtf(dot(head, head, dim) / (float)dim + epsilon);
    int64_t d = 0;
    for (; d + LANES <= dim; d += LANES)
        vec_store(head + d, vec_load(head + d) * scale * vec_load(weight + d));
    for (; d < dim; d++)
        head[d] = head[d] * scale * weight[d];
}

/* `rope` has the cosines of the pairs (i, half + i), then their sines. */
static void head_rotate(float *low, const float *rope, int64_t half)
{
    const float *sines = rope + half;
    float *high = low + half;
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        vec a = vec_load(low + i), b = vec_load(high + i);
        vec cosine = vec_load(rope + i), sine = vec_load(sines + i);
        vec_store(low + i, a * cosine - b * sine);
        vec_store(high + i, b * cosine + a * sine);
    }
    for (; i < half; i++) {
        float a = low[i], b = high[i];
        low[i] = a * rope[i] - b * sines[i];
        high[i] = b * rope[i] + a * sines[i];
    }
}

static void heads_rotate(float *heads, int64_t count, int64_t dim, const float *norm, float epsilon,
                         const float *rope)
{
    for (int64_t head = 0; head < count; head++) {
        if (norm != NULL)
            head_norm(heads + head * dim, norm, dim, epsilon);
        head_rotate(heads + head * dim, rope, dim / 2);
    }
}

/* Tokens that lie next to each other in a page: keys go down its columns, values along its rows. */
struct run {
    const float *keys; /* [count][stride], of one head */
    const float *values;
    int64_t stride;
    int64_t count; /* at most PIECE_TOKENS */
    int64_t dim;
};

static void append_f32(float *keys, float *values, const struct run *run)
{
    int64_t dim_stride = round_up(run->dim, PACK_BLOCK);
    for (int64_t d = 0; d < run->dim; d++) {
        for (int64_t i = 0; i < run->count; i++)
            keys[d * KV_PAGE_TOKENS + i] = run->keys[i * run->stride + d];
    }
    for (int64_t i = 0; i < run->count; i++) {
        float *out = values + i * dim_stride;
        memcpy(out, run->values + i * run->stride, (size_t)run->dim * sizeof(float));
        memset(out + run->dim, 0, (size_t)(dim_stride - run->dim) * sizeof(float));
    }
}

/* Up to LANES values, and zeros behind them. */
static vec load_some(const float *from, int64_t count)
{
    if (count == LANES)
        return vec_load(from);
    float lanes[LANES] = {0};
    memcpy(lanes, from, (size_t)count * sizeof(float));
    return vec_load(lanes);
}

static void append_bf16(uint16_t *keys, uint16_t *values, const struct run *run)
{
    int64_t dim_stride = round_up(run->dim, PACK_BLOCK);
    for (int64_t first = 0; first < dim_stride; first += LANES) {
        int64_t left = run->dim - first, count = left < LANES ? left > 0 ? left : 0 : LANES;
        uint16_t halves[PIECE_TOKENS][LANES];
        for (int64_t i = 0; i < run->count; i++) {
            int64_t at = i * run->stride + first;
            vec key = {0}, value = {0};
            if (count > 0) {
                key = load_some(run->keys + at, count);
                value = load_some(run->values + at, count);
            }
            vec_store_bf16(halves[i], key);
            vec_store_bf16(values + i * dim_stride + first, value);
        }
        for (int64_t d = 0; d < count; d++) {
            for (int64_t i = 0; i < run->count; i++)
                keys[(first + d) * KV_PAGE_TOKENS + i] = halves[i][d];
        }
    }
}

static void append(const struct kv_layer *kv, int64_t page, int64_t kv_head, int64_t slot,
                   const struct run *run)
{
    int64_t dim_stride = round_up(kv->head_dim, PACK_BLOCK);
    int64_t keys = page * kv_page_values(kv) + kv_head * dim_stride * KV_PAGE_TOKENS;
    int64_t values = keys + slot * dim_stride;
    keys += slot;
    if (kv->dtype == DTYPE_BF16)
        append_bf16((uint16_t *)kv->keys + keys, (uint16_t *)kv->values + values, run);
    else
        append_f32((float *)kv->keys + keys, (float *)kv->values + values, run);
}

/* Tokens t to t + count of a segment, all of one page. */
static void run_append(const struct op_rope_append *op, const struct segment *segment, int64_t t,
                       int64_t count)
{
    const struct qkv *qkv = &op->qkv;
    int64_t position = segment->first_position + t;
    const float *keys = qkv->values + (segment->first_row + t) * qkv->stride + qkv->k_offset;
    for (int64_t head = 0; head < qkv->kv_head_count; head++) {
        struct run run = {.keys = keys + head * qkv->head_dim,
                          .values = keys - qkv->k_offset + qkv->v_offset + head * qkv->head_dim,
                          .stride = qkv->stride,
                          .count = count,
                          .dim = qkv->head_dim};
        append(&op->kv, segment->pages[position / KV_PAGE_TOKENS], head, position % KV_PAGE_TOKENS,
               &run);
    }
}

static void tokens_run(const struct op_rope_append *op, const struct segment *segment, int64_t t,
                       int64_t end)
{
    const struct qkv *qkv = &op->qkv;
    for (int64_t i = t; i < end; i++) {
        int64_t row = segment->first_row + i;
        float *q = qkv->values + row * qkv->stride;
        const float *rope = op->rope + row * qkv->head_dim;
        heads_rotate(q, qkv->head_count, qkv->head_dim, op->q_norm, op->norm_epsilon, rope);
        heads_rotate(q + qkv->k_offset, qkv->kv_head_count, qkv->head_dim, op->k_norm,
                     op->norm_epsilon, rope);
    }
    while (t < end) {
        int64_t room = KV_PAGE_TOKENS - (segment->first_position + t) % KV_PAGE_TOKENS;
        int64_t count = end - t < room ? end - t : room;
        run_append(op, segment, t, count);
        t += count;
    }
}

void KERNEL(rope_append)(const struct op_rope_append *op, struct share *share)
{
    int64_t piece = share_take(share);
    int64_t before = 0;
    for (int64_t s = 0; s < op->segment_count; s++) {
        const struct segment *segment = &op->segments[s];
        int64_t pieces = ceil_div(segment->token_count, PIECE_TOKENS);
        while (piece < before + pieces) {
            int64_t t = (piece - before) * PIECE_TOKENS;
            int64_t end = t + PIECE_TOKENS;
            tokens_run(op, segment, t, end < segment->token_count ? end : segment->token_count);
            piece = share_take(share);
        }
        before += pieces;
    }
}

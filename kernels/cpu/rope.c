/* Rotary position embedding, query and key norms, and the append to the KV cache. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

static void head_norm(float *head, const float *weight, int64_t dim, float epsilon)
{
    float sum = 0;
    for (int64_t d = 0; d < dim; d++)
        sum += head[d] * head[d];
    float scale = 1.0f / sqrtf(sum / (float)dim + epsilon);
    for (int64_t d = 0; d < dim; d++)
        head[d] = head[d] * scale * weight[d];
}

static void head_rotate(float *head, const float *rope, int64_t dim)
{
    int64_t half = dim / 2;
    for (int64_t i = 0; i < half; i++) {
        float cosine = rope[i], sine = rope[half + i];
        float a = head[i], b = head[i + half];
        head[i] = a * cosine - b * sine;
        head[i + half] = b * cosine + a * sine;
    }
}

/* Keys go down a column of the page, values along a row. */
static void append_head_f32(float *keys, float *values, int64_t dim, const float *key,
                            const float *value)
{
    for (int64_t d = 0; d < dim; d++)
        keys[d * KV_PAGE_TOKENS] = key[d];
    memcpy(values, value, (size_t)dim * sizeof(float));
    memset(values + dim, 0, (size_t)(round_up(dim, LANES) - dim) * sizeof(float));
}

static void append_head_bf16(uint16_t *keys, uint16_t *values, int64_t dim, const float *key,
                             const float *value)
{
    for (int64_t first = 0; first < dim; first += LANES) {
        int64_t count = dim - first < LANES ? dim - first : LANES;
        float last_key[LANES] = {0}, last_value[LANES] = {0};
        uint16_t halves[LANES];
        memcpy(last_key, key + first, (size_t)count * sizeof(float));
        memcpy(last_value, value + first, (size_t)count * sizeof(float));
        v16_store_bf16(halves, v16_load(last_key));
        v16_store_bf16(values + first, v16_load(last_value));
        for (int64_t d = 0; d < count; d++)
            keys[(first + d) * KV_PAGE_TOKENS] = halves[d];
    }
}

static void append_head(const struct kv_layer *kv, int64_t page, int64_t kv_head, int64_t slot,
                        const float *key, const float *value)
{
    int64_t dim_stride = round_up(kv->head_dim, LANES);
    int64_t keys = page * kv_page_values(kv) + kv_head * dim_stride * KV_PAGE_TOKENS;
    int64_t values = keys + slot * dim_stride;
    keys += slot;
    if (kv->dtype == DTYPE_BF16)
        append_head_bf16((uint16_t *)kv->keys + keys, (uint16_t *)kv->values + values, kv->head_dim,
                         key, value);
    else
        append_head_f32((float *)kv->keys + keys, (float *)kv->values + values, kv->head_dim, key,
                        value);
}

static void token_run(const struct op_rope_append *op, const struct segment *segment, int64_t t)
{
    const struct qkv *qkv = &op->qkv;
    int64_t dim = qkv->head_dim;
    int64_t row = segment->first_row + t;
    int64_t position = segment->first_position + t;
    float *q = qkv->values + row * qkv->stride;
    float *k = q + qkv->k_offset;
    const float *v = q + qkv->v_offset;
    const float *rope = op->rope + row * dim;
    for (int64_t head = 0; head < qkv->head_count; head++) {
        if (op->q_norm != NULL)
            head_norm(q + head * dim, op->q_norm, dim, op->norm_epsilon);
        head_rotate(q + head * dim, rope, dim);
    }
    for (int64_t head = 0; head < qkv->kv_head_count; head++) {
        if (op->k_norm != NULL)
            head_norm(k + head * dim, op->k_norm, dim, op->norm_epsilon);
        head_rotate(k + head * dim, rope, dim);
        append_head(&op->kv, segment->pages[position / KV_PAGE_TOKENS], head,
                    position % KV_PAGE_TOKENS, k + head * dim, v + head * dim);
    }
}

/* A piece is up to 16 tokens of one segment. */
void KERNEL(rope_append)(const struct op_rope_append *op, struct share *share)
{
    const int64_t tokens_per_piece = 16;
    int64_t piece = share_take(share);
    int64_t before = 0;
    for (int64_t s = 0; s < op->segment_count; s++) {
        const struct segment *segment = &op->segments[s];
        int64_t pieces = ceil_div(segment->token_count, tokens_per_piece);
        while (piece < before + pieces) {
            int64_t t = (piece - before) * tokens_per_piece;
            for (int i = 0; i < tokens_per_piece && t < segment->token_count; i++, t++)
                token_run(op, segment, t);
            piece = share_take(share);
        }
        before += pieces;
    }
}

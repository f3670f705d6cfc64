/* Causal attention over paged keys and values, grouped query heads, online softmax.
 *
 * The rows of a segment and kv head are its (token, query head) pairs, token by token, over the
 * query heads that share the kv head. A piece of work is up to BLOCK_ROWS neighbouring rows. Page
 * by page: scores = queries x keys (keys are transposed in a page), softmax with a running maximum
 * and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), output +=
 * weights x values. A row's result depends on its own position alone. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

#define BLOCK_ROWS    24
#define HEAD_DIM_MAX  512
#define SCORE_VECTORS (KV_PAGE_TOKENS / LANES)

#if defined(__AVX512F__)
#define TILE_ROWS 6
#elif defined(__AVX2__)
#define TILE_ROWS 3
#else
#define TILE_ROWS 2
#endif

struct block {
    const struct op_attention *op;
    const struct segment *segment;
    int64_t kv_head;
    int64_t first_row; /* among the rows of this segment and kv head */
    int row_count;
    float q[BLOCK_ROWS][HEAD_DIM_MAX];
    float out[BLOCK_ROWS][HEAD_DIM_MAX];
    float scores[BLOCK_ROWS][KV_PAGE_TOKENS];
    float most[BLOCK_ROWS]; /* largest score so far */
    float sum[BLOCK_ROWS];  /* of exp(score - most) so far */
};

static int64_t heads_per_kv(const struct qkv *qkv)
{
    return qkv->head_count / qkv->kv_head_count;
}

/* Token of a row, within its segment. */
static int64_t row_token(const struct block *block, int row)
{
    return (block->first_row + row) / heads_per_kv(&block->op->qkv);
}

static int64_t row_position(const struct block *block, int row)
{
    return block->segment->first_position + row_token(block, row);
}

static float *head_of_row(const struct block *block, float *base, int64_t stride, int row)
{
    const struct qkv *qkv = &block->op->qkv;
    int64_t group = heads_per_kv(qkv);
    int64_t head = block->kv_head * group + (block->first_row + row) % group;
    int64_t token = block->segment->first_row + row_token(block, row);
    return base + token * stride + head * qkv->head_dim;
}

static void block_start(struct block *block)
{
    const struct qkv *qkv = &block->op->qkv;
    float scale = 1.0f / sqrtf((float)qkv->head_dim);
    int64_t dim_stride = round_up(qkv->head_dim, LANES);
    for (int r = 0; r < block->row_count; r++) {
        const float *q = head_of_row(block, qkv->values, qkv->stride, r);
        for (int64_t d = 0; d < qkv->head_dim; d++)
            block->q[r][d] = q[d] * scale;
        memset(block->out[r], 0, (size_t)dim_stride * sizeof(float));
        block->most[r] = -INFINITY;
        block->sum[r] = 0;
    }
}

INLINE v16 load_kv(const void *from, int64_t index, const bool is_bf16)
{
    return is_bf16 ? v16_load_bf16((const uint16_t *)from + index)
                   : v16_load((const float *)from + index);
}

/* scores[rows][64] = q[rows][dim] x keys[dim][64]. */
INLINE void score_tile(const int rows, const bool is_bf16, float (*scores)[KV_PAGE_TOKENS],
                       float (*q)[HEAD_DIM_MAX], const void *keys, int64_t dim)
{
    v16 sum[TILE_ROWS][SCORE_VECTORS] = {{{0}}};
    for (int64_t d = 0; d < dim; d++) {
        v16 key[SCORE_VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < SCORE_VECTORS; i++)
            key[i] = load_kv(keys, d * KV_PAGE_TOKENS + i * LANES, is_bf16);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
            for (int i = 0; i < SCORE_VECTORS; i++)
                sum[r][i] += v16_all(q[r][d]) * key[i];
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < SCORE_VECTORS; i++)
            v16_store(scores[r] + i * LANES, sum[r][i]);
    }
}

/* out[rows][16 at d] += scores[rows][count] x values[count][16 at d]. */
INLINE void value_tile(const int rows, const bool is_bf16, float (*out)[HEAD_DIM_MAX],
                       float (*scores)[KV_PAGE_TOKENS], const void *values, int64_t dim_stride,
                       int64_t d, int64_t count)
{
    v16 sum[TILE_ROWS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        sum[r] = v16_load(out[r] + d);
    for (int64_t t = 0; t < count; t++) {
        v16 value = load_kv(values, t * dim_stride + d, is_bf16);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
            sum[r] += v16_all(scores[r][t]) * value;
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        v16_store(out[r] + d, sum[r]);
}

/* Full tiles of TILE_ROWS rows, then single rows. */
#define DEFINE_PAGE_FUNCTIONS(suffix, is_bf16)                                                     \
    static void scores_##suffix(struct block *b, const void *keys, int64_t dim)                    \
    {                                                                                              \
        int r = 0;                                                                                 \
        for (; r + TILE_ROWS <= b->row_count; r += TILE_ROWS)                                      \
            score_tile(TILE_ROWS, is_bf16, b->scores + r, b->q + r, keys, dim);                    \
        for (; r < b->row_count; r++)                                                              \
            score_tile(1, is_bf16, b->scores + r, b->q + r, keys, dim);                            \
    }                                                                                              \
    static void values_##suffix(struct block *b, const void *values, int64_t dim_stride,           \
                                int64_t count)                                                     \
    {                                                                                              \
        for (int64_t d = 0; d < dim_stride; d += LANES) {                                          \
            int r = 0;                                                                             \
            for (; r + TILE_ROWS <= b->row_count; r += TILE_ROWS)                                  \
                value_tile(TILE_ROWS, is_bf16, b->out + r, b->scores + r, values, dim_stride, d,   \
                           count);                                                                 \
            for (; r < b->row_count; r++)                                                          \
                value_tile(1, is_bf16, b->out + r, b->scores + r, values, dim_stride, d, count);   \
        }                                                                                          \
    }
DEFINE_PAGE_FUNCTIONS(f32, false)
DEFINE_PAGE_FUNCTIONS(bf16, true)

/* Turns scores of one page into weights; rescales the row's output where its maximum rose. */
static void row_softmax(struct block *block, int row, int64_t page_start, int64_t dim_stride)
{
    float *scores = block->scores[row];
    int64_t position = row_position(block, row);
    int64_t window = block->op->window;
    int64_t first = window > 0 ? position - window + 1 - page_start : 0;
    int64_t end = position + 1 - page_start;
    for (int64_t t = 0; t < KV_PAGE_TOKENS; t++) {
        if (t < first || t >= end)
            scores[t] = -INFINITY;
    }
    v16 most = v16_load(scores);
    for (int i = 1; i < SCORE_VECTORS; i++)
        most = v16_max(most, v16_load(scores + i * LANES));
    float new_most = fmaxf(block->most[row], v16_max_lane(most));
    if (new_most == -INFINITY) { /* nothing of this page is seen */
        memset(scores, 0, KV_PAGE_TOKENS * sizeof(float));
        return;
    }
    v16 sum = {0};
    for (int i = 0; i < SCORE_VECTORS; i++) {
        v16 weight = v16_exp(v16_load(scores + i * LANES) - new_most);
        v16_store(scores + i * LANES, weight);
        sum += weight;
    }
    float scale = block->most[row] == -INFINITY ? 0.0f : expf(block->most[row] - new_most);
    block->sum[row] = block->sum[row] * scale + v16_sum(sum);
    block->most[row] = new_most;
    if (scale != 1.0f) {
        for (int64_t d = 0; d < dim_stride; d += LANES)
            v16_store(block->out[row] + d, v16_load(block->out[row] + d) * scale);
    }
}

static void block_page(struct block *block, int64_t page_index)
{
    const struct kv_layer *kv = &block->op->kv;
    int64_t dim_stride = round_up(kv->head_dim, LANES);
    int64_t base = block->segment->pages[page_index] * kv_page_values(kv) +
                   block->kv_head * dim_stride * KV_PAGE_TOKENS;
    int64_t offset = base * dtype_bytes(kv->dtype);
    const void *keys = (const char *)kv->keys + offset;
    const void *values = (const char *)kv->values + offset;
    int64_t page_start = page_index * KV_PAGE_TOKENS;
    /* What lies behind the last token of the block may not even be finite: it is masked in the
     * scores and not read in the values. */
    int64_t seen = row_position(block, block->row_count - 1) + 1 - page_start;
    int64_t count = seen < KV_PAGE_TOKENS ? seen : KV_PAGE_TOKENS;
    if (kv->dtype == DTYPE_BF16)
        scores_bf16(block, keys, kv->head_dim);
    else
        scores_f32(block, keys, kv->head_dim);
    for (int r = 0; r < block->row_count; r++)
        row_softmax(block, r, page_start, dim_stride);
    if (kv->dtype == DTYPE_BF16)
        values_bf16(block, values, dim_stride, count);
    else
        values_f32(block, values, dim_stride, count);
}

static void block_run(struct block *block)
{
    block_start(block);
    int64_t last = row_position(block, block->row_count - 1);
    int64_t first = block->op->window > 0 ? row_position(block, 0) - block->op->window + 1 : 0;
    for (int64_t page = first > 0 ? first / KV_PAGE_TOKENS : 0; page <= last / KV_PAGE_TOKENS;
         page++)
        block_page(block, page);
    for (int r = 0; r < block->row_count; r++) {
        float *out = head_of_row(block, block->op->out, block->op->out_stride, r);
        float scale = 1.0f / block->sum[r];
        for (int64_t d = 0; d < block->op->qkv.head_dim; d++)
            out[d] = block->out[r][d] * scale;
    }
}

/* Finds the piece's segment and rows; false when the piece is beyond the last. Rows of later tokens
 * see more keys, so they are taken first. */
static bool block_find(struct block *block, const struct op_attention *op, int64_t piece)
{
    int64_t group = heads_per_kv(&op->qkv);
    block->op = op;
    block->kv_head = piece % op->qkv.kv_head_count;
    piece /= op->qkv.kv_head_count;
    for (int64_t s = 0; s < op->segment_count; s++) {
        const struct segment *segment = &op->segments[s];
        int64_t rows = segment->token_count * group;
        int64_t blocks = ceil_div(rows, BLOCK_ROWS);
        if (piece >= blocks) {
            piece -= blocks;
            continue;
        }
        block->segment = segment;
        block->first_row = (blocks - 1 - piece) * BLOCK_ROWS;
        int64_t left = rows - block->first_row;
        block->row_count = (int)(left < BLOCK_ROWS ? left : BLOCK_ROWS);
        return true;
    }
    return false;
}

void KERNEL(attention)(const struct op_attention *op, struct share *share)
{
    struct block block;
    ASSERT(op->qkv.head_dim <= HEAD_DIM_MAX);
    while (block_find(&block, op, share_take(share)))
        block_run(&block);
}

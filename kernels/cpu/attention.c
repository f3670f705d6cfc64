/* Causal attention over paged keys and values, grouped query heads, online softmax.
 *
 * The rows of a segment and kv head are its (token, query head) pairs, token by token, over the
 * query heads that share the kv head. A piece of work is up to BLOCK_ROWS neighbouring rows. Page
 * by page: scores = queries x keys (keys are transposed in a page), softmax with a running maximum
 * and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), output +=
 * weights x values. Where many rows use a page, it is widened to f32 once for all of them; a few
 * (decode) read it as it lies. A row's result depends on its own position alone. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

#define BLOCK_ROWS    96
#define HEAD_DIM_MAX  512
#define SCORE_VECTORS (KV_PAGE_TOKENS / LANES)

/* Two shapes of the inner product: many rows by one vector, and a few rows by WIDE_VECTORS. */
#define WIDE_VECTORS 4
#if defined(__AVX512F__)
#define TALL_ROWS 24
#define WIDE_ROWS 6
#elif defined(__AVX2__)
#define TALL_ROWS 6
#define WIDE_ROWS 1
#else
#define TALL_ROWS 2
#define WIDE_ROWS 1
#endif

struct block {
    const struct op_attention *op;
    const struct segment *segment;
    int64_t kv_head;
    int64_t first_row; /* among the rows of this segment and kv head */
    int row_count;
    int64_t dim_stride;                   /* of q and out */
    float q[BLOCK_ROWS * HEAD_DIM_MAX];   /* [row][dim_stride] */
    float out[BLOCK_ROWS * HEAD_DIM_MAX]; /* [row][dim_stride] */
    float scores[BLOCK_ROWS * KV_PAGE_TOKENS];
    float page[KV_PAGE_TOKENS * HEAD_DIM_MAX]; /* keys or values, widened */
    float most[BLOCK_ROWS];                    /* largest score so far */
    float sum[BLOCK_ROWS];                     /* of exp(score - most) so far */
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
    block->dim_stride = round_up(qkv->head_dim, LANES);
    for (int r = 0; r < block->row_count; r++) {
        const float *from = head_of_row(block, qkv->values, qkv->stride, r);
        float *q = block->q + r * block->dim_stride;
        for (int64_t d = 0; d < qkv->head_dim; d++)
            q[d] = from[d] * scale;
        block->most[r] = -INFINITY;
        block->sum[r] = 0;
    }
    memset(block->out, 0, (size_t)(block->row_count * block->dim_stride) * sizeof(float));
}

/* ---- Products ------------------------------------------------------------------------------ */

/* out[row][vectors x 16] (+)= in[row][k] x page[k][vectors x 16], over k = 0 .. count - 1 in rising
 * order. Steps are in values. */
struct product {
    float *out;
    const float *in;
    const void *page;
    int64_t out_step, in_step, page_step;
    int64_t count;
    bool adds; /* to what is in `out` */
};

INLINE v16 load_kv(const void *from, int64_t index, const bool is_bf16)
{
    return is_bf16 ? v16_load_bf16((const uint16_t *)from + index)
                   : v16_load((const float *)from + index);
}

/* The step of the inputs is given where it is a constant: it spares the tile address registers. */
INLINE void product_tile(const int rows, const int vectors, const bool is_bf16,
                         const int64_t in_step, const struct product *p)
{
    v16 sum[TALL_ROWS][WIDE_VECTORS];
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++)
            sum[r][i] = p->adds ? v16_load(p->out + r * p->out_step + i * LANES) : (v16){0};
    }
    const float *in = p->in;
    const int64_t page_step = p->page_step;
    for (int64_t k = 0; k < p->count; k++) {
        v16 page[WIDE_VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++)
            page[i] = load_kv(p->page, k * page_step + i * LANES, is_bf16);
#pragma GCC unroll 24
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
            for (int i = 0; i < vectors; i++)
                sum[r][i] += v16_all(in[r * in_step + k]) * page[i];
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++)
            v16_store(p->out + r * p->out_step + i * LANES, sum[r][i]);
    }
}

typedef void product_fn(const struct product *p);

#define DEFINE_PRODUCT(rows, vectors)                                                              \
    static void product_bf16_##rows##x##vectors(const struct product *p)                           \
    {                                                                                              \
        product_tile(rows, vectors, true, p->in_step, p);                                          \
    }                                                                                              \
    static void product_f32_##rows##x##vectors(const struct product *p)                            \
    {                                                                                              \
        product_tile(rows, vectors, false, p->in_step, p);                                         \
    }
#define DEFINE_FEW(rows) DEFINE_PRODUCT(rows, 1) DEFINE_PRODUCT(rows, 4)
#define NAME_FEW(rows)                                                                             \
    {                                                                                              \
        {product_f32_##rows##x1, product_f32_##rows##x4},                                          \
        {                                                                                          \
            product_bf16_##rows##x1, product_bf16_##rows##x4                                       \
        }                                                                                          \
    }

DEFINE_FEW(1)
#if WIDE_ROWS == 6
DEFINE_FEW(2)
DEFINE_FEW(3)
DEFINE_FEW(4)
DEFINE_FEW(5)
DEFINE_FEW(6)
#endif

/* [rows - 1][is_bf16][vectors == 4] */
static product_fn *const few_table[WIDE_ROWS][2][2] = {
    NAME_FEW(1),
#if WIDE_ROWS == 6
    NAME_FEW(2), NAME_FEW(3), NAME_FEW(4), NAME_FEW(5), NAME_FEW(6),
#endif
};

static void product_tall(struct product p, int64_t vectors)
{
    for (int64_t i = 0; i < vectors; i++) {
        if (p.in_step == KV_PAGE_TOKENS) /* scores; queries of heads of 64 */
            product_tile(TALL_ROWS, 1, false, KV_PAGE_TOKENS, &p);
        else if (p.in_step == 128)
            product_tile(TALL_ROWS, 1, false, 128, &p);
        else
            product_tile(TALL_ROWS, 1, false, p.in_step, &p);
        p.page = (const float *)p.page + LANES;
        p.out += LANES;
    }
}

static void product_few(struct product p, int rows, int64_t vectors, bool is_bf16)
{
    int64_t value_bytes = is_bf16 ? 2 : 4;
    while (vectors > 0) {
        int step = vectors >= WIDE_VECTORS ? WIDE_VECTORS : 1;
        few_table[rows - 1][is_bf16][step == WIDE_VECTORS](&p);
        p.page = (const char *)p.page + step * LANES * value_bytes;
        p.out += step * LANES;
        vectors -= step;
    }
}

/* For all rows of a block. */
static void product_run(struct product p, int rows, int64_t vectors, bool is_bf16)
{
    int r = 0;
    while (r < rows) {
        int left = rows - r, height = left < WIDE_ROWS ? left : WIDE_ROWS;
        if (left >= TALL_ROWS && !is_bf16) {
            product_tall(p, vectors);
            height = TALL_ROWS;
        } else {
            product_few(p, height, vectors, is_bf16);
        }
        p.in += height * p.in_step;
        p.out += height * p.out_step;
        r += height;
    }
}

/* Keys or values of a page as the products take them. */
static const void *page_widen(struct block *block, const void *from, int64_t count, bool *is_bf16)
{
    if (!*is_bf16 || block->row_count < TALL_ROWS)
        return from;
    for (int64_t i = 0; i < count; i += LANES)
        v16_store(block->page + i, v16_load_bf16((const uint16_t *)from + i));
    *is_bf16 = false;
    return block->page;
}

/* ---- A page -------------------------------------------------------------------------------- */

/* Leaves out what a row does not see. */
static void row_mask(float *scores, int64_t first, int64_t end)
{
    for (int64_t t = 0; t < first && t < KV_PAGE_TOKENS; t++)
        scores[t] = -INFINITY;
    for (int64_t t = end < 0 ? 0 : end; t < KV_PAGE_TOKENS; t++)
        scores[t] = -INFINITY;
}

/* Turns scores of one page into weights; rescales the row's output where its maximum rose. */
static void row_softmax(struct block *block, int row, int64_t page_start)
{
    float *scores = block->scores + row * KV_PAGE_TOKENS;
    float *out = block->out + row * block->dim_stride;
    int64_t position = row_position(block, row);
    int64_t window = block->op->window;
    row_mask(scores, window > 0 ? position - window + 1 - page_start : 0,
             position + 1 - page_start);
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
        for (int64_t d = 0; d < block->dim_stride; d += LANES)
            v16_store(out + d, v16_load(out + d) * scale);
    }
}

static void page_scores(struct block *block, const void *keys)
{
    const struct kv_layer *kv = &block->op->kv;
    bool is_bf16 = kv->dtype == DTYPE_BF16;
    struct product product = {
        .out = block->scores,
        .in = block->q,
        .page = page_widen(block, keys, kv->head_dim * KV_PAGE_TOKENS, &is_bf16),
        .out_step = KV_PAGE_TOKENS,
        .in_step = block->dim_stride,
        .page_step = KV_PAGE_TOKENS,
        .count = kv->head_dim,
    };
    product_run(product, block->row_count, SCORE_VECTORS, is_bf16);
}

/* Adds the values of `count` tokens of a page. */
static void page_values(struct block *block, const void *values, int64_t count)
{
    bool is_bf16 = block->op->kv.dtype == DTYPE_BF16;
    struct product product = {
        .out = block->out,
        .in = block->scores,
        .page = page_widen(block, values, count * block->dim_stride, &is_bf16),
        .out_step = block->dim_stride,
        .in_step = KV_PAGE_TOKENS,
        .page_step = block->dim_stride,
        .count = count,
        .adds = true,
    };
    product_run(product, block->row_count, block->dim_stride / LANES, is_bf16);
}

static void block_page(struct block *block, int64_t page_index)
{
    const struct kv_layer *kv = &block->op->kv;
    int64_t base = block->segment->pages[page_index] * kv_page_values(kv) +
                   block->kv_head * block->dim_stride * KV_PAGE_TOKENS;
    int64_t offset = base * dtype_bytes(kv->dtype);
    int64_t page_start = page_index * KV_PAGE_TOKENS;
    /* What lies behind the last token of the block may not even be finite: it is masked in the
     * scores and not read in the values. */
    int64_t seen = row_position(block, block->row_count - 1) + 1 - page_start;
    page_scores(block, (const char *)kv->keys + offset);
    for (int r = 0; r < block->row_count; r++)
        row_softmax(block, r, page_start);
    page_values(block, (const char *)kv->values + offset,
                seen < KV_PAGE_TOKENS ? seen : KV_PAGE_TOKENS);
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
        float *to = head_of_row(block, block->op->out, block->op->out_stride, r);
        const float *out = block->out + r * block->dim_stride;
        float scale = 1.0f / block->sum[r];
        for (int64_t d = 0; d < block->op->qkv.head_dim; d++)
            to[d] = out[d] * scale;
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

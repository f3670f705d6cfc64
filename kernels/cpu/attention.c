/* Causal attention over paged keys and values, grouped query heads, online softmax.
 *
 * The rows of a segment and kv head are its (token, query head) pairs, token by token, over the
 * query heads that share the kv head. A piece of work is up to BLOCK_ROWS neighbouring rows. Page
 * by page: scores = queries x keys (keys are transposed in a page), softmax with a running maximum
 * and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), output +=
 * weights x values. Where many rows use a page, it is made ready once for all of them; a few
 * (decode) read it as it lies. A row's result depends on its own position alone. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "kernels/cpu/attention_product.h"

#define BLOCK_ROWS    (KERNEL_AMX ? 128 : 96) /* AMX is so fast that making a page ready counts */
#define HEAD_DIM_MAX  512
#define SCORE_VECTORS (KV_PAGE_TOKENS / LANES)

/* The arrays begin at cache lines: vectors across two cost twice. */
struct block {
    const struct op_attention *op;
    const struct segment *segment;
    int64_t kv_head;
    int64_t first_row; /* among the rows of this segment and kv head */
    int row_count;
    bool takes_pairs;     /* queries and weights are bf16, else f32 */
    int64_t dim_stride;   /* of out and of the cache's values */
    int64_t query_stride; /* of queries; what is behind head_dim is zero */
    struct amx_shape amx;
    float factor; /* from a score to the exponent of 2 */
    union {
        _Alignas(64) float wide[BLOCK_ROWS * HEAD_DIM_MAX];
        uint16_t halves[BLOCK_ROWS * HEAD_DIM_MAX];
    } queries;                                                  /* [row][query_stride] */
    _Alignas(64) float out[BLOCK_ROWS * HEAD_DIM_MAX];          /* [row][dim_stride] */
    _Alignas(64) float scores[BLOCK_ROWS * KV_PAGE_TOKENS];     /* then weights, if f32 */
    _Alignas(64) uint16_t weights[BLOCK_ROWS * KV_PAGE_TOKENS]; /* if bf16 */
    _Alignas(64) uint32_t page[KV_PAGE_TOKENS * HEAD_DIM_MAX];  /* keys or values, made ready */
    _Alignas(64) float sum[BLOCK_ROWS * LANES];                 /* of the weights, by lanes */
    float most[BLOCK_ROWS];                                     /* largest score so far */
    int64_t position[BLOCK_ROWS];
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

static float *head_of_row(const struct block *block, float *base, int64_t stride, int row)
{
    const struct qkv *qkv = &block->op->qkv;
    int64_t group = heads_per_kv(qkv);
    int64_t head = block->kv_head * group + (block->first_row + row) % group;
    int64_t token = block->segment->first_row + row_token(block, row);
    return base + token * stride + head * qkv->head_dim;
}

static void query_take(struct block *block, int row, const float *from)
{
    float *wide = block->queries.wide + row * block->query_stride;
    uint16_t *halves = block->queries.halves + row * block->query_stride;
    const int64_t dim = block->op->qkv.head_dim;
    if (!block->takes_pairs) {
        memcpy(wide, from, (size_t)dim * sizeof(float));
        return;
    }
    int64_t first = 0;
    for (; first + LANES <= dim; first += LANES)
        vec_store_pairs(halves + first, vec_load(from + first));
    for (; first < block->query_stride; first += LANES) {
        float lanes[LANES] = {0};
        if (first < dim)
            memcpy(lanes, from + first, (size_t)(dim - first) * sizeof(float));
        vec_store_pairs(halves + first, vec_load(lanes));
    }
}

static void query_fetch(const float *from, int64_t dim)
{
    const int64_t line = LINE_BYTES / (int64_t)sizeof *from;
    for (int64_t d = 0; d < dim; d += line)
        __builtin_prefetch(from + d);
}

static void block_start(struct block *block)
{
    const struct qkv *qkv = &block->op->qkv;
    block->takes_pairs = KERNEL_PAIRS && block->op->kv.dtype == DTYPE_BF16;
    block->dim_stride = round_up(qkv->head_dim, PACK_BLOCK);
    block->query_stride = KERNEL_AMX ? round_up(qkv->head_dim, CHUNK_COLUMNS) : block->dim_stride;
    block->factor = 1.44269504f / sqrtf((float)qkv->head_dim);
    /* Tokens lie too far apart for the processor to fetch them by itself. */
    for (int r = 0; r < block->row_count; r++)
        query_fetch(head_of_row(block, qkv->values, qkv->stride, r), qkv->head_dim);
    for (int r = 0; r < block->row_count; r++) {
        query_take(block, r, head_of_row(block, qkv->values, qkv->stride, r));
        block->most[r] = -INFINITY;
        block->position[r] = block->segment->first_position + row_token(block, r);
    }
    memset(block->sum, 0, (size_t)(block->row_count * LANES) * sizeof(float));
    memset(block->out, 0, (size_t)(block->row_count * block->dim_stride) * sizeof(float));
}

/* ---- A page -------------------------------------------------------------------------------- */

/* Keys and values of a page, and keys of the next, if there is one. */
struct page {
    const char *keys, *values, *next;
    int64_t first; /* position */
    int64_t seen;  /* tokens of it that the last row sees */
    int vectors;   /* of their scores, those of whole panels */
};

/* Leaves out what a row does not see: of most pages, nothing. */
INLINE void row_mask(float *scores, int64_t first, int64_t end, int64_t count)
{
    if (first <= 0 && end >= count)
        return;
    for (int64_t t = 0; t < first && t < count; t++)
        scores[t] = -INFINITY;
    for (int64_t t = end < 0 ? 0 : end; t < count; t++)
        scores[t] = -INFINITY;
}

INLINE void weight_store(struct block *block, int64_t at, vec weight)
{
    if (block->takes_pairs)
        vec_store_pairs(block->weights + at, weight);
    else
        vec_store(block->scores + at, weight);
}

/* Weights of the tokens of a page for which scores were not computed, as far as they are read. */
INLINE void weights_fill(struct block *block, int64_t at, const int vectors)
{
    for (int i = vectors; KERNEL_AMX && i * LANES % CHUNK_COLUMNS != 0; i++)
        weight_store(block, at + i * LANES, (vec){0});
}

/* What was summed with another maximum becomes what it would be with the new one. */
static void row_rescale(struct block *block, int row, float scale)
{
    float *out = block->out + row * block->dim_stride, *sum = block->sum + row * LANES;
    vec_store(sum, vec_load(sum) * scale);
    for (int64_t d = 0; d < block->dim_stride; d += LANES)
        vec_store(out + d, vec_load(out + d) * scale);
}

/* Finds a row's largest score, with this page's; rescales its output where that rose. */
INLINE void row_most(struct block *block, int row, const struct page *page, const int vectors)
{
    float *scores = block->scores + (int64_t)row * KV_PAGE_TOKENS;
    int64_t position = block->position[row], window = block->op->window;
    row_mask(scores, window > 0 ? position - window + 1 - page->first : 0,
             position + 1 - page->first, vectors * LANES);
    vec most = vec_load(scores);
    for (int i = 1; i < vectors; i++)
        most = vec_max(most, vec_load(scores + i * LANES));
    float old_most = block->most[row], new_most = vec_max_lane(most);
    if (new_most <= old_most) /* not where it is NaN, which has to be seen in the result */
        return;
    row_rescale(block, row, exp2f((old_most - new_most) * block->factor));
    block->most[row] = new_most;
}

/* Turns a row's scores of one page into weights. */
INLINE void row_weights(struct block *block, int row, const int vectors)
{
    const int64_t at = (int64_t)row * KV_PAGE_TOKENS;
    float *scores = block->scores + at, *sum = block->sum + row * LANES;
    /* Of a row that has seen nothing yet all scores are -infinity: their weights are 0. */
    const float most = block->most[row] == -INFINITY ? 0 : block->most[row];
    vec added = {0};
#pragma GCC unroll 4
    for (int panel = 0; panel < vectors; panel += PANEL_VECTORS) {
#pragma GCC unroll 4
        for (int i = panel; i < panel + PANEL_VECTORS; i++) {
            vec score = vec_load(scores + i * LANES) - most;
            vec weight = vec_exp2_falling(score * block->factor);
            weight_store(block, at + i * LANES, weight);
            added += weight;
        }
    }
    weights_fill(block, at, vectors);
    vec_store(sum, vec_load(sum) + added);
}

/* Of a whole page the number of vectors is a constant for the compiler. All rows are looked at
 * before the first is weighed: what one waits for, the branch and its maximum, the next does not.
 */
INLINE void rows_softmax(struct block *block, const struct page *page, const int vectors)
{
    for (int r = 0; r < block->row_count; r++)
        row_most(block, r, page, vectors);
    for (int r = 0; r < block->row_count; r++)
        row_weights(block, r, vectors);
}

/* From TALL_ROWS on it pays to make a page ready, which a tile of as many rows needs. */
static void products(struct block *block, struct product *product, int64_t vectors)
{
    product->kind = block->op->kv.dtype == DTYPE_BF16 ? PAGE_BF16 : PAGE_F32;
    if (product->kind == PAGE_BF16 && (KERNEL_AMX || block->row_count >= TALL_ROWS))
        page_ready(product, block->page, vectors);
#if KERNEL_AMX
    if (product->kind == PAGE_PAIRS) {
        product_run_amx(&block->amx, product, block->row_count, vectors,
                        block->dim_stride * KV_PAGE_TOKENS * 2 / LINE_BYTES);
        return;
    }
#endif
    product_run(*product, block->row_count, vectors);
}

static const char *of_bf16(const struct block *block, const char *page)
{
    return block->op->kv.dtype == DTYPE_BF16 ? page : NULL;
}

static void page_scores(struct block *block, const struct page *page)
{
    struct product product = {
        .out = block->scores,
        .in = &block->queries,
        .page = page->keys,
        .out_step = KV_PAGE_TOKENS,
        .in_step = block->query_stride,
        .page_step = KV_PAGE_TOKENS,
        .count = block->op->kv.head_dim,
        .fetch = of_bf16(block, page->values),
    };
    products(block, &product, page->vectors);
}

static void page_values(struct block *block, const struct page *page)
{
    const void *weights = block->takes_pairs ? (void *)block->weights : block->scores;
    struct product product = {
        .out = block->out,
        .in = weights,
        .page = page->values,
        .out_step = block->dim_stride,
        .in_step = KV_PAGE_TOKENS,
        .page_step = block->dim_stride,
        .count = page->seen,
        .fetch = of_bf16(block, page->next),
        .adds = true,
    };
    products(block, &product, block->dim_stride / LANES);
}

/* Bytes of keys, and of values, before those of a page. */
static int64_t page_offset(const struct block *block, int64_t page_index)
{
    const struct kv_layer *kv = &block->op->kv;
    int64_t base = block->segment->pages[page_index] * kv_page_values(kv) +
                   block->kv_head * block->dim_stride * KV_PAGE_TOKENS;
    return base * dtype_bytes(kv->dtype);
}

/* What lies behind the last token of the block may not even be finite: it is masked in the scores
 * and not read in the values. */
static void block_page(struct block *block, int64_t page_index, bool is_last)
{
    const struct kv_layer *kv = &block->op->kv;
    int64_t offset = page_offset(block, page_index), first = page_index * KV_PAGE_TOKENS;
    int64_t seen = block->position[block->row_count - 1] + 1 - first;
    struct page page = {
        .keys = (const char *)kv->keys + offset,
        .values = (const char *)kv->values + offset,
        .next = is_last ? NULL : (const char *)kv->keys + page_offset(block, page_index + 1),
        .first = first,
        .seen = seen < KV_PAGE_TOKENS ? seen : KV_PAGE_TOKENS,
    };
    page.vectors = (int)ceil_div(page.seen, PACK_BLOCK) * PANEL_VECTORS;
    page_scores(block, &page);
    if (page.vectors == SCORE_VECTORS)
        rows_softmax(block, &page, SCORE_VECTORS);
    else
        rows_softmax(block, &page, page.vectors);
    page_values(block, &page);
}

static void block_run(struct block *block)
{
    block_start(block);
    int64_t last = block->position[block->row_count - 1] / KV_PAGE_TOKENS;
    int64_t first = block->op->window > 0 ? block->position[0] - block->op->window + 1 : 0;
    for (int64_t page = first > 0 ? first / KV_PAGE_TOKENS : 0; page <= last; page++)
        block_page(block, page, page == last);
    for (int r = 0; r < block->row_count; r++) {
        float *to = head_of_row(block, block->op->out, block->op->out_stride, r);
        const float *out = block->out + r * block->dim_stride;
        float scale = 1.0f / vec_sum(vec_load(block->sum + r * LANES));
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
    block.amx = amx_begin();
    while (block_find(&block, op, share_take(share)))
        block_run(&block);
    amx_end(&block.amx);
}

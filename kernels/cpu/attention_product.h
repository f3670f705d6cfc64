/* The inner products of attention: rows of inputs by a page of keys or of values.
 *
 * A page is taken as it lies where a few rows use it, else as page_ready leaves it: widened to f32,
 * or, where products are of pairs (KERNEL_PAIRS), with every two rows of it interleaved. Inputs are
 * f32 beside f32, and bf16 in pairs. All ways that a set of kernels has of one type add in the same
 * order, so that a row's result does not depend on the rows beside it. AMX (kernels/cpu/amx.h)
 * takes every page of bf16 made ready, for any number of rows. */
#ifndef PHASOR_KERNELS_CPU_ATTENTION_PRODUCT_H
#define PHASOR_KERNELS_CPU_ATTENTION_PRODUCT_H

#include "kernels/cpu/amx.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

enum page_kind {
    PAGE_F32,
    PAGE_BF16,  /* as it lies */
    PAGE_PAIRS, /* words of two bf16: of rows k and k + 1, the first in the low half */
    PAGE_KIND_COUNT
};

/* Two shapes: many rows by 16 columns, and a few rows by WIDE_VECTORS_OF(rows): as many sums as
 * registers hold, or as hide most of the latency of the additions. A page has columns in multiples
 * of 16. */
#define WIDE_VECTORS 4 /* at most */
#define TALL_VECTORS PANEL_VECTORS
#if defined(__AVX512F__)
#define TALL_ROWS 24
#define WIDE_ROWS 6
#elif defined(__AVX2__)
#define TALL_ROWS             6
#define WIDE_ROWS             4
#define WIDE_VECTORS_OF(rows) ((rows) <= 2 ? 4 : 2) /* of 16 registers at most 8 are sums */
#else
#define TALL_ROWS 2
#define WIDE_ROWS 1
#endif

#if !defined(WIDE_VECTORS_OF)
#define WIDE_VECTORS_OF(rows) WIDE_VECTORS
#endif

/* out[row][column] (+)= in[row][k] x page[k][column], over k = 0 .. count - 1 in rising order.
 * Steps are in values; in_step is even. */
struct product {
    enum page_kind kind;
    float *out;
    const void *in;   /* f32, or bf16 where pairs are taken: with an even number of them */
    const void *page; /* what lies behind row count - 1 is not read */
    int64_t out_step, in_step, page_step;
    int64_t count;
    bool adds; /* to what is in `out` */

    /* The page of bf16 that will be read next, or NULL: a tile fetches the place of what it takes,
     * of its lines those of the mask. Fetched all at once they would leave the memory idle while a
     * page is computed with. */
    const char *fetch;
    unsigned fetch_lines;
};

/* Of a set's products with pages of bf16. */
INLINE bool page_takes_pairs(const enum page_kind kind)
{
    return kind == PAGE_PAIRS || (KERNEL_PAIRS && kind == PAGE_BF16);
}

/* `is_single`: there is no row k + 1. */
INLINE vecu bf16_load(const struct product *p, int64_t k, const int i, const bool is_single)
{
    const uint16_t *from = (const uint16_t *)p->page + k * p->page_step + i * LANES;
    if (!KERNEL_PAIRS)
        return (vecu)vec_load_bf16(from);
    vecu pairs = vec_load_halves(from);
    if (!is_single)
        pairs |= vec_load_halves(from + p->page_step) << 16;
    return pairs;
}

INLINE void page_load(vecu page[WIDE_VECTORS], const struct product *p, const enum page_kind kind,
                      int64_t k, const int vectors, const bool is_single)
{
    const uint16_t *low = (const uint16_t *)p->page + k * p->page_step;
#pragma GCC unroll 4
    for (int i = 0; i < vectors; i++) {
        if (kind == PAGE_F32)
            page[i] = (vecu)vec_load((const float *)p->page + k * p->page_step + i * LANES);
        else if (kind == PAGE_PAIRS)
            page[i] = *(const vecu *)((const uint32_t *)p->page + k / 2 * p->page_step + i * LANES);
        else if (!KERNEL_PAIRS || is_single || vectors % 2 == 1)
            page[i] = bf16_load(p, k, i, is_single);
        else if (i % 2 == 0)
            vec_interleave(&page[i], &page[i + 1], low + i * LANES, low + p->page_step + i * LANES);
    }
}

#define LINE_BYTES 64

/* Of pages of bf16 as they lie: a line has 16 values of two rows, or 32 of one. */
INLINE void product_fetch(const struct product *p, const enum page_kind kind, int64_t k,
                          const int vectors)
{
    const int bytes = vectors * LANES * (page_takes_pairs(kind) ? 4 : 2);
    const int lines = (bytes + LINE_BYTES - 1) / LINE_BYTES;
#pragma GCC unroll 4
    for (int i = 0; i < lines; i++) {
        if ((p->fetch_lines >> i & 1) != 0)
            __builtin_prefetch(p->fetch + k * p->page_step * 2 + i * LINE_BYTES, 0, 2);
    }
}

INLINE vec product_add(vec sum, const struct product *p, const enum page_kind kind, int64_t at,
                       vecu page)
{
    if (page_takes_pairs(kind))
        return vec_dot_pairs(sum, page, (const uint16_t *)p->in + at);
    return sum + vec_all(((const float *)p->in)[at]) * (vec)page;
}

INLINE void product_step(vec sum[TALL_ROWS][WIDE_VECTORS], const int rows, const int vectors,
                         const enum page_kind kind, const int64_t in_step, const struct product *p,
                         int64_t k, const bool is_single)
{
    vecu page[WIDE_VECTORS];
    page_load(page, p, kind, k, vectors, is_single);
    product_fetch(p, kind, k, vectors);
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++)
            sum[r][i] = product_add(sum[r][i], p, kind, r * in_step + k, page[i]);
    }
}

/* The step of the inputs is given where it is a constant: it spares the tile address registers. */
INLINE void product_tile(const int rows, const int vectors, const enum page_kind kind,
                         const int64_t in_step, const struct product *p)
{
    const int unit = page_takes_pairs(kind) ? 2 : 1;
    vec sum[TALL_ROWS][WIDE_VECTORS];
    int64_t k = 0;
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++)
            sum[r][i] = p->adds ? vec_load(p->out + r * p->out_step + i * LANES) : (vec){0};
    }
    for (; k + unit <= p->count; k += unit)
        product_step(sum, rows, vectors, kind, in_step, p, k, false);
    if (k < p->count)
        product_step(sum, rows, vectors, kind, in_step, p, k, true);
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++)
            vec_store(p->out + r * p->out_step + i * LANES, sum[r][i]);
    }
}

typedef void product_fn(const struct product *p);

#define DEFINE_PRODUCT(kind, rows, vectors)                                                        \
    static void product_##kind##_##rows##x##vectors(const struct product *p)                       \
    {                                                                                              \
        product_tile(rows, vectors, kind, p->in_step, p);                                          \
    }
#if KERNEL_AMX
#define DEFINE_KINDS(rows, vectors) DEFINE_PRODUCT(PAGE_F32, rows, vectors)
#elif KERNEL_PAIRS
#define DEFINE_KINDS(rows, vectors)                                                                \
    DEFINE_PRODUCT(PAGE_F32, rows, vectors)                                                        \
    DEFINE_PRODUCT(PAGE_BF16, rows, vectors)                                                       \
    DEFINE_PRODUCT(PAGE_PAIRS, rows, vectors)
#else
#define DEFINE_KINDS(rows, vectors)                                                                \
    DEFINE_PRODUCT(PAGE_F32, rows, vectors)                                                        \
    DEFINE_PRODUCT(PAGE_BF16, rows, vectors)
#endif
#define NAME_NONE                                                                                  \
    {                                                                                              \
        NULL, NULL, NULL                                                                           \
    }
#define NAME_BF16(rows)  NAME_FEW(PAGE_BF16, rows)
#define NAME_PAIRS(rows) NAME_NONE
#if KERNEL_AMX
#undef NAME_BF16
#define NAME_BF16(rows) NAME_NONE
#elif KERNEL_PAIRS
#undef NAME_PAIRS
#define NAME_PAIRS(rows) NAME_FEW(PAGE_PAIRS, rows)
#endif
#define DEFINE_FEW(rows) DEFINE_KINDS(rows, 1) DEFINE_KINDS(rows, 2) DEFINE_KINDS(rows, 4)
#define NAME_FEW(kind, rows)                                                                       \
    {                                                                                              \
        product_##kind##_##rows##x1, product_##kind##_##rows##x2, product_##kind##_##rows##x4      \
    }
#define NAME_KINDS(rows)                                                                           \
    {                                                                                              \
        NAME_FEW(PAGE_F32, rows), NAME_BF16(rows), NAME_PAIRS(rows)                                \
    }

DEFINE_FEW(1)
#if WIDE_ROWS >= 4
DEFINE_FEW(2)
DEFINE_FEW(3)
DEFINE_FEW(4)
#endif
#if WIDE_ROWS == 6
DEFINE_FEW(5)
DEFINE_FEW(6)
#endif

/* [rows - 1][kind][vectors / 2] */
static product_fn *const few_table[WIDE_ROWS][PAGE_KIND_COUNT][3] = {
    NAME_KINDS(1),
#if WIDE_ROWS >= 4
    NAME_KINDS(2), NAME_KINDS(3), NAME_KINDS(4),
#endif
#if WIDE_ROWS == 6
    NAME_KINDS(5), NAME_KINDS(6),
#endif
};

INLINE void tall_run(const enum page_kind kind, const struct product *p)
{
    if (p->in_step == 64)
        product_tile(TALL_ROWS, TALL_VECTORS, kind, 64, p);
    else if (p->in_step == 128)
        product_tile(TALL_ROWS, TALL_VECTORS, kind, 128, p);
    else
        product_tile(TALL_ROWS, TALL_VECTORS, kind, p->in_step, p);
}

/* To the next columns. */
INLINE void product_move(struct product *p, int vectors)
{
    p->page = (const char *)p->page + vectors * LANES * (p->kind == PAGE_BF16 ? 2 : 4);
    if (p->fetch != NULL)
        p->fetch += vectors * LANES * (page_takes_pairs(p->kind) ? 4 : 2);
    p->out += vectors * LANES;
}

static void product_tall(struct product p, int64_t vectors)
{
    for (int64_t i = 0; i < vectors; i += TALL_VECTORS) {
        if (KERNEL_PAIRS && !KERNEL_AMX && p.kind == PAGE_PAIRS)
            tall_run(PAGE_PAIRS, &p);
        else
            tall_run(PAGE_F32, &p);
        product_move(&p, TALL_VECTORS);
    }
}

static void product_few(struct product p, int rows, int64_t vectors)
{
    while (vectors > 0) {
        int step = WIDE_VECTORS_OF(rows);
        while (step > vectors)
            step /= 2;
        few_table[rows - 1][p.kind][step / 2](&p);
        product_move(&p, step);
        vectors -= step;
    }
}

/* The share of a group of rows in fetching, of so many groups. */
static unsigned lines_of_group(int group, int count)
{
    unsigned lines = 0;
    for (int i = group; i < WIDE_VECTORS; i += count)
        lines |= 1u << i;
    return lines;
}

/* From TALL_ROWS on p.kind is not PAGE_BF16. Below, groups of a few rows are alike: one of a single
 * row would have too few sums to hide the latency of their additions. */
static void product_run(struct product p, int rows, int64_t vectors)
{
    int64_t in_bytes = p.in_step * (page_takes_pairs(p.kind) ? 2 : 4);
    ASSERT(rows < TALL_ROWS || p.kind != PAGE_BF16);
    int group = 0, groups = (rows + WIDE_ROWS - 1) / WIDE_ROWS;
    for (int r = 0; r < rows; group++) {
        int left = rows - r, height = (int)ceil_div(left, ceil_div(left, WIDE_ROWS));
        p.fetch_lines = p.fetch != NULL ? lines_of_group(group, groups) : 0;
        if (left >= TALL_ROWS) {
            product_tall(p, vectors);
            height = TALL_ROWS;
        } else {
            product_few(p, height, vectors);
        }
        p.in = (const char *)p.in + height * in_bytes;
        p.out += height * p.out_step;
        r += height;
    }
}

/* Zero, so that rows behind the last do not matter in its chunk. */
static void ready_fill(uint32_t *to, int64_t page_step, int64_t count, int vectors)
{
    for (int64_t pair = (count + 1) / 2; pair < round_up(count, CHUNK_COLUMNS) / 2; pair++)
        memset(to + pair * page_step, 0, (size_t)vectors * sizeof(vecu));
}

/* A cache line of bf16 where that is no more than WIDE_VECTORS. */
#define READY_VECTORS (LANES == 16 ? 2 : 4)

/* `vectors` is a constant where this is called. */
INLINE void columns_ready(const struct product *p, uint32_t *to, const int vectors)
{
    const int unit = KERNEL_PAIRS ? 2 : 1;
    for (int64_t k = 0; k < p->count; k += unit, to += p->page_step) {
        vecu words[WIDE_VECTORS];
        page_load(words, p, PAGE_BF16, k, vectors, k + 1 == p->count);
#pragma GCC unroll 4
        for (int w = 0; w < vectors; w++)
            *(vecu *)(to + w * LANES) = words[w];
    }
}

/* Makes a page of bf16 ready for many rows, `vectors` of its columns: in `to`, of as many words as
 * the page has values. */
static void page_ready(struct product *p, uint32_t *to, int64_t vectors)
{
    struct product at = *p;
    for (int64_t i = 0, step; i < vectors; i += step) {
        at.page = (const uint16_t *)p->page + i * LANES;
        step = vectors - i >= READY_VECTORS ? READY_VECTORS : PANEL_VECTORS;
        if (step == READY_VECTORS)
            columns_ready(&at, to + i * LANES, READY_VECTORS);
        else
            columns_ready(&at, to + i * LANES, PANEL_VECTORS);
        if (KERNEL_AMX)
            ready_fill(to + i * LANES, p->page_step, p->count, (int)step);
    }
    p->page = to;
    p->kind = KERNEL_PAIRS ? PAGE_PAIRS : PAGE_F32;
}

#if KERNEL_AMX
/* Of a page of pairs. What fills the last chunk of inputs is zero. A page has `lines`: of the one
 * that is read next a share is fetched with each chunk. */
static void product_run_amx(struct amx_shape *shape, const struct product *p, int rows,
                            int64_t vectors, int64_t lines)
{
    struct amx_product product = {
        .sums_step = p->out_step,
        .adds = p->adds,
        .in_step = p->in_step * 2,
        .pair_step = p->page_step * 4,
        .chunk_step = CHUNK_PAIRS * p->page_step * 4,
        .chunk_count = ceil_div(p->count, CHUNK_COLUMNS),
    };
    const char *fetch = p->fetch;
    const int64_t panels = vectors / PANEL_VECTORS;
    int64_t tiles = ceil_div(rows, AMX_ROWS) * ceil_div(panels, 2);
    if (fetch != NULL)
        product.fetch_lines = (int)ceil_div(lines, tiles * product.chunk_count * 2);
    const int64_t fetch_bytes = product.chunk_count * product.fetch_lines * LINE_BYTES;
    for (int row = 0; row < rows; row += AMX_ROWS) {
        product.rows = rows - row < AMX_ROWS ? rows - row : AMX_ROWS;
        product.in = (const uint16_t *)p->in + row * p->in_step;
        for (int64_t i = 0; i < panels; i += product.panels) {
            product.panels = panels - i >= 2 ? 2 : 1;
            product.sums = p->out + row * p->out_step + i * PACK_BLOCK;
            product.weights[0] = (const char *)p->page + i * PACK_BLOCK * 4;
            product.weights[1] = product.weights[0] + PACK_BLOCK * 4;
            if (fetch != NULL) {
                product.fetch[0] = fetch;
                product.fetch[1] = fetch + fetch_bytes;
                fetch += 2 * fetch_bytes;
            }
            amx_multiply(shape, &product);
        }
    }
}
#endif

#endif

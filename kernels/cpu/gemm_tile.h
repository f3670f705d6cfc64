/* The inner product of the matrix kernels: up to STRIP_ROWS rows of inputs times one or two
 * panels of 16 outputs, with all sums in registers. */
#ifndef PHASOR_KERNELS_CPU_GEMM_TILE_H
#define PHASOR_KERNELS_CPU_GEMM_TILE_H

#include "kernels/cpu/amx.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"
#include "layout/packing.h"

/* Rows of a strip: what the registers hold as sums, one panel wide. A value of the inputs is then
 * used once from each load, which AVX-512 does in the multiply-add itself: per 48 of these a pair
 * of columns takes three instructions more. That counts where two threads share a core. */
#if defined(__AVX512F__)
#define STRIP_ROWS 24 /* of 32 registers */
#elif defined(__AVX2__)
#define STRIP_ROWS 6 /* 12 of 16, two for each row */
#else
#define STRIP_ROWS 2 /* 8 of 16 or of NEON's 32 */
#endif

/* Rows of a short strip, as in decode, where reading its weights takes longer than their products.
 */
#define SHORT_ROWS (STRIP_ROWS / 2)

/* Up to so many rows a block's columns are one run of instructions. Of more they are a loop, which
 * is short: with long runs, products of 5 to 12 rows and of 32 had up to 1.6 times their time on
 * Zen 5, from one copy of the program to the next and from one number of rows to the next, whatever
 * memory did. */
#define UNROLLED_ROWS 4

/* Inputs of a strip that are copied at a time, as [rows][strip_stride(rows)] words of 32 bits, each
 * one input or a pair: 12 KiB of the L1 cache, or 24 of a short one, because memory is read faster
 * the longer the runs of a panel's weights are. */
#define STRIP_WORDS 6144
#define BLOCK_PAIRS (PACK_BLOCK / 2)
#define UNIT_BYTES  (PACK_BLOCK * 4) /* a word for each output of a panel */
#define TILE_VALUES (PACK_BLOCK * PACK_BLOCK)
/* Of each panel a tile asks the L2 cache for the weights that come so much later. Not the L1 cache:
 * what that waits for at a time is less than memory has on its way. int4 takes more instructions
 * for a byte, so that fewer bytes are within what the processor itself looks ahead. */
#define FETCH_BYTES      4096
#define FETCH_BYTES_INT4 8192

/* Pairs of as many columns as eight blocks have: these are never cut. */
#define STRIP_STEP (8 * BLOCK_PAIRS)

/* Of words, whole steps. */
INLINE int64_t strip_stride(int rows)
{
    int64_t words = rows <= SHORT_ROWS ? STRIP_WORDS : STRIP_WORDS / 2;
    return words / rows / STRIP_STEP * STRIP_STEP;
}

/* Blocks of pairs in that. */
INLINE int64_t strip_blocks(int rows)
{
    return strip_stride(rows) / BLOCK_PAIRS;
}

enum tile_kind { TILE_F32, TILE_BF16, TILE_INT4_OUTPUT, TILE_INT4_INPUT };

INLINE bool is_int4(enum tile_kind kind)
{
    return kind == TILE_INT4_OUTPUT || kind == TILE_INT4_INPUT;
}

/* Whether bf16 weights are multiplied two at a time, as they lie, with inputs that are rounded to
 * bf16. A kind does so for any number of rows or for none, so that a row's result is its own. */
INLINE bool takes_pairs(enum tile_kind kind)
{
    return KERNEL_PAIRS && !KERNEL_AMX && kind == TILE_BF16;
}

/* Whether the products are AMX's (kernels/cpu/gemm_amx.h), inputs rounded to bf16, or added in its
 * order. */
INLINE bool takes_amx(enum tile_kind kind)
{
    return KERNEL_AMX && kind == TILE_BF16;
}

/* Rows of a strip at most. Products by bytes have two sums for each of others. */
INLINE int strip_rows_most(enum tile_kind kind)
{
    if (takes_amx(kind))
        return AMX_ROWS;
    return KERNEL_BYTES && is_int4(kind) ? SHORT_ROWS : STRIP_ROWS;
}

/* Of all kinds. */
#define STRIP_ROWS_MOST (KERNEL_AMX ? AMX_ROWS : STRIP_ROWS)

/* Where the tiles (16 x 16) of a matrix lie. Both packings have the same inside of a tile; they
 * differ in the order of the tiles, which is two steps here. */
struct tiles {
    const struct matrix *matrix;
    enum tile_kind kind;
    int64_t panel_count, block_count; /* of 16 rows, of 16 columns */
    int64_t panel_step, block_step;   /* bytes */
    int64_t group_blocks;             /* int4: blocks of 16 in a group */
    int64_t group_count;              /* int4: groups of a row or column */
};

static inline struct tiles tiles_of(const struct matrix *matrix)
{
    int64_t bytes = TILE_VALUES * dtype_bits(matrix->dtype) / 8;
    bool by_output = matrix->packing == PACK_OUTPUT;
    struct tiles tiles = {
        .matrix = matrix,
        .kind = matrix->dtype == DTYPE_F32    ? TILE_F32
                : matrix->dtype == DTYPE_BF16 ? TILE_BF16
                : by_output                   ? TILE_INT4_OUTPUT
                                              : TILE_INT4_INPUT,
        .panel_count = ceil_div(matrix->rows, PACK_BLOCK),
        .block_count = ceil_div(matrix->columns, PACK_BLOCK),
    };
    tiles.panel_step = by_output ? tiles.block_count * bytes : bytes;
    tiles.block_step = by_output ? bytes : tiles.panel_count * bytes;
    if (matrix->dtype == DTYPE_INT4) {
        tiles.group_blocks = matrix->group / PACK_BLOCK;
        tiles.group_count = ceil_div(by_output ? matrix->columns : matrix->rows, matrix->group);
    }
    return tiles;
}

/* A product of one tile: sums[row][panel][16] += in[row][...] x panels [panel, panel + panels) of
 * the matrix over blocks [block, block + block_count), columns in rising order. With
 * TILE_INT4_INPUT all panels are of one group. */
struct tile_work {
    const struct tiles *tiles;
    float *sums;
    const float *in;                 /* of the first block, [rows][strip_stride(rows)] */
    const struct fixed_strip *fixed; /* int4: the inputs (kernels/cpu/gemm_fixed.h) ... */
    int64_t fixed_at;                /* ... from this block of the strip on */
    int64_t panel, block, block_count;
    bool fetches_next; /* and nothing of its own, which earlier tiles have fetched */
    const char *next;  /* weights that are multiplied behind these, from their first block on */
    int64_t next_step; /* from what is fetched beside a block to the next */
    /* Where that is a part of a slice: beside so many blocks it comes to the end of a run, then
     * beside each `next_run` to that of the one behind. Else none is so long. */
    int64_t next_left, next_run;
    const char *next_behind; /* the run behind the one of `next` */
};

/* Goes ahead of a tile's blocks by that many bytes. Behind its last block that is what comes next:
 * else each tile would begin with a wait. */
struct fetch {
    const char *at;
    int64_t own_blocks; /* that are fetched from this tile */
    int64_t turn;       /* the block beside which the run behind begins */
    const char *behind;
};

INLINE struct fetch fetch_begin(const struct tile_work *work, const char *tile, int64_t tile_bytes)
{
    const int64_t bytes = tile_bytes == TILE_VALUES / 2 ? FETCH_BYTES_INT4 : FETCH_BYTES;
    const int64_t blocks = bytes / tile_bytes;
    int64_t own_blocks = work->block_count - blocks;
    if (work->fetches_next || own_blocks < 0)
        own_blocks = 0;
    struct fetch fetch = {.own_blocks = own_blocks,
                          .turn = own_blocks + work->next_left,
                          .behind = work->next_behind};
    fetch.at = fetch.own_blocks > 0 ? tile + blocks * work->tiles->block_step : work->next;
    return fetch;
}

/* Where what is fetched beside block `block` of the tile lies. */
INLINE const char *fetch_block(struct fetch *fetch, const struct tile_work *work, int64_t block)
{
    const char *at = block == fetch->own_blocks ? work->next : fetch->at;
    if (block == fetch->turn) {
        at = fetch->behind;
        fetch->turn += work->next_run;
        fetch->behind += work->tiles->block_step;
    }
    fetch->at = at + (block < fetch->own_blocks ? work->tiles->block_step : work->next_step);
    return at;
}

/* It may lie behind the weights. Not into the L1 cache. */
INLINE void fetch_line(const char *line)
{
    __builtin_prefetch(line, 0, 2);
}

INLINE const char *tile_at(const struct tiles *tiles, int64_t panel, int64_t block)
{
    return (const char *)tiles->matrix->data + panel * tiles->panel_step +
           block * tiles->block_step;
}

/* int4: where the 16 scales (and minima) of a panel and block are. */
INLINE int64_t scale_index(const struct tiles *tiles, int64_t panel, int64_t block)
{
    bool by_output = tiles->kind == TILE_INT4_OUTPUT;
    int64_t across = by_output ? panel : block, along = by_output ? block : panel;
    return (across * tiles->group_count + along / tiles->group_blocks) * PACK_BLOCK;
}

/* Weights of some of the 16 outputs for input `k` of the words at `unit`; of a pair as they lie. */
INLINE vec unit_weights(const enum tile_kind kind, const char *unit, const int k)
{
    if (kind == TILE_F32 || takes_pairs(kind))
        return vec_load((const float *)unit);
    vecu bits = *(const vecu *)unit;
    return k == 0 ? (vec)(bits << 16) : (vec)(bits & 0xFFFF0000u);
}

/* Vector `v` of some panels' words at `units`. */
INLINE const char *vector_at(const char *units, int64_t panel_step, const int v)
{
    return units + v / PANEL_VECTORS * panel_step + v % PANEL_VECTORS * LANES * 4;
}

/* ---- The product --------------------------------------------------------------------------- */

/* What the input or the pair at `in` adds. */
INLINE vec tile_add(const enum tile_kind kind, vec sum, vec weights, const float *in)
{
    if (takes_pairs(kind))
        return vec_dot_pairs(sum, (vecu)weights, in);
    return sum + vec_all(*in) * weights;
}

/* One row's pair of inputs, which its weights are multiplied with as they lie in memory: so each
 * takes one load, and the processor sees further ahead. */
INLINE void one_row_add(vec *sum, const int vectors, const char *words, int64_t panel_step,
                        vecu pair)
{
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
        sum[v] = vec_dot_pairs_all(sum[v], (const vecu *)vector_at(words, panel_step, v), pair);
}

/* rows, panels and kind (not int4) are constants where this is called. */
INLINE void tile_product(const int rows, const int panels, const enum tile_kind kind,
                         const struct tile_work *work)
{
    const int unit = kind == TILE_F32 ? 1 : 2;      /* inputs in 32 bits */
    const int steps = takes_pairs(kind) ? 1 : unit; /* words of the inputs for a unit */
    const int64_t stride = strip_stride(rows);
    int units = PACK_BLOCK / unit; /* of a block */
    if (rows > UNROLLED_ROWS)
        __asm__("" : "+r"(units)); /* a number that the compiler does not know */
    const struct tiles *tiles = work->tiles;
    const int64_t panel_step = tiles->panel_step, block_step = tiles->block_step;
    const char *tile = tile_at(tiles, work->panel, work->block);
    struct fetch fetch = fetch_begin(work, tile, TILE_VALUES * 4 / unit);
    const float *in = work->in;
    vec sum[STRIP_ROWS][2 * PANEL_VECTORS];
    const int vectors = panels * PANEL_VECTORS;
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[r][v] = vec_load(work->sums + (r * vectors + v) * LANES);
    }
    for (int64_t block = 0; block < work->block_count; block++, tile += block_step) {
        const char *ahead = fetch_block(&fetch, work, block);
        for (int u = 0; u < units; u++, in += steps) {
            const char *words = tile + u * UNIT_BYTES;
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                fetch_line(ahead + u * UNIT_BYTES + p * panel_step);
#pragma GCC unroll 2
            for (int k = 0; k < steps; k++) {
                if (rows == 1 && takes_pairs(kind)) {
                    one_row_add(sum[0], vectors, words, panel_step, pairs_all(in));
                    continue;
                }
                vec weights[2 * PANEL_VECTORS];
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++)
                    weights[v] = unit_weights(kind, vector_at(words, panel_step, v), k);
#pragma GCC unroll 24
                for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
                    for (int v = 0; v < vectors; v++)
                        sum[r][v] = tile_add(kind, sum[r][v], weights[v], in + r * stride + k);
                }
            }
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            vec_store(work->sums + (r * vectors + v) * LANES, sum[r][v]);
    }
}

#if KERNEL_AMX
/* The same in the order of AMX (kernels/cpu/amx.h), inputs rounded to bf16 but f32: for a few rows
 * and weights that would have to be put in order for its registers. rows and panels are constants.
 */
INLINE void tile_product_chunks(const int rows, const int panels, const struct tile_work *work)
{
    const int64_t stride = strip_stride(rows);
    const int64_t panel_step = work->tiles->panel_step, block_step = work->tiles->block_step;
    const char *tile = tile_at(work->tiles, work->panel, work->block);
    struct fetch fetch = fetch_begin(work, tile, TILE_VALUES * 2);
    const float *in = work->in;
    const int vectors = panels * PANEL_VECTORS;
    for (int64_t block = 0; block < work->block_count;) {
        vec sum[AMX_FEW_ROWS][2 * PANEL_VECTORS][2] = {{{{0}}}}; /* of even columns, of odd ones */
        for (int half = 0; half < 2 && block < work->block_count; half++, block++) {
            const char *ahead = fetch_block(&fetch, work, block);
            for (int u = 0; u < BLOCK_PAIRS; u++, in += 2) {
                vec weights[2 * PANEL_VECTORS][2];
#pragma GCC unroll 2
                for (int p = 0; p < panels; p++)
                    fetch_line(ahead + u * UNIT_BYTES + p * panel_step);
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++) {
                    const char *words = vector_at(tile + u * UNIT_BYTES, panel_step, v);
                    weights[v][0] = unit_weights(TILE_BF16, words, 0);
                    weights[v][1] = unit_weights(TILE_BF16, words, 1);
                }
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
                    for (int v = 0; v < vectors; v++) {
                        sum[r][v][0] += vec_all(in[r * stride]) * weights[v][0];
                        sum[r][v][1] += vec_all(in[r * stride + 1]) * weights[v][1];
                    }
                }
            }
            tile += block_step;
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                float *to = work->sums + (r * vectors + v) * LANES;
                vec_store(to, vec_load(to) + (sum[r][v][0] + sum[r][v][1]));
            }
        }
    }
}
#endif

#endif

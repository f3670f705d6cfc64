/* One row, of bf16 pairs a few, times weights that are packed by input, in the order of memory.
 *
 * A block's panels lie one behind another: a piece reads a run of memory, then the run of its next
 * block. The sums of its panels are in the L1 cache, from which each block takes them and to which
 * it gives them back. Bf16 pairs have ways of their own, and so has int4. Each sum grows as in
 * other tiles, so a row's is the same. */
#ifndef PHASOR_KERNELS_CPU_GEMM_ROW_H
#define PHASOR_KERNELS_CPU_GEMM_ROW_H

#include "kernels/cpu/gemm_cut.h"
#include "kernels/cpu/gemm_int4.h"

/* Where the panel lies that comes `fetch` behind panel `p` of the `panels` of a run from `tile` on,
 * which are `step` apart: behind its last ones are those of the run at `next`. */
INLINE const char *panel_ahead(const char *tile, const char *next, int64_t step, int64_t p,
                               int64_t panels, int64_t fetch)
{
    int64_t to = p + (fetch < panels ? fetch : panels);
    return to < panels ? tile + to * step : next + (to - panels) * step;
}

/* ---- f32 and bf16 -----------------------------------------------------------------------------
 *
 * Two blocks, a chunk of AMX's, are read at a time, because a core that reads in two places reads
 * faster than in one. */

#define GO_PANELS 4  /* at a time: enough sums to hide the latency of the additions */
#define GO_BLOCKS 2  /* likewise */
#define GO_FETCH  12 /* tiles of each run ahead; behind its end those of the run to come */

/* The panels and blocks that are multiplied at a time: sums[panels][16], the tile of the first, its
 * inputs, and what is fetched meanwhile: as much, in the same places. */
struct row_work {
    float *sums;
    const char *tile, *ahead;
    int64_t block_step;
    const float *in;
};

/* panels, blocks and kind are constants where this is called. */
INLINE void row_tiles(const int panels, const int blocks, const enum tile_kind kind,
                      const struct row_work *work)
{
    const int unit = kind == TILE_F32 ? 1 : 2;
    const int64_t tile_bytes = TILE_VALUES * 4 / unit;
    const char *tile = work->tile, *ahead = work->ahead;
    const float *in = work->in;
    const bool by_chunk =
        takes_amx(kind); /* sums of its even and of its odd columns, from zero on */
    const int vectors = panels * PANEL_VECTORS;
    vec sum[GO_PANELS * PANEL_VECTORS], odd[GO_PANELS * PANEL_VECTORS];
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) {
        sum[v] = by_chunk ? (vec){0} : vec_load(work->sums + v * LANES);
        odd[v] = (vec){0};
    }
#pragma GCC unroll 2
    for (int b = 0; b < blocks; b++, tile += work->block_step, ahead += work->block_step) {
        for (int u = 0; u < PACK_BLOCK / unit; u++, in += unit) {
            const char *units = tile + u * UNIT_BYTES;
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                fetch_line(ahead + u * UNIT_BYTES + p * tile_bytes);
#pragma GCC unroll 2
            for (int k = 0; k < unit; k++) {
#pragma GCC unroll 16
                for (int v = 0; v < vectors; v++) {
                    vec weights = unit_weights(kind, vector_at(units, tile_bytes, v), k);
                    if (by_chunk && k == 1)
                        odd[v] = tile_add(kind, odd[v], weights, in + k);
                    else
                        sum[v] = tile_add(kind, sum[v], weights, in + k);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) {
        if (by_chunk)
            sum[v] = vec_load(work->sums + v * LANES) + (sum[v] + odd[v]);
        vec_store(work->sums + v * LANES, sum[v]);
    }
}

/* All panels of a piece over some blocks; blocks and kind are constants. */
INLINE void row_blocks(const int blocks, const enum tile_kind kind, const struct tiles *tiles,
                       const struct piece *piece, float *sums, const float *in, int64_t block)
{
    const char *first = tile_at(tiles, piece->first_panel, block);
    const char *next = first + blocks * tiles->block_step;
    int64_t step;
    for (int64_t p = 0; p < piece->panels; p += step) {
        struct row_work work = {
            .sums = sums + p * PACK_BLOCK,
            .tile = first + p * tiles->panel_step,
            .ahead = panel_ahead(first, next, tiles->panel_step, p, piece->panels, GO_FETCH),
            .block_step = tiles->block_step,
            .in = in,
        };
        step = piece->panels - p >= GO_PANELS ? GO_PANELS : 1;
        if (step == GO_PANELS)
            row_tiles(GO_PANELS, blocks, kind, &work);
        else
            row_tiles(1, blocks, kind, &work);
    }
}

INLINE void row_run(const enum tile_kind kind, const struct tiles *tiles, const struct piece *piece,
                    float *sums, const float *in, int64_t first_block, int64_t block_count)
{
    int64_t block = first_block, end = first_block + block_count;
    for (; block + GO_BLOCKS <= end; block += GO_BLOCKS, in += GO_BLOCKS * PACK_BLOCK)
        row_blocks(GO_BLOCKS, kind, tiles, piece, sums, in, block);
    for (; block < end; block++, in += PACK_BLOCK)
        row_blocks(1, kind, tiles, piece, sums, in, block);
}

/* ---- bf16 pairs ------------------------------------------------------------------------------
 *
 * A product takes so few instructions that the processor has a dozen KiB of weights under way by
 * itself, if nothing waits: a request beside its own would only take a place among those that
 * memory works on, and a sum that is taken from the L1 cache must not be one that is yet to be
 * stored there. Of a wide piece so many others come between that it is not; of a narrow one the
 * sums stay in registers, 16 panels through all blocks. */

/* The panels from `tile` on, a constant, times a block's inputs. */
INLINE void pairs_block(const int panels, vec *sum, const char *tile, const vecu *pair)
{
#pragma GCC unroll 16
    for (int p = 0; p < panels; p++, sum += PANEL_VECTORS) {
#pragma GCC unroll 8
        for (int u = 0; u < BLOCK_PAIRS; u++, tile += UNIT_BYTES) {
#pragma GCC unroll 4
            for (int v = 0; v < PANEL_VECTORS; v++)
                sum[v] = vec_dot_pairs_all(sum[v], (const vecu *)vector_at(tile, 0, v), pair[u]);
        }
    }
}

INLINE void pairs_load(vecu *pair, const float *in)
{
#pragma GCC unroll 8
    for (int u = 0; u < BLOCK_PAIRS; u++)
        pair[u] = pairs_all(in + u);
}

/* NARROW_PANELS panels over some blocks. */
static void pairs_narrow(float *sums, const char *tile, int64_t block_step, const float *in,
                         int64_t block_count)
{
    vec sum[NARROW_PANELS * PANEL_VECTORS];
#pragma GCC unroll 64
    for (int v = 0; v < NARROW_PANELS * PANEL_VECTORS; v++)
        sum[v] = vec_load(sums + v * LANES);
    for (int64_t block = 0; block < block_count; block++, tile += block_step, in += BLOCK_PAIRS) {
        vecu pair[BLOCK_PAIRS];
        pairs_load(pair, in);
        pairs_block(NARROW_PANELS, sum, tile, pair);
    }
#pragma GCC unroll 64
    for (int v = 0; v < NARROW_PANELS * PANEL_VECTORS; v++)
        vec_store(sums + v * LANES, sum[v]);
}

/* Some panels of a wide piece, a constant. */
INLINE void pairs_wide(const int panels, float *sums, const char *tile, const vecu *pair)
{
    vec sum[GO_PANELS * PANEL_VECTORS];
#pragma GCC unroll 16
    for (int v = 0; v < panels * PANEL_VECTORS; v++)
        sum[v] = vec_load(sums + v * LANES);
    pairs_block(panels, sum, tile, pair);
#pragma GCC unroll 16
    for (int v = 0; v < panels * PANEL_VECTORS; v++)
        vec_store(sums + v * LANES, sum[v]);
}

static void row_run_pairs(const struct tiles *tiles, const struct piece *piece, float *sums,
                          const float *in, int64_t first_block, int64_t block_count)
{
    const int64_t step = tiles->panel_step;
    const char *tile = tile_at(tiles, piece->first_panel, first_block);
    int64_t first = 0; /* behind those of narrow runs */
    while (piece->panels < WIDE_PANELS && first + NARROW_PANELS <= piece->panels) {
        pairs_narrow(sums + first * PACK_BLOCK, tile + first * step, tiles->block_step, in,
                     block_count);
        first += NARROW_PANELS;
    }
    for (int64_t block = 0; block < block_count && first < piece->panels;
         block++, tile += tiles->block_step) {
        vecu pair[BLOCK_PAIRS];
        int64_t p = first;
        pairs_load(pair, in + block * BLOCK_PAIRS);
        for (; p + GO_PANELS <= piece->panels; p += GO_PANELS)
            pairs_wide(GO_PANELS, sums + p * PACK_BLOCK, tile + p * step, pair);
        for (; p < piece->panels; p++)
            pairs_wide(1, sums + p * PACK_BLOCK, tile + p * step, pair);
    }
}

#if KERNEL_PAIRS && !KERNEL_AMX
/* ---- bf16 pairs of a few rows ------------------------------------------------------------------
 *
 * Two panels at a time, as a piece's sums lie, of a run of panels whose sums stay in the L1 cache,
 * which goes through all blocks. Products of several rows take so many instructions that only a few
 * KiB of weights are within what the processor itself looks ahead, so they ask for what comes. */

#define FEW_SUMS 256 /* of 16 each: rows x panels of a run */

/* Panels ahead: the fewer rows, the more the processor has under way without being asked; a loop
 * has less. */
INLINE int few_fetch(const int rows)
{
    return rows <= UNROLLED_ROWS ? 4 : 16;
}

/* sums[rows][panels][16] += the rows at `in` x a block's panels from `tile` on; rows and panels are
 * constants. */
INLINE void few_block(const int rows, const int panels, float *sums, const char *tile,
                      const float *in, const char *ahead)
{
    const int64_t tile_bytes = TILE_VALUES * 2, stride = strip_stride(rows);
    const int vectors = panels * PANEL_VECTORS;
    vec sum[ORDER_ROWS][2 * PANEL_VECTORS];
    int units = BLOCK_PAIRS;
    if (rows > UNROLLED_ROWS)
        __asm__("" : "+r"(units)); /* as in tile_product: a loop */
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[r][v] = vec_load(sums + (r * vectors + v) * LANES);
    }
    for (int u = 0; u < units; u++, tile += UNIT_BYTES, ahead += UNIT_BYTES) {
        vecu weights[2 * PANEL_VECTORS];
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++)
            fetch_line(ahead + p * tile_bytes);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            weights[v] = *(const vecu *)vector_at(tile, tile_bytes, v);
#pragma GCC unroll 24
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++)
                sum[r][v] = vec_dot_pairs(sum[r][v], weights[v], in + r * stride + u);
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            vec_store(sums + (r * vectors + v) * LANES, sum[r][v]);
    }
}

/* `panels` from `tile` on over some blocks; `rows` is a constant. What is asked for is behind a
 * block's panels among those of the next. */
INLINE void few_run(const int rows, float *sums, const char *tile, const float *in, int64_t panels,
                    const struct tiles *tiles, int64_t block_count)
{
    const int64_t step = tiles->panel_step;
    for (int64_t block = 0; block < block_count;
         block++, tile += tiles->block_step, in += BLOCK_PAIRS) {
        for (int64_t p = 0; p < panels; p += 2) {
            const char *ahead =
                panel_ahead(tile, tile + tiles->block_step, step, p, panels, few_fetch(rows));
            if (p + 2 <= panels)
                few_block(rows, 2, sums + p * rows * PACK_BLOCK, tile + p * step, in, ahead);
            else
                few_block(rows, 1, sums + p * rows * PACK_BLOCK, tile + p * step, in, ahead);
        }
    }
}

/* All panels of a piece, in runs alike. */
INLINE void few_run_all(const int rows, const struct tiles *tiles, const struct piece *piece,
                        float *sums, const float *in, int64_t first_block, int64_t block_count)
{
    const int64_t most = FEW_SUMS / rows / 2 * 2;
    const int64_t run = round_up(ceil_div(piece->panels, ceil_div(piece->panels, most)), 2);
    for (int64_t first = 0; first < piece->panels; first += run) {
        int64_t panels = piece->panels - first < run ? piece->panels - first : run;
        few_run(rows, sums + first * rows * PACK_BLOCK,
                tile_at(tiles, piece->first_panel + first, first_block), in, panels, tiles,
                block_count);
    }
}

typedef void few_fn(const struct tiles *tiles, const struct piece *piece, float *sums,
                    const float *in, int64_t first_block, int64_t block_count);
#define DEFINE_FEW_ROWS(rows)                                                                      \
    static void few_run_##rows(const struct tiles *tiles, const struct piece *piece, float *sums,  \
                               const float *in, int64_t first_block, int64_t block_count)          \
    {                                                                                              \
        few_run_all(rows, tiles, piece, sums, in, first_block, block_count);                       \
    }
#if ORDER_ROWS == 12
#define FOR_FEW_ROWS(X) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#else
#define FOR_FEW_ROWS(X) X(2)
#endif
FOR_FEW_ROWS(DEFINE_FEW_ROWS)
#define NAME_FEW_ROWS(rows) few_run_##rows,
static few_fn *const few_runs[ORDER_ROWS - 1] = {FOR_FEW_ROWS(NAME_FEW_ROWS)};
#endif

/* ---- Either -------------------------------------------------------------------------------- */

/* Adds in x the piece's panels of one matrix over some blocks, the first of which `in` begins with;
 * f32 or bf16, sums and `in` as tile_work has them; rows as cut.order_rows allows. */
static void row_product(const struct tiles *tiles, const struct piece *piece, float *sums,
                        const float *in, int64_t first_block, int64_t block_count)
{
#if KERNEL_PAIRS && !KERNEL_AMX
    if (tiles->kind == TILE_BF16 && piece->row_count > 1) {
        few_runs[piece->row_count - 2](tiles, piece, sums, in, first_block, block_count);
        return;
    }
#endif
    if (tiles->kind == TILE_F32)
        row_run(TILE_F32, tiles, piece, sums, in, first_block, block_count);
    else if (takes_pairs(TILE_BF16))
        row_run_pairs(tiles, piece, sums, in, first_block, block_count);
    else
        row_run(TILE_BF16, tiles, piece, sums, in, first_block, block_count);
}

#if KERNEL_BYTES
/* ---- int4 ------------------------------------------------------------------------------------
 *
 * Rounding and products take about half as long as memory does, so the tiles ask for what comes. */

#define INT4_FETCH 32 /* panels ahead */

/* A block's inputs, each word in all lanes. */
struct row_words {
    vecu of[2][BLOCK_PAIRS / 2];
};

INLINE void row_words_load(struct row_words *words, const uint32_t *in)
{
#pragma GCC unroll 2
    for (int u = 0; u < 2; u++) {
#pragma GCC unroll 4
        for (int k = 0; k < BLOCK_PAIRS / 2; k++)
            words->of[u][k] = in[u * BLOCK_PAIRS / 2 + k] - (vecu){0};
    }
}

/* Adds a block's whole numbers of some panels, a constant, all of one group, and fetches as many.
 */
INLINE void row_tiles_int4(const int panels, veci *whole, const char *tile,
                           const struct row_words *words, const char *ahead)
{
    const int64_t tile_bytes = TILE_VALUES / 2;
    const int vectors = panels * PANEL_VECTORS;
    veci high[GO_PANELS * PANEL_VECTORS], low[GO_PANELS * PANEL_VECTORS];
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++)
        high[v] = low[v] = (veci){0};
#pragma GCC unroll 2
    for (int u = 0; u < 2; u++) {
        const vecu *of = words->of[u];
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
            fetch_line(ahead + u * UNIT_BYTES + p * tile_bytes);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            vecu bits = *(const vecu *)vector_at(tile + u * UNIT_BYTES, tile_bytes, v);
            vecu even = bits & 0x0F0F0F0Fu, odd = bits >> 4 & 0x0F0F0F0Fu;
            high[v] = bytes_dot_all(high[v], even, of[0]);
            low[v] = bytes_dot_all(low[v], even, of[2]);
            high[v] = bytes_dot_all(high[v], odd, of[1]);
            low[v] = bytes_dot_all(low[v], odd, of[3]);
        }
    }
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++)
        whole[v] += (high[v] << 8) + low[v];
}

/* All panels of a piece; `in` is the block's inputs, rounded for its first group. */
static void row_block_int4(const struct tiles *tiles, const struct piece *piece, veci *whole,
                           const uint32_t *in, int64_t block)
{
    const int64_t step = tiles->panel_step, size = tiles->group_blocks;
    const char *tile = tile_at(tiles, piece->first_panel, block), *next = tile + tiles->block_step;
    int64_t end = size - piece->first_panel % size; /* of the group */
    for (int64_t p = 0; p < piece->panels; end += size, in += FIXED_BLOCKS * BLOCK_PAIRS) {
        struct row_words words;
        row_words_load(&words, in);
        end = end < piece->panels ? end : piece->panels;
        for (; p + GO_PANELS <= end; p += GO_PANELS)
            row_tiles_int4(GO_PANELS, whole + p * PANEL_VECTORS, tile + p * step, &words,
                           panel_ahead(tile, next, step, p, piece->panels, INT4_FETCH));
        for (; p < end; p++)
            row_tiles_int4(1, whole + p * PANEL_VECTORS, tile + p * step, &words,
                           panel_ahead(tile, next, step, p, piece->panels, INT4_FETCH));
    }
}

/* The same for int4: sums[panels][16] += the row `in` x the piece's panels, a unit's blocks at a
 * time, for which the row is rounded once for each group of panels. `whole` is room for 16 numbers
 * of each panel.
 */
static void row_product_int4(const struct tiles *tiles, const struct piece *piece, float *sums,
                             veci *whole, struct fixed_strip *fixed, const float *in)
{
    const int64_t first = piece->first_panel, size = tiles->group_blocks;
    const int64_t groups = (first + piece->panels - 1) / size - first / size + 1;
    const bool has_minima = tiles->matrix->minima != NULL;
    for (int64_t block = 0, end; block < tiles->block_count; block = end) {
        end = fixed_end(tiles, block);
        fixed_cut(fixed, tiles, block, end - block);
        for (int64_t g = 0; g < groups; g++)
            fixed_row(fixed, g * FIXED_BLOCKS, tiles, first + g * size, in, 0, 1, block,
                      end - block);
        memset(whole, 0, (size_t)(piece->panels * PANEL_VECTORS) * sizeof *whole);
        for (int64_t b = block; b < end; b++)
            row_block_int4(tiles, piece, whole, fixed->words + (b - block) * BLOCK_PAIRS, b);
        for (int64_t p = 0; p < piece->panels; p++) {
            int64_t unit = ((first + p) / size - first / size) * FIXED_BLOCKS;
            for (int v = 0; v < PANEL_VECTORS; v++)
                unit_add(sums + p * PACK_BLOCK + v * LANES,
                         whole[p * PANEL_VECTORS + v] + fixed->eights[unit], false, NULL, 0, fixed,
                         unit, has_minima);
        }
    }
}
#endif

#endif

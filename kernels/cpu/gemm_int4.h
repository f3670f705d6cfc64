/* The inner product with int4 weights, on whole numbers (kernels/cpu/gemm_fixed.h), in one of two
 * ways that give the same sums.
 *
 * By pairs: a nibble becomes a number of 16 bits by two shifts, and two products and their addition
 * are one instruction on most processors. By bytes (KERNEL_BYTES): nibbles are taken without their
 * sign, as bytes, which takes one shift for eight of them, inputs as 256 h + l, and four products
 * are one instruction. That is as many instructions for the products, with far fewer for the
 * weights, but twice as many sums: a strip has half the rows. */
#ifndef PHASOR_KERNELS_CPU_GEMM_INT4_H
#define PHASOR_KERNELS_CPU_GEMM_INT4_H

#include "kernels/cpu/gemm_fixed.h"

#define NIBBLE_SIGNS ((int32_t)-0x77777778) /* 0x88888888 */

/* ---- Scales -------------------------------------------------------------------------------- */

/* Of the outputs of each panel, in one group. */
struct tile_scales {
    vec scale[2 * PANEL_VECTORS], offset[2 * PANEL_VECTORS];
};

INLINE void scales_load(struct tile_scales *out, const int panels, const struct tiles *tiles,
                        int64_t panel, int64_t block)
{
    const struct matrix *matrix = tiles->matrix;
    for (int v = 0; v < panels * PANEL_VECTORS; v++) {
        int64_t at = scale_index(tiles, panel + v / PANEL_VECTORS, block);
        at += v % PANEL_VECTORS * LANES;
        out->scale[v] = vec_load_bf16(matrix->scales + at);
        out->offset[v] = matrix->minima != NULL ? nibble_offsets(matrix, at) : vec_all(0);
    }
}

/* Adds the sum of a unit's blocks, of one row and vector of outputs, to that of the tile. `at` is
 * the row's unit. */
INLINE void unit_add(float *to, veci whole, const bool by_output, const struct tile_scales *scales,
                     const int vector, const struct fixed_strip *strip, int64_t at,
                     const bool has_minima)
{
    vec sum = vec_load(to), factor = vec_all(strip->units[at]);
    if (by_output)
        factor *= scales->scale[vector];
    sum += __builtin_convertvector(whole, vec) * factor;
    if (has_minima && by_output)
        sum += scales->offset[vector] * strip->offset_sums[at];
    else if (has_minima)
        sum += vec_all(strip->offset_sums[at]);
    vec_store(to, sum);
}

#if !KERNEL_BYTES
/* ---- By pairs ------------------------------------------------------------------------------ */

/* Of each lane the nibbles k and k + 4 less 8, in its halves; `bits` have had the highest bit of
 * each nibble turned, which makes it a number with a sign. */
INLINE vecs nibble_pair(vecs bits, const int k)
{
    return bits << (12 - 4 * k) >> 12;
}

/* Adds the products of one pair of each row and the nibbles k and k + 4. */
INLINE void pairs_add(const int rows, const int panels, veci numbers[STRIP_ROWS][2 * PANEL_VECTORS],
                      vecs bits[2 * PANEL_VECTORS], const int k, const uint32_t *in)
{
    vecs weights[2 * PANEL_VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < panels * PANEL_VECTORS; v++)
        weights[v] = nibble_pair(bits[v], k);
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < panels * PANEL_VECTORS; v++)
            numbers[r][v] = words_dot(numbers[r][v], weights[v], in + r * strip_stride(rows));
    }
}

/* Adds up the blocks of one unit, from `tile` and `in` on. */
INLINE void unit_sums(const int rows, const int panels, const struct tile_work *work,
                      struct fetch *fetch, const char *tile, const uint32_t *in, int64_t block,
                      int64_t end, veci whole[STRIP_ROWS][2 * PANEL_VECTORS])
{
    const int64_t panel_step = work->tiles->panel_step, block_step = work->tiles->block_step;
    veci numbers[STRIP_ROWS][2 * PANEL_VECTORS];
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < panels * PANEL_VECTORS; v++)
            numbers[r][v] = (veci){0};
    }
    for (; block < end; block++, tile += block_step) {
        const char *ahead = fetch_block(fetch, work, block);
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++, in += BLOCK_PAIRS / 2) {
            vecs bits[2 * PANEL_VECTORS];
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                fetch_line(ahead + u * UNIT_BYTES + p * panel_step);
#pragma GCC unroll 8
            for (int v = 0; v < panels * PANEL_VECTORS; v++) {
                veci words = *(const veci *)vector_at(tile + u * UNIT_BYTES, panel_step, v);
                bits[v] = (vecs)(words ^ NIBBLE_SIGNS);
            }
#pragma GCC unroll 4
            for (int k = 0; k < BLOCK_PAIRS / 2; k++)
                pairs_add(rows, panels, numbers, bits, k, in + k);
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < panels * PANEL_VECTORS; v++)
            whole[r][v] = numbers[r][v];
    }
}

#else
/* ---- By bytes ------------------------------------------------------------------------------ */

/* Adds up the blocks of one unit, from `tile` and `in` on. */
INLINE void unit_sums(const int rows, const int panels, const struct tile_work *work,
                      struct fetch *fetch, const char *tile, const uint32_t *in, int64_t block,
                      int64_t end, veci whole[STRIP_ROWS][2 * PANEL_VECTORS])
{
    const int64_t panel_step = work->tiles->panel_step, block_step = work->tiles->block_step;
    const int64_t at = block;
    const int vectors = panels * PANEL_VECTORS;
    const int chains = rows * vectors == 1 ? 4 : 1; /* hide the latency of the products */
    veci high[SHORT_ROWS][2 * PANEL_VECTORS][4], low[SHORT_ROWS][2 * PANEL_VECTORS][4];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
#pragma GCC unroll 4
            for (int c = 0; c < chains; c++)
                high[r][v][c] = low[r][v][c] = (veci){0};
        }
    }
    for (; block < end; block++, tile += block_step) {
        const char *ahead = fetch_block(fetch, work, block);
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++, in += BLOCK_PAIRS / 2) {
            vecu even[2 * PANEL_VECTORS], odd[2 * PANEL_VECTORS];
#pragma GCC unroll 2
            for (int p = 0; p < panels; p++)
                fetch_line(ahead + u * UNIT_BYTES + p * panel_step);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                vecu bits = *(const vecu *)vector_at(tile + u * UNIT_BYTES, panel_step, v);
                even[v] = bits & 0x0F0F0F0Fu;
                odd[v] = bits >> 4 & 0x0F0F0F0Fu;
            }
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                const uint32_t *words = in + r * strip_stride(rows);
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++) {
                    const int e = 2 * u % chains, o = (2 * u + 1) % chains;
                    high[r][v][e] = bytes_dot(high[r][v][e], even[v], words);
                    low[r][v][e] = bytes_dot(low[r][v][e], even[v], words + 2);
                    high[r][v][o] = bytes_dot(high[r][v][o], odd[v], words + 1);
                    low[r][v][o] = bytes_dot(low[r][v][o], odd[v], words + 3);
                }
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        int32_t eights = work->fixed->eights[r * strip_blocks(rows) + work->fixed_at + at];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            veci h = high[r][v][0], l = low[r][v][0];
#pragma GCC unroll 4
            for (int c = 1; c < chains; c++) {
                h += high[r][v][c];
                l += low[r][v][c];
            }
            whole[r][v] = (h << 8) + l + eights;
        }
    }
}
#endif

/* ---- The product --------------------------------------------------------------------------- */

/* rows, panels and by_output are constants where this is called. */
INLINE void tile_product_int4(const int rows, const int panels, const bool by_output,
                              const struct tile_work *work)
{
    const struct tiles *tiles = work->tiles;
    const struct fixed_strip *strip = work->fixed;
    const bool has_minima = tiles->matrix->minima != NULL;
    const char *tile = tile_at(tiles, work->panel, work->block);
    struct fetch fetch = fetch_begin(work, tile, TILE_VALUES / 2);
    struct tile_scales scales;
    int64_t group_left = 0;
    for (int64_t block = 0, end; block < work->block_count; block = end) {
        const uint32_t *in = strip->words + (work->fixed_at + block) * BLOCK_PAIRS;
        veci whole[STRIP_ROWS][2 * PANEL_VECTORS];
        end = strip->ends[block];
        if (by_output && group_left == 0) {
            group_left = tiles->group_blocks - (work->block + block) % tiles->group_blocks;
            scales_load(&scales, panels, tiles, work->panel, work->block + block);
        }
        group_left -= end - block;
        unit_sums(rows, panels, work, &fetch, tile, in, block, end, whole);
        tile += (end - block) * tiles->block_step;
#pragma GCC unroll 24
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
            for (int v = 0; v < panels * PANEL_VECTORS; v++)
                unit_add(work->sums + (r * panels * PANEL_VECTORS + v) * LANES, whole[r][v],
                         by_output, &scales, v, strip,
                         r * strip_blocks(rows) + work->fixed_at + block, has_minima);
        }
    }
}

#endif

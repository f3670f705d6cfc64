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
    v16 scale[2], offset[2];
};

INLINE void scales_load(struct tile_scales *out, const int panels, const struct tiles *tiles,
                        int64_t panel, int64_t block)
{
    const struct matrix *matrix = tiles->matrix;
    for (int p = 0; p < panels; p++) {
        int64_t at = scale_index(tiles, panel + p, block);
        out->scale[p] = v16_load_bf16(matrix->scales + at);
        out->offset[p] = matrix->minima != NULL ? nibble_offsets(matrix, at) : v16_all(0);
    }
}

/* Adds the sum of a unit's blocks, of one row and panel, to that of the tile. `at` is the row's
 * unit. */
INLINE void unit_add(float *to, v16i whole, const bool by_output, const struct tile_scales *scales,
                     const int panel, const struct fixed_strip *strip, int64_t at,
                     const bool has_minima)
{
    v16 sum = v16_load(to), factor = v16_all(strip->units[at]);
    if (by_output)
        factor *= scales->scale[panel];
    sum += __builtin_convertvector(whole, v16) * factor;
    if (has_minima && by_output)
        sum += scales->offset[panel] * strip->offset_sums[at];
    else if (has_minima)
        sum += v16_all(strip->offset_sums[at]);
    v16_store(to, sum);
}

#if !KERNEL_BYTES
/* ---- By pairs ------------------------------------------------------------------------------ */

/* Of each lane the nibbles k and k + 4 less 8, in its halves; `bits` have had the highest bit of
 * each nibble turned, which makes it a number with a sign. */
INLINE word_pairs nibble_pair(word_pairs bits, const int k)
{
    return bits << (12 - 4 * k) >> 12;
}

/* Adds the products of one pair of each row and the nibbles k and k + 4. */
INLINE void pairs_add(const int rows, const int panels,
                      word_sums numbers[STRIP_ROWS][2][WORD_REGISTERS],
                      word_pairs bits[2][WORD_REGISTERS], const int k, const uint32_t *in)
{
    word_pairs weights[2][WORD_REGISTERS];
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
#pragma GCC unroll 4
        for (int i = 0; i < WORD_REGISTERS; i++)
            weights[p][i] = nibble_pair(bits[p][i], k);
    }
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
#pragma GCC unroll 4
            for (int i = 0; i < WORD_REGISTERS; i++)
                numbers[r][p][i] =
                    words_dot(numbers[r][p][i], weights[p][i], in + r * strip_stride(rows));
        }
    }
}

/* Adds up the blocks of one unit, from `tile` and `in` on. */
INLINE void unit_sums(const int rows, const int panels, const struct tile_work *work,
                      struct fetch *fetch, const char *tile, const uint32_t *in, int64_t block,
                      int64_t end, v16i whole[STRIP_ROWS][2])
{
    const int64_t panel_step = work->tiles->panel_step, block_step = work->tiles->block_step;
    word_sums numbers[STRIP_ROWS][2][WORD_REGISTERS];
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
            memset(numbers[r][p], 0, sizeof numbers[r][p]);
    }
    for (; block < end; block++, tile += block_step) {
        const char *ahead = fetch_block(fetch, work, block);
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++, in += BLOCK_PAIRS / 2) {
            word_pairs bits[2][WORD_REGISTERS];
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) {
                int64_t at = u * LANES * 4 + p * panel_step;
                fetch_line(ahead + at);
                memcpy(bits[p], tile + at, sizeof bits[p]);
#pragma GCC unroll 4
                for (int i = 0; i < WORD_REGISTERS; i++)
                    bits[p][i] ^= (word_pairs)((word_sums){0} + NIBBLE_SIGNS);
            }
#pragma GCC unroll 4
            for (int k = 0; k < BLOCK_PAIRS / 2; k++)
                pairs_add(rows, panels, numbers, bits, k, in + k);
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
            memcpy(&whole[r][p], numbers[r][p], sizeof whole[r][p]);
    }
}

#else
/* ---- By bytes ------------------------------------------------------------------------------ */

/* Adds up the blocks of one unit, from `tile` and `in` on. */
INLINE void unit_sums(const int rows, const int panels, const struct tile_work *work,
                      struct fetch *fetch, const char *tile, const uint32_t *in, int64_t block,
                      int64_t end, v16i whole[STRIP_ROWS][2])
{
    const int64_t panel_step = work->tiles->panel_step, block_step = work->tiles->block_step;
    const int64_t at = block;
    const int chains = rows * panels == 1 ? 2 : 1; /* hide the latency of the products */
    v16i high[SHORT_ROWS][2][2], low[SHORT_ROWS][2][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) {
#pragma GCC unroll 2
            for (int c = 0; c < chains; c++)
                high[r][p][c] = low[r][p][c] = (v16i){0};
        }
    }
    for (; block < end; block++, tile += block_step) {
        const char *ahead = fetch_block(fetch, work, block);
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++, in += BLOCK_PAIRS / 2) {
            v16u even[2], odd[2];
#pragma GCC unroll 2
            for (int p = 0; p < panels; p++) {
                fetch_line(ahead + u * LANES * 4 + p * panel_step);
                v16u bits = *(const v16u *)(tile + u * LANES * 4 + p * panel_step);
                even[p] = bits & 0x0F0F0F0Fu;
                odd[p] = bits >> 4 & 0x0F0F0F0Fu;
            }
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                const uint32_t *words = in + r * strip_stride(rows);
#pragma GCC unroll 2
                for (int p = 0; p < panels; p++) {
                    v16i *h = &high[r][p][u % chains], *l = &low[r][p][u % chains];
                    *h = bytes_dot(*h, even[p], words);
                    *l = bytes_dot(*l, even[p], words + 2);
                    *h = bytes_dot(*h, odd[p], words + 1);
                    *l = bytes_dot(*l, odd[p], words + 3);
                }
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        int32_t eights = work->fixed->eights[r * strip_blocks(rows) + work->fixed_at + at];
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) {
            v16i h = high[r][p][0], l = low[r][p][0];
            if (chains == 2) {
                h += high[r][p][1];
                l += low[r][p][1];
            }
            whole[r][p] = (h << 8) + l + eights;
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
        v16i whole[STRIP_ROWS][2];
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
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                unit_add(work->sums + (r * panels + p) * LANES, whole[r][p], by_output, &scales, p,
                         strip, r * strip_blocks(rows) + work->fixed_at + block, has_minima);
        }
    }
}

#endif

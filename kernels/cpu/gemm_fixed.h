/* The inputs of products with int4 weights: whole numbers.
 *
 * A weight is scale x (nibble - 8) + offset. Inputs are rounded to fixed point: whole numbers up
 * to 2^14, of a unit that FIXED_BLOCKS blocks of a row have in common. Then the products of nibbles
 * and inputs are exact in 32 bits. What is rounded is the input, by at most 2^-14 of the largest
 * beside it (bf16 would round most of them more), and the sum of such blocks.
 *
 * Where a group of inputs has one scale for each output (TILE_INT4_OUTPUT) the sum is multiplied by
 * it; where a group of outputs has one for each input (TILE_INT4_INPUT) the inputs are, before they
 * are rounded. Blocks with one unit begin and end at the same columns whatever rows are beside a
 * row, and however many columns are taken at a time: its result is its own.
 *
 * With KERNEL_BYTES they are stored as bytes, else as pairs of 16 bits (kernels/cpu/gemm_int4.h).
 * The sums are the same whole numbers. */
#ifndef PHASOR_KERNELS_CPU_GEMM_FIXED_H
#define PHASOR_KERNELS_CPU_GEMM_FIXED_H

#include "kernels/cpu/gemm_tile.h"

#define FIXED_BLOCKS       8 /* with one unit; fewer at the end of a group or a row */
#define FIXED_STRIP_BLOCKS (STRIP_WORDS / BLOCK_PAIRS)
#define FIXED_EXPONENT_MIN (-100) /* of the largest: smaller ones are treated as if it were */
#define FIXED_EXPONENT_MAX 125    /* above: NaN */

/* The inputs of a strip for some columns; by input once for each of some groups of panels, one
 * behind another. */
struct fixed_strip {
    uint32_t words[STRIP_WORDS]; /* [rows][strip_stride(rows)]: as fixed_pairs or fixed_bytes say */
    float units[FIXED_STRIP_BLOCKS];  /* [rows][strip_blocks(rows)], at the first block of each; NaN
                                       * where an input or a scale is no number */
    int16_t ends[FIXED_STRIP_BLOCKS]; /* of the first block of a unit: that of the next */
    float
        offset_sums[FIXED_STRIP_BLOCKS]; /* with minima, as units: the inputs' sum, which offsets of
                                          * outputs multiply, or of inputs times their offsets */
    int32_t eights[FIXED_STRIP_BLOCKS];  /* bytes: -8 x the inputs' sum, as units */
};

/* ---- Inputs -------------------------------------------------------------------------------- */

/* Offsets: what is added to scale x (nibble - 8). */
INLINE vec nibble_offsets(const struct matrix *matrix, int64_t at)
{
    return vec_load_bf16(matrix->minima + at) + 8.0f * vec_load_bf16(matrix->scales + at);
}

/* Of `block` (of the whole row): the one from which on the unit is another. */
static inline int64_t fixed_end(const struct tiles *tiles, int64_t block)
{
    int64_t end = (block / FIXED_BLOCKS + 1) * FIXED_BLOCKS;
    if (tiles->kind == TILE_INT4_OUTPUT) {
        int64_t group_end = (block / tiles->group_blocks + 1) * tiles->group_blocks;
        end = end < group_end ? end : group_end;
    }
    return end < tiles->block_count ? end : tiles->block_count;
}

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* 2^(e - 13), where the largest of what is rounded is 2^e to 2^(e + 1): that has up to 2^14 units.
 * And its inverse; both are NaN where one of them is no number. */
static inline float fixed_unit(float *inverse, uint32_t most)
{
    int e = (int)(most >> 23) - 127;
    e = e > FIXED_EXPONENT_MIN ? e : FIXED_EXPONENT_MIN;
    if (e > FIXED_EXPONENT_MAX)
        return *inverse = __builtin_nanf("");
    *inverse = float_of_bits((uint32_t)(127 + 13 - e) << 23);
    return float_of_bits((uint32_t)(127 + e - 13) << 23);
}

/* Of two vectors one behind another: inputs 0 to 3 of each eight, and 4 to 7. */
INLINE vec low_halves(vec first, vec second)
{
#if LANES == 16
    return __builtin_shufflevector(first, second, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25,
                                   26, 27);
#elif LANES == 8
    return __builtin_shufflevector(first, second, 0, 1, 2, 3, 8, 9, 10, 11);
#else
    (void)second;
    return first;
#endif
}

INLINE vec high_halves(vec first, vec second)
{
#if LANES == 16
    return __builtin_shufflevector(first, second, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28,
                                   29, 30, 31);
#elif LANES == 8
    return __builtin_shufflevector(first, second, 4, 5, 6, 7, 12, 13, 14, 15);
#else
    (void)first;
    return second;
#endif
}

/* Rounds inputs to whole numbers of the unit. Adding 1.5 x 2^23 rounds to the nearest, ties to
 * even, and leaves the number in the low bits; the product before it is exact, so it does not
 * matter whether the two are fused. */
INLINE vecu fixed_whole(vec values, float inverse)
{
    return (vecu)(values * inverse + 12582912.0f);
}

/* Inputs as pairs in the order in which words of nibbles are shifted: of each eight 0 and 4, 1 and
 * 5, 2 and 6, 3 and 7, the first in the low half. */
INLINE vecu fixed_pairs(vec low, vec high, float inverse)
{
    return (fixed_whole(low, inverse) & 0xFFFFu) | fixed_whole(high, inverse) << 16;
}

/* The same numbers 256 h + l as bytes h and l: of each eight h of 0, 2, 4 and 6, h of 1, 3, 5 and
 * 7, and so l. They have a sign; numbers are at most 2^14. */
INLINE vecu fixed_bytes(vecu pairs)
{
    vecu high = (vecu)((vecs)pairs + (int16_t)128);
    vecb bytes = (vecb)((high & 0xFF00FF00u) | (pairs & 0x00FF00FFu));
#define EIGHT_FROM(n)                                                                              \
    n + 1, n + 9, n + 3, n + 11, n + 5, n + 13, n + 7, n + 15, n, n + 8, n + 2, n + 10, n + 4,     \
        n + 12, n + 6, n + 14
#if LANES == 16
    return (vecu)__builtin_shufflevector(bytes, bytes, EIGHT_FROM(0), EIGHT_FROM(16),
                                         EIGHT_FROM(32), EIGHT_FROM(48));
#elif LANES == 8
    return (vecu)__builtin_shufflevector(bytes, bytes, EIGHT_FROM(0), EIGHT_FROM(16));
#else
    return (vecu)__builtin_shufflevector(bytes, bytes, EIGHT_FROM(0));
#endif
#undef EIGHT_FROM
}

/* A vector of words, or those of its first block where there is no second. */
INLINE void words_store(uint32_t *to, vecu words, const bool has_all)
{
    if (LANES <= BLOCK_PAIRS || has_all)
        *(vecu *)to = words;
    else
        memcpy(to, &words, BLOCK_PAIRS * sizeof *to);
}

/* Where blocks of one unit begin and end, of all rows. */
static inline void fixed_cut(struct fixed_strip *strip, const struct tiles *tiles,
                             int64_t first_block, int64_t block_count)
{
    for (int64_t block = 0, end; block < block_count; block = end) {
        end = fixed_end(tiles, first_block + block) - first_block;
        end = end < block_count ? end : block_count;
        strip->ends[block] = (int16_t)end;
    }
}

/* Vectors of a unit's inputs, and of their words. */
#define UNIT_VECTORS (FIXED_BLOCKS * PANEL_VECTORS)
#define WORD_VECTORS (UNIT_VECTORS / 2)

/* Vector `v` of a unit's inputs, times the scales that they have, or NULL, which are scale_step
 * apart from block to block; zero behind its blocks. */
INLINE vec unit_input(const float *in, const uint16_t *scales, int64_t scale_step, const int v,
                      const int64_t blocks)
{
    if (v / PANEL_VECTORS >= blocks)
        return vec_all(0);
    vec values = vec_load(in + v * LANES);
    if (scales != NULL)
        values *=
            vec_load_bf16(scales + v / PANEL_VECTORS * scale_step + v % PANEL_VECTORS * LANES);
    return values;
}

/* Rounds the blocks of one unit. With AVX-512 all stay in registers from where the largest is
 * looked for. */
INLINE void unit_round(struct fixed_strip *strip, int64_t at, uint32_t *words, const float *in,
                       const uint16_t *scales, int64_t scale_step, const int64_t blocks)
{
    vec low[WORD_VECTORS], high[WORD_VECTORS];
    veci most = {0}, sums = {0};
    float inverse;
#pragma GCC unroll 16
    for (int w = 0; w < WORD_VECTORS; w++) {
        vec first = unit_input(in, scales, scale_step, 2 * w, blocks);
        vec second = unit_input(in, scales, scale_step, 2 * w + 1, blocks);
        most = veci_max(most, veci_max((veci)first & 0x7FFFFFFF, (veci)second & 0x7FFFFFFF));
        low[w] = low_halves(first, second);
        high[w] = high_halves(first, second);
    }
    strip->units[at] = fixed_unit(&inverse, (uint32_t)veci_max_lane(most));
#pragma GCC unroll 16
    for (int w = 0; w < WORD_VECTORS; w++) {
        if (w * LANES >= blocks * BLOCK_PAIRS)
            break;
        vecu pairs = fixed_pairs(low[w], high[w], inverse);
        if (KERNEL_BYTES)
            sums = pairs_total(sums, pairs);
        words_store(words + w * LANES, KERNEL_BYTES ? fixed_bytes(pairs) : pairs,
                    (w + 1) * LANES <= blocks * BLOCK_PAIRS);
    }
    if (KERNEL_BYTES)
        strip->eights[at] = -8 * veci_sum(sums);
}

/* Rounds a row. */
INLINE void fixed_round(struct fixed_strip *strip, const float *in, const uint16_t *scales,
                        int64_t scale_step, uint32_t *words, int64_t at, int64_t block_count)
{
    for (int64_t block = 0, end; block < block_count; block = end) {
        const float *from = in + block * PACK_BLOCK;
        const uint16_t *of = scales != NULL ? scales + block * scale_step : NULL;
        uint32_t *to = words + block * BLOCK_PAIRS;
        end = strip->ends[block];
        if (end - block == FIXED_BLOCKS)
            unit_round(strip, at + block, to, from, of, scale_step, FIXED_BLOCKS);
        else
            unit_round(strip, at + block, to, from, of, scale_step, end - block);
    }
}

/* With minima: what the offsets have to do with; of inputs that are not rounded. */
static inline void fixed_offsets(struct fixed_strip *strip, const struct tiles *tiles,
                                 int64_t panel, const float *in, int64_t at, int64_t first_block,
                                 int64_t block_count)
{
    for (int64_t block = 0, end; block < block_count; block = end) {
        vec sum[PANEL_VECTORS] = {{0}};
        end = strip->ends[block];
        for (int64_t b = block; b < end; b++) {
            int64_t scale = 0;
            if (tiles->kind == TILE_INT4_INPUT)
                scale = scale_index(tiles, panel, first_block + b);
            for (int v = 0; v < PANEL_VECTORS; v++) {
                vec factor = vec_all(1);
                if (tiles->kind == TILE_INT4_INPUT)
                    factor = nibble_offsets(tiles->matrix, scale + v * LANES);
                sum[v] += vec_load(in + b * PACK_BLOCK + v * LANES) * factor;
            }
        }
        strip->offset_sums[at + block] = panel_sum(sum);
    }
}

/* Columns [first_block, first_block + block_count) of row `row` of `row_count`, as the tiles at
 * `panel` take them, to the strip's blocks from `to` on; `in` is the row. fixed_cut comes before.
 */
static inline void fixed_row(struct fixed_strip *strip, int64_t to, const struct tiles *tiles,
                             int64_t panel, const float *in, int row, int row_count,
                             int64_t first_block, int64_t block_count)
{
    int64_t at = row * strip_blocks(row_count) + to;
    uint32_t *words = strip->words + row * strip_stride(row_count) + to * BLOCK_PAIRS;
    in += first_block * PACK_BLOCK;
    if (tiles->kind == TILE_INT4_OUTPUT)
        fixed_round(strip, in, NULL, 0, words, at, block_count);
    else
        fixed_round(strip, in, tiles->matrix->scales + scale_index(tiles, panel, first_block),
                    tiles->group_count * PACK_BLOCK, words, at, block_count);
    if (tiles->matrix->minima != NULL)
        fixed_offsets(strip, tiles, panel, in, at, first_block, block_count);
}

#endif

/* INT4 weights as the instruction for bf16 takes them: what products with few rows (product_few.cu)
 * and with many (product_int4.cu) share, so that both give the same bits.
 *
 * A step of INT4 is four tiles. Lane t of a group of four has all columns of the tile t and its two
 * outputs, so that no lane needs what another has. Instruction j of four takes the columns j, j +
 * 4, j + 8 and j + 12 of every tile: 16 columns in another order, which the inputs have, too.
 * Scales come with the weights where outputs have them, and stand in shared memory where columns
 * do. */
#ifndef PHASOR_KERNELS_CUDA_PRODUCT_INT4_CUH
#define PHASOR_KERNELS_CUDA_PRODUCT_INT4_CUH

#include "kernels/cuda/product_operands.cuh"

#define INT4_TILE_WORDS (TILE_WORDS / 4)
#define NO_MINIMUM      0x80008000u /* -0 twice, which changes no sum */

enum weights { WEIGHTS_BF16, WEIGHTS_BY_OUTPUT, WEIGHTS_BY_INPUT };

__host__ __device__ constexpr int step_tiles_of(enum weights weights)
{
    return weights == WEIGHTS_BF16 ? 2 : 4;
}

__host__ __device__ constexpr int step_words(enum weights weights)
{
    return weights == WEIGHTS_BF16 ? 8 : weights == WEIGHTS_BY_OUTPUT ? 6 : 4;
}

__device__ inline int scale_group_of(const struct product &p, int tile)
{
    return (int)((uint64_t)(uint32_t)(tile + 1) * p.scale_group_inverse >> 32);
}

/* The lane's words of a step: four of nibbles, the lower and the upper columns of two outputs; then
 * the two outputs' scales and minima where they have them, at `scale`. Zeros where the lane's tile
 * is not there. */
template <enum weights WEIGHTS>
__device__ inline void int4_load(uint32_t words[step_words(WEIGHTS)], const uint32_t *at,
                                 const uint16_t *scales, const uint16_t *minima, int scale,
                                 bool is_there)
{
    uint2 low = make_uint2(0, 0), high = make_uint2(0, 0);
    uint32_t both = 0, least = NO_MINIMUM;
    if (is_there) {
        low = weights_stream((const uint2 *)at);
        high = weights_stream((const uint2 *)(at + PACK_BLOCK));
        if (WEIGHTS == WEIGHTS_BY_OUTPUT) {
            both = word_stream((const uint32_t *)(scales + scale));
            if (minima != NULL)
                least = word_stream((const uint32_t *)(minima + scale));
        }
    }
    words[0] = low.x;
    words[1] = low.y;
    words[2] = high.x;
    words[3] = high.y;
    if constexpr (WEIGHTS == WEIGHTS_BY_OUTPUT) {
        words[4] = both;
        words[5] = least;
    }
}

/* The low or the high half of a pair, twice. */
__device__ inline uint32_t pair_twice(uint32_t pair, int which)
{
    return which == 0 ? (pair & 0xFFFFu) | pair << 16 : pair >> 16 | (pair & 0xFFFF0000u);
}

/* Two weights of INT4, the low nibbles of the word's halves: 0x4300 + q is 128 + q in bf16, so q
 * or, where there are no minima, q - 8 are exact, and the weight is rounded once. `offset` is what
 * takes 128 or 136 away. */
__device__ inline uint32_t nibbles_weights(uint32_t word, uint32_t offset, uint32_t scale,
                                           uint32_t minimum)
{
    uint32_t q = bf16_pair_fma((word & 0x000F000Fu) | 0x43004300u, 0x3F803F80u, offset);
    return bf16_pair_fma(q, scale, minimum);
}

__device__ inline uint32_t nibbles_offset(bool has_minima)
{
    return has_minima ? 0xC300C300u : 0xC308C308u;
}

/* One instruction's weights: `column` is the first of its columns, with whose scales `by` begins
 * where columns have them. a[0], a[1] are of lower halves of two outputs, a[2], a[3] of upper. */
template <enum weights WEIGHTS>
__device__ inline void int4_weights(uint32_t a[4], const uint32_t words[step_words(WEIGHTS)],
                                    int column, const uint32_t scale[2], const uint32_t minimum[2],
                                    uint32_t offset)
{
    const bool by_output = WEIGHTS == WEIGHTS_BY_OUTPUT;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t s = by_output ? pair_twice(words[4], i % 2) : scale[i / 2];
        uint32_t least =
            by_output ? pair_twice(words[step_words(WEIGHTS) - 1], i % 2) : minimum[i / 2];
        a[i] = nibbles_weights(words[i] >> 4 * column, offset, s, least);
    }
}

/* Of a tile's columns, half of their scales (or minima) as they lie, and for the instructions
 * 2 x half and the next one the words of the lower and of the upper columns. */
__device__ inline uint4 scales_raw(const struct product &p, const uint16_t *scales, int tile,
                                   int group, int half)
{
    int64_t at = ((int64_t)tile * p.scale_group_count + group) * PACK_BLOCK;
    const uint32_t *of = (const uint32_t *)(scales + at) + half;
    return make_uint4(__ldg(of), __ldg(of + 2), __ldg(of + 4), __ldg(of + 6));
}

__device__ inline uint4 scales_words(uint4 raw)
{
    return make_uint4((raw.x & 0xFFFFu) | raw.y << 16, (raw.z & 0xFFFFu) | raw.w << 16,
                      raw.x >> 16 | (raw.y & 0xFFFF0000u), raw.z >> 16 | (raw.w & 0xFFFF0000u));
}

#endif

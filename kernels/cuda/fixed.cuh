/* Inputs beside INT4 weights, as whole numbers: kernels/cpu/gemm_fixed.h says why and how. Up to 128
 * neighbours (8 tiles of a row, fewer at the end of a group of scales) have a unit in common. Here
 * a whole number is 256 x high + low, two bytes with signs, so that products with nibbles are those
 * of bytes, four to an instruction, and their sums exact in 32 bits whoever adds them up. */
#ifndef PHASOR_KERNELS_CUDA_FIXED_CUH
#define PHASOR_KERNELS_CUDA_FIXED_CUH

#include "kernels/cuda/product.cuh"

#define UNIT_TILES         8
#define FIXED_EXPONENT_MIN (-100) /* of the largest: smaller ones are treated as if it were */
#define FIXED_EXPONENT_MAX 125    /* above: NaN */

/* Eight columns: .x are the high bytes of columns 0, 2, 4, 6, .y those of 1, 3, 5, 7, .z and .w the
 * low bytes. They meet the low and the high nibbles of a word. */
typedef uint4 fixed_eight;

/* sum + the four products of bytes with signs. */
__device__ inline int dot_bytes(int sum, uint32_t a, uint32_t b)
{
#if defined(__CUDA_ARCH__)
    return __dp4a((int)a, (int)b, sum);
#else
    for (int i = 0; i < 32; i += 8)
        sum += (int8_t)(a >> i) * (int8_t)(b >> i);
    return sum;
#endif
}

/* 16 x (nibble - 8) of columns 0, 2, 4, 6 and of 1, 3, 5, 7, as bytes. */
__device__ inline uint32_t nibbles_even(uint32_t word)
{
    return (word << 4 ^ 0x88888888u) & 0xF0F0F0F0u;
}

__device__ inline uint32_t nibbles_odd(uint32_t word)
{
    return (word ^ 0x88888888u) & 0xF0F0F0F0u;
}

/* 16 times the products of eight columns with a word of nibbles: of the high and the low bytes. */
struct fixed_sum {
    int high, low;
};

__device__ inline void dot_eight(struct fixed_sum *sum, fixed_eight in, uint32_t even, uint32_t odd)
{
    sum->high = dot_bytes(dot_bytes(sum->high, even, in.x), odd, in.y);
    sum->low = dot_bytes(dot_bytes(sum->low, even, in.z), odd, in.w);
}

/* The sum in units. Of 128 columns it is at most 2^28, and a multiple of 16: exact in f32. */
__device__ inline float fixed_sum_value(struct fixed_sum sum)
{
    return (float)(sum.high * 256 + sum.low) * (1.0f / 16);
}

/* The first tile that has its unit in common with tile `k`. */
__device__ inline int unit_start(int k, bool by_output, int scale_group_tiles)
{
    int start = k / UNIT_TILES * UNIT_TILES;
    return by_output ? max(start, k / scale_group_tiles * scale_group_tiles) : start;
}

__device__ inline uint32_t magnitude_bits(float value)
{
    return __float_as_uint(value) & 0x7FFFFFFFu;
}

/* 2^(e - 13), where the largest of what is rounded is 2^e to 2^(e + 1): that has up to 2^14 units.
 * And its inverse; both are NaN where one of them is no number. */
__device__ inline float fixed_unit(float *inverse, uint32_t most)
{
    int e = max((int)(most >> 23) - 127, FIXED_EXPONENT_MIN);
    if (e > FIXED_EXPONENT_MAX)
        return *inverse = __uint_as_float(0x7FC00000u);
    *inverse = __uint_as_float((uint32_t)(127 + 13 - e) << 23);
    return __uint_as_float((uint32_t)(127 + e - 13) << 23);
}

/* What is no number becomes any number: its unit is none. */
__device__ inline int fixed_whole(float value, float inverse)
{
    return (int)rintf(fmaxf(fminf(value * inverse, 16384.0f), -16384.0f));
}

/* Eight values in whole numbers. */
__device__ inline fixed_eight fixed_pack(const float value[8], float inverse)
{
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int whole = fixed_whole(value[i], inverse);
        int high = (whole + 128) >> 8;
        words[i % 2] |= (uint32_t)(high & 0xFF) << i / 2 * 8;
        words[2 + i % 2] |= (uint32_t)(whole & 0xFF) << i / 2 * 8;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

#endif

/* What the matrix instructions (mma.cuh) multiply and add up, of products with bf16 weights, and in
 * which lanes it is: product_mma.cu. */
#ifndef PHASOR_KERNELS_CUDA_PRODUCT_OPERANDS_CUH
#define PHASOR_KERNELS_CUDA_PRODUCT_OPERANDS_CUH

#include "kernels/cuda/fixed.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product.cuh"

/* Whose instruction (mma.cuh). */
enum mma { MMA_BF16, MMA_TURING, MMA_VOLTA };

#define MMA_PART_TILES 32
#define MMA_ROWS       8   /* rows of inputs in a tile of them */
#define TILE_WORDS     128 /* in a tile of weights */

/* Words of a tile of weights in a lane. */
__host__ __device__ constexpr int weight_words(enum mma mma)
{
    return mma == MMA_VOLTA ? 8 : 4;
}

/* Tiles of rows that are multiplied together, and words of one tile of their columns in a lane. */
__host__ __device__ constexpr int step_tiles(enum mma mma)
{
    return mma == MMA_VOLTA ? 2 : 1;
}

__host__ __device__ constexpr int input_words(enum mma mma)
{
    return mma == MMA_VOLTA ? 8 : 2;
}

/* Of a quad-pair's eight outputs or rows this lane's, and which halves the quad-pair has. */
__device__ inline int quad_lane()
{
    return lane_id() % 4 + lane_id() / 16 * 4;
}

__device__ inline int quad_outputs()
{
    return lane_id() / 4 % 2 * 8;
}

__device__ inline int quad_rows()
{
    return lane_id() / 8 % 2 * 8;
}

/* Of the rows of tile `n`, with which a step begins, the one whose inputs the lane has. */
template <enum mma MMA> __device__ inline int lane_row(int n)
{
    return n * MMA_ROWS + (MMA == MMA_VOLTA ? quad_rows() + quad_lane() : lane_group());
}

/* sum[n] of a lane are the outputs sum_output and sum_output + 1 (Volta: + 2) for the rows
 * sum_row and sum_row + 1, the two rows of an output together. */
template <enum mma MMA> __device__ inline int sum_row(int n)
{
    if (MMA == MMA_VOLTA)
        return n / 2 * 16 + quad_rows() + n % 2 * 4 + lane_id() / 2 % 2 * 2;
    return n * MMA_ROWS + 2 * lane_in_group();
}

template <enum mma MMA> __device__ inline int sum_output(int which)
{
    if (MMA == MMA_VOLTA)
        return quad_outputs() + lane_id() / 16 * 4 + lane_id() % 2 + 2 * which;
    return 2 * lane_group() + which;
}

__host__ __device__ inline int mma_parts(int tile_count)
{
    return (tile_count + MMA_PART_TILES - 1) / MMA_PART_TILES;
}

/* Where the lane's part of a tile of weights begins, in words. */
template <enum mma MMA> __device__ inline int weights_lane()
{
    if (MMA == MMA_VOLTA)
        return quad_outputs() + quad_lane();
    return (lane_in_group() * 8 + lane_group()) * 2;
}

/* Weights that nobody else on the multiprocessor reads: they leave its cache to others. They are
 * loaded where it says so, long before they are used: ptxas puts off plain loads to the end of a
 * loop whose next turn uses them, relaxed ones not beyond a loads_fence. */
__device__ inline uint2 weights_stream(const uint2 *at)
{
#if defined(SIMT_HOST)
    return *at;
#else
    uint2 words;
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words.x), "=r"(words.y)
                 : "l"(at));
    return words;
#endif
}

/* Relaxed loads before it are not put off until behind it. All lanes call it. */
__device__ inline void loads_fence()
{
#if !defined(SIMT_HOST)
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
#endif
}

/* The same of a word that others read, too. */
__device__ inline uint32_t word_stream(const uint32_t *at)
{
#if defined(SIMT_HOST)
    return *at;
#else
    uint32_t word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(at));
    return word;
#endif
}

/* The lane's part of a tile of weights, which begins at `at`. */
template <enum mma MMA>
__device__ inline void weights_load(uint32_t a[weight_words(MMA)], const uint32_t *at)
{
    if (MMA == MMA_VOLTA) {
#pragma unroll
        for (int i = 0; i < weight_words(MMA); i++)
            a[i] = at[i * PACK_BLOCK];
        return;
    }
    uint2 low = *(const uint2 *)at, high = *(const uint2 *)(at + TILE_WORDS / 2);
    a[0] = low.x;
    a[1] = low.y;
    a[2] = high.x;
    a[3] = high.y;
}

/* For each half of a pair 1 where its exponent, of which `one` is the least bit, has all bits. */
__device__ inline uint32_t no_finite(uint32_t pair, uint32_t one)
{
    return ((pair & 0x7FFF7FFFu) + one) >> 15 & 0x00010001u;
}

/* The weights in the instruction's type. Of fp16 what became infinite is one less, which is 65504;
 * what was no number, or infinite, stays so. */
template <enum mma MMA> __device__ inline void weights_round(uint32_t a[weight_words(MMA)])
{
#pragma unroll
    for (int i = 0; MMA != MMA_BF16 && i < weight_words(MMA); i++) {
        uint32_t was = no_finite(a[i], 0x00800080u);
        a[i] = half_pair(pair_low(a[i]), pair_high(a[i]));
        a[i] -= no_finite(a[i], 0x04000400u) & ~was;
    }
}

/* Two inputs in the instruction's type, of fp16 in units. */
template <enum mma MMA>
__device__ inline uint32_t inputs_pair(float first, float second, float inverse)
{
    return MMA == MMA_BF16 ? bf16_pair(first, second)
                           : half_pair(first * inverse, second * inverse);
}

/* Adds the products of a tile of weights with tiles of rows. */
template <enum mma MMA>
__device__ inline void step_product(float sum[step_tiles(MMA)][4],
                                    const uint32_t a[weight_words(MMA)],
                                    const uint32_t b[input_words(MMA)])
{
    if (MMA == MMA_BF16)
        mma_bf16(sum[0], a, b);
    else if (MMA == MMA_TURING)
        mma_turing(sum[0], a, b);
    else {
#pragma unroll
        for (int i = 0; i < weight_words(MMA); i += 2)
            mma_volta(sum[0], sum[step_tiles(MMA) - 1], a + i, b + i);
    }
}

/* Sums of two rows in their units, .x and .y, as they are. Rounded here, on every path: a compiler
 * that joins it with the addition behind it would not, where a number is too small for all bits. */
__device__ inline void sum_scale(float sum[4], float2 units)
{
    sum[0] = __fmul_rn(sum[0], units.x);
    sum[1] = __fmul_rn(sum[1], units.y);
    sum[2] = __fmul_rn(sum[2], units.x);
    sum[3] = __fmul_rn(sum[3], units.y);
}

__device__ inline float4 float4_add(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ inline uint32_t float4_most(uint32_t most, float4 v)
{
    most = max(max(most, magnitude_bits(v.x)), magnitude_bits(v.y));
    return max(max(most, magnitude_bits(v.z)), magnitude_bits(v.w));
}

#endif

/* Vectors of floats in the compiler's own vector language, each one register: 16 lanes with
 * AVX-512, 8 with AVX2, 4 with SSE or NEON. So one source serves every instruction set; what the
 * language cannot say, or gcc 12 makes too much of, is in functions with an #if. Vectors are never
 * wider than a register: gcc keeps those in memory.
 */
#ifndef PHASOR_KERNELS_CPU_SIMD_H
#define PHASOR_KERNELS_CPU_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "layout/packing.h"

#if defined(LANES) /* in a set for tests: vectors as long as AVX-512's, in whatever registers */
#elif defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

/* Of the 16 outputs of a panel (layout/packing.h). */
#define PANEL_VECTORS (PACK_BLOCK / LANES)

/* aligned(4), may_alias: loads from any float array. */
#define VECTOR(bytes, alignment) __attribute__((vector_size(bytes), aligned(alignment), may_alias))
typedef float vec VECTOR(4 * LANES, 4);
typedef uint32_t vecu VECTOR(4 * LANES, 4);
typedef int32_t veci VECTOR(4 * LANES, 4);
typedef uint16_t vech VECTOR(2 * LANES, 2); /* as many halves as a vector has lanes, */
typedef int16_t vecs VECTOR(4 * LANES, 2);  /* or two for each lane, */
typedef int8_t vecb VECTOR(4 * LANES, 4);   /* or four bytes */

#define INLINE static inline __attribute__((always_inline))

INLINE vec vec_load(const float *from)
{
    return *(const vec *)from;
}

INLINE void vec_store(float *to, vec value)
{
    *(vec *)to = value;
}

/* Past the caches, which then need not read what is overwritten, where `is_far` and where it can
 * be: with AVX-512, to whole lines. stores_past_end comes before anybody is told that it is there.
 */
INLINE void vec_store_past(float *to, vec value, bool is_far)
{
#if defined(__AVX512F__)
    if (is_far && (uintptr_t)to % sizeof value == 0) {
        _mm512_stream_ps(to, (__m512)value);
        return;
    }
#endif
    (void)is_far;
    vec_store(to, value);
}

INLINE void stores_past_end(void)
{
#if defined(__AVX512F__)
    _mm_sfence();
#endif
}

INLINE vec vec_all(float value)
{
    return value - (vec){0};
}

/* Neighbouring halves, each in the low half of a lane. gcc 12 makes several instructions of the
 * language's conversion. */
INLINE vecu vec_load_halves(const uint16_t *from)
{
#if defined(__AVX512F__)
    return (vecu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__AVX2__) && LANES == 8
    return (vecu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
#else
    return __builtin_convertvector(*(const vech *)from, vecu);
#endif
}

/* Neighbouring bf16 values. */
INLINE vec vec_load_bf16(const uint16_t *from)
{
    return (vec)(vec_load_halves(from) << 16);
}

/* Pairs of which the first is of one row, in the low half, and the second of another: of two
 * vectors of neighbouring halves of both. */
INLINE void vec_interleave(vecu *first, vecu *last, const uint16_t *low, const uint16_t *high)
{
#if LANES == 16
    vecs a = *(const vecs *)low, b = *(const vecs *)high;
    *first =
        (vecu)__builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39,
                                      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47);
    *last = (vecu)__builtin_shufflevector(a, b, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22,
                                          54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29,
                                          61, 30, 62, 31, 63);
#else
    *first = vec_load_halves(low) | vec_load_halves(high) << 16;
    *last = vec_load_halves(low + LANES) | vec_load_halves(high + LANES) << 16;
#endif
}

/* Rounds to bf16 as bf16_from_f32 does (base/numeric.h): to nearest, ties to even; NaN stays NaN.
 */
INLINE vecu vec_bf16_bits(vec value)
{
    vecu bits = (vecu)value, is_nan = (vecu)(value != value);
    vecu rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    return (is_nan & (bits >> 16 | 0x40u)) | (~is_nan & rounded);
}

INLINE void vec_store_bf16(uint16_t *to, vec value)
{
    vecu bits = vec_bf16_bits(value);
#if defined(__AVX2__) && LANES == 8
    __m128i low = _mm256_castsi256_si128((__m256i)bits);
    _mm_storeu_si128((__m128i *)to,
                     _mm_packus_epi32(low, _mm256_extracti128_si256((__m256i)bits, 1)));
#else
    *(vech *)to = __builtin_convertvector(bits, vech);
#endif
}

/* vec_store_bf16 for inputs of vec_dot_pairs: with the instruction, which takes what is denormal
 * for zero as that does. The intrinsic's type depends on the compiler. */
INLINE void vec_store_pairs(uint16_t *to, vec value)
{
#if defined(__AVX512BF16__)
    typedef short halves_of_bf16 __attribute__((vector_size(32), aligned(2), may_alias));
    halves_of_bf16 halves;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(value));
    *(halves_of_bf16 *)to = halves;
#else
    vec_store_bf16(to, value);
#endif
}

/* Adds to each lane the two products of its pair of bf16 weights with one pair of bf16 inputs, the
 * first of each in the low half.
 *
 * The instruction takes what is denormal for zero, and leaves zero where a sum would be: that is
 * below 2^-126, far under what any weight times any activation should be. Else the two are the
 * same: Intel's manual adds the odd product first, as here, each time rounding to nearest even, and
 * a product of two bf16 is exact in f32, so it does not matter whether multiply and add are fused.
 * The assembler's form, because gcc 12 broadcasts with an instruction of its own. */
INLINE vec vec_dot_pairs(vec sum, vecu weights, const void *inputs)
{
#if defined(__AVX512BF16__)
    const struct {
        char bytes[4];
    } *pair = inputs;
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*pair));
    return sum;
#else
    uint32_t pair;
    float even, odd;
    memcpy(&pair, inputs, sizeof pair);
    uint32_t low = pair << 16, high = pair & 0xFFFF0000u;
    memcpy(&even, &low, sizeof even);
    memcpy(&odd, &high, sizeof odd);
    sum += vec_all(odd) * (vec)(weights & 0xFFFF0000u);
    return sum + vec_all(even) * (vec)(weights << 16);
#endif
}

/* A pair of inputs for all lanes, and the same sum with it: where an input is used for several
 * weights. */
INLINE vecu pairs_all(const void *inputs)
{
    uint32_t pair;
    memcpy(&pair, inputs, sizeof pair);
    return pair - (vecu){0};
}

INLINE vec vec_dot_pairs_of(vec sum, vecu weights, vecu inputs)
{
#if defined(__AVX512BF16__)
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(inputs), "v"(weights));
    return sum;
#else
    sum += (vec)(inputs & 0xFFFF0000u) * (vec)(weights & 0xFFFF0000u);
    return sum + (vec)(inputs << 16) * (vec)(weights << 16);
#endif
}

/* Weights that are used once: from memory. */
INLINE vec vec_dot_pairs_all(vec sum, const vecu *weights, vecu inputs)
{
#if defined(__AVX512BF16__)
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(inputs), "m"(*weights));
    return sum;
#else
    return vec_dot_pairs_of(sum, *weights, inputs);
#endif
}

/* Adds to each lane the two products of its pair of weights with one pair of inputs, the first of
 * each in the low half. The sums fit 32 bits. */
INLINE veci words_dot(veci sums, vecs weights, const uint32_t *inputs)
{
#if defined(__AVX512BW__)
    sums += (veci)_mm512_madd_epi16((__m512i)weights, _mm512_set1_epi32((int)*inputs));
#elif defined(__AVX2__) && LANES == 8
    sums += (veci)_mm256_madd_epi16((__m256i)weights, _mm256_set1_epi32((int)*inputs));
#elif defined(__SSE2__) && LANES == 4
    sums += (veci)_mm_madd_epi16((__m128i)weights, _mm_set1_epi32((int)*inputs));
#else
    veci words = (veci)weights;
    sums += (words << 16 >> 16) * (int16_t)*inputs + (words >> 16) * (int16_t)(*inputs >> 16);
#endif
#if defined(__AVX512F__) || (defined(__AVX2__) && LANES == 8) || (defined(__SSE2__) && LANES == 4)
    /* Or the compiler collects products, to add them in another order, and runs out of registers.
     */
    __asm__("" : "+v"(sums));
#endif
    return sums;
}

/* 1 where products with int4 weights are of bytes (kernels/cpu/gemm_int4.h). */
#if !defined(KERNEL_BYTES) && defined(__AVX512VNNI__)
#define KERNEL_BYTES 1
#elif !defined(KERNEL_BYTES)
#define KERNEL_BYTES 0
#endif

/* Adds to each lane the four products of its bytes of weights, which have no sign, with four bytes
 * of inputs, which have one. The sums fit 32 bits. */
INLINE veci bytes_dot(veci sums, vecu weights, const uint32_t *inputs)
{
#if defined(__AVX512VNNI__)
    const struct {
        char bytes[4];
    } *four = (const void *)inputs;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(*four));
#else
    for (int i = 0; i < 4; i++)
        sums += (veci)(weights >> 8 * i & 0xFFu) * (int8_t)(*inputs >> 8 * i);
#endif
    return sums;
}

/* The same with inputs that are in all lanes of a register. */
INLINE veci bytes_dot_all(veci sums, vecu weights, vecu inputs)
{
#if defined(__AVX512VNNI__)
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(inputs));
#else
    for (int i = 0; i < 4; i++)
        sums += (veci)(weights >> 8 * i & 0xFFu) * ((veci)(inputs << (24 - 8 * i)) >> 24);
#endif
    return sums;
}

/* Adds to each lane both numbers of its pair. */
INLINE veci pairs_total(veci sums, vecu pairs)
{
#if defined(__AVX512VNNI__)
    return (veci)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)pairs, _mm512_set1_epi16(1));
#else
    return sums + ((veci)pairs << 16 >> 16) + ((veci)pairs >> 16);
#endif
}

/* Where one is NaN, the second. */
INLINE vec vec_max(vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__) && LANES == 8
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__) && LANES == 4
    return (vec)_mm_max_ps((__m128)a, (__m128)b);
#else
    veci larger = a > b;
    return (vec)((larger & (veci)a) | (~larger & (veci)b));
#endif
}

INLINE veci veci_max(veci a, veci b)
{
#if defined(__AVX512F__)
    return (veci)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && LANES == 8
    return (veci)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    veci larger = a > b;
    return (larger & a) | (~larger & b);
#endif
}

/* The lanes that lie `distance` apart in each other's place; 2, 4 or 8, less than LANES. */
INLINE veci veci_swap(veci value, const int distance)
{
#if LANES == 16
    if (distance == 8)
        return __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5,
                                       6, 7);
    if (distance == 4)
        return __builtin_shufflevector(value, value, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9,
                                       10, 11);
    return __builtin_shufflevector(value, value, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12,
                                   13);
#elif LANES == 8
    if (distance == 4)
        return __builtin_shufflevector(value, value, 4, 5, 6, 7, 0, 1, 2, 3);
    return __builtin_shufflevector(value, value, 2, 3, 0, 1, 6, 7, 4, 5);
#else
    (void)distance;
    return __builtin_shufflevector(value, value, 2, 3, 0, 1);
#endif
}

/* 0, 1, 2, ... */
INLINE veci lane_numbers(void)
{
    const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return *(const veci *)numbers;
}

/* Sum of the lanes, always in the same order. */
INLINE float vec_sum(vec value)
{
#pragma GCC unroll 4
    for (int distance = LANES / 2; distance > 1; distance /= 2)
        value += (vec)veci_swap((veci)value, distance);
    return value[0] + value[1];
}

/* Sum of a panel's 16 lanes, in the order in which one vector of 16 is added up; leaves sums in
 * `panel`. */
INLINE float panel_sum(vec panel[PANEL_VECTORS])
{
#pragma GCC unroll 4
    for (int half = PANEL_VECTORS / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
        for (int i = 0; i < half; i++)
            panel[i] += panel[i + half];
    }
    return vec_sum(panel[0]);
}

/* Sum of a[i] x b[i]; 16 at a time, then what is left, always in the same order. */
INLINE float dot(const float *a, const float *b, int64_t count)
{
    vec sum[PANEL_VECTORS] = {{0}};
    int64_t i = 0;
    for (; i + PACK_BLOCK <= count; i += PACK_BLOCK) {
#pragma GCC unroll 4
        for (int v = 0; v < PANEL_VECTORS; v++)
            sum[v] += vec_load(a + i + v * LANES) * vec_load(b + i + v * LANES);
    }
    float total = panel_sum(sum);
    for (; i < count; i++)
        total += a[i] * b[i];
    return total;
}

INLINE int32_t veci_max_lane(veci value)
{
#pragma GCC unroll 4
    for (int distance = LANES / 2; distance > 1; distance /= 2)
        value = veci_max(value, veci_swap(value, distance));
    return value[0] > value[1] ? value[0] : value[1];
}

/* Sum of the lanes; it fits 32 bits. */
INLINE int32_t veci_sum(veci value)
{
#pragma GCC unroll 4
    for (int distance = LANES / 2; distance > 1; distance /= 2)
        value += veci_swap(value, distance);
    return value[0] + value[1];
}

INLINE float vec_max_lane(vec value)
{
#pragma GCC unroll 4
    for (int distance = LANES / 2; distance > 1; distance /= 2)
        value = vec_max(value, (vec)veci_swap((veci)value, distance));
    return value[0] > value[1] ? value[0] : value[1];
}

/* exp of each lane, relative error under 2^-22 for x in [-87, 88]; below that 0 (also for -inf);
 * NaN stays NaN, so that a damaged value is seen in the logits.
 * x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial is the Taylor series of degree 7, whose
 * remainder r^8 / 8! is under 6e-9. */
INLINE vec vec_exp(vec x)
{
    veci in_range = x > vec_all(-87.0f);
    veci too_large = x > vec_all(88.0f);
    vec clean = (vec)((in_range & (veci)x));
    clean = (vec)((too_large & (veci)vec_all(88.0f)) | (~too_large & (veci)clean));
    /* Adding 1.5 x 2^23 rounds to the nearest integer and leaves it in the low bits. */
    vec shifted = clean * 1.44269504f + 12582912.0f;
    veci n = (veci)shifted - (veci)vec_all(12582912.0f);
    vec rounded = shifted - 12582912.0f;
    vec r = clean - rounded * 0.693359375f;
    r = r - rounded * -2.12194440e-4f;
    vec sum = r * (1.0f / 5040) + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    vec power = (vec)((n + 127) << 23);
    veci is_nan = x != x;
    return (vec)(((veci)(sum * power) & in_range) | is_nan);
}

/* 2^r for r in [-1/2, 1/2]: the polynomial of degree 5 with least largest relative error there
 * among those that are 1 at 0, 9.2e-8. */
INLINE vec exp2_polynomial(vec r)
{
    vec sum = r * 0.00132647274f + 0.00967151281f;
    sum = sum * r + 0.0555073374f;
    sum = sum * r + 0.240222421f;
    sum = sum * r + 0.693146978f;
    return sum * r + 1.0f;
}

/* 2^x of each lane that is not above 0, relative error under 2^-22; below -126 0 (also for -inf);
 * NaN stays NaN. */
INLINE vec vec_exp2_falling(vec x)
{
#if defined(__AVX512F__)
    /* Not behind the comparison where it is NaN. The mask leaves out what would be denormal. */
    enum { to_nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    __mmask16 counts = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    vec n = (vec)_mm512_roundscale_ps((__m512)x, to_nearest);
    vec power = exp2_polynomial(x - n);
    return (vec)_mm512_maskz_scalef_ps(counts, (__m512)power, (__m512)n);
#else
    veci is_small = x < vec_all(-126.0f), is_nan = x != x;
    /* Adding 1.5 x 2^23 rounds to the nearest integer and leaves it in the low bits. */
    vec shifted = x + 12582912.0f;
    vecu power = (vecu)exp2_polynomial(x - (shifted - 12582912.0f)) + ((vecu)shifted << 23);
    return (vec)(((veci)power & ~is_small) | is_nan);
#endif
}

INLINE vec vec_silu(vec x)
{
    return x / (1.0f + vec_exp(-x));
}

#endif

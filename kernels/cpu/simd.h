/* Vectors of 16 floats in the compiler's own vector language: one register with AVX-512, two with
 * AVX2, four with SSE or NEON. So one source serves every instruction set; what the
 * language cannot say, or gcc 12 makes too much of, is in functions with an #if.
 */
#ifndef PHASOR_KERNELS_CPU_SIMD_H
#define PHASOR_KERNELS_CPU_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define LANES 16

/* aligned(4), may_alias: loads from any float array. */
typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t v16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t v16i __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t v16h __attribute__((vector_size(32), aligned(2), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE v16 v16_load(const float *from)
{
    return *(const v16 *)from;
}

INLINE void v16_store(float *to, v16 value)
{
    *(v16 *)to = value;
}

/* Past the caches, which then need not read what is overwritten, where `is_far` and where it can
 * be: with AVX-512, to whole lines. stores_past_end comes before anybody is told that it is there.
 */
INLINE void v16_store_past(float *to, v16 value, bool is_far)
{
#if defined(__AVX512F__)
    if (is_far && (uintptr_t)to % sizeof value == 0) {
        _mm512_stream_ps(to, (__m512)value);
        return;
    }
#endif
    (void)is_far;
    v16_store(to, value);
}

INLINE void stores_past_end(void)
{
#if defined(__AVX512F__)
    _mm_sfence();
#endif
}

INLINE v16 v16_all(float value)
{
    return value - (v16){0};
}

/* 16 neighbouring halves, each in the low half of a lane. gcc 12 makes several instructions of the
 * language's conversion. */
INLINE v16u v16_load_halves(const uint16_t *from)
{
#if defined(__AVX512F__)
    return (v16u)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
#else
    return __builtin_convertvector(*(const v16h *)from, v16u);
#endif
}

/* 16 neighbouring bf16 values. */
INLINE v16 v16_load_bf16(const uint16_t *from)
{
    return (v16)(v16_load_halves(from) << 16);
}

/* Pairs of which the first is of one row, in the low half, and the second of another: of 32
 * neighbouring halves of both. */
INLINE void v16_interleave(v16u *first, v16u *last, const uint16_t *low, const uint16_t *high)
{
    typedef uint16_t v32h __attribute__((vector_size(64), aligned(2), may_alias));
    v32h a = *(const v32h *)low, b = *(const v32h *)high;
    *first =
        (v16u)__builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39,
                                      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47);
    *last = (v16u)__builtin_shufflevector(a, b, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22,
                                          54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29,
                                          61, 30, 62, 31, 63);
}

/* The 16 bf16 values that stand at even and at odd places of 32. */
INLINE void v16_load_pairs(v16 *even, v16 *odd, const uint16_t *from)
{
    v16u bits = *(const v16u *)from;
    *even = (v16)(bits << 16);
    *odd = (v16)(bits & 0xFFFF0000u);
}

/* Rounds to bf16 as bf16_from_f32 does (base/numeric.h): to nearest, ties to even; NaN stays NaN.
 */
INLINE v16u v16_bf16_bits(v16 value)
{
    v16u bits = (v16u)value, is_nan = (v16u)(value != value);
    v16u rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    return (is_nan & (bits >> 16 | 0x40u)) | (~is_nan & rounded);
}

INLINE void v16_store_bf16(uint16_t *to, v16 value)
{
    *(v16h *)to = __builtin_convertvector(v16_bf16_bits(value), v16h);
}

/* v16_store_bf16 for inputs of v16_dot_pairs: with the instruction, which takes what is denormal
 * for zero as that does. The intrinsic's type depends on the compiler. */
INLINE void v16_store_pairs(uint16_t *to, v16 value)
{
#if defined(__AVX512BF16__)
    typedef short v16s __attribute__((vector_size(32), aligned(2), may_alias));
    v16s halves;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(value));
    *(v16s *)to = halves;
#else
    v16_store_bf16(to, value);
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
INLINE v16 v16_dot_pairs(v16 sum, v16u weights, const void *inputs)
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
    sum += v16_all(odd) * (v16)(weights & 0xFFFF0000u);
    return sum + v16_all(even) * (v16)(weights << 16);
#endif
}

/* 16 sums and 16 pairs of 16-bit whole numbers, in as many registers as they take: what a compiler
 * makes of wider vectors is slow where all registers hold sums. */
#if defined(__AVX512F__)
#define WORD_REGISTERS 1
typedef int32_t word_sums __attribute__((vector_size(64), aligned(4), may_alias));
typedef int16_t word_pairs __attribute__((vector_size(64), aligned(4), may_alias));
#elif defined(__AVX2__)
#define WORD_REGISTERS 2
typedef int32_t word_sums __attribute__((vector_size(32), aligned(4), may_alias));
typedef int16_t word_pairs __attribute__((vector_size(32), aligned(4), may_alias));
#else
#define WORD_REGISTERS 4
typedef int32_t word_sums __attribute__((vector_size(16), aligned(4), may_alias));
typedef int16_t word_pairs __attribute__((vector_size(16), aligned(4), may_alias));
#endif

/* Adds to each lane the two products of its pair of weights with one pair of inputs, the first of
 * each in the low half. The sums fit 32 bits. */
INLINE word_sums words_dot(word_sums sums, word_pairs weights, const uint32_t *inputs)
{
#if defined(__AVX512BW__)
    sums += (word_sums)_mm512_madd_epi16((__m512i)weights, _mm512_set1_epi32((int)*inputs));
#elif defined(__AVX2__)
    sums += (word_sums)_mm256_madd_epi16((__m256i)weights, _mm256_set1_epi32((int)*inputs));
#elif defined(__SSE2__)
    sums += (word_sums)_mm_madd_epi16((__m128i)weights, _mm_set1_epi32((int)*inputs));
#else
    word_sums words = (word_sums)weights;
    sums += (words << 16 >> 16) * (int16_t)*inputs + (words >> 16) * (int16_t)(*inputs >> 16);
#endif
#if defined(__x86_64__)
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
INLINE v16i bytes_dot(v16i sums, v16u weights, const uint32_t *inputs)
{
#if defined(__AVX512VNNI__)
    const struct {
        char bytes[4];
    } *four = (const void *)inputs;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(*four));
#else
    for (int i = 0; i < 4; i++)
        sums += (v16i)(weights >> 8 * i & 0xFFu) * (int8_t)(*inputs >> 8 * i);
#endif
    return sums;
}

/* Adds to each lane both numbers of its pair. */
INLINE v16i pairs_total(v16i sums, v16u pairs)
{
#if defined(__AVX512VNNI__)
    return (v16i)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)pairs, _mm512_set1_epi16(1));
#else
    return sums + ((v16i)pairs << 16 >> 16) + ((v16i)pairs >> 16);
#endif
}

/* Where one is NaN, the second. */
INLINE v16 v16_max(v16 a, v16 b)
{
#if defined(__AVX512F__)
    return (v16)_mm512_max_ps((__m512)a, (__m512)b);
#else
    v16i larger = a > b;
    return (v16)((larger & (v16i)a) | (~larger & (v16i)b));
#endif
}

INLINE v16i v16i_max(v16i a, v16i b)
{
#if defined(__AVX512F__)
    return (v16i)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
    v16i larger = a > b;
    return (larger & a) | (~larger & b);
#endif
}

/* The lanes that lie `distance` apart in each other's place; 8, 4 or 2. */
INLINE v16i v16i_swap(v16i value, const int distance)
{
    if (distance == 8)
        return __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5,
                                       6, 7);
    if (distance == 4)
        return __builtin_shufflevector(value, value, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9,
                                       10, 11);
    return __builtin_shufflevector(value, value, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12,
                                   13);
}

/* Sum of the lanes, always in the same order. */
INLINE float v16_sum(v16 value)
{
    value += (v16)v16i_swap((v16i)value, 8);
    value += (v16)v16i_swap((v16i)value, 4);
    value += (v16)v16i_swap((v16i)value, 2);
    return value[0] + value[1];
}

/* Sum of a[i] x b[i]; whole vectors first, then what is left, always in the same order. */
INLINE float dot(const float *a, const float *b, int64_t count)
{
    v16 sum = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        sum += v16_load(a + i) * v16_load(b + i);
    float total = v16_sum(sum);
    for (; i < count; i++)
        total += a[i] * b[i];
    return total;
}

INLINE int32_t v16i_max_lane(v16i value)
{
    value = v16i_max(value, v16i_swap(value, 8));
    value = v16i_max(value, v16i_swap(value, 4));
    value = v16i_max(value, v16i_swap(value, 2));
    return value[0] > value[1] ? value[0] : value[1];
}

/* Sum of the lanes; it fits 32 bits. */
INLINE int32_t v16i_sum(v16i value)
{
    value += v16i_swap(value, 8);
    value += v16i_swap(value, 4);
    value += v16i_swap(value, 2);
    return value[0] + value[1];
}

INLINE float v16_max_lane(v16 value)
{
    value = v16_max(value, (v16)v16i_swap((v16i)value, 8));
    value = v16_max(value, (v16)v16i_swap((v16i)value, 4));
    value = v16_max(value, (v16)v16i_swap((v16i)value, 2));
    return value[0] > value[1] ? value[0] : value[1];
}

/* exp of each lane, relative error under 2^-22 for x in [-87, 88]; below that 0 (also for -inf);
 * NaN stays NaN, so that a damaged value is seen in the logits.
 * x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial is the Taylor series of degree 7, whose
 * remainder r^8 / 8! is under 6e-9. */
INLINE v16 v16_exp(v16 x)
{
    v16i in_range = x > v16_all(-87.0f);
    v16i too_large = x > v16_all(88.0f);
    v16 clean = (v16)((in_range & (v16i)x));
    clean = (v16)((too_large & (v16i)v16_all(88.0f)) | (~too_large & (v16i)clean));
    /* Adding 1.5 x 2^23 rounds to the nearest integer and leaves it in the low bits. */
    v16 shifted = clean * 1.44269504f + 12582912.0f;
    v16i n = (v16i)shifted - (v16i)v16_all(12582912.0f);
    v16 rounded = shifted - 12582912.0f;
    v16 r = clean - rounded * 0.693359375f;
    r = r - rounded * -2.12194440e-4f;
    v16 sum = r * (1.0f / 5040) + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    v16 power = (v16)((n + 127) << 23);
    v16i is_nan = x != x;
    return (v16)(((v16i)(sum * power) & in_range) | is_nan);
}

/* 2^r for r in [-1/2, 1/2]: the polynomial of degree 5 with least largest relative error there
 * among those that are 1 at 0, 9.2e-8. */
INLINE v16 exp2_polynomial(v16 r)
{
    v16 sum = r * 0.00132647274f + 0.00967151281f;
    sum = sum * r + 0.0555073374f;
    sum = sum * r + 0.240222421f;
    sum = sum * r + 0.693146978f;
    return sum * r + 1.0f;
}

/* 2^x of each lane that is not above 0, relative error under 2^-22; below -126 0 (also for -inf);
 * NaN stays NaN. */
INLINE v16 v16_exp2_falling(v16 x)
{
#if defined(__AVX512F__)
    /* Not behind the comparison where it is NaN. The mask leaves out what would be denormal. */
    const int to_nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    __mmask16 counts = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    v16 n = (v16)_mm512_roundscale_ps((__m512)x, to_nearest);
    v16 power = exp2_polynomial(x - n);
    return (v16)_mm512_maskz_scalef_ps(counts, (__m512)power, (__m512)n);
#else
    v16i is_small = x < v16_all(-126.0f), is_nan = x != x;
    /* Adding 1.5 x 2^23 rounds to the nearest integer and leaves it in the low bits. */
    v16 shifted = x + 12582912.0f;
    v16u power = (v16u)exp2_polynomial(x - (shifted - 12582912.0f)) + ((v16u)shifted << 23);
    return (v16)(((v16i)power & ~is_small) | is_nan);
#endif
}

INLINE v16 v16_silu(v16 x)
{
    return x / (1.0f + v16_exp(-x));
}

#endif

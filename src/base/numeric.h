/* Number types of weights and caches, and conversions between them. */
#ifndef PHASOR_BASE_NUMERIC_H
#define PHASOR_BASE_NUMERIC_H

#include <stdint.h>
#include <string.h>

/* DTYPE_INT4 is for packed matrices alone: nibbles with scales (layout/packing.h). */
enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_INT4 };

static inline int64_t dtype_bits(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 32 : dtype == DTYPE_INT4 ? 4 : 16;
}

/* Of a value that has whole bytes. */
static inline int64_t dtype_bytes(enum dtype dtype)
{
    return dtype_bits(dtype) / 8;
}

static inline const char *dtype_name(enum dtype dtype)
{
    return dtype == DTYPE_F32    ? "float32"
           : dtype == DTYPE_BF16 ? "bfloat16"
           : dtype == DTYPE_F16  ? "float16"
                                 : "int4";
}

static inline float f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float bf16_to_f32(uint16_t value)
{
    return f32_from_bits((uint32_t)value << 16);
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline uint16_t bf16_from_f32(float value)
{
    uint32_t bits = f32_bits(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

/* IEEE binary16; exact. */
static inline float f16_to_f32(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t exponent = value >> 10 & 0x1F;
    uint32_t mantissa = value & 0x3FFu;
    if (exponent == 31)
        return f32_from_bits(sign | 0x7F800000u | mantissa << 13);
    if (exponent == 0) { /* zero and subnormals: mantissa x 2^-24 */
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Rounds to nearest, ties to even; too large becomes infinity. */
static inline uint16_t f16_from_f32(float value)
{
    uint32_t bits = f32_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u);
    if (magnitude >= 0x477FF000u) /* 65520 and above */
        return (uint16_t)(sign | 0x7C00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: let the f32 adder round to units of 2^-24 */
        float shifted = f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (f32_bits(shifted) - 0x3F000000u));
    }
    uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

/* `count` values from one type to another; the arrays do not overlap. Going to the same type
 * copies. bf16 and f16 meet through f32; DTYPE_INT4 is none of them. */
void numeric_convert(void *out, enum dtype out_dtype, const void *in, enum dtype in_dtype,
                     int64_t count);

#endif

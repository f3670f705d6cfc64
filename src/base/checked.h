/* Arithmetic for numbers that come from a file. Raw operators are never used on such numbers.
 * Each returns true when the result fits and was stored; on false `*out` is unchanged. */
#ifndef PHASOR_BASE_CHECKED_H
#define PHASOR_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool checked_add(uint64_t *out, uint64_t a, uint64_t b)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *out = sum;
    return true;
}

static inline bool checked_mul(uint64_t *out, uint64_t a, uint64_t b)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *out = product;
    return true;
}

/* Whether [offset, offset + bytes) lies within [0, limit). */
static inline bool checked_range(uint64_t offset, uint64_t bytes, uint64_t limit)
{
    return offset <= limit && bytes <= limit - offset;
}

/* For our own sizes, which are known to be small. */
static inline int64_t round_up(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static inline int64_t ceil_div(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit;
}

#endif

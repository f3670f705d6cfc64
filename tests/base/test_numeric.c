/* All 65,536 values of both 16-bit types against their definition, and rounding against the
 * neighbours of each value. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/numeric.h"
#include "base/random.h"

struct format {
    int exponent_bits, mantissa_bits;
    float (*to_f32)(uint16_t);
    uint16_t (*from_f32)(float);
};

static float bf16_widen(uint16_t value)
{
    return bf16_to_f32(value);
}

static uint16_t bf16_narrow(float value)
{
    return bf16_from_f32(value);
}

static float f16_widen(uint16_t value)
{
    return f16_to_f32(value);
}

static uint16_t f16_narrow(float value)
{
    return f16_from_f32(value);
}

static const struct format formats[] = {
    {8, 7, bf16_widen, bf16_narrow},
    {5, 10, f16_widen, f16_narrow},
};

static bool is_nan_bits(const struct format *format, uint16_t bits)
{
    uint16_t infinity = (uint16_t)(((1 << format->exponent_bits) - 1) << format->mantissa_bits);
    return (bits & 0x7FFF) > infinity;
}

/* By definition of the format, with ldexp. */
static double value_of(const struct format *format, uint16_t bits)
{
    int bias = (1 << (format->exponent_bits - 1)) - 1;
    int exponent = (bits & 0x7FFF) >> format->mantissa_bits;
    int mantissa = bits & ((1 << format->mantissa_bits) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << format->exponent_bits) - 1)
        return mantissa == 0 ? sign * INFINITY : NAN;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - format->mantissa_bits);
    return sign *
           ldexp(mantissa + (1 << format->mantissa_bits), exponent - bias - format->mantissa_bits);
}

Test(numeric, every_value_widens_exactly_and_comes_back)
{
    for (int f = 0; f < 2; f++) {
        const struct format *format = &formats[f];
        for (uint32_t bits = 0; bits < 0x10000; bits++) {
            float wide = format->to_f32((uint16_t)bits);
            uint16_t back = format->from_f32(wide);
            if (is_nan_bits(format, (uint16_t)bits)) {
                if (!isnan(wide) || !is_nan_bits(format, back) || (back ^ bits) & 0x8000)
                    cr_assert(false, "format %d, NaN %04X gives %g and %04X", f, bits, (double)wide,
                              back);
                continue;
            }
            double expected = value_of(format, (uint16_t)bits);
            if ((double)wide != expected || !signbit(wide) != !(bits & 0x8000))
                cr_assert(false, "format %d, %04X gives %g instead of %g", f, bits, (double)wide,
                          expected);
            if (back != bits)
                cr_assert(false, "format %d, %04X comes back as %04X", f, bits, back);
        }
    }
}

/* Between each two neighbours: the tie goes to the even one, what is nearer goes to the nearer. */
Test(numeric, rounds_to_the_nearest_and_ties_to_even)
{
    for (int f = 0; f < 2; f++) {
        const struct format *format = &formats[f];
        uint16_t infinity = (uint16_t)(((1 << format->exponent_bits) - 1) << format->mantissa_bits);
        for (uint16_t low = 0; low < infinity; low++) {
            /* Above the largest finite value the next would be one step on; half of it overflows.
             */
            double a = value_of(format, low), b = value_of(format, low + 1);
            if (low + 1 == infinity)
                b = a + (a - value_of(format, low - 1));
            float middle = (float)((a + b) / 2);
            cr_assert_eq((double)middle, (a + b) / 2);
            uint16_t even = low % 2 == 0 ? low : low + 1;
            const struct {
                float value;
                uint16_t expected;
            } cases[] = {{middle, even},
                         {nextafterf(middle, 0), low},
                         {nextafterf(middle, INFINITY), (uint16_t)(low + 1)}};
            for (int i = 0; i < 3; i++) {
                uint16_t up = format->from_f32(cases[i].value);
                uint16_t down = format->from_f32(-cases[i].value);
                if (up != cases[i].expected || down != (cases[i].expected | 0x8000))
                    cr_assert(false, "format %d: %a rounds to %04X and %04X instead of %04X", f,
                              (double)cases[i].value, up, down, cases[i].expected);
            }
        }
    }
}

Test(numeric, too_large_and_too_small)
{
    static const struct {
        float value;
        uint16_t bf16, f16;
    } cases[] = {
        {INFINITY, 0x7F80, 0x7C00},      {-INFINITY, 0xFF80, 0xFC00},
        {3.4028235e38f, 0x7F80, 0x7C00}, {65504, 0x4780, 0x7BFF},
        {65519.996f, 0x4780, 0x7BFF},    {65520, 0x4780, 0x7C00},
        {1e-45f, 0x0000, 0x0000},        {-1e-45f, 0x8000, 0x8000},
        {0x1p-25f, 0x3300, 0x0000},      {0x1.000002p-25f, 0x3300, 0x0001},
        {0x1p-24f, 0x3380, 0x0001},      {0, 0, 0},
        {-0.0f, 0x8000, 0x8000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(bf16_from_f32(cases[i].value), cases[i].bf16, "case %zu: %04X", i,
                     bf16_from_f32(cases[i].value));
        cr_assert_eq(f16_from_f32(cases[i].value), cases[i].f16, "case %zu: %04X", i,
                     f16_from_f32(cases[i].value));
    }
    /* NaN whose payload stands in the low bits only must not become infinity. */
    cr_assert(isnan(bf16_to_f32(bf16_from_f32(f32_from_bits(0x7F800001)))));
    cr_assert(isnan(f16_to_f32(f16_from_f32(f32_from_bits(0xFF800001)))));
}

Test(numeric, convert_between_all_types)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct random random = {.seed = 5};
    float values[100];
    for (int i = 0; i < 100; i++)
        values[i] = (float)random_normal(&random);
    for (int from = 0; from < 3; from++) {
        for (int to = 0; to < 3; to++) {
            unsigned char in[400], out[404];
            numeric_convert(in, types[from], values, DTYPE_F32, 100);
            memset(out, 0xEE, sizeof out);
            numeric_convert(out, types[to], in, types[from], 100);
            for (int64_t i = 0; i < 100; i++) {
                float expected = values[i], found;
                uint16_t half;
                if (types[from] != DTYPE_F32)
                    expected = from == 1 ? bf16_to_f32(bf16_from_f32(expected))
                                         : f16_to_f32(f16_from_f32(expected));
                if (types[to] == DTYPE_F32) {
                    memcpy(&found, out + 4 * i, 4);
                } else {
                    memcpy(&half, out + 2 * i, 2);
                    found = to == 1 ? bf16_to_f32(half) : f16_to_f32(half);
                    expected = to == 1 ? bf16_to_f32(bf16_from_f32(expected))
                                       : f16_to_f32(f16_from_f32(expected));
                }
                cr_assert_eq(found, expected, "%s to %s", dtype_name(types[from]),
                             dtype_name(types[to]));
            }
            cr_assert_eq(out[100 * dtype_bytes(types[to])], 0xEE);
        }
    }
}

#include <criterion/criterion.h>

#include "base/checked.h"

#define MOST UINT64_MAX

struct operation {
    uint64_t a, b;
    bool fits;
    uint64_t result;
};

Test(checked, add)
{
    static const struct operation cases[] = {
        {0, 0, true, 0},     {1, 2, true, 3},           {MOST, 0, true, MOST},  {MOST, 1, false, 0},
        {1, MOST, false, 0}, {MOST - 5, 5, true, MOST}, {MOST, MOST, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t out = 77;
        cr_assert_eq(checked_add(&out, cases[i].a, cases[i].b), cases[i].fits, "case %zu", i);
        cr_assert_eq(out, cases[i].fits ? cases[i].result : 77, "case %zu", i);
    }
}

Test(checked, mul)
{
    static const struct operation cases[] = {
        {0, MOST, true, 0},
        {MOST, 1, true, MOST},
        {MOST, 2, false, 0},
        {1ull << 32, 1ull << 32, false, 0},
        {1ull << 32, (1ull << 32) - 1, true, 0xFFFFFFFF00000000u},
        {MOST / 3, 3, true, MOST},
        {MOST / 3 + 1, 3, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t out = 77;
        cr_assert_eq(checked_mul(&out, cases[i].a, cases[i].b), cases[i].fits, "case %zu", i);
        cr_assert_eq(out, cases[i].fits ? cases[i].result : 77, "case %zu", i);
    }
}

Test(checked, range_within_a_limit)
{
    static const struct {
        uint64_t offset, bytes, limit;
        bool within;
    } cases[] = {
        {0, 0, 0, true},       {0, 1, 0, false},          {0, 10, 10, true},
        {1, 10, 10, false},    {10, 0, 10, true},         {11, 0, 10, false},
        {MOST, 2, 10, false},  {2, MOST, 10, false},      {1, MOST, MOST, false},
        {0, MOST, MOST, true}, {MOST, MOST, MOST, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_assert_eq(checked_range(cases[i].offset, cases[i].bytes, cases[i].limit),
                     cases[i].within, "case %zu", i);
}

Test(checked, own_sizes)
{
    for (int64_t value = 0; value < 100; value++) {
        for (int64_t unit = 1; unit < 20; unit++) {
            int64_t up = round_up(value, unit);
            cr_assert(up >= value && up < value + unit && up % unit == 0);
            cr_assert_eq(ceil_div(value, unit), up / unit);
        }
    }
}

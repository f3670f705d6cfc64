#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "base/random.h"

/* Computed apart, with arbitrary-precision integers. They must never change: a recorded seed stands
 * for a recorded result. */
Test(random, known_values)
{
    static const struct {
        uint64_t in, out;
    } mixes[] = {
        {0, 0xE220A8397B1DCDAF},                  /* the first output of splitmix64 with seed 0 */
        {0x9E3779B97F4A7C15, 0x6E789E6AA1B965F4}, /* the second */
        {0x3C6EF372FE94F82A, 0x06C45D188009454F}, /* the third */
    };
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++)
        cr_assert_eq(random_mix(mixes[i].in), mixes[i].out, "%zu", i);
    static const struct {
        uint64_t seed, position, index, out;
    } draws[] = {
        {0, 0, 0, 0x238275BC38FCBE91},
        {1, 0, 0, 0xB18A02F46D8D86C3},
        {0, 1, 0, 0x44E5B98100C67FB0},
        {0, 0, 1, 0x2F32A78496C67C60},
        {42, 1000, 31999, 0x17073CA11A6DB2C1},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, 0x595B17F487C0E71B},
    };
    for (size_t i = 0; i < sizeof draws / sizeof draws[0]; i++)
        cr_assert_eq(random_at(draws[i].seed, draws[i].position, draws[i].index), draws[i].out,
                     "%zu", i);
}

Test(random, seeds_that_are_made_differ)
{
    cr_assert_neq(random_seed_make(), random_seed_make());
}

Test(random, a_stream_is_its_draws)
{
    struct random random = {.seed = 42, .position = 7};
    for (uint64_t i = 0; i < 10; i++)
        cr_assert_eq(random_next(&random), random_at(42, 7 + i, 0));
}

Test(random, unit_is_never_0_or_1)
{
    cr_assert_eq(random_unit(0), 0x1p-53);
    cr_assert_eq(random_unit(UINT64_MAX), 1 - 0x1p-53);
    cr_assert(isfinite(log(-log(random_unit(0)))));
    cr_assert(isfinite(log(-log(random_unit(UINT64_MAX)))));
    for (int bit = 0; bit < 64; bit++) {
        double unit = random_unit(1ull << bit);
        cr_assert(unit > 0 && unit < 1);
    }
}

Test(random, below_reaches_all_and_only_those)
{
    struct random random = {.seed = 3};
    int counts[7] = {0};
    for (int i = 0; i < 70000; i++) {
        uint64_t value = random_below(&random, 7);
        cr_assert_lt(value, 7);
        counts[value]++;
    }
    for (int i = 0; i < 7; i++) /* the standard deviation is 93 */
        cr_assert(abs(counts[i] - 10000) < 400, "%d: %d", i, counts[i]);
    cr_assert_eq(random_below(&random, 1), 0);
}

/* 200,000 draws: the mean has a standard deviation of 0.0022, the variance 0.0032, the share within
 * one of 0.0010. Five of each. */
Test(random, normal_has_the_moments)
{
    struct random random = {.seed = 4};
    double sum = 0, squares = 0, cubes = 0, within = 0;
    const int count = 200000;
    for (int i = 0; i < count; i++) {
        double value = random_normal(&random);
        sum += value;
        squares += value * value;
        cubes += value * value * value;
        within += fabs(value) < 1;
    }
    cr_assert_float_eq(sum / count, 0, 0.011);
    cr_assert_float_eq(squares / count, 1, 0.016);
    cr_assert_float_eq(cubes / count, 0, 0.045);
    cr_assert_float_eq(within / count, 0.682689, 0.005);
}

/* Neighbouring seeds, positions and indices give unrelated bits: about half of them differ. */
Test(random, neighbours_are_unrelated)
{
    int64_t differing[3] = {0};
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t here = random_at(i, i, i);
        differing[0] += __builtin_popcountll(here ^ random_at(i + 1, i, i));
        differing[1] += __builtin_popcountll(here ^ random_at(i, i + 1, i));
        differing[2] += __builtin_popcountll(here ^ random_at(i, i, i + 1));
    }
    for (int i = 0; i < 3; i++) /* of 64,000; the standard deviation is 126 */
        cr_assert(llabs(differing[i] - 32000) < 650, "%d: %lld", i, (long long)differing[i]);
}

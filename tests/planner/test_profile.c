/* Times between and beyond measured points, by hand. */
#include <criterion/criterion.h>
#include <math.h>

#include "planner/profile.h"

TestSuite(profile, .timeout = 30);

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

/* 1e9 flops a second, 1e8 bytes a second, a microsecond beside. Measured with 1 and 100 rows, of 10
 * and 1000 outputs: 2, 4, 8, 16 times the roofline. */
static const double rows[] = {1, 100}, outputs[] = {10, 1000};
static const double ratios[] = {0.69314718055994531, 1.3862943611198906, 2.0794415416798357,
                                2.7725887222397811};
static const struct work_table matmul = {
    .kind = WORK_MATMUL,
    .dtype = DTYPE_BF16,
    .flops_per_second = 1e9,
    .bytes_per_second = 1e8,
    .fixed = 1e-6,
    .axis_count = 2,
    .axes = {{0, -1, 2, rows}, {1, -1, 2, outputs}},
    .log_ratios = ratios,
};

static double roofline(const struct work_shape *work)
{
    return 1e-6 + fmax(work_shape_flops(work) / 1e9, work_shape_bytes(work) / 1e8);
}

static const struct {
    int64_t rows, outputs;
    double ratio;
} points[] = {
    {1, 10, 2},
    {1, 1000, 4},
    {100, 10, 8},
    {100, 1000, 16},
    {10, 10, 4}, /* half way from 2 to 8 in the logarithms */
    {10, 1000, 8},
    {1, 100, 2.8284271247461903},
    {10, 100, 5.6568542494923806},
    {1000, 10, 8}, /* beyond: as at the edge */
    {1000, 5000, 16},
    {1, 1, 2},
};

Test(profile, ratios_are_interpolated_in_logarithms)
{
    const struct profile profile = {.work_count = 1, .work = &matmul};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        struct work_shape work = {WORK_MATMUL, DTYPE_BF16, {points[i].rows, points[i].outputs, 64}};
        double seconds = profile_work_seconds(&profile, &work);
        cr_assert(is_near(seconds, points[i].ratio * roofline(&work)), "%lld x %lld: %g, not %g",
                  (long long)points[i].rows, (long long)points[i].outputs,
                  seconds / roofline(&work), points[i].ratio);
    }
}

/* Rows of each expert, not rows, may be what a time goes by. */
Test(profile, an_axis_may_be_a_quotient)
{
    static const double per_expert[] = {1, 16};
    static const double log_ratios[] = {0, 0.69314718055994531};
    const struct work_table table = {
        .kind = WORK_FFN_UP,
        .dtype = DTYPE_INT4,
        .flops_per_second = 1e9,
        .bytes_per_second = INFINITY,
        .axis_count = 1,
        .axes = {{0, 1, 2, per_expert}},
        .log_ratios = log_ratios,
    };
    const struct profile profile = {.work_count = 1, .work = &table};
    struct work_shape work = {WORK_FFN_UP, DTYPE_INT4, {32, 8, 16, 64}};
    cr_assert(is_near(profile_work_seconds(&profile, &work), sqrt(2) * 4.0 * 32 * 16 * 64 / 1e9));
    work.dims[0] = 8;
    cr_assert(is_near(profile_work_seconds(&profile, &work), 4.0 * 8 * 16 * 64 / 1e9));
}

/* Two rows of scores may be of two heads and of two rows: of one row for each sequence they are of
 * heads, which the last number of heads has, too. */
Test(profile, in_decode_rows_of_scores_are_heads)
{
    static const double scores[] = {1, 4}, heads[] = {1, 8};
    static const double log_ratios[] = {0, 0, 0.69314718055994531, 2.0794415416798357};
    const struct work_table table = {
        .kind = WORK_ATTENTION,
        .dtype = DTYPE_BF16,
        .flops_per_second = INFINITY,
        .bytes_per_second = INFINITY,
        .fixed = 1,
        .axis_count = 2,
        .axes = {{WORK_SIZE_SCORE_ROWS, -1, 2, scores}, {3, 4, 2, heads}},
        .log_ratios = log_ratios,
    };
    const struct profile profile = {.work_count = 1, .work = &table};
    struct work_shape work = {WORK_ATTENTION, DTYPE_BF16, {3, 300, 300, 8, 2, 64}};
    cr_expect(is_near(profile_work_seconds(&profile, &work), 8));
    work.dims[3] = 4;
    cr_expect(is_near(profile_work_seconds(&profile, &work), sqrt(8)));
    work = (struct work_shape){WORK_ATTENTION, DTYPE_BF16, {12, 1200, 300, 1, 1, 64}};
    cr_expect(is_near(profile_work_seconds(&profile, &work), 2), "four rows of one head");
}

Test(profile, what_was_not_measured_has_no_time)
{
    const struct profile profile = {.work_count = 1, .work = &matmul};
    struct work_shape work = {WORK_MATMUL, DTYPE_F32, {1, 16, 16}};
    cr_assert(isinf(profile_work_seconds(&profile, &work)));
    work.kind = WORK_OTHER;
    cr_assert_eq(profile_work_seconds(&profile, &work), 0);
    cr_assert(isinf(profile_collective_seconds(&profile, GROUP_ALL_GATHER, 2, false, 1)));
    cr_assert_eq(profile_collective_seconds(&profile, GROUP_ALL_GATHER, 1, false, 1), 0);
    cr_assert_eq(profile_collective_seconds(&profile, GROUP_ALL_GATHER, 2, false, 0), 0);
}

static const struct {
    double bytes, seconds;
} messages[] = {
    {1, 1e-5},    {100, 1e-5}, /* no faster than the smallest */
    {1000, 1e-4}, {316.22776601683796, 3.1622776601683795e-05},
    {1e4, 4e-4},  {1e5, 4e-3},
};

Test(profile, collectives_are_interpolated_between_bytes)
{
    static const double bytes[] = {100, 1000, 1e4}, seconds[] = {1e-5, 1e-4, 4e-4};
    const struct collective_table table = {GROUP_ALL_REDUCE, 4, true, 3, bytes, seconds, false};
    const struct profile profile = {.collective_count = 1, .collectives = &table};
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        double found =
            profile_collective_seconds(&profile, GROUP_ALL_REDUCE, 4, true, messages[i].bytes);
        cr_assert(is_near(found, messages[i].seconds), "%g bytes: %g", messages[i].bytes, found);
    }
    cr_assert(isinf(profile_collective_seconds(&profile, GROUP_ALL_REDUCE, 4, false, 1)));
    cr_assert(isinf(profile_collective_seconds(&profile, GROUP_ALL_REDUCE, 2, true, 1)));
}

static const struct {
    double bytes, fullest, seconds;
} uneven[] = {
    {1000, 1, 1e-4},   {1000, 4, 4e-5},   {1000, 2.5, 7e-5}, {100, 2.5, 7e-6},
    {1000, 0.5, 1e-4}, {1000, 4.5, 4e-5}, {0, 2, 0},
};

/* Between an even one and one to a single member; without a table of that as an even one. */
Test(profile, an_uneven_exchange_is_between_an_even_one_and_one_to_one)
{
    static const double bytes[] = {100, 1000}, seconds[] = {1e-5, 1e-4}, less[] = {4e-6, 4e-5};
    const struct collective_table tables[] = {
        {GROUP_ALL_TO_ALL, 4, false, 2, bytes, less, true},
        {GROUP_ALL_TO_ALL, 4, false, 2, bytes, seconds, false},
        {GROUP_ALL_TO_ALL, 2, false, 2, bytes, seconds, false},
    };
    const struct profile profile = {.collective_count = 3, .collectives = tables};
    for (size_t i = 0; i < sizeof uneven / sizeof *uneven; i++) {
        double found =
            profile_all_to_all_seconds(&profile, 4, false, uneven[i].bytes, uneven[i].fullest);
        cr_assert(is_near(found, uneven[i].seconds), "case %zu: %g", i, found);
    }
    cr_assert_eq(profile_all_to_all_seconds(&profile, 2, false, 1000, 2), 1e-4);
    cr_assert(isinf(profile_all_to_all_seconds(&profile, 4, true, 1000, 2)));
    cr_assert_eq(profile_collective_seconds(&profile, GROUP_ALL_TO_ALL, 4, false, 1000), 1e-4);
    const struct profile no_even = {.collective_count = 1, .collectives = tables};
    cr_assert(isinf(profile_all_to_all_seconds(&no_even, 4, false, 1000, 4)));
}

/* What is no time is not known: it is never less than another. */
Test(profile, nonsense_is_infinite)
{
    static const double nonsense[] = {NAN, -1e9};
    for (size_t i = 0; i < 2; i++) {
        const double ratio = 0, bytes[] = {1, 2}, seconds[] = {nonsense[i], nonsense[i]};
        struct work_table work = {.kind = WORK_MATMUL,
                                  .dtype = DTYPE_BF16,
                                  .flops_per_second = 1e12,
                                  .bytes_per_second = 1e12,
                                  .fixed = nonsense[i],
                                  .log_ratios = &ratio};
        struct collective_table collective = {GROUP_ALL_GATHER, 2, false, 2, bytes, seconds, false};
        struct profile profile = {
            .work_count = 1, .collective_count = 1, .work = &work, .collectives = &collective};
        struct work_shape product = {WORK_MATMUL, DTYPE_BF16, {64, 64, 64}};
        cr_assert_eq(profile_work_seconds(&profile, &product), INFINITY);
        cr_assert_eq(profile_collective_seconds(&profile, GROUP_ALL_GATHER, 2, false, 1.5),
                     INFINITY);
        cr_assert_eq(profile_collective_seconds(&profile, GROUP_ALL_GATHER, 2, false, 8), INFINITY);
        cr_assert_eq(profile_rate_seconds(1, nonsense[i]), INFINITY);
        cr_assert_eq(profile_rate_seconds(0, nonsense[i]), 0);
    }
}

Test(profile, a_link_is_shared_by_halves_at_most)
{
    static const struct {
        double alone, busy, sharing;
    } cases[] = {{10, 10, 0}, {10, 12, 0}, {10, 8, 0.25}, {10, 5, 1},
                 {10, 2, 1},  {10, 0, 0},  {10, NAN, 0},  {NAN, 10, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct profile profile = {.host_to_device = cases[i].alone,
                                  .host_to_device_busy = cases[i].busy};
        cr_assert_float_eq(profile_link_sharing(&profile), cases[i].sharing, 1e-12, "case %zu", i);
    }
}

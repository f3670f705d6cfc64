/* The search in vectors against a slow one that looks at one group alone, in the same ranges. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/numeric.h"
#include "base/random.h"
#include "quant/int4_search.h"

/* Error of a group under scale and minimum, each weight to its nearest nibble. */
static double error_of(const float *values, int64_t count, double scale, double minimum, int base)
{
    double sum = 0;
    for (int64_t k = 0; k < count; k++) {
        double q = scale == 0 ? 0 : round((values[k * INT4_LANES] - minimum) / scale);
        q = fmin(fmax(q, -base), 15 - base);
        double off = values[k * INT4_LANES] - (scale * q + minimum);
        sum += off * off;
    }
    return sum;
}

/* Least squares for the nibbles that the range from `least` on, in steps of `step`, gives. */
static double range_error(const float *values, int64_t count, double least, double step, int base)
{
    double q_sum = 0, qq = 0, w_sum = 0, wq = 0;
    for (int64_t k = 0; k < count; k++) {
        double w = values[k * INT4_LANES];
        double q = step == 0 ? 0 : fmin(fmax(round((w - least) / step), -base), 15 - base);
        q_sum += q, qq += q * q, w_sum += w, wq += w * q;
    }
    double n = (double)count, scale, minimum = 0;
    if (base == 0) {
        double variance = qq - q_sum * q_sum / n;
        scale = variance > 0 ? (wq - w_sum * q_sum / n) / variance : 0;
        minimum = (w_sum - scale * q_sum) / n;
    } else {
        scale = qq > 0 ? wq / qq : 0;
    }
    return error_of(values, count, scale, minimum, base);
}

/* The least error over many more ranges than the search tries. */
static double slow_error(const float *values, int64_t count, bool is_asymmetric)
{
    double least = values[0], most = values[0], best = INFINITY;
    for (int64_t k = 0; k < count; k++) {
        least = fmin(least, values[k * INT4_LANES]);
        most = fmax(most, values[k * INT4_LANES]);
    }
    double middle = (least + most) / 2, end = -least > most ? least : most;
    for (int i = 0; i <= 60; i++) {
        double reach = (most - least) / 2 * (1.1 - 0.008 * i);
        double step = is_asymmetric ? 2 * reach / 15 : -end / (6.5 + 0.08 * i);
        double error = range_error(values, count, is_asymmetric ? middle - reach : 0, step,
                                   is_asymmetric ? 0 : 8);
        best = fmin(best, error);
    }
    return best;
}

enum shape { NORMAL, LONG_TAILED, SHIFTED, SPARSE, SHAPE_COUNT };

static void fill(float *values, int64_t count, enum shape shape, uint64_t seed)
{
    struct random random = {.seed = seed};
    for (int64_t i = 0; i < count * INT4_LANES; i++) {
        double x = random_normal(&random);
        if (shape == LONG_TAILED)
            x *= fabs(random_normal(&random));
        if (shape == SHIFTED)
            x += 4;
        if (shape == SPARSE && random_below(&random, 8) != 0)
            x = 0;
        values[i] = (float)(0.02 * x);
    }
}

static double sum_of(const double *lanes)
{
    double sum = 0;
    for (int i = 0; i < INT4_LANES; i++)
        sum += lanes[i];
    return sum;
}

Test(int4_search, comes_near_to_a_slow_and_finer_one)
{
    static const int64_t counts[] = {16, 32, 64, 128, 240, 256};
    static float values[256 * INT4_LANES];
    static uint8_t nibbles[256 * INT4_LANES];
    for (int shape = 0; shape < SHAPE_COUNT; shape++) {
        for (int asymmetric = 0; asymmetric < 2; asymmetric++) {
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                struct int4_scales scales;
                struct int4_groups groups = {values, INT4_LANES, counts[c]};
                double found = 0, slow = 0;
                fill(values, counts[c], (enum shape)shape, 77 + c);
                cr_assert(int4_search(&scales, &groups, asymmetric));
                for (int i = 0; i < INT4_LANES; i++) {
                    slow += slow_error(values + i, counts[c], asymmetric);
                    found += error_of(values + i, counts[c], scales.scale[i], scales.minimum[i],
                                      asymmetric ? 0 : 8);
                }
                /* Of few weights each range counts; so does it where zero is most of them. */
                bool is_rough = counts[c] < 64 || (shape == SPARSE && asymmetric);
                cr_assert_leq(found, (is_rough ? 1.35 : 1.06) * slow,
                              "shape %d, asymmetric %d, %d: %g, slow %g", shape, asymmetric,
                              (int)counts[c], found, slow);
                struct int4_moments moments = {0};
                int4_round(nibbles, &groups, &scales, asymmetric, &moments);
                double left =
                    sum_of(moments.before) - 2 * sum_of(moments.product) + sum_of(moments.after);
                cr_assert_float_eq(left, found, 1e-4 * sum_of(moments.before));
            }
        }
    }
}

/* A stride beside, and nibbles that are the nearest. */
Test(int4_search, nibbles_are_the_nearest)
{
    static float values[64 * 40];
    static uint8_t nibbles[64 * INT4_LANES];
    for (int asymmetric = 0; asymmetric < 2; asymmetric++) {
        struct int4_scales scales;
        struct int4_groups groups = {values + 8, 40, 64};
        struct random random = {.seed = 3};
        for (int i = 0; i < 64 * 40; i++)
            values[i] = (float)random_normal(&random);
        cr_assert(int4_search(&scales, &groups, asymmetric));
        int4_round(nibbles, &groups, &scales, asymmetric, NULL);
        for (int k = 0; k < 64; k++) {
            for (int i = 0; i < INT4_LANES; i++) {
                double scale = scales.scale[i], value = groups.values[k * 40 + i];
                double wanted = (value - scales.minimum[i]) / scale + (asymmetric ? 0 : 8);
                double nibble = nibbles[k * INT4_LANES + i];
                cr_assert(nibble >= 0 && nibble <= 15);
                cr_assert_leq(fabs(nibble - fmin(fmax(wanted, 0), 15)), 0.5001);
            }
        }
    }
}

/* Many groups given one by one are one group. */
Test(int4_search, a_common_scale_is_that_of_one_large_group)
{
    static float values[4096 * INT4_LANES];
    for (int asymmetric = 0; asymmetric < 2; asymmetric++) {
        struct int4_common common = {.is_asymmetric = asymmetric};
        struct int4_scales scales;
        fill(values, 4096, LONG_TAILED, 9);
        for (int64_t first = 0; first < 4096; first += 256) {
            struct int4_groups groups = {values + first * INT4_LANES, INT4_LANES, 256};
            cr_assert(int4_common_extend(&common, &groups));
        }
        for (int64_t first = 0; first < 4096; first += 512) {
            struct int4_groups groups = {values + first * INT4_LANES, INT4_LANES, 512};
            int4_common_weigh(&common, &groups);
        }
        int4_common_find(&scales, &common);
        double best = INFINITY, found = 0;
        for (int i = 0; i < INT4_LANES; i++) {
            cr_assert_eq(scales.scale[i], scales.scale[0]);
            found +=
                error_of(values + i, 4096, scales.scale[i], scales.minimum[i], asymmetric ? 0 : 8);
        }
        for (double factor = 0.25; factor < 4; factor *= 1.02) {
            double error = 0, scale = scales.scale[0] * factor;
            double minimum = asymmetric ? -7.5 * scale : 0;
            for (int i = 0; i < INT4_LANES; i++)
                error += error_of(values + i, 4096, scale, minimum, asymmetric ? 0 : 8);
            best = fmin(best, error);
        }
        cr_assert_leq(found, 1.03 * best, "asymmetric %d: %g, best %g", asymmetric, found, best);
    }
}

Test(int4_search, equal_weights_and_zeros_are_exact)
{
    static const float kinds[] = {0, 0.5f, -3, 1e-20f};
    static float values[32 * INT4_LANES];
    for (int asymmetric = 0; asymmetric < 2; asymmetric++) {
        for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
            struct int4_scales scales;
            struct int4_groups groups = {values, INT4_LANES, 32};
            for (int i = 0; i < 32 * INT4_LANES; i++)
                values[i] = kinds[kind];
            cr_assert(int4_search(&scales, &groups, asymmetric));
            double error =
                error_of(values, 32, scales.scale[0], scales.minimum[0], asymmetric ? 0 : 8);
            cr_assert_leq(sqrt(error / 32), 0.004 * fabs((double)kinds[kind]));
        }
    }
}

/* Distributions of times against the sorted times themselves, and which times of a choice count. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/random.h"
#include "engine/batch_meter.h"

#define COUNT_MAX 20000

/* ---- Quantiles ----------------------------------------------------------------------------- */

static double uniform(struct random *random, double below, double above)
{
    return below + (above - below) * random_unit(random_next(random));
}

static double constant(struct random *random)
{
    (void)random;
    return 0.0123;
}

static double even(struct random *random)
{
    return uniform(random, 0.001, 0.05);
}

static double all_decades(struct random *random)
{
    return pow(10, uniform(random, -6, 6));
}

static double exponential(struct random *random)
{
    return -0.02 * log(uniform(random, 0, 1));
}

/* Steps of 2 ms with a prefill of seconds among them, as a batch has them. */
static double two_humps(struct random *random)
{
    return uniform(random, 0, 1) < 0.02 ? uniform(random, 3, 5) : uniform(random, 0.0019, 0.0021);
}

static double tiny(struct random *random)
{
    return uniform(random, 0, 1e-6);
}

static double zero_or_more(struct random *random)
{
    return random_below(random, 2) == 0 ? 0 : uniform(random, 1, 2);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* As numpy.percentile, whose neighbours are joined by a line. */
static double exact_quantile(const double *sorted, size_t count, double fraction)
{
    double place = fraction * (double)(count - 1);
    size_t below = (size_t)place;
    if (below + 1 >= count)
        return sorted[count - 1];
    return sorted[below] + (place - (double)below) * (sorted[below + 1] - sorted[below]);
}

static void expect_like_sorted(const char *name, double (*draw)(struct random *), size_t count,
                               uint64_t seed)
{
    static double values[COUNT_MAX];
    static const double fractions[] = {0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1};
    struct random random = {.seed = seed};
    struct latency latency = {0};
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        values[i] = draw(&random);
        sum += values[i];
        latency_add(&latency, values[i]);
    }
    qsort(values, count, sizeof values[0], compare);
    cr_expect_eq(latency.count, count);
    cr_expect_eq(latency_mean(&latency), sum / (double)count, "%s: the mean is exact", name);
    for (size_t i = 0; i < sizeof fractions / sizeof fractions[0]; i++) {
        double exact = exact_quantile(values, count, fractions[i]);
        double found = latency_quantile(&latency, fractions[i]);
        cr_expect_leq(fabs(found - exact), LATENCY_ERROR * exact + LATENCY_SECONDS_MIN,
                      "%s, %zu times, quantile %g: %g, exactly %g", name, count, fractions[i],
                      found, exact);
    }
}

Test(latency, quantiles_are_those_of_the_sorted_times)
{
    static const struct {
        const char *name;
        double (*draw)(struct random *);
    } cases[] = {
        {"constant", constant},         {"even", even},           {"all decades", all_decades},
        {"exponential", exponential},   {"two humps", two_humps}, {"tiny", tiny},
        {"zero or more", zero_or_more},
    };
    static const size_t counts[] = {1, 2, 3, 4, 10, 101, 1000, COUNT_MAX};
    const char *text = getenv("PHASOR_TEST_SEED");
    uint64_t seed = text == NULL ? 1 : strtoull(text, NULL, 10);
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++)
            expect_like_sorted(cases[c].name, cases[c].draw, counts[n], seed + n);
    }
}

/* Each bucket's ends, where an error of the logarithm would show. */
Test(latency, single_times_are_within_the_error)
{
    for (int i = 0; i < LATENCY_BUCKET_COUNT; i++) {
        double edge = LATENCY_SECONDS_MIN * pow(10, (double)i / LATENCY_BUCKETS_PER_DECADE);
        const double values[] = {edge * (1 - 1e-12), edge, edge * (1 + 1e-12)};
        for (size_t v = 0; v < 3; v++) {
            struct latency latency = {0};
            latency_add(&latency, 1e-9);
            latency_add(&latency, values[v]);
            latency_add(&latency, values[v]);
            latency_add(&latency, 1e9);
            double found = latency_quantile(&latency, 0.5);
            cr_expect_leq(fabs(found - values[v]), LATENCY_ERROR * values[v] + LATENCY_SECONDS_MIN,
                          "%g is found as %g", values[v], found);
        }
    }
}

Test(latency, none_and_nonsense)
{
    struct latency latency = {0};
    cr_expect_eq(latency_mean(&latency), 0);
    cr_expect_eq(latency_quantile(&latency, 0.99), 0);
    latency_add(&latency, -1);
    latency_add(&latency, NAN);
    cr_expect_eq(latency.count, 2);
    cr_expect_eq(latency_mean(&latency), 0);
    cr_expect_eq(latency_quantile(&latency, 0.5), 0);
}

/* ---- Histograms ---------------------------------------------------------------------------- */

Test(latency, a_bound_belongs_to_the_bucket_below)
{
    const struct histogram_bounds bounds = {2, {1, 2}};
    struct histogram histogram = {.bounds = &bounds};
    const double values[] = {0, 1, 1.5, 2, 2.5, 1e9};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        histogram_add(&histogram, values[i]);
    cr_expect_eq(histogram.counts[0], 2);
    cr_expect_eq(histogram.counts[1], 2);
    cr_expect_eq(histogram.counts[2], 2);
    cr_expect_eq(histogram.count, 6);
    cr_expect_eq(histogram.sum, 1e9 + 7);
}

Test(latency, bounds_rise)
{
    const struct histogram_bounds *const all[] = {&histogram_seconds, &histogram_tokens};
    for (size_t h = 0; h < 2; h++) {
        cr_expect_leq(all[h]->count, HISTOGRAM_BOUNDS_MAX);
        for (int i = 1; i < all[h]->count; i++)
            cr_expect_gt(all[h]->values[i], all[h]->values[i - 1]);
    }
}

/* ---- Choices ------------------------------------------------------------------------------- */

Test(latency, what_of_a_choice_counts)
{
    static const struct {
        struct sequence_end end;
        double ttft, tpot, e2el; /* negative: it has none */
    } cases[] = {
        {{.reason = FINISH_LENGTH,
          .token_count = 5,
          .queued_seconds = 1,
          .first_token_seconds = 2,
          .total_seconds = 4},
         2,
         0.5,
         4},
        {{.reason = FINISH_STOP, .token_count = 2, .first_token_seconds = 1, .total_seconds = 4},
         1,
         3,
         4},
        {{.reason = FINISH_CALLER, .token_count = 1, .first_token_seconds = 3, .total_seconds = 3},
         3,
         -1,
         3},
        {{.reason = FINISH_LENGTH, .total_seconds = 2}, -1, -1, 2},
        {{.reason = FINISH_FAILED, .token_count = 3, .first_token_seconds = 1, .total_seconds = 2},
         -1,
         -1,
         -1},
        {{.reason = FINISH_CANCELLED, .token_count = 3, .total_seconds = 2}, -1, -1, -1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        static struct batch_meter meter;
        batch_meter_init(&meter);
        batch_meter_choice(&meter, &cases[c].end);
        const struct {
            enum meter_latency latency;
            enum meter_histogram histogram;
            double expected;
        } times[] = {{METER_TTFT, METER_FIRST_TOKEN, cases[c].ttft},
                     {METER_TPOT, METER_PER_TOKEN, cases[c].tpot},
                     {METER_E2EL, METER_WHOLE, cases[c].e2el}};
        for (size_t t = 0; t < 3; t++) {
            const struct latency *latency = &meter.latencies[times[t].latency];
            cr_expect_eq(latency->count, times[t].expected >= 0, "case %zu, time %zu", c, t);
            cr_expect_eq(meter.histograms[times[t].histogram].count, latency->count);
            if (times[t].expected >= 0)
                cr_expect_float_eq(latency_mean(latency), times[t].expected, 1e-12,
                                   "case %zu, time %zu", c, t);
        }
        cr_expect_eq(meter.stop_count + meter.length_count, cases[c].e2el >= 0);
    }
}

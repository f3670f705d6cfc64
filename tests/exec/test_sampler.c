/* Sampling against a naive form of its header: full sort, full sums, noise for every token. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "exec/sampler.h"

#define VOCAB_MAX 4096

static void sampler_open(struct sampler *sampler, int64_t vocab)
{
    struct error err;
    cr_assert_eq(sampler_init(sampler, vocab, &err), STATUS_OK);
}

static void logits_fill(float *logits, int64_t vocab, uint64_t seed, double spread)
{
    struct random random = {.seed = seed};
    for (int64_t i = 0; i < vocab; i++)
        logits[i] = (float)(spread * random_normal(&random));
}

/* ---- The naive form ------------------------------------------------------------------------ */

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->at - y->at;
}

/* The ranked tokens that the limits keep: min_p, then top_k, then top_p over what is left. */
static int64_t naive_kept(struct candidate *out, const float *logits, int64_t vocab,
                          const struct sampler_choice *choice)
{
    double mass[VOCAB_MAX], total = 0, held = 0;
    int64_t count = 0, kept = 0;
    for (int64_t i = 0; i < vocab; i++)
        out[i] = (struct candidate){logits[i], (int32_t)i};
    qsort(out, (size_t)vocab, sizeof *out, compare_candidates);
    for (int64_t i = 0; i < vocab; i++)
        mass[i] = exp(((double)out[i].logit - (double)out[0].logit) / choice->temperature);
    while (count < vocab && (count == 0 || mass[count] >= choice->min_p))
        count++;
    if (choice->top_k > 0 && choice->top_k < count)
        count = choice->top_k;
    for (int64_t i = 0; i < count; i++)
        total += mass[i];
    while (kept < count && (kept == 0 || held < choice->top_p * total))
        held += mass[kept++];
    return choice->top_p < 1 ? kept : count;
}

static double naive_score(const struct candidate *candidate, const struct sampler_choice *choice)
{
    double u = random_unit(random_at(choice->seed, choice->position, (uint64_t)candidate->at));
    return (double)candidate->logit / choice->temperature - log(-log(u));
}

static int32_t naive_choose(const float *logits, int64_t vocab, const struct sampler_choice *choice)
{
    static struct candidate kept[VOCAB_MAX];
    int64_t count = naive_kept(kept, logits, vocab, choice), best = 0;
    for (int64_t i = 1; i < count; i++) {
        if (naive_score(&kept[i], choice) > naive_score(&kept[best], choice))
            best = i;
    }
    return kept[best].at;
}

/* ---- Greedy and ranks ---------------------------------------------------------------------- */

Test(sampler, greedy_takes_the_lowest_id_among_equals)
{
    static const struct {
        float logits[5];
        int32_t expected;
    } cases[] = {
        {{1, 2, 3, 2, 1}, 2},
        {{3, 3, 3, 3, 3}, 0},
        {{-5, -4, -4, -9, -4}, 1},
        {{0, -0.0f, 0, 0, 0}, 0},
        {{-INFINITY, -1e38f, -INFINITY, -1e38f, -2e38f}, 1},
        {{1, 2, 3, 4, 4.0000005f}, 4},
    };
    struct sampler sampler;
    sampler_open(&sampler, 5);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sampler_choice greedy = {.top_p = 1, .seed = i, .top_k = 3, .min_p = 0.5};
        cr_assert_eq(sampler_choose(&sampler, cases[i].logits, &greedy), cases[i].expected,
                     "case %zu", i);
    }
    sampler_deinit(&sampler);
}

Test(sampler, top_is_a_full_sort)
{
    static const int64_t vocabs[] = {1, 2, 7, 64, 1000};
    static float logits[VOCAB_MAX];
    static struct candidate sorted[VOCAB_MAX];
    const struct candidate *top;
    for (size_t v = 0; v < sizeof vocabs / sizeof vocabs[0]; v++) {
        int64_t vocab = vocabs[v];
        struct sampler sampler;
        sampler_open(&sampler, vocab);
        logits_fill(logits, vocab, v, 2);
        for (int64_t i = 0; i < vocab; i++)
            logits[i] = roundf(logits[i] * 4) / 4; /* many ties */
        struct sampler_choice all = {.temperature = 1, .top_p = 1};
        cr_assert_eq(naive_kept(sorted, logits, vocab, &all), vocab);
        for (int64_t count = 0; count <= vocab + 2; count += vocab > 100 ? 97 : 1) {
            int64_t expected = count < vocab ? count : vocab;
            cr_assert_eq(sampler_top(&sampler, logits, count, &top), expected);
            for (int64_t i = 0; i < expected; i++)
                cr_assert(top[i].at == sorted[i].at && top[i].logit == sorted[i].logit,
                          "vocab %lld, top %lld: rank %lld is %d instead of %d", (long long)vocab,
                          (long long)count, (long long)i, top[i].at, sorted[i].at);
        }
        sampler_deinit(&sampler);
    }
}

Test(sampler, log_sum_exp)
{
    static const float flat[4] = {0, 0, 0, 0}, large[2] = {1e30f, 1e30f},
                       low[3] = {-3e4f, -3e4f, -INFINITY};
    cr_assert_float_eq(sampler_log_sum_exp(flat, 4), log(4), 1e-12);
    cr_assert_float_eq(sampler_log_sum_exp(flat, 1), 0, 1e-12);
    cr_assert_eq(sampler_log_sum_exp(large, 2), (double)1e30f + log(2));
    cr_assert_float_eq(sampler_log_sum_exp(low, 3), -3e4 + log(2), 1e-9);
    float broken[3] = {0, NAN, 1};
    cr_assert(!isfinite(sampler_log_sum_exp(broken, 3)));
    float first_broken[3] = {NAN, 0, 1};
    cr_assert(!isfinite(sampler_log_sum_exp(first_broken, 3)));
    float infinite[3] = {0, INFINITY, 1};
    cr_assert(!isfinite(sampler_log_sum_exp(infinite, 3)));
}

Test(sampler, can_choose)
{
    enum { COUNT = 1000 };
    static const struct {
        float value;
        bool alone, among; /* all of the logits, one of them */
    } rows[] = {{0, true, true},         {-1e30f, true, true}, {3e38f, true, true},
                {NAN, false, false},     {-NAN, false, false}, {INFINITY, false, false},
                {-INFINITY, false, true}};
    float logits[COUNT];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int at = 0; at < COUNT; at++)
            logits[at] = rows[i].value;
        cr_expect_eq(sampler_can_choose(logits, COUNT), rows[i].alone, "%zu", i);
        cr_expect_eq(sampler_can_choose(logits, 1), rows[i].alone, "%zu", i);
        memset(logits, 0, sizeof logits);
        for (int at = 0; at < COUNT; at += 37) {
            logits[at] = rows[i].value;
            cr_expect_eq(sampler_can_choose(logits, COUNT), rows[i].among, "%zu at %d", i, at);
            logits[at] = 0;
        }
    }
}

/* The first of equals, wherever they stand: blocks and their ends included. */
Test(sampler, the_largest_logit_is_found_anywhere)
{
    enum { COUNT = 1037 };
    float logits[COUNT];
    struct sampler sampler;
    struct sampler_choice choice = {.top_p = 1};
    struct error err;
    cr_assert_eq(sampler_init(&sampler, COUNT, &err), STATUS_OK);
    for (int at = 0; at < COUNT; at++) {
        for (int i = 0; i < COUNT; i++)
            logits[i] = -5 - (float)(i % 7);
        logits[at] = logits[COUNT - 1] = 1;
        cr_assert_eq(sampler_choose(&sampler, logits, &choice), at);
    }
    sampler_deinit(&sampler);
}

/* ---- The same draw as the naive form ------------------------------------------------------- */

struct limits {
    double temperature;
    int64_t top_k;
    double top_p, min_p;
};

static const struct limits limits[] = {
    {1, 0, 1, 0},        {0.7, 0, 1, 0},        {2, 0, 1, 0},       {0.01, 0, 1, 0},
    {1, 1, 1, 0},        {1, 40, 1, 0},         {1, 1000, 1, 0},    {1, 5000, 1, 0},
    {1, 0, 0.9, 0},      {1, 0, 0.1, 0},        {1, 0, 0, 0},       {3, 0, 0.95, 0},
    {1, 0, 0.999999, 0}, {1, 0, 1, 0.1},        {1, 0, 1, 1},       {2, 0, 1, 0.001},
    {1, 50, 0.8, 0},     {4, 600, 0.8, 0},      {4, 300, 0.99, 0},  {1, 50, 0.8, 0.02},
    {3, 0, 0.9, 0.01},   {4, 2000, 0.7, 0.001}, {0.3, 3, 0.5, 0.2}, {50, 0, 0.5, 0},
};

Test(sampler, draws_what_the_naive_form_draws)
{
    static float logits[VOCAB_MAX];
    for (int64_t vocab = 1; vocab <= VOCAB_MAX; vocab = vocab * 5 + 3) {
        struct sampler sampler;
        sampler_open(&sampler, vocab);
        for (uint64_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
            for (uint64_t draw = 0; draw < 40; draw++) {
                struct sampler_choice choice = {
                    .temperature = limits[i].temperature,
                    .top_k = limits[i].top_k,
                    .top_p = limits[i].top_p,
                    .min_p = limits[i].min_p,
                    .seed = draw,
                    .position = 1000 + i,
                };
                logits_fill(logits, vocab, draw / 8, 2);
                int32_t found = sampler_choose(&sampler, logits, &choice);
                int32_t expected = naive_choose(logits, vocab, &choice);
                cr_assert_eq(found, expected,
                             "vocab %lld, temperature %g, top_k %lld, top_p %g, min_p %g, draw "
                             "%llu: %d instead of %d",
                             (long long)vocab, choice.temperature, (long long)choice.top_k,
                             choice.top_p, choice.min_p, (unsigned long long)draw, found, expected);
            }
        }
        sampler_deinit(&sampler);
    }
}

/* Every token that may be kept is drawn at some time, and no other. */
Test(sampler, draws_all_of_what_is_kept_and_nothing_else)
{
    static const struct limits few[] = {
        {2, 5, 1, 0}, {2, 0, 0.6, 0}, {2, 0, 1, 0.2}, {2, 6, 0.8, 0.1}};
    float logits[12];
    static struct candidate kept[VOCAB_MAX];
    struct sampler sampler;
    sampler_open(&sampler, 12);
    logits_fill(logits, 12, 3, 1);
    for (size_t i = 0; i < sizeof few / sizeof few[0]; i++) {
        struct sampler_choice choice = {
            few[i].temperature, few[i].top_k, few[i].top_p, few[i].min_p, 1, 0};
        int64_t count = naive_kept(kept, logits, 12, &choice);
        cr_assert(count > 1 && count < 12);
        bool drawn[12] = {false};
        for (choice.position = 0; choice.position < 2000; choice.position++)
            drawn[sampler_choose(&sampler, logits, &choice)] = true;
        for (int64_t rank = 0; rank < 12; rank++)
            cr_assert_eq(drawn[kept[rank].at], rank < count, "limits %zu, rank %lld", i,
                         (long long)rank);
    }
    sampler_deinit(&sampler);
}

/* ---- The distribution ---------------------------------------------------------------------- */

/* Chi-square of 20,000 draws over 8 tokens: 7 degrees of freedom, above 29.9 with probability 1e-4.
 * The seeds are fixed, so that the test always does the same. */
Test(sampler, follows_the_softmax_at_the_temperature)
{
    static const double temperatures[] = {0.5, 1, 2.5};
    static const float logits[8] = {0, 1, -1, 2, 0.5f, -2, 1.5f, 0};
    struct sampler sampler;
    sampler_open(&sampler, 8);
    for (int by_seed = 0; by_seed < 2; by_seed++) {
        for (size_t i = 0; i < 3; i++) {
            double sum = 0, distance = 0;
            int64_t counts[8] = {0};
            for (int id = 0; id < 8; id++)
                sum += exp((double)logits[id] / temperatures[i]);
            for (uint64_t draw = 0; draw < 20000; draw++) {
                struct sampler_choice choice = {.temperature = temperatures[i],
                                                .top_p = 1,
                                                .seed = by_seed ? draw : 17,
                                                .position = by_seed ? 4 : draw};
                counts[sampler_choose(&sampler, logits, &choice)]++;
            }
            for (int id = 0; id < 8; id++) {
                double expected = 20000 * exp((double)logits[id] / temperatures[i]) / sum;
                distance += pow((double)counts[id] - expected, 2) / expected;
            }
            cr_assert(distance < 29.9, "temperature %g: chi-square %g", temperatures[i], distance);
        }
    }
    sampler_deinit(&sampler);
}

/* The noise belongs to the token id: tokens that cannot win change nothing, wherever they stand,
 * and neither does what was sampled before. */
Test(sampler, noise_depends_on_seed_position_and_id_alone)
{
    float plain[64], longer[128];
    struct sampler small, large;
    sampler_open(&small, 64);
    sampler_open(&large, 128);
    logits_fill(plain, 64, 5, 1);
    for (int i = 0; i < 128; i++)
        longer[i] = i < 64 ? plain[i] : -1e30f;
    int32_t by_position = 0, by_seed = 0;
    for (uint64_t draw = 0; draw < 500; draw++) {
        struct sampler_choice choice = {.temperature = 1, .top_p = 1, .seed = 9, .position = draw};
        int32_t first = sampler_choose(&small, plain, &choice);
        cr_assert_eq(sampler_choose(&large, longer, &choice), first);
        cr_assert_eq(sampler_choose(&small, plain, &choice), first);
        choice.top_k = 64; /* no limit in a vocabulary of 64, a limit in one of 128 */
        cr_assert_eq(sampler_choose(&large, longer, &choice), first);
        choice.position++;
        by_position += sampler_choose(&small, plain, &choice) != first;
        choice.position--;
        choice.seed++;
        by_seed += sampler_choose(&small, plain, &choice) != first;
    }
    cr_assert(by_position > 250 && by_seed > 250, "%d and %d of 500 changed", by_position, by_seed);
    sampler_deinit(&small);
    sampler_deinit(&large);
}

Test(sampler, minus_infinity_is_never_drawn)
{
    static const float logits[6] = {-INFINITY, -INFINITY, 1, -INFINITY, 0, -INFINITY};
    struct sampler sampler;
    sampler_open(&sampler, 6);
    for (uint64_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        for (uint64_t draw = 0; draw < 100; draw++) {
            struct sampler_choice choice = {
                limits[i].temperature, limits[i].top_k, limits[i].top_p, limits[i].min_p, draw, i};
            int32_t id = sampler_choose(&sampler, logits, &choice);
            cr_assert(id == 2 || id == 4, "limits %llu: %d", (unsigned long long)i, id);
        }
    }
    sampler_deinit(&sampler);
}

Test(sampler, without_memory)
{
    struct sampler sampler = {0};
    struct error err;
    memory_fail_at(1, 0);
    cr_assert_eq(sampler_init(&sampler, 100, &err), STATUS_NO_MEMORY);
    cr_assert_null(sampler.candidates);
}

/* Sequences of different lengths:
 *
 *   bins      each cell with sequences is in one; none are lost; answers rise; the mean is kept
 *   classes   each bin is in one; of all counts; the longest answers first; the nearest together
 *   answers   make the classes where prompts do not matter: none twice as long as others
 *   waves     decode of a mixed wave is the sum of its steps, each by who is left
 *   one       long answer of many is waited for once
 *   others    come for those that end, where no layout changes
 *   alike     with a mix of one bin, or of equal ones, all costs what it does without
 *   alike     prompts that begin so are computed once, in each group that has one of them
 *   together  a table added to another has the sums, and what is possible in both
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "model_shapes.h"
#include "planner/plan_mix.h"
#include "problems.h"

#define CONTEXT 4096

TestSuite(plan_mix, .timeout = 120);

static uint64_t test_seed(void)
{
    const char *seed = getenv("PHASOR_TEST_SEED");
    return seed == NULL ? 0 : strtoull(seed, NULL, 10);
}

/* ---- Bins ------------------------------------------------------------------------------------ */

static void count_in(struct plan_cells *cells, double sequences, double prompt, double output)
{
    struct plan_cell *cell = &cells->of[plan_cell_of(prompt, output)];
    cell->sequences += sequences;
    cell->prompt_tokens += sequences * prompt;
    cell->output_tokens += sequences * output;
}

static void check_mix(const struct plan_mix *mix, const struct plan_cells *cells)
{
    struct plan_cell all = {0}, sums[PLAN_BINS_MAX] = {{0}};
    int64_t sequences = 0;
    cr_assert_leq(mix->bin_count, PLAN_BINS_MAX);
    for (int i = 0; i < PLAN_CELLS * PLAN_CELLS; i++) {
        const struct plan_cell *cell = &cells->of[i];
        int bin = mix->bin_of[i];
        cr_assert_eq(bin >= 0, cell->sequences > 0, "cell %d", i);
        if (bin < 0)
            continue;
        cr_assert_lt(bin, mix->bin_count);
        sums[bin].sequences += cell->sequences;
        sums[bin].prompt_tokens += cell->prompt_tokens;
        sums[bin].output_tokens += cell->output_tokens;
        all.sequences += cell->sequences;
    }
    for (int b = 0; b < mix->bin_count; b++) {
        const struct plan_load *bin = &mix->bins[b];
        cr_assert_eq(bin->sequences, (int64_t)sums[b].sequences);
        cr_assert_eq(bin->prompt_tokens, (int64_t)ceil(sums[b].prompt_tokens / sums[b].sequences));
        int64_t output = (int64_t)ceil(sums[b].output_tokens / sums[b].sequences);
        cr_assert(bin->output_tokens == output ||
                  bin->output_tokens == CONTEXT - bin->prompt_tokens);
        cr_assert_leq(bin->prompt_tokens + bin->output_tokens, CONTEXT);
        /* Each is rounded up, but for one that the context cuts. */
        cr_assert(b == 0 || mix->bins[b - 1].output_tokens <= bin->output_tokens + 1);
        sequences += bin->sequences;
    }
    cr_assert_eq(sequences, (int64_t)all.sequences);
}

static double log_distance(const struct plan_load *a, const struct plan_load *b)
{
    return fabs(log((double)a->prompt_tokens / (double)b->prompt_tokens)) +
           fabs(log((double)a->output_tokens / (double)b->output_tokens));
}

static void check_classes(const struct plan_mix *mix, int64_t sequences)
{
    for (int count = 1; count <= mix->bin_count; count++) {
        struct plan_classes classes;
        int64_t found = 0, before = INT64_MAX;
        plan_classes_make(&classes, mix, count);
        cr_assert_eq(classes.count, count);
        for (int class = 0; class < count; class ++) {
            struct plan_load bins[PLAN_BINS_MAX];
            int bin_count = plan_mix_take(bins, mix, plan_class_bins(&classes, mix, class));
            cr_assert_gt(bin_count, 0, "class %d of %d is empty", class, count);
            struct plan_load mean = plan_loads_mean(bins, bin_count, CONTEXT);
            found += mean.sequences;
            cr_assert_leq(mean.output_tokens, before, "class %d of %d", class, count);
            before = mean.output_tokens + 2; /* means are rounded up, and cut by the context */
        }
        cr_assert_eq(found, sequences);
    }
}

Test(plan_mix, bins_and_classes_have_all_sequences)
{
    static struct plan_cells cells;
    struct random random = {.seed = test_seed() + 1};
    for (int round = 0; round < 200; round++) {
        struct plan_mix mix;
        int64_t sequences = 0, kinds = 1 + (int64_t)random_below(&random, 40);
        memset(&cells, 0, sizeof cells);
        for (int64_t i = 0; i < kinds; i++) {
            double most = round % 2 == 0 ? 12 : 5;
            double prompt = floor(exp2(most * random_unit(random_next(&random))));
            double output = floor(exp2(most * random_unit(random_next(&random))));
            prompt = fmin(prompt, CONTEXT - 1);
            output = fmin(output, CONTEXT - prompt);
            int64_t more = 1 + (int64_t)random_below(&random, 100);
            count_in(&cells, (double)more, prompt, output);
            sequences += more;
        }
        plan_mix_make(&mix, &cells, sequences, CONTEXT);
        check_mix(&mix, &cells);
        check_classes(&mix, sequences);
    }
}

Test(plan_mix, the_nearest_are_together)
{
    static struct plan_cells cells;
    struct plan_mix mix;
    struct plan_classes classes;
    count_in(&cells, 10, 100, 1000);
    count_in(&cells, 10, 100, 10);
    count_in(&cells, 10, 130, 1100);
    count_in(&cells, 10, 1000, 10);
    plan_mix_make(&mix, &cells, 40, CONTEXT);
    cr_assert_eq(mix.bin_count, 4);
    plan_classes_make(&classes, &mix, 2);
    for (int a = 0; a < 4; a++) {
        for (int b = 0; b < 4; b++) {
            bool are_long = mix.bins[a].output_tokens > 500 && mix.bins[b].output_tokens > 500;
            bool are_short = mix.bins[a].output_tokens < 500 && mix.bins[b].output_tokens < 500;
            cr_expect_eq(classes.of_bin[a] == classes.of_bin[b], are_long || are_short);
        }
        cr_expect_eq(classes.of_bin[a], mix.bins[a].output_tokens > 500 ? 0 : 1);
    }
    plan_classes_make(&classes, &mix, 3);
    for (int a = 0; a < 4; a++) {
        for (int b = 0; b < a; b++)
            cr_expect_eq(classes.of_bin[a] == classes.of_bin[b],
                         log_distance(&mix.bins[a], &mix.bins[b]) < 0.5);
    }
}

Test(plan_mix, classes_by_answers_are_twice_as_long)
{
    static struct plan_cells cells;
    static const struct {
        int64_t prompt, output;
        int class;
    } rows[] = {{100, 1000, 0}, {1000, 600, 0}, {10, 499, 1}, {300, 260, 1}, {300, 20, 2}};
    struct plan_mix mix;
    struct plan_classes classes;
    plan_mix_make(&mix, &cells, 1, CONTEXT);
    plan_classes_by_answers(&classes, &mix);
    cr_assert_eq(classes.count, 1, "of nothing");
    for (size_t i = 0; i < 5; i++)
        count_in(&cells, 10, (double)rows[i].prompt, (double)rows[i].output);
    plan_mix_make(&mix, &cells, 50, CONTEXT);
    plan_classes_by_answers(&classes, &mix);
    cr_assert_eq(classes.count, 3);
    for (size_t i = 0; i < 5; i++) {
        int bin = mix.bin_of[plan_cell_of((double)rows[i].prompt, (double)rows[i].output)];
        cr_expect_eq(classes.of_bin[bin], rows[i].class, "%d", (int)rows[i].output);
    }
}

Test(plan_mix, parts_of_a_file_stand_for_all_of_it)
{
    static struct plan_cells cells;
    struct plan_mix mix;
    count_in(&cells, 10, 100, 1000);
    count_in(&cells, 30, 100, 10);
    plan_mix_make(&mix, &cells, 4000, CONTEXT);
    cr_assert_eq(mix.bin_count, 2);
    cr_assert_eq(mix.bins[0].sequences, 3000);
    cr_assert_eq(mix.bins[1].sequences, 1000);
}

/* ---- Waves ----------------------------------------------------------------------------------- */

static struct layout layout_of(const char *text)
{
    struct error err;
    struct layout layout;
    cr_assert_eq(layout_parse(&layout, text, 0, &err), STATUS_OK, "%s", err.message);
    return layout;
}

/* Step by step, each of those who are left, with what they have on the mean. */
static double steps_of(const struct plan_problem *problem, const struct layout *layout,
                       int64_t wave)
{
    double sum = 0;
    int64_t longest = problem->mix[problem->mix_count - 1].output_tokens, all = 0;
    for (int i = 0; i < problem->mix_count; i++)
        all += problem->mix[i].sequences;
    for (int64_t there = 1; there < longest; there++) {
        struct plan_problem step = *problem;
        double left = 0, prompts = 0;
        for (int i = 0; i < problem->mix_count; i++) {
            if (problem->mix[i].output_tokens <= there)
                continue;
            left += (double)problem->mix[i].sequences;
            prompts += (double)problem->mix[i].sequences * (double)problem->mix[i].prompt_tokens;
        }
        step.load.prompt_tokens = (int64_t)ceil(prompts / left) + there - 1;
        step.load.output_tokens = 2;
        double running = (double)wave * left / (double)all;
        struct pass_cost cost = plan_decode_cost(&step, layout, false, (int64_t)ceil(running));
        sum += pass_cost_total(&cost) * (running < 1 ? running : 1);
    }
    return sum;
}

Test(plan_mix, a_wave_decodes_until_its_longest_has_ended)
{
    static const struct plan_load mix[] = {PLAN_LOAD(4, 40, 1), PLAN_LOAD(8, 10, 12),
                                           PLAN_LOAD(3, 100, 12), PLAN_LOAD(1, 30, 200)};
    struct test_problem test;
    struct layout layout = layout_of("tp4|tp4");
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1e12, 1e11, 1e9, 1e-5});
    test.problem.mix = mix;
    for (int count = 2; count <= 4; count++) {
        test.problem.mix_count = count;
        test.problem.load = plan_loads_mean(mix, count, CONTEXT);
        for (int64_t wave = 1; wave <= 16; wave += 5) {
            struct pass_cost cost = plan_wave_decode_cost(&test.problem, &layout, false, wave);
            double expected = steps_of(&test.problem, &layout, wave);
            cr_assert_float_eq(pass_cost_total(&cost) / expected, 1, 1e-4, "%d, wave %d: %g of %g",
                               count, (int)wave, pass_cost_total(&cost), expected);
        }
    }
}

/* 390 waves of ten tokens, and one of 4000. */
Test(plan_mix, one_long_answer_is_waited_for_once)
{
    static const struct plan_load mix[] = {PLAN_LOAD(99839, 40, 10), PLAN_LOAD(1, 40, 4000)};
    struct test_problem test;
    struct layout layout = layout_of("tp4|tp4");
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1e12, 1e11, 1e9, 1e-5});
    test.problem.mix = mix;
    test.problem.mix_count = 2;
    struct pass_cost wave = plan_wave_decode_cost(&test.problem, &layout, false, 256);
    test.problem.load = mix[0];
    struct pass_cost few = plan_decode_cost(&test.problem, &layout, false, 256);
    test.problem.load = mix[1];
    struct pass_cost one = plan_decode_cost(&test.problem, &layout, false, 1);
    cr_assert_float_eq(390 * pass_cost_total(&wave) /
                           (390 * pass_cost_total(&few) + pass_cost_total(&one)),
                       1, 0.01);
}

Test(plan_mix, a_mix_of_equals_is_none)
{
    static const struct plan_load mix[] = {PLAN_LOAD(4, 40, 20), PLAN_LOAD(12, 40, 20)};
    struct test_problem test;
    struct layout layout = layout_of("dp4|ep4");
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1e12, 1e11, 1e9, 1e-5});
    test.problem.load = (struct plan_load)PLAN_LOAD(16, 40, 20);
    struct pass_cost decode = plan_decode_cost(&test.problem, &layout, false, 16);
    struct prefill_cost prefill = plan_prefill_cost(&test.problem, &layout, 128, 16);
    test.problem.mix = mix;
    for (test.problem.mix_count = 1; test.problem.mix_count <= 2; test.problem.mix_count++) {
        struct pass_cost wave = plan_wave_decode_cost(&test.problem, &layout, false, 16);
        struct prefill_cost mixed = plan_prefill_cost(&test.problem, &layout, 128, 16);
        cr_assert_float_eq(pass_cost_total(&wave) / pass_cost_total(&decode), 1, 1e-9);
        cr_assert_float_eq(pass_cost_total(&mixed.cost) / pass_cost_total(&prefill.cost), 1, 1e-9);
    }
}

static double refilled(struct test_problem *test, struct plan_load *mix, int64_t wave)
{
    struct layout layout = layout_of("tp4|tp4");
    test->problem.mix = mix;
    test->problem.mix_count = 2;
    test->problem.load = plan_loads_mean(mix, 2, CONTEXT);
    struct pass_cost cost = plan_refilled_decode_cost(&test->problem, &layout, false, wave);
    return pass_cost_total(&cost);
}

/* Where nobody is left to come it is a wave; one more waits for a place, not for a wave's end; and
 * of many all steps are of as many as there are places. */
Test(plan_mix, others_come_for_those_that_end)
{
    struct plan_load mix[] = {PLAN_LOAD(96, 40, 20), PLAN_LOAD(32, 40, 400)};
    struct test_problem test;
    struct layout layout = layout_of("tp4|tp4");
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1e12, 1e11, 1e9, 1e-5});
    double all = refilled(&test, mix, 128);
    struct pass_cost wave = plan_wave_decode_cost(&test.problem, &layout, false, 128);
    cr_assert_float_eq(all / pass_cost_total(&wave), 1, 1e-9);
    mix[0].sequences++;
    cr_assert_float_eq(refilled(&test, mix, 128) / all, 1, 0.02);
    mix[0].sequences = 9600;
    mix[1].sequences = 3200;
    all = refilled(&test, mix, 128);
    struct pass_cost mean = plan_decode_cost(&test.problem, &layout, false, 128);
    double steps = (9600 * 19.0 + 3200 * 399.0) / 128;
    double step = pass_cost_total(&mean) / (double)(test.problem.load.output_tokens - 1);
    cr_assert_float_eq(all / (steps * step), 1, 0.01);
}

/* Half of the answers are of one token, half of two, and the mean of their loads is told as one. */
Test(plan_mix, a_mean_answer_without_a_step)
{
    struct test_problem test;
    const struct plan_load loads[] = {PLAN_LOAD(300, 63, 1), PLAN_LOAD(300, 62, 2)};
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
    struct layout layout = {4, {.tp = 4, .dp = 1}, {.tp = 4, .ep = 1}};
    test.problem.load = (struct plan_load)PLAN_LOAD(600, 63, 1);
    test.problem.mix = loads;
    test.problem.mix_count = 2;
    for (int64_t wave = 8; wave <= 256; wave *= 2) {
        struct pass_cost cost = plan_refilled_decode_cost(&test.problem, &layout, false, wave);
        double seconds = pass_cost_total(&cost);
        cr_assert(isfinite(seconds) && seconds > 0, "%lld at a time: %g", (long long)wave, seconds);
    }
}

/* Prompts come by themselves where answers differ, and read all weights each time, or as many
 * together as have entry_tokens; those that come with the first wave do not. */
Test(plan_mix, prompts_come_as_answers_end)
{
    struct test_problem test;
    struct layout layout = layout_of("tp4|tp4");
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, INFINITY, 1e11, INFINITY, 0});
    test.problem.load = (struct plan_load)PLAN_LOAD(8 * 64, 16, 200);
    struct prefill_cost cost = plan_prefill_cost(&test.problem, &layout, 4096, 64);
    double wave = pass_cost_total(&cost.cost);
    struct pass_cost even = plan_refilled_prefill_cost(&test.problem, &layout, 4096, 64);
    cr_assert_float_eq(pass_cost_total(&even) / (8 * wave), 1, 1e-9);
    test.problem.load.output_deviation = 50;
    struct pass_cost apart;
    for (int64_t together = 1; together <= 4; together *= 2) {
        test.problem.entry_tokens = 16 * together;
        cost = plan_prefill_cost(&test.problem, &layout, 4096, together);
        double few = pass_cost_total(&cost.cost);
        apart = plan_refilled_prefill_cost(&test.problem, &layout, 4096, 64);
        cr_assert_float_eq(pass_cost_total(&apart) / (wave + (double)(7 * 64 / together) * few), 1,
                           1e-9);
    }
    /* Plans that move weights have waves, whatever their answers. */
    struct plan_table table;
    struct error err;
    test.waves[0] = 64;
    test.passes[0] = 4096;
    cr_assert_eq(plan_find(&table, &test.problem, &err), STATUS_OK);
    for (int i = 0; i < table.count; i++) {
        const struct plan_candidate *candidate = &table.candidates[i];
        const struct layout *own = &candidate->layouts.of[PHASE_PREFILL];
        if (candidate->verdict != PLAN_POSSIBLE || own->attention.tp != 4 || own->experts.tp != 4)
            continue;
        double expected = plan_way_moves(candidate->way) ? 8 * wave : pass_cost_total(&apart);
        if (!own->attention.replicate_ffn)
            cr_expect_float_eq(candidate->prefill / expected, 1, 1e-9);
    }
    plan_table_deinit(&table);
    test.problem.load.sequences = 64; /* nobody waits */
    even = plan_refilled_prefill_cost(&test.problem, &layout, 4096, 64);
    cr_assert_float_eq(pass_cost_total(&even) / wave, 1, 1e-9);
}

/* Attention sees the squares of the prompts' lengths, which the mean's square is less than. */
Test(plan_mix, attention_of_unequal_prompts_is_of_their_squares)
{
    static const struct plan_load mix[] = {PLAN_LOAD(1, 100, 20), PLAN_LOAD(1, 300, 20)};
    struct test_problem test;
    struct layout layout = layout_of("tp4|tp4");
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1, INFINITY, INFINITY, 0});
    test.problem.load = (struct plan_load)PLAN_LOAD(2, 200, 20);
    struct prefill_cost mean = plan_prefill_cost(&test.problem, &layout, 1024, 2);
    test.problem.mix = mix;
    test.problem.mix_count = 2;
    struct prefill_cost mixed = plan_prefill_cost(&test.problem, &layout, 1024, 2);
    cr_assert_float_eq(mixed.cost.seconds[COST_ATTENTION] / mean.cost.seconds[COST_ATTENTION],
                       (100 * 101.0 + 300 * 301.0) / (2 * 200 * 201.0), 1e-9);
    cr_assert_eq(mixed.cost.seconds[COST_EXPERTS], mean.cost.seconds[COST_EXPERTS]);
}

/* ---- Prompts that begin alike ---------------------------------------------------------------- */

/* Costs in flops, of 64 questions of 64 tokens behind documents of 8192, `each` of one. */
static struct pass_cost questions(const char *text, double each, int64_t pass_tokens)
{
    struct test_problem test;
    struct layout layout = layout_of(text);
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1, INFINITY, INFINITY, 0});
    test.problem.routing.deviation = 0;
    test.problem.load = (struct plan_load)PLAN_LOAD(64, 8192 + 64, 20);
    if (each > 0)
        test.problem.load.shared = (struct plan_shared){8192 * (each - 1) / each, each};
    return plan_prefill_cost(&test.problem, &layout, pass_tokens, 64).cost;
}

static double pairs_of(double tokens)
{
    return tokens * (tokens + 1) / 2;
}

/* Documents are computed once in each group that has one of their questions, which are spread over
 * the groups where there are too few documents. */
Test(plan_mix, prompts_that_begin_alike_are_computed_once)
{
    static const struct {
        const char *layout;
        double each, computed; /* documents, in all groups */
    } cases[] = {{"tp4|tp4", 64, 1}, {"dp4|tp4", 64, 4},    {"dp4|tp4", 4, 16},
                 {"dp4|tp4", 32, 4}, {"tp2dp2|tp4", 2, 32}, {"dp4|tp4", 2, 32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pass_cost whole = questions(cases[i].layout, 0, 1 << 20);
        struct pass_cost shared = questions(cases[i].layout, cases[i].each, 1 << 20);
        double rows = cases[i].computed * 8192 + 64 * 64;
        double pairs = cases[i].computed * pairs_of(8192) + 64 * (pairs_of(8256) - pairs_of(8192));
        cr_expect_float_eq(shared.seconds[COST_EXPERTS] / whole.seconds[COST_EXPERTS],
                           rows / (64 * 8256), 1e-3, "%s, %g each", cases[i].layout, cases[i].each);
        cr_expect_float_eq(shared.seconds[COST_ATTENTION] / whole.seconds[COST_ATTENTION],
                           pairs / (64 * pairs_of(8256)), 1e-4, "%s, %g each", cases[i].layout,
                           cases[i].each);
        cr_expect_float_eq(shared.seconds[COST_HEAD] / whole.seconds[COST_HEAD], 1, 1e-6);
    }
}

/* Seconds are bytes here. Four questions of 256 tokens behind a document of 1024, in eight passes
 * of 256: the first reads its own five pieces, and each of the others once what stands before it.
 * In a window no more than is in it. */
Test(plan_mix, questions_read_the_document_that_is_there)
{
    struct test_problem test;
    struct layout layout = layout_of("tp4|tp4");
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, INFINITY, 1, INFINITY, 0});
    test.problem.load = (struct plan_load)PLAN_LOAD(4, 1024 + 256, 20);
    test.problem.load.shared = (struct plan_shared){1024 * 3 / 4.0, 4};
    for (int64_t window = 0; window <= 300; window += 300) {
        double seen = (256 + 512 + 768 + 1024 + 1280 + 3 * 1280) / 8.0;
        double slides = (256 + 512 + 3 * (256 + 299) + 3 * (256 + 299)) / 8.0;
        test.shape.sliding_window = window;
        test.shape.sliding_layer_count = window > 0 ? test.shape.layer_count / 2 : 0;
        struct pass_shape pass = {.form = FORM_OWNED,
                                  .rows = 256,
                                  .pairs = 1,
                                  .seen = seen,
                                  .sliding_pairs = 1,
                                  .sliding_seen = slides,
                                  .logit_rows = 1};
        struct pass_cost expected = pass_cost(&test.profile, &test.shape, &layout,
                                              &test.problem.types, &test.problem.routing, &pass);
        struct prefill_cost found = plan_prefill_cost(&test.problem, &layout, 256, 4);
        cr_expect_float_eq(
            found.cost.seconds[COST_ATTENTION] / (8 * expected.seconds[COST_ATTENTION]), 1, 2e-3,
            "a window of %d: %g", (int)window,
            found.cost.seconds[COST_ATTENTION] / (8 * expected.seconds[COST_ATTENTION]));
    }
}

/* A cell's sums are means of bins, and these of classes. */
Test(plan_mix, what_is_shared_goes_with_its_rows)
{
    static struct plan_cells cells;
    struct plan_mix mix;
    count_in(&cells, 64, 8256, 10);
    count_in(&cells, 64, 100, 1000);
    struct plan_cell *cell = &cells.of[plan_cell_of(8256, 10)];
    cell->found_tokens = 63 * 8192;
    cell->lent_tokens = 8192;
    plan_mix_make(&mix, &cells, 128, 16384);
    cr_assert_eq(mix.bin_count, 2);
    cr_expect_eq(mix.bins[0].output_deviation, 0);
    cr_expect_float_eq(mix.bins[0].shared.tokens, 8064, 1e-9);
    cr_expect_float_eq(mix.bins[0].shared.sharers, 64, 1e-9);
    cr_expect_eq(mix.bins[1].shared.tokens, 0);
    struct plan_load mean = plan_loads_mean(mix.bins, 2, 16384);
    cr_expect_float_eq(mean.shared.tokens, 4032, 1e-9);
    cr_expect_float_eq(mean.shared.sharers, 64, 1e-9);
    /* Others of that document, which found nothing that had not been found. */
    count_in(&cells, 64, 8256, 1000);
    cells.of[plan_cell_of(8256, 1000)].found_tokens = 64 * 8192;
    plan_mix_make(&mix, &cells, 192, 16384);
    cr_assert_eq(mix.bin_count, 3);
    cr_expect_float_eq(plan_load_beginning(&mix.bins[2]), 8192, 8192 * 0.02);
    mean = plan_loads_mean(mix.bins, 3, 16384);
    cr_expect_float_eq(mean.shared.tokens, 127 * 8192 / 192.0, 1e-9);
}

/* ---- Tables ---------------------------------------------------------------------------------- */

Test(plan_mix, tables_are_added)
{
    struct test_problem test;
    struct plan_table one, two, sum;
    struct error err;
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1e12, 1e11, 1e9, 1e-5});
    test.problem.load = (struct plan_load)PLAN_LOAD(16, 400, 20);
    cr_assert_eq(plan_find(&one, &test.problem, &err), STATUS_OK);
    cr_assert_eq(plan_find(&sum, &test.problem, &err), STATUS_OK);
    test.problem.load = (struct plan_load)PLAN_LOAD(3, 40, 500);
    cr_assert_eq(plan_find(&two, &test.problem, &err), STATUS_OK);
    int forbidden = one.static_tp;
    cr_assert_geq(forbidden, 0);
    two.candidates[forbidden].verdict = PLAN_TOO_LARGE;
    two.candidates[forbidden].has_times = false;
    plan_table_add(&sum, &two, 1, UINT64_MAX);
    cr_assert_eq(sum.static_tp, -1);
    cr_assert_eq(sum.static_ep, one.static_ep);
    int best = -1;
    for (int i = 0; i < sum.count; i++) {
        const struct plan_candidate *a = &one.candidates[i], *b = &two.candidates[i];
        const struct plan_candidate *both = &sum.candidates[i];
        bool is_possible = a->verdict == PLAN_POSSIBLE && b->verdict == PLAN_POSSIBLE;
        cr_assert_eq(both->verdict == PLAN_POSSIBLE, is_possible);
        cr_assert_eq(both->has_times, a->has_times && b->has_times);
        if (!is_possible)
            continue;
        cr_assert_float_eq(plan_candidate_total(both),
                           plan_candidate_total(a) + plan_candidate_total(b), 1e-9);
        cr_assert_float_eq(pass_cost_total(&both->decode_cost),
                           pass_cost_total(&a->decode_cost) + pass_cost_total(&b->decode_cost),
                           1e-9);
        cr_assert_geq(plan_memory_total(&both->memory), plan_memory_total(&a->memory));
        cr_assert_geq(plan_memory_total(&both->memory), plan_memory_total(&b->memory));
        if (best < 0 || plan_candidate_total(both) < plan_candidate_total(&sum.candidates[best]))
            best = i;
    }
    cr_assert_eq(sum.fastest, best);
    cr_assert_eq(sum.candidates[forbidden].verdict, PLAN_TOO_LARGE);
    plan_table_deinit(&one);
    plan_table_deinit(&two);
    plan_table_deinit(&sum);
}

/* Of short sequences there is room for many spares, and a small cache: what a run takes for the
 * long ones is theirs, whichever part takes more altogether. */
Test(plan_mix, parts_have_the_larger_cache_and_the_fewer_spares)
{
    static const struct plan_memory few_spares = {.weights = 100,
                                                  .experts = 50 + 10,
                                                  .cache = 500,
                                                  .activations = 30,
                                                  .spare = 10},
                                    many_spares = {.weights = 100,
                                                   .experts = 50 + 40 * 10,
                                                   .cache = 200,
                                                   .activations = 35,
                                                   .spare = 10};
    for (int order = 0; order < 2; order++) {
        struct plan_candidate one = {.way = PLAN_RELOAD,
                                     .verdict = PLAN_POSSIBLE,
                                     .has_times = true,
                                     .memory = few_spares,
                                     .spares = 1,
                                     .wave = 4,
                                     .pass_tokens = 2048};
        struct plan_candidate two = one;
        two.memory = many_spares;
        two.spares = 40;
        two.wave = 64;
        struct plan_table sum = {.candidates = order == 0 ? &one : &two, .count = 1};
        struct plan_table more = {.candidates = order == 0 ? &two : &one, .count = 1};
        const struct plan_candidate *both = &sum.candidates[0];
        sum.static_tp = sum.static_ep = -1;
        plan_table_add(&sum, &more, 1, 100 + 60 + 500 + 35);
        cr_expect_eq(both->verdict, PLAN_POSSIBLE);
        cr_expect_eq(both->memory.cache, 500);
        cr_expect_eq(both->memory.activations, 35);
        cr_expect_eq(both->memory.experts, 60);
        cr_expect_eq(both->spares, 1);
        cr_expect_eq(both->wave, 64);
        plan_table_add(&sum, &more, 2, 100 + 60 + 500 + 34);
        cr_expect_eq(both->verdict, PLAN_TOO_LARGE);
        cr_expect_not(both->has_times);
    }
}

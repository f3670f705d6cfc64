/* The tokens that ranks choose: the largest of all logits, of equal ones the first, or the draw
 * that the sampler makes of all logits; and what a pass finds by itself. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "exec/sampler.h"
#include "layout/packing.h"
#include "scenarios.h"

TestSuite(choose, .timeout = 100, .fini = scenario_checkpoints_remove);

#define TOKENS 12

static const struct form_case {
    const char *plan;
    int rank_count;
    enum layer_form form;
} cases[] = {
    {"tp1|tp1", 1, FORM_OWNED},      {"tp2|tp2", 2, FORM_REPLICATED},
    {"dp2|ep2", 2, FORM_OWNED},      {"tp2dp2|tp2ep2", 4, FORM_GATHERED},
    {"dp8|ep8", 8, FORM_OWNED},      /* the last rank has fewer tokens than 16 */
    {"dp16|tp2ep8", 16, FORM_OWNED}, /* and here half of them none */
};
#define CASE_COUNT (int)(sizeof cases / sizeof *cases)

static const int32_t tokens[TOKENS] = {1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 4, 7};
static const int32_t rows[] = {0, 3, TOKENS - 1};

/* Has run a pass of TOKENS tokens; there is a page for one more. */
static void runner_open(struct model_runner *out, int number)
{
    int32_t page;
    struct error err;
    model_runner_open(out, &(struct runner_params){
                               .dir = scenario_checkpoint("qwen2moe", DTYPE_F32),
                               .dtype = DTYPE_F32,
                               .rank_count = cases[number].rank_count,
                               .plan = cases[number].plan,
                               .token_max = 2 * TOKENS * cases[number].rank_count,
                               .page_count = 2,
                           });
    model_runner_take(out, 0, &page, 1);
    struct exec_segment segment = {tokens, TOKENS, 0, &page, 0};
    cr_assert_eq(exec_forward(out->exec, &out->cache, cases[number].form, &segment, 1, &err),
                 STATUS_OK, "%s", err.message);
}

/* Of the rows of the last pass; candidates have the same first. */
static const struct chosen *chosen_get(struct model_runner *runner)
{
    struct exec_head head = {.rows = rows,
                             .row_count = 3,
                             .wants_chosen = true,
                             .wants_candidates = true,
                             .skips_logits = true};
    struct error err;
    cr_assert_eq(exec_head(runner->exec, &head, &err), STATUS_OK);
    for (int i = 0; i < 3; i++) {
        const struct candidates *of = &head.candidates[i];
        int64_t first = of->count < 0 ? of->count : of->top[0].at;
        cr_expect_eq(first, head.chosen[i].at, "%lld, not %d", (long long)first, head.chosen[i].at);
    }
    return head.chosen;
}

Test(choose, the_largest_are_those_of_the_logits)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        struct model_runner runner;
        struct chosen found[3];
        struct exec_head head = {.rows = rows, .row_count = 3};
        struct error err;
        runner_open(&runner, c);
        memcpy(found, chosen_get(&runner), sizeof found);
        cr_assert_eq(exec_head(runner.exec, &head, &err), STATUS_OK);
        for (int i = 0; i < 3; i++) {
            const float *row = head.logits + i * head.stride;
            int32_t best = 0;
            for (int32_t t = 1; t < runner.config->vocab_count; t++)
                best = row[t] > row[best] ? t : best;
            cr_expect(found[i].at == best && found[i].score == row[best],
                      "%s, row %d: token %d, not %d", cases[c].plan, i, found[i].at, best);
        }
        model_runner_close(&runner);
    }
}

/* Of some hundred seeds, at temperatures at which few and many tokens have a chance; one row in
 * three wants its largest logit. Both are found at once. */
Test(choose, draws_are_those_of_the_logits)
{
    static const double temperatures[] = {0.05, 1, 20};
    for (int c = 0; c < CASE_COUNT; c++) {
        struct model_runner runner;
        struct sampler sampler;
        struct draw draws[3];
        struct exec_head head = {
            .rows = rows, .row_count = 3, .wants_chosen = true, .draws = draws};
        struct error err;
        int64_t unlike_largest = 0;
        runner_open(&runner, c);
        cr_assert_eq(sampler_init(&sampler, runner.config->vocab_count, &err), STATUS_OK);
        for (uint64_t seed = 0; seed < 120; seed++) {
            struct sampler_choice choice[3];
            for (uint64_t i = 0; i < 3; i++) {
                choice[i] = (struct sampler_choice){
                    .temperature = (seed + i) % 3 == 2 ? 0 : temperatures[seed / 3 % 3],
                    .top_p = 1,
                    .seed = seed,
                    .position = i,
                };
                draws[i] = sampler_draw(&choice[i]);
            }
            cr_assert_eq(exec_head(runner.exec, &head, &err), STATUS_OK, "%s", err.message);
            for (int i = 0; i < 3; i++) {
                const float *row = head.logits + i * head.stride;
                int32_t id = sampler_choose(&sampler, row, &choice[i]);
                cr_expect(head.chosen[i].at == id, "%s, seed %llu, row %d: token %d, not %d",
                          cases[c].plan, (unsigned long long)seed, i, head.chosen[i].at, id);
                choice[i].temperature = 0;
                unlike_largest += sampler_choose(&sampler, row, &choice[i]) != id;
            }
        }
        cr_expect_gt(unlike_largest, 60, "%s: few draws", cases[c].plan);
        sampler_deinit(&sampler);
        model_runner_close(&runner);
    }
}

/* Whose logits are the highest, of equal ones the first tokens; sums of all. */
static void candidates_check(const struct candidates *found, const float *row, int64_t vocab,
                             double temperature, const char *plan)
{
    struct sampler sampler;
    const struct candidate *top;
    struct error err;
    double sum = 0, mass = 0;
    cr_assert_eq(sampler_init(&sampler, vocab, &err), STATUS_OK);
    int64_t count = sampler_top(&sampler, row, CANDIDATES_MAX, &top);
    cr_assert_eq(found->count, count, "%s", plan);
    for (int64_t i = 0; i < count; i++)
        cr_expect(found->top[i].at == top[i].at && found->top[i].logit == top[i].logit,
                  "%s: candidate %lld is %d, not %d", plan, (long long)i, found->top[i].at,
                  top[i].at);
    for (int64_t i = 0; i < vocab; i++) {
        double below = (double)row[i] - (double)top[0].logit;
        sum += exp(below);
        mass += exp(temperature > 0 ? below / temperature : below);
    }
    cr_expect(fabs(found->sum - sum) <= 0x1p-30 * sum, "%s: %g, not %g", plan, found->sum, sum);
    cr_expect(fabs(found->mass - mass) <= 0x1p-30 * mass, "%s: %g, not %g", plan, found->mass,
              mass);
    sampler_deinit(&sampler);
}

/* A limited draw of some of 200 seeds, by candidates and by all logits. */
Test(choose, candidates_draw_as_the_logits_do_or_say_that_they_cannot)
{
    static const double temperatures[] = {0.05, 1, 20, 0}, top_ps[] = {1, 0.9, 0.1},
                        min_ps[] = {0, 0.3, 1e-9};
    static const int64_t top_ks[] = {0, 3, CANDIDATES_MAX, CANDIDATES_MAX + 1};
    for (int c = 0; c < CASE_COUNT; c++) {
        struct model_runner runner;
        struct sampler sampler;
        struct draw draws[3];
        struct exec_head head = {
            .rows = rows, .row_count = 3, .wants_candidates = true, .draws = draws};
        struct error err;
        int64_t told = 0, untold = 0;
        runner_open(&runner, c);
        int64_t vocab = runner.config->vocab_count;
        cr_assert_eq(sampler_init(&sampler, vocab, &err), STATUS_OK);
        for (uint64_t seed = 0; seed < 200; seed++) {
            struct sampler_choice choice[3];
            for (uint64_t i = 0; i < 3; i++) {
                uint64_t mixed = random_at(seed, i, 0);
                choice[i] = (struct sampler_choice){
                    .temperature = temperatures[mixed % 4],
                    .top_p = top_ps[mixed / 4 % 3],
                    .min_p = min_ps[mixed / 12 % 3],
                    .top_k = top_ks[mixed / 36 % 4],
                    .seed = seed,
                    .position = i,
                };
                draws[i] = sampler_draw(&choice[i]);
            }
            cr_assert_eq(exec_head(runner.exec, &head, &err), STATUS_OK, "%s", err.message);
            for (int i = 0; i < 3; i++) {
                const float *row = head.logits + i * head.stride;
                int32_t id = sampler_choose_among(&head.candidates[i], vocab, &choice[i]);
                candidates_check(&head.candidates[i], row, vocab, draws[i].temperature,
                                 cases[c].plan);
                told += id >= 0;
                untold += id < 0;
                int32_t expected = sampler_choose(&sampler, row, &choice[i]);
                cr_expect(id < 0 || id == expected, "%s, seed %llu, row %d: token %d, not %d",
                          cases[c].plan, (unsigned long long)seed, i, id, expected);
                if (choice[i].top_k == 3)
                    cr_expect_geq(id, 0, "three are among the candidates");
            }
        }
        cr_expect(told > 300 && untold > 20, "%s: %lld and %lld", cases[c].plan, (long long)told,
                  (long long)untold);
        sampler_deinit(&sampler);
        model_runner_close(&runner);
    }
}

/* Of the pass that runs, as of the last one. */
Test(choose, a_step_finds_what_the_head_finds_behind_it)
{
    for (int c = 0; c < 2 * CASE_COUNT; c++) {
        const struct form_case *of = &cases[c / 2];
        struct model_runner runner;
        struct chosen found[3];
        struct exec_head head = {
            .rows = rows, .row_count = 3, .wants_chosen = c % 2 == 0, .skips_logits = c % 2 == 0};
        int32_t page;
        struct error err;
        runner_open(&runner, c / 2);
        model_runner_take(&runner, 0, &page, 1);
        struct exec_segment segment = {tokens + 1, TOKENS - 1, 0, &page, 0};
        int64_t vocab = runner.config->vocab_count;
        float *logits = memory_alloc((size_t)(3 * vocab), sizeof *logits);
        cr_assert_not_null(logits);
        int32_t less[] = {rows[0], rows[1], TOKENS - 2};
        head.rows = less;
        cr_assert_eq(exec_step(runner.exec, &runner.cache, of->form, &segment, 1, &head, &err),
                     STATUS_OK, "%s", err.message);
        memcpy(found, head.chosen, sizeof found);
        for (int i = 0; i < 3; i++)
            memcpy(logits + i * vocab, head.logits + i * head.stride,
                   (size_t)vocab * sizeof *logits);
        cr_assert_eq(exec_head(runner.exec, &head, &err), STATUS_OK);
        for (int i = 0; i < 3 && head.wants_chosen; i++)
            cr_expect(found[i].at == head.chosen[i].at && found[i].score == head.chosen[i].score,
                      "%s, row %d: token %d, not %d", of->plan, i, found[i].at, head.chosen[i].at);
        for (int i = 0; i < 3 && !head.wants_chosen; i++)
            cr_expect_arr_eq(logits + i * vocab, head.logits + i * head.stride,
                             (size_t)vocab * sizeof *logits, "%s, row %d", of->plan, i);
        memory_free(logits);
        model_runner_close(&runner);
    }
}

/* Every head weight of a rank: `value` for the first input, 0 for all others. So its logits are
 * `value` times that input. */
static void head_set(struct model_runner *runner, int rank, float value)
{
    const struct matrix *head = &runner->weights[rank].head;
    float *data = (float *)head->data;
    for (int64_t r = 0; r < head->rows; r++) {
        for (int64_t c = 0; c < head->columns; c++)
            data[packed_index(head->packing, DTYPE_F32, head->rows, head->columns, r, c)] =
                c == 0 ? value : 0;
    }
}

/* An infinity that makes the rank's logits -infinity in row `row` of those asked for. */
static float infinity_for(struct model_runner *runner, int row)
{
    for (int r = 0; r < runner->layout.rank_count; r++)
        head_set(runner, r, 1);
    return chosen_get(runner)[row].score > 0 ? -INFINITY : INFINITY;
}

Test(choose, of_equal_ones_the_first_and_of_broken_ones_none)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        struct model_runner runner;
        int last = cases[c].rank_count - 1;
        runner_open(&runner, c);
        float infinity = infinity_for(&runner, 1);
        for (int r = 0; r <= last; r++)
            head_set(&runner, r, 0);
        const struct chosen *found = chosen_get(&runner);
        for (int i = 0; i < 3; i++)
            cr_expect(found[i].at == 0 && found[i].score == 0, "%s: %d", cases[c].plan,
                      found[i].at);
        /* One rank has nothing to choose from; then none has. */
        head_set(&runner, 0, infinity);
        found = chosen_get(&runner);
        int32_t next = last > 0 ? (int32_t)runner.weights[1].vocab.first : CHOSEN_NONE;
        cr_expect_eq(found[1].at, next, "%s: %d, not %d", cases[c].plan, found[1].at, next);
        for (int r = 1; r <= last; r++)
            head_set(&runner, r, infinity);
        cr_expect_eq(chosen_get(&runner)[1].at, CHOSEN_NONE);
        /* One that is broken is all. */
        for (int broken = 0; broken <= last && runner.weights[broken].vocab.count > 0; broken++) {
            for (int r = 0; r <= last; r++)
                head_set(&runner, r, r == broken ? NAN : 0);
            found = chosen_get(&runner);
            for (int i = 0; i < 3; i++)
                cr_expect_eq(found[i].at, CHOSEN_BROKEN, "%s", cases[c].plan);
        }
        model_runner_close(&runner);
    }
}

/* The largest logits of all ranks: those of all logits, of equal ones the first token; and what a
 * pass finds by itself. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "layout/packing.h"
#include "scenarios.h"

TestSuite(largest, .timeout = 100, .fini = scenario_checkpoints_remove);

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

static const struct largest *largest_get(struct model_runner *runner)
{
    struct exec_head head = {.rows = rows, .row_count = 3, .is_greedy = true};
    struct error err;
    cr_assert_eq(exec_head(runner->exec, &head, &err), STATUS_OK);
    return head.largest;
}

Test(largest, are_those_of_the_logits)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        struct model_runner runner;
        struct largest found[3];
        struct exec_head head = {.rows = rows, .row_count = 3};
        struct error err;
        runner_open(&runner, c);
        memcpy(found, largest_get(&runner), sizeof found);
        cr_assert_eq(exec_head(runner.exec, &head, &err), STATUS_OK);
        for (int i = 0; i < 3; i++) {
            const float *row = head.logits + i * head.stride;
            int32_t best = 0;
            for (int32_t t = 1; t < runner.config->vocab_count; t++)
                best = row[t] > row[best] ? t : best;
            cr_expect(found[i].at == best && found[i].value == row[best],
                      "%s, row %d: token %d, not %d", cases[c].plan, i, found[i].at, best);
        }
        model_runner_close(&runner);
    }
}

/* Of the pass that runs, as of the last one. */
Test(largest, a_step_finds_what_the_head_finds_behind_it)
{
    for (int c = 0; c < 2 * CASE_COUNT; c++) {
        const struct form_case *of = &cases[c / 2];
        struct model_runner runner;
        struct largest found[3];
        struct exec_head head = {.rows = rows, .row_count = 3, .is_greedy = c % 2 == 0};
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
        memcpy(found, head.largest, sizeof found);
        for (int i = 0; i < 3; i++)
            memcpy(logits + i * vocab, head.logits + i * head.stride,
                   (size_t)vocab * sizeof *logits);
        cr_assert_eq(exec_head(runner.exec, &head, &err), STATUS_OK);
        for (int i = 0; i < 3 && head.is_greedy; i++)
            cr_expect(found[i].at == head.largest[i].at && found[i].value == head.largest[i].value,
                      "%s, row %d: token %d, not %d", of->plan, i, found[i].at, head.largest[i].at);
        for (int i = 0; i < 3 && !head.is_greedy; i++)
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
    return largest_get(runner)[row].value > 0 ? -INFINITY : INFINITY;
}

Test(largest, of_equal_ones_the_first_and_of_broken_ones_none)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        struct model_runner runner;
        int last = cases[c].rank_count - 1;
        runner_open(&runner, c);
        float infinity = infinity_for(&runner, 1);
        for (int r = 0; r <= last; r++)
            head_set(&runner, r, 0);
        const struct largest *found = largest_get(&runner);
        for (int i = 0; i < 3; i++)
            cr_expect(found[i].at == 0 && found[i].value == 0, "%s: %d", cases[c].plan,
                      found[i].at);
        /* One rank has nothing to choose from; then none has. */
        head_set(&runner, 0, infinity);
        found = largest_get(&runner);
        int32_t next = last > 0 ? (int32_t)runner.weights[1].vocab.first : LARGEST_NONE;
        cr_expect_eq(found[1].at, next, "%s: %d, not %d", cases[c].plan, found[1].at, next);
        for (int r = 1; r <= last; r++)
            head_set(&runner, r, infinity);
        cr_expect_eq(largest_get(&runner)[1].at, LARGEST_NONE);
        /* One that is broken is all. */
        for (int broken = 0; broken <= last && runner.weights[broken].vocab.count > 0; broken++) {
            for (int r = 0; r <= last; r++)
                head_set(&runner, r, r == broken ? NAN : 0);
            found = largest_get(&runner);
            for (int i = 0; i < 3; i++)
                cr_expect_eq(found[i].at, LARGEST_BROKEN, "%s", cases[c].plan);
        }
        model_runner_close(&runner);
    }
}

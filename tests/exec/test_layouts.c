/* The same tokens from every legal layout: against one rank, in f32 and bf16, with the bytes that
 * the formulas say. The quick tier takes every n-th layout by the printed seed, the full tier all.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "scenarios.h"
#include "sweep.h"

#define LOGIT_BOUND 1e-4   /* of the spread */
#define MEAN_BOUND  0x1p-6 /* of the spread, in the mean square: bf16 keeps 8 bits */
#define NLL_BOUND   1e-3
#define CASES_MAX   256

struct layout_case {
    int rank_count;
    char plan[LAYOUT_TEXT_BYTES];
};

static struct model_shape shape_of(const char *model)
{
    struct checkpoint *checkpoint;
    struct error err;
    cr_assert_eq(checkpoint_open(&checkpoint, scenario_checkpoint(model, DTYPE_F32), &err),
                 STATUS_OK, "%s", err.message);
    struct model_shape shape = weights_shape(checkpoint_config(checkpoint));
    checkpoint_close(checkpoint);
    return shape;
}

/* All legal layouts on `rank_count` ranks, those with whole shared experts and dense layers beside
 * those that cut them. What is refused is printed with its rule. */
static int cases_of(struct layout_case *cases, int count, const char *model, int rank_count,
                    bool print)
{
    struct layout layouts[64];
    struct model_shape shape = shape_of(model);
    int total = layout_list(layouts, 64, rank_count);
    for (int i = 0; i < total; i++) {
        struct error reason;
        char text[LAYOUT_TEXT_BYTES];
        layout_format(text, &layouts[i]);
        if (layout_check(&layouts[i], &shape, &reason) != STATUS_OK) {
            if (print)
                printf("%s, %d ranks: %s refused: %s\n", model, rank_count, text, reason.message);
            continue;
        }
        bool cuts = layout_ffn_is_cut(&layouts[i], shape.shared_expert_dim) ||
                    layout_ffn_is_cut(&layouts[i], shape.dense_dim);
        for (int whole = 0; whole <= cuts; whole++) {
            layouts[i].attention.replicate_ffn = whole;
            cr_assert_lt(count, CASES_MAX);
            cases[count].rank_count = rank_count;
            layout_format(cases[count++].plan, &layouts[i]);
        }
    }
    return count;
}

static void check_bytes(const struct model_runner *runner, const struct scenario_result *result,
                        const char *label)
{
    for (int r = 0; r < runner->layout.rank_count; r++) {
        for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++) {
            long long counted = (long long)comm_domain_bytes(box_domain(runner->box), r, kind);
            long long formula = result->by_formula.bytes[r][kind];
            long long walk = result->by_walk.bytes[r][kind];
            cr_assert(counted == formula && counted == walk,
                      "%s, rank %d, %s: %lld bytes, %lld by the formula, %lld by the walk", label,
                      r, traffic_names[kind], counted, formula, walk);
        }
    }
}

static void run_one(struct scenario_result *out, const char *model, enum dtype dtype,
                    const struct layout_case *layout, const struct scenario *scenario)
{
    struct model_runner runner;
    struct layout parsed;
    struct error err;
    char label[256];
    cr_assert_eq(layout_parse(&parsed, layout->plan, layout->rank_count, &err), STATUS_OK);
    snprintf(label, sizeof label, "%s, %s, %s", model, layout->plan, scenario->name);
    model_runner_open(&runner, &(struct runner_params){
                                   .dir = scenario_checkpoint(model, dtype),
                                   .dtype = dtype,
                                   .rank_count = layout->rank_count,
                                   .plan = layout->plan,
                                   .token_max = scenario_token_max(scenario, parsed.attention.dp),
                                   .segment_max = SCENARIO_SEQUENCES_MAX,
                                   .page_count = 2 * SCENARIO_SEQUENCES_MAX,
                               });
    scenario_run(out, &runner, scenario);
    check_bytes(&runner, out, label);
    model_runner_close(&runner);
}

static const struct layout_case alone = {1, "tp1|tp1"};

static void check_layouts(const char *model, enum dtype dtype, uint64_t quick_step)
{
    struct layout_case cases[CASES_MAX];
    int count = 0, tested = 0;
    double worst = 0;
    int64_t rounds = 0;
    static const int rank_counts[] = {2, 3, 4, 6, 8};
    for (size_t i = 0; i < sizeof rank_counts / sizeof rank_counts[0]; i++)
        count = cases_of(cases, count, model, rank_counts[i], dtype == DTYPE_F32);
    double start = system_seconds();
    for (int64_t s = 0; s < scenario_count; s++) {
        struct scenario_result expected, found;
        run_one(&expected, model, dtype, &alone, &scenarios[s]);
        /* No expert but those that one token chose: with top-1, all tokens on one expert. */
        if (scenarios[s].same_token)
            cr_assert_eq(expected.expert_max, shape_of(model).expert_top_k);
        uint64_t step = sweep_step(quick_step);
        for (uint64_t i = sweep_first(step) - 1; i < (uint64_t)count; i += step) {
            run_one(&found, model, dtype, &cases[i], &scenarios[s]);
            bool is_exact = dtype == DTYPE_F32;
            double error =
                is_exact ? scenario_worst(&found, &expected) : scenario_mean(&found, &expected);
            double nll = fabs(found.nll / expected.nll - 1);
            cr_assert(error <= (is_exact ? LOGIT_BOUND : MEAN_BOUND) && nll <= NLL_BOUND,
                      "%s, %s on %d ranks, %s: logits off by %.2e, NLL by %.2e", model,
                      cases[i].plan, cases[i].rank_count, scenarios[s].name, error, nll);
            worst = error > worst ? error : worst;
            rounds = found.round_max > rounds ? found.round_max : rounds;
            if (s == 0)
                printf("%s, %d ranks, %s: %s\n", model, cases[i].rank_count, dtype_name(dtype),
                       cases[i].plan);
            memory_free(found.logits);
            tested++;
        }
        memory_free(expected.logits);
    }
    printf("%s, %s: %d of %d runs under %d legal layouts, worst %.2e, up to %lld rounds, %.1f s\n",
           model, dtype_name(dtype), tested, (int)(count * scenario_count), count, worst,
           (long long)rounds, system_seconds() - start);
    cr_assert_gt(tested, 0);
    fflush(stdout);
}

TestSuite(layouts, .fini = scenario_checkpoints_remove);

Test(layouts, mixtral_float32)
{
    check_layouts("mixtral", DTYPE_F32, 4);
}

Test(layouts, qwen2moe_float32)
{
    check_layouts("qwen2moe", DTYPE_F32, 4);
}

Test(layouts, qwen3moe_float32)
{
    check_layouts("qwen3moe", DTYPE_F32, 4);
}

Test(layouts, mixtral_bfloat16)
{
    check_layouts("mixtral", DTYPE_BF16, 8);
}

Test(layouts, qwen2moe_bfloat16)
{
    check_layouts("qwen2moe", DTYPE_BF16, 8);
}

Test(layouts, qwen3moe_bfloat16)
{
    check_layouts("qwen3moe", DTYPE_BF16, 8);
}

/* Sums are taken in the order of the ranks: bits do not depend on who comes first. */
Test(layouts, the_same_bits_from_run_to_run)
{
    static const struct layout_case cases[] = {
        {8, "tp8|tp8"}, {8, "tp2dp4|tp2ep4"}, {4, "dp4|ep4"}, {4, "tp4|ep4"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scenario_result first, again;
        run_one(&first, "mixtral", DTYPE_F32, &cases[i], &scenarios[0]);
        for (int repeat = 0; repeat < 3; repeat++) {
            run_one(&again, "mixtral", DTYPE_F32, &cases[i], &scenarios[0]);
            cr_assert(memcmp(first.logits, again.logits,
                             (size_t)(first.token_count * first.vocab) * sizeof(float)) == 0,
                      "%s", cases[i].plan);
            memory_free(again.logits);
        }
        memory_free(first.logits);
    }
}

/* More tokens for a group than its buffers hold: the dispatch goes in rounds. */
Test(layouts, a_crowded_group_is_served_in_rounds)
{
    static const struct layout_case cases[] = {
        {8, "dp8|ep8"}, {8, "tp2dp4|tp2ep4"}, {4, "dp4|ep4"}};
    struct scenario_result expected, found;
    run_one(&expected, "qwen3moe", DTYPE_F32, &alone, &scenarios[2]);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run_one(&found, "qwen3moe", DTYPE_F32, &cases[i], &scenarios[2]);
        cr_assert_gt(found.round_max, 1, "%s", cases[i].plan);
        cr_assert_leq(scenario_worst(&found, &expected), LOGIT_BOUND, "%s", cases[i].plan);
        memory_free(found.logits);
    }
    memory_free(expected.logits);
}

/* A damaged checkpoint: logits become NaN, whatever the layout; nothing else happens. Each of eight
 * ranks has three experts, fewer than a token chooses. */
Test(layouts, weights_that_are_no_numbers)
{
    static const struct layout_case cases[] = {{1, "tp1|tp1"}, {8, "dp8|ep8"}, {8, "tp2dp4|ep8"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_runner runner;
        struct error err;
        int32_t tokens[16] = {1, 2, 3, 4, 5, 6, 7, 8}, page, row = 0;
        struct exec_head head = {.rows = &row, .row_count = 1};
        model_runner_open(&runner, &(struct runner_params){
                                       .dir = scenario_checkpoint("qwen2moe", DTYPE_F32),
                                       .dtype = DTYPE_F32,
                                       .rank_count = cases[i].rank_count,
                                       .plan = cases[i].plan,
                                       .token_max = 128,
                                       .page_count = 1,
                                   });
        for (int r = 0; r < cases[i].rank_count; r++)
            ((float *)runner.weights[r].layers[0].ffn_norm)[3] = NAN;
        model_runner_take(&runner, 0, &page, 1);
        struct exec_segment segment = {tokens, 16, 0, &page, 0};
        cr_assert_eq(exec_forward(runner.exec, &runner.cache, FORM_OWNED, &segment, 1, &err),
                     STATUS_OK);
        cr_assert_eq(exec_head(runner.exec, &head, &err), STATUS_OK);
        for (int64_t v = 0; v < runner.config->vocab_count; v++)
            cr_assert(isnan(head.logits[v]));
        model_runner_close(&runner);
    }
}

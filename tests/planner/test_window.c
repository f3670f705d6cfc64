/* Attention with a sliding window: pairs and positions by hand. */
#include <criterion/criterion.h>
#include <math.h>

#include "problems.h"

TestSuite(window, .timeout = 30);

#define HEADS    4
#define KV_HEADS 2
#define HEAD_DIM 8

/* Three layers, of which `sliding` see the last `window` positions. */
static void problem_make(struct test_problem *out, int64_t sliding, int64_t window,
                         const struct simple_box *box)
{
    struct model_shape shape = {
        .layer_count = 3,
        .moe_layer_count = 3,
        .vocab_count = 64,
        .hidden_dim = 64,
        .head_count = HEADS,
        .kv_head_count = KV_HEADS,
        .head_dim = HEAD_DIM,
        .expert_count = 4,
        .expert_top_k = 2,
        .expert_dim = 32,
        .sliding_layer_count = sliding,
        .sliding_window = window,
    };
    problem_simple(out, &shape, box);
}

static struct layout one_rank(void)
{
    struct error err;
    struct layout layout;
    cr_assert_eq(layout_parse(&layout, "tp1|tp1", 0, &err), STATUS_OK, "%s", err.message);
    return layout;
}

/* Seconds are flops of one head's numbers: 4 for each pair. */
static const struct simple_box by_flops = {1, 1, INFINITY, INFINITY, 0};
/* Seconds are bytes: keys and values of bf16, queries and results of f32. */
static const struct simple_box by_bytes = {1, INFINITY, 1, INFINITY, 0};

static double pairs_of(const struct pass_cost *cost)
{
    return cost->seconds[COST_ATTENTION] / (4.0 * HEADS * HEAD_DIM);
}

static double positions_of(const struct pass_cost *cost, double tokens)
{
    double activations = 3 * tokens * 2 * HEADS * HEAD_DIM * 4;
    return (cost->seconds[COST_ATTENTION] - activations) / (2.0 * KV_HEADS * HEAD_DIM * 2);
}

static void expect(double found, double expected, const char *what)
{
    cr_expect(fabs(found - expected) < 1e-6, "%s: %g, not %g", what, found, expected);
}

/* Sequences of one prompt and one answer, `pass` tokens a pass: sums over the layers. A pass has
 * its share of a prompt's sums, in whole pairs and positions, so these divide evenly. */
static const struct {
    const char *name;
    int64_t sliding, window, sequences, prompt, output, pass;
    double prefill_pairs, prefill_positions, decode;
} cases[] = {
    /* 1 + ... + 10 = 55; decode sees 11, 12 and 13. */
    {"all see all", 0, 0, 1, 10, 4, 64, 3 * 55, 3 * 10, 3 * 36},
    {"a window that none slides with", 0, 4, 1, 10, 4, 64, 3 * 55, 3 * 10, 3 * 36},
    /* 1 + 2 + 3 + 4 x 7 = 34; decode sees 4 each time. */
    {"all slide", 3, 4, 1, 10, 4, 64, 3 * 34, 3 * 10, 3 * 12},
    {"two of three slide", 2, 4, 1, 10, 4, 64, 55 + 2 * 34, 3 * 10, 36 + 2 * 12},
    {"as wide as the prompt", 3, 10, 1, 10, 4, 64, 3 * 55, 3 * 10, 3 * 30},
    {"wider than all", 3, 100, 1, 10, 4, 64, 3 * 55, 3 * 10, 3 * 36},
    {"itself alone", 3, 1, 1, 10, 4, 64, 3 * 10, 3 * 10, 3 * 3},
    {"five sequences", 3, 4, 5, 10, 4, 64, 5 * 3 * 34, 5 * 3 * 10, 5 * 3 * 12},
    /* Decode sees 3, 4, 5, 6, 7, 8, of which a window of 5 leaves 3, 4, 5, 5, 5, 5. */
    {"decode outgrows the window", 1, 5, 1, 2, 7, 64, 3 * 3, 3 * 2, 2 * 33 + 27},
    {"decode fills it in its last step", 3, 7, 1, 2, 6, 64, 3 * 3, 3 * 2, 3 * 25},
    /* Pieces of 4: with 0, 4 and 8 before them; of 6 the later ones see 4 and 5. */
    {"a prompt in pieces", 1, 6, 1, 12, 1, 4, 2 * 78 + 57, 2 * 24 + 21, 0},
    {"a piece as wide as the window", 3, 4, 1, 12, 1, 4, 3 * 42, 3 * (12 + 3 + 3), 0},
    {"pieces that see nothing before", 3, 1, 1, 12, 1, 4, 3 * 12, 3 * 12, 0},
    {"a window of many pieces", 3, 8, 1, 12, 1, 3, 3 * (36 + 32), 3 * (12 + 3 + 6 + 7), 0},
};

Test(window, bounds_what_attention_sees)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct layout layout = one_rank();
        double all = (double)(cases[i].sequences * cases[i].prompt);
        double steps = (double)(cases[i].sequences * (cases[i].output - 1));
        for (int bytes = 0; bytes < 2; bytes++) {
            struct test_problem test;
            problem_make(&test, cases[i].sliding, cases[i].window,
                         bytes == 0 ? &by_flops : &by_bytes);
            test.problem.load =
                (struct plan_load)PLAN_LOAD(cases[i].sequences, cases[i].prompt, cases[i].output);
            struct pass_cost prefill =
                plan_prefill_cost(&test.problem, &layout, cases[i].pass, cases[i].sequences).cost;
            struct pass_cost decode =
                plan_decode_cost(&test.problem, &layout, false, cases[i].sequences);
            if (bytes == 0) {
                expect(pairs_of(&prefill), cases[i].prefill_pairs, cases[i].name);
                expect(pairs_of(&decode), cases[i].decode, cases[i].name);
            } else {
                expect(positions_of(&prefill, all), cases[i].prefill_positions, cases[i].name);
                expect(positions_of(&decode, steps), cases[i].decode, cases[i].name);
            }
        }
    }
}

/* Whether the shared expert runs at once with the routed ones: in the forms in which its rows are
 * there when theirs are, and where the buffers have room for both. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>

#include "scenarios.h"

TestSuite(shared_expert, .timeout = 100, .fini = scenario_checkpoints_remove);

#define TOKENS_MAX 32
#define RANKS_MAX  4

/* Tables of operations that count those that join, of all ranks. */
static struct {
    struct device_ops ops;
    const struct device_ops *real;
    atomic_int up, down;
} joins;

static void count_up(struct stream *stream, const struct op_ffn_up *op)
{
    atomic_fetch_add(&joins.up, op->joins_next);
    joins.real->ffn_up(stream, op);
}

static void count_down(struct stream *stream, const struct op_ffn_down *op)
{
    atomic_fetch_add(&joins.down, op->joins_next);
    joins.real->ffn_down(stream, op);
}

static void joins_count(struct device *device)
{
    joins.real = device->ops;
    joins.ops = *device->ops;
    joins.ops.ffn_up = count_up;
    joins.ops.ffn_down = count_down;
    device->ops = &joins.ops;
}

#define VOCAB_MAX 1024

/* Runs a pass, and returns the operations that joined; the last token's logits go to `logits`. */
static int joins_of_pass(float logits[VOCAB_MAX], struct model_runner *runner, enum layer_form form,
                         int64_t count)
{
    static const int32_t tokens[TOKENS_MAX] = {1, 2, 3, 4, 5, 6, 7, 8};
    int32_t page, row = (int32_t)count - 1;
    struct exec_head head = {.rows = &row, .row_count = 1};
    struct error err;
    model_runner_take(runner, 0, &page, 1);
    struct exec_segment segment = {tokens, count, 0, &page, 0};
    atomic_store(&joins.up, 0);
    atomic_store(&joins.down, 0);
    cr_assert_eq(exec_forward(runner->exec, &runner->cache, form, &segment, 1, &err), STATUS_OK,
                 "%s", err.message);
    cr_assert_eq(exec_head(runner->exec, &head, &err), STATUS_OK);
    cr_assert_leq(runner->config->vocab_count, VOCAB_MAX);
    memcpy(logits, head.logits, (size_t)runner->config->vocab_count * sizeof *logits);
    model_runner_return(runner, 0, &page, 1);
    cr_assert_eq(atomic_load(&joins.up), atomic_load(&joins.down));
    return atomic_load(&joins.up);
}

struct form_case {
    const char *plan;
    int rank_count;
    enum layer_form form;
    int64_t tokens;
    int joins; /* of all ranks, in a layer with experts */
};

/* Ranks of one thread run one operation behind the other, of two both at once. */
static void run(float logits[VOCAB_MAX], const char *model, const struct form_case *of, int threads)
{
    struct model_runner runner;
    struct error err;
    model_runner_open(&runner, &(struct runner_params){.dir = scenario_checkpoint(model, DTYPE_F32),
                                                       .dtype = DTYPE_F32,
                                                       .rank_count = of->rank_count,
                                                       .plan = of->plan,
                                                       .thread_count = threads * of->rank_count,
                                                       .token_max = TOKENS_MAX,
                                                       .page_count = 1});
    struct exec_params params = {.box = runner.box,
                                 .config = runner.config,
                                 .layouts = &runner.layouts,
                                 .weights = runner.weights,
                                 .token_max = TOKENS_MAX,
                                 .segment_max = TOKENS_MAX};
    exec_destroy(runner.exec);
    for (int r = 0; r < of->rank_count; r++)
        joins_count(box_device(runner.box, r));
    cr_assert_eq(exec_create(&runner.exec, &params, &err), STATUS_OK);
    int found = joins_of_pass(logits, &runner, of->form, of->tokens);
    int moe_layers = 0;
    for (int64_t i = 0; i < runner.config->layer_count; i++)
        moe_layers += runner.config->layers[i].ffn == FFN_MOE;
    cr_expect_eq(found, of->joins * moe_layers, "%s, %s, form %d, %lld tokens: %d joined", model,
                 of->plan, (int)of->form, (long long)of->tokens, found);
    model_runner_close(&runner);
}

static void check(const char *model, const struct form_case *of)
{
    float expected[VOCAB_MAX] = {0}, found[VOCAB_MAX] = {0};
    run(expected, model, of, 1);
    run(found, model, of, 2);
    cr_expect_eq(memcmp(found, expected, sizeof found), 0, "%s, %s, form %d, %lld tokens", model,
                 of->plan, (int)of->form, (long long)of->tokens);
}

Test(shared_expert, joins_where_it_can)
{
    static const struct form_case cases[] = {
        {"tp1|tp1", 1, FORM_OWNED, 1, 1},
        {"tp1|tp1", 1, FORM_OWNED, 2, 1},
        {"tp1|tp1", 1, FORM_OWNED, 20, 1},
        {"tp1|tp1", 1, FORM_OWNED, TOKENS_MAX, 0}, /* no room */
        /* Cut in two, it rides. */
        {"tp2|tp2", 2, FORM_OWNED, 4, 2},
        {"tp2|tp2", 2, FORM_REPLICATED, 4, 2},
        {"tp2|tp2", 2, FORM_REPLICATED, 1, 2},
        {"tp2|ep2", 2, FORM_GATHERED, 4, 2},
        /* Narrower than an expert: there is room for 25 rows behind all choices', and between the
         * halves for 28. */
        {"tp4|ep4", 4, FORM_GATHERED, 25, 4},
        {"tp4|ep4", 4, FORM_GATHERED, 27, 0},
        {"tp2|ep2", 2, FORM_OWNED, 4, 0}, /* does not, and gathers for itself */
        /* Whole, for own tokens: one of the groups has some. */
        {"dp2|ep2", 2, FORM_OWNED, 4, 1},
        {"dp2|tp2", 2, FORM_GATHERED, 4, 1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        check("qwen2moe", &cases[c]);
    check("mixtral", &(struct form_case){"tp1|tp1", 1, FORM_OWNED, 4, 0}); /* has none */
}

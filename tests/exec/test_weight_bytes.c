/* The weights that a pass reads, counted by stage: against the experts that the router chose. */
#include <criterion/criterion.h>
#include <string.h>

#include "model_runner.h"
#include "quant/int4.h"

#define TOKENS     8
#define TOP_K_MAX  8
#define LAYERS_MAX 4
#define TOKENS_MAX 32 /* of a pass, all groups together */

static const struct {
    const char *plan;
    int rank_count;
} cases[] = {{"tp1|tp1", 1}, {"tp2|tp2", 2}, {"tp2|ep2", 2}, {"dp2|ep2", 2}, {"tp2dp2|tp2ep2", 4}};

/* Of one expert, written out: three matrices; with INT4 a scale of two bytes for each group. */
static uint64_t expert_bytes(const struct model_config *config, bool has_int4)
{
    uint64_t hidden = (uint64_t)config->hidden_dim, width = (uint64_t)config->expert_dim;
    if (!has_int4)
        return 3 * hidden * width * 2;
    uint64_t groups = (hidden + INT4_GROUP - 1) / INT4_GROUP;
    return 3 * hidden * width / 2 + 3 * width * groups * 2;
}

static const char *runner_plan(const struct model_runner *runner)
{
    static char text[LAYOUT_TEXT_BYTES];
    layout_format(text, &runner->layout);
    return text;
}

static uint64_t distinct_experts(const int32_t *ids, int64_t count, int64_t expert_count)
{
    uint64_t distinct = 0;
    for (int32_t expert = 0; expert < expert_count; expert++) {
        bool is_chosen = false;
        for (int64_t i = 0; i < count; i++)
            is_chosen |= ids[i] == expert;
        distinct += is_chosen;
    }
    return distinct;
}

/* The bytes of routed experts that a pass read. */
static uint64_t check_pass(struct model_runner *runner, const int32_t *tokens, int64_t token_count,
                           bool has_int4)
{
    static int32_t routing[LAYERS_MAX * TOKENS_MAX * TOP_K_MAX];
    const struct model_config *config = runner->config;
    struct stage_total before[STAGE_KIND_COUNT], after[STAGE_KIND_COUNT];
    struct error err;
    int64_t per_layer = exec_token_max(runner->exec) * config->expert_top_k;
    int32_t page, row = 0;
    struct exec_head head = {.rows = &row, .row_count = 1};
    uint64_t expected = 0;
    cr_assert(config->layer_count * per_layer <= (int64_t)(sizeof routing / sizeof *routing));
    for (int64_t i = 0; i < token_count; i++)
        cr_assert_lt(tokens[i], config->vocab_count);
    model_runner_take(runner, 0, &page, 1);
    struct exec_segment segment = {tokens, token_count, 0, &page, 0};
    exec_record_routing(runner->exec, routing);
    exec_stage_totals(runner->exec, before);
    cr_assert_eq(exec_forward(runner->exec, &runner->cache, exec_decode_form(runner->exec),
                              &segment, 1, &err),
                 STATUS_OK, "%s", err.message);
    cr_assert_eq(exec_head(runner->exec, &head, &err), STATUS_OK);
    exec_stage_totals(runner->exec, after);
    exec_record_routing(runner->exec, NULL);
    model_runner_return(runner, 0, &page, 1);

    for (int64_t layer = 0; layer < config->layer_count; layer++)
        expected += distinct_experts(routing + layer * per_layer,
                                     token_count * config->expert_top_k, config->expert_count) *
                    expert_bytes(config, has_int4);
    uint64_t experts = after[STAGE_EXPERTS].weight_bytes - before[STAGE_EXPERTS].weight_bytes;
    cr_assert_eq(experts, expected, "%s, %d tokens: %llu instead of %llu", runner_plan(runner),
                 (int)token_count, (unsigned long long)experts, (unsigned long long)expected);
    cr_assert_eq(after[STAGE_HEAD].weight_bytes - before[STAGE_HEAD].weight_bytes,
                 (uint64_t)(config->vocab_count * config->hidden_dim * 2));
    cr_assert_eq(after[STAGE_NORM].weight_bytes + after[STAGE_ATTENTION].weight_bytes, 0);
    return experts;
}

Test(weight_bytes, are_those_of_the_experts_that_have_rows)
{
    static const int32_t tokens[TOKENS] = {11, 50, 3, 77, 21, 5, 8, 40};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint64_t bytes[2];
        for (int has_int4 = 0; has_int4 < 2; has_int4++) {
            struct model_runner runner;
            model_runner_open(&runner, &(struct runner_params){.name = "qwen3moe",
                                                               .dtype = DTYPE_BF16,
                                                               .has_int4_experts = has_int4,
                                                               .rank_count = cases[c].rank_count,
                                                               .plan = cases[c].plan,
                                                               .token_max = TOKENS_MAX,
                                                               .page_count = 1});
            check_pass(&runner, tokens, TOKENS, has_int4);
            bytes[has_int4] = check_pass(&runner, tokens, 1, has_int4);
            model_runner_close(&runner);
        }
        /* One token reads as many experts either way. */
        cr_assert_leq((double)bytes[1], 0.30 * (double)bytes[0], "%s", cases[c].plan);
    }
}

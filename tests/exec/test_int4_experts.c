/* Routed experts that are rounded to INT4 while they load: the same weights under every layout. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "scenarios.h"

static const struct plan_case {
    const char *model;
    int rank_count;
    const char *plan;
} cases[] = {
    {"mixtral", 2, "tp2|tp2"},    {"mixtral", 2, "dp2|ep2"},     {"mixtral", 4, "tp2dp2|tp2ep2"},
    {"mixtral", 8, "tp2dp4|tp8"}, {"qwen2moe", 2, "dp2|tp2"},    {"qwen2moe", 4, "tp2dp2|tp4"},
    {"qwen3moe", 2, "tp2|ep2"},   {"qwen3moe", 4, "dp4|tp2ep2"},
};

static void run(struct scenario_result *out, const struct plan_case *from, bool has_int4)
{
    struct model_runner runner;
    model_runner_open(&runner, &(struct runner_params){
                                   .dir = scenario_checkpoint(from->model, DTYPE_F32),
                                   .dtype = DTYPE_F32,
                                   .has_int4_experts = has_int4,
                                   .rank_count = from->rank_count,
                                   .plan = from->plan,
                                   .token_max = scenario_token_max(&scenarios[0], 8),
                                   .segment_max = SCENARIO_SEQUENCES_MAX,
                                   .page_count = 2 * SCENARIO_SEQUENCES_MAX,
                               });
    for (int r = 0; r < from->rank_count; r++) {
        struct weights_share share = model_runner_share(&runner, r);
        struct weights_bytes bytes;
        weights_bytes(&bytes, runner.config, &share);
        cr_assert_eq(bytes.experts, runner.weights[r].expert_bytes);
        cr_assert_eq(bytes.resident, runner.weights[r].resident_bytes);
    }
    scenario_run(out, &runner, &scenarios[0]);
    model_runner_close(&runner);
}

/* Of the spread of the logits. Inputs of INT4 products are rounded to 2^-14 of the largest beside
 * them, and the last bits of a sum, which depend on the layout, decide some of them. */
#define WORST 2e-3

static const struct layout alone = {
    .rank_count = 1, .attention = {.tp = 1, .dp = 1}, .experts = {.tp = 1, .ep = 1}};

TestSuite(int4_experts, .fini = scenario_checkpoints_remove);

Test(int4_experts, every_layout_has_the_same)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scenario_result native, expected, found;
        struct plan_case one_rank = {cases[i].model, 1, "tp1|tp1"};
        run(&native, &one_rank, false);
        run(&expected, &one_rank, true);
        run(&found, &cases[i], true);
        double error = scenario_worst(&found, &expected);
        double change = scenario_mean(&expected, &native);
        printf("%s, %s: worst %.2e; rounding changes %.3f of the spread\n", cases[i].model,
               cases[i].plan, error, change);
        cr_assert_leq(error, WORST);
        cr_assert(change > 1e-4 && change < 0.3, "%s: %g", cases[i].model, change);
        memory_free(native.logits);
        memory_free(expected.logits);
        memory_free(found.logits);
    }
}

/* 24 is no multiple of 16. */
Test(int4_experts, a_width_that_cannot_be_is_refused_with_its_cure)
{
    struct checkpoint *checkpoint = test_checkpoint_open("qwen3moe-fused");
    struct weights_share int4 = {.layouts = plan_layouts_static(&alone),
                                 .types = {DTYPE_BF16, DTYPE_INT4}};
    struct weights_progress silent = {0};
    struct cpu_share share = {.thread_count = 1};
    struct device *device;
    struct weights weights;
    struct error err;
    cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK);
    cr_assert_eq(weights_load(&weights, device, checkpoint, &int4, &silent, &err),
                 STATUS_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "24 x 64"), "%s", err.message);
    cr_expect_not_null(strstr(err.message, "--expert-dtype auto"), "%s", err.message);
    device_destroy(device);
    checkpoint_close(checkpoint);
}

/* 4.125 bits a weight, with rows of experts padded to whole cache lines. */
Test(int4_experts, take_a_quarter_of_bf16)
{
    struct checkpoint *checkpoint = test_checkpoint_open("qwen3moe");
    struct weights_share bf16 = {.layouts = plan_layouts_static(&alone),
                                 .types = {DTYPE_BF16, DTYPE_BF16}};
    struct weights_share int4 = bf16;
    int4.types.experts = DTYPE_INT4;
    struct weights_bytes native, packed;
    weights_bytes(&native, checkpoint_config(checkpoint), &bf16);
    weights_bytes(&packed, checkpoint_config(checkpoint), &int4);
    cr_assert_eq(native.resident, packed.resident);
    cr_assert_leq((double)packed.experts, 0.30 * (double)native.experts);
    checkpoint_close(checkpoint);
}

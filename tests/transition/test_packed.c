/* Decode on the backup's packed weights against decode on the same weights, dequantized: what
 * differs is how the inputs of a product are rounded. And how many bytes it reads. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "rig.h"
#include "rig_gpus.h"

static const struct rig_params cases[] = {
    {.model = "mixtral", .rank_count = 4, .plan = "dp4|ep4>tp4:int4"},
    {.model = "mixtral",
     .rank_count = 1,
     .plan = "tp1|tp1>tp1:int4",
     .settings = {.group = 32, .is_asymmetric = true}},
    {.model = "qwen2moe",
     .rank_count = 2,
     .plan = "tp2|tp2>tp2:int4",
     .settings = {.scheme = BACKUP_PER_CHANNEL}},
    {.model = "qwen3moe",
     .rank_count = 4,
     .plan = "tp2dp2|ep4>tp2ep2:int4",
     .settings = {.group = 16, .is_asymmetric = true, .has_zstd = true}},
};
#define CASE_COUNT (sizeof cases / sizeof *cases)

/* Of the spread of the logits, as tests/exec/test_int4_experts.c has it for inputs that are rounded
 * to 2^-14 of the largest beside them. */
#define WORST 2e-3

TestSuite(packed, .fini = scenario_checkpoints_remove, .timeout = 300);

/* By each way; all passes run in the layout of decode. */
Test(packed, decode_has_the_dequantized_weights_numbers)
{
    static const enum way ways_taken[] = {WAY_KEEP, WAY_UPLOAD};
    for (size_t i = rig_case_first(CASE_COUNT * 2); i < CASE_COUNT * 2; i += rig_case_step()) {
        struct rig_params params = cases[i / 2];
        struct scenario_result found, expected, native;
        struct model_runner *alone;
        struct cold cold;
        struct rig rig;
        struct error err;
        params.dtype = DTYPE_F32;
        params.way = ways_taken[i % 2];
        rig_open(&rig, &params);
        cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK, "%s",
                     err.message);
        scenario_run(&found, &rig.runner, &scenarios[0]);
        cold_open(&cold, &params);
        alone = &cold.of[PHASE_DECODE];
        scenario_run(&native, alone, &scenarios[0]);
        rig_dequantize(alone, &rig);
        scenario_run(&expected, alone, &scenarios[0]);
        double worst = scenario_worst(&found, &expected);
        double nll = fabs(found.nll / expected.nll - 1), change = scenario_mean(&found, &native);
        printf("%s, %s by %s: worst %.2e, nll %.2e; rounding changes %.3f of the spread\n",
               params.model, params.plan, way_names[params.way], worst, nll, change);
        cr_assert_leq(worst, WORST);
        cr_assert_leq(nll, 1e-4);
        cr_assert_gt(change, 10 * worst); /* these are not the checkpoint's weights */
        memory_free(found.logits);
        memory_free(expected.logits);
        memory_free(native.logits);
        cold_close(&cold);
        rig_close(&rig);
    }
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

struct count {
    const struct model_runner *runner;
    uint64_t before; /* the first pass of decode */
};

static uint64_t expert_bytes(const struct model_runner *runner)
{
    struct stage_total totals[STAGE_KIND_COUNT];
    exec_stage_totals(runner->exec, totals);
    return totals[STAGE_EXPERTS].weight_bytes;
}

static void count_from_decode(void *context, int pass)
{
    struct count *count = context;
    if (pass == 2)
        count->before = expert_bytes(count->runner);
}

static uint64_t decode_bytes(struct model_runner *runner)
{
    struct count count = {.runner = runner};
    struct scenario_result result;
    scenario_run_with(&result, runner, &scenarios[0], count_from_decode, &count);
    memory_free(result.logits);
    return expert_bytes(runner) - count.before;
}

/* Of the routed experts, by the same tokens, in groups of 64: 4.25 of 16 bits. */
Test(packed, decode_reads_a_quarter_of_bf16)
{
    for (size_t i = rig_case_first(CASE_COUNT); i < CASE_COUNT; i += rig_case_step()) {
        struct rig_params params = cases[i];
        struct cold cold;
        struct rig rig;
        struct error err;
        params.dtype = DTYPE_BF16;
        params.way = WAY_KEEP;
        params.settings = (struct backup_settings){.group = 0};
        rig_open(&rig, &params);
        cold_open(&cold, &params);
        cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
        uint64_t packed = decode_bytes(&rig.runner);
        uint64_t native = decode_bytes(&cold.of[PHASE_DECODE]);
        double share = (double)packed / (double)native;
        printf("%s, %s: %llu bytes of experts, %.3f of bf16\n", params.model, params.plan,
               (unsigned long long)packed, share);
        cr_assert(native > 0 && share <= 0.30 && share > 0.2, "%g", share);
        cold_close(&cold);
        rig_close(&rig);
    }
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void allocations_at_decode(void *context, int pass)
{
    if (pass == 2)
        *(uint64_t *)context = memory_counters_get().alloc_count;
}

/* No weight is widened outside registers: the executor has what it has for native weights, devices
 * hold what is said and no more, and passes of decode allocate nothing. */
Test(packed, decode_takes_no_memory_to_widen_weights)
{
    for (size_t i = rig_case_first(CASE_COUNT); i < CASE_COUNT; i += rig_case_step()) {
        struct rig_params params = cases[i];
        struct scenario_result result;
        struct rig rig;
        struct error err;
        uint64_t allocations;
        params.dtype = DTYPE_BF16;
        params.way = WAY_KEEP;
        rig_open(&rig, &params);
        struct plan_layouts native = rig.runner.layouts;
        native.decode_is_packed = false;
        cr_assert_eq(exec_bytes(rig.runner.config, &rig.runner.layouts, 64, 8),
                     exec_bytes(rig.runner.config, &native, 64, 8));
        cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
        scenario_run_with(&result, &rig.runner, &scenarios[0], allocations_at_decode, &allocations);
        cr_assert_eq(memory_counters_get().alloc_count, allocations, "%s", params.plan);
        rig_check_memory(&rig, params.plan);
        memory_free(result.logits);
        rig_close(&rig);
    }
}

/* Chains of random transitions by random ways: what passes compute behind them is to the bit what a
 * cold start in that layout computes; and no rank touches what is not its own on the way. */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "baton.h"
#include "expected.h"
#include "rig.h"
#include "rig_gpus.h"
#include "sweep.h"

#define CHAIN_LENGTH 10

static const struct rig_params cases[] = {
    {.model = "mixtral", .dtype = DTYPE_F32, .rank_count = 2, .plan = "tp2|tp2>ep2"},
    {.model = "mixtral", .dtype = DTYPE_BF16, .rank_count = 8, .plan = "tp2dp4|tp2ep4>tp8"},
    {.model = "qwen2moe", .dtype = DTYPE_F32, .rank_count = 4, .plan = "tp2dp2:rep|ep4>tp4"},
    {.model = "qwen2moe", .dtype = DTYPE_BF16, .rank_count = 4, .plan = "tp4|tp4>tp2ep2"},
    {.model = "qwen3moe", .dtype = DTYPE_BF16, .rank_count = 4, .plan = "dp4|ep4>tp4"},
    {.model = "qwen3moe", .dtype = DTYPE_F32, .rank_count = 8, .plan = "tp4dp2|ep8>tp2ep4"},
    {.model = "mixtral",
     .dtype = DTYPE_BF16,
     .has_int4_experts = true,
     .rank_count = 4,
     .plan = "dp4|ep4>tp4"},
    {.model = "qwen3moe", .dtype = DTYPE_BF16, .rank_count = 4, .plan = "dp4|ep4>tp4:int4"},
    {.model = "mixtral",
     .dtype = DTYPE_F32,
     .rank_count = 2,
     .plan = "tp2|tp2>tp2:int4",
     .settings = {.group = 32, .is_asymmetric = true}},
};
#define CASE_COUNT (sizeof cases / sizeof *cases)

/* One phase after another, some twice, some steps with a pass behind them. In place native weights
 * are made of the backup's by reload alone, so upload's transition goes back. */
static void check_chain(struct rig *rig, struct transition *const by_way[WAY_COUNT],
                        const struct cold *cold, const struct expected *expected, const char *label)
{
    struct random random = {.seed = sweep_first(1000)};
    bool is_int4 = false;
    enum phase phase = PHASE_PREFILL;
    for (int step = 0; step < CHAIN_LENGTH; step++) {
        struct scenario_result found;
        struct error err;
        enum phase before = phase;
        enum way way;
        do
            way = (enum way)random_below(&random, WAY_COUNT);
        while (by_way[way] == NULL);
        if (is_int4 && by_way[WAY_UPLOAD] != NULL)
            way = WAY_UPLOAD;
        phase = (enum phase)random_below(&random, PHASE_COUNT);
        cr_assert_eq(rig_move(rig, by_way[way], phase, random_below(&random, 2) > 0, &err),
                     STATUS_OK, "%s: %s", label, err.message);
        if (phase != before)
            is_int4 = phase == PHASE_DECODE &&
                      (way == WAY_UPLOAD || rig->runner.layouts.decode_is_packed);
        if (step + 1 < CHAIN_LENGTH && random_below(&random, 3) > 0)
            continue;
        const struct scenario_result *now = expected_of(expected, phase, is_int4);
        scenario_run(&found, &rig->runner, &scenarios[0]);
        cr_assert(expected_same_bits(&found, now), "%s, step %d (seed %llu)", label, step,
                  (unsigned long long)random.seed);
        cr_assert_eq(found.nll, now->nll);
        memory_free(found.logits);
    }
    cr_assert_eq(rig_check(rig, cold, phase, label), rig_moe_layers(rig));
}

static void check_case(size_t index)
{
    static const enum way in_place[] = {WAY_RESHARD, WAY_RELOAD, WAY_UPLOAD, WAY_MIXED};
    struct transition *by_way[WAY_COUNT] = {NULL};
    struct expected expected;
    struct rig_params params = cases[index];
    struct cold cold;
    struct rig rig;
    struct error err;
    char label[160];
    snprintf(label, sizeof label, "%s, %s", params.model, params.plan);
    params.way = WAY_RESHARD;
    params.has_backup = rig_can(&params, WAY_UPLOAD);
    cold_open(&cold, &params);
    rig_load(&rig, &params);
    expected_open(&expected, &cold, &params, &rig, &scenarios[0]);
    for (size_t w = 0; w < sizeof in_place / sizeof *in_place; w++) {
        params.way = in_place[w];
        if (!rig_can(&params, params.way))
            continue;
        cr_assert_eq(rig_start(&rig, &params, &err), STATUS_OK, "%s", err.message);
        by_way[params.way] = rig.transition;
    }
    check_chain(&rig, by_way, &cold, &expected, label);
    rig.transition = NULL;
    for (int way = 0; way < WAY_COUNT; way++)
        transition_destroy(by_way[way]);
    rig_close(&rig);

    memset(by_way, 0, sizeof by_way);
    params.way = WAY_KEEP;
    rig_open(&rig, &params);
    by_way[WAY_KEEP] = rig.transition;
    check_chain(&rig, by_way, &cold, &expected, label);
    rig_close(&rig);

    cold_close(&cold);
    expected_close(&expected);
}

TestSuite(chains, .fini = scenario_checkpoints_remove);

Test(chains, of_ten_transitions_end_as_a_cold_start)
{
    for (size_t i = rig_case_first(CASE_COUNT); i < CASE_COUNT; i += rig_case_step())
        check_case(i);
}

/* ---- Ranks one at a time --------------------------------------------------------------------- */

Test(chains, ranks_one_at_a_time, .timeout = 120)
{
    if (rig_gpus(1) != NULL)
        return; /* turns are the CPU's */
    for (size_t i = 0; i < CASE_COUNT; i++) {
        for (int way = 0; way < WAY_COUNT; way++) {
            struct rig_params params = cases[i];
            struct cold cold;
            struct rig rig;
            struct error err;
            params.way = (enum way)way;
            if (!rig_can(&params, params.way))
                continue;
            cold_open(&cold, &params);
            baton_open();
            params.turn = baton_turn();
            rig_load(&rig, &params);
            baton_arm(rig.runner.box);
            cr_assert_eq(rig_start(&rig, &params, &err), STATUS_OK);
            for (int step = 0; step < 3; step++)
                cr_assert_eq(
                    rig_move(&rig, rig.transition, (enum phase)(1 - step % 2), step == 2, &err),
                    STATUS_OK);
            baton_disarm();
            cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, way_names[way]),
                         rig_moe_layers(&rig));
            cr_assert_gt(baton_changes(), params.rank_count);
            rig_close(&rig);
            cold_close(&cold);
        }
    }
}

/* ---- A stop ---------------------------------------------------------------------------------- */

static enum status stop_at(void *context, struct error *err)
{
    int *left = context;
    return --*left >= 0 ? STATUS_OK : error_set(err, STATUS_CANCELLED, "stop");
}

/* At any time: layers before it have moved, the others not, and the call repeated goes on from
 * there. What is stopped before its first layer moves none. */
Test(chains, may_be_stopped_between_layers)
{
    for (int way = 0; way < WAY_COUNT; way++) {
        struct rig_params params = cases[1];
        struct cold cold;
        struct rig rig;
        struct error err;
        int left;
        const struct watch watch = {.ask = stop_at, .context = &left};
        params.way = (enum way)way;
        cold_open(&cold, &params);
        rig_open(&rig, &params);
        transition_watch(rig.transition, &watch);
        for (int asked = 0; asked < 4; asked++) {
            left = asked;
            enum status status = transition_run(rig.transition, PHASE_DECODE, &err);
            cr_assert_eq(status, left < 0 ? STATUS_CANCELLED : STATUS_OK);
            cr_assert(status == STATUS_OK || strcmp(err.message, "stop") == 0);
            int64_t changed = rig_check(&rig, &cold, PHASE_DECODE, way_names[way]);
            cr_assert(asked > 0 || changed == 0);
            left = INT_MAX; /* asked at every moment: how often depends on the machine */
            cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
            cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, way_names[way]),
                         rig_moe_layers(&rig));
            cr_assert_eq(transition_run(rig.transition, PHASE_PREFILL, &err), STATUS_OK);
        }
        rig_close(&rig);
        cold_close(&cold);
    }
}

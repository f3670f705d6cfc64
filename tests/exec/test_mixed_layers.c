/* Layers whose experts lie in different layouts, in one pass: as a cold start, and moving the bytes
 * that each layer's layout says. Slices are put in place from a model that was loaded under the
 * other layout. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "scenarios.h"

static const struct {
    const char *model, *plan;
    const char *decode; /* the plan of decode alone */
    int rank_count;
} cases[] = {
    {"mixtral", "dp4|ep4>tp4", "dp4|tp4", 4},
    {"mixtral", "tp2|tp2>ep2", "tp2|ep2", 2},
    {"qwen2moe", "tp4|tp2ep2>ep4", "tp4|ep4", 4},
    {"qwen2moe", "tp2dp2:rep|tp4>ep4", "tp2dp2:rep|ep4", 4},
    {"qwen3moe", "tp2dp4|tp8>tp2ep4", "tp2dp4|tp2ep4", 8},
    {"qwen3moe", "dp4|ep4>tp4", "dp4|tp4", 4},
};
#define CASE_COUNT (sizeof cases / sizeof *cases)

static void open(struct model_runner *out, size_t index, const char *plan, int rank_count)
{
    model_runner_open(out, &(struct runner_params){
                               .dir = scenario_checkpoint(cases[index].model, DTYPE_F32),
                               .dtype = DTYPE_F32,
                               .rank_count = rank_count,
                               .plan = plan,
                               .token_max = scenario_token_max(&scenarios[0], 4),
                               .segment_max = SCENARIO_SEQUENCES_MAX,
                               .page_count = 2 * SCENARIO_SEQUENCES_MAX,
                           });
}

/* The layer gets the layout of decode, by its bytes in a model that has no other. */
static void layer_change(struct model_runner *runner, const struct model_runner *cold,
                         int64_t layer)
{
    for (int r = 0; r < runner->layout.rank_count; r++) {
        struct expert_slots *slots = &runner->weights[r].experts;
        if (!expert_slots_has(slots, layer))
            continue;
        cr_assert(expert_slots_reserve(slots, layer, PHASE_DECODE));
        memcpy(expert_slots_target(slots, layer, PHASE_DECODE),
               expert_slots_now(&cold->weights[r].experts, layer),
               (size_t)expert_form_bytes(&slots->forms[PHASE_DECODE]));
        void *freed = expert_slots_swap(slots, layer, PHASE_DECODE);
        memset(freed, 0xff, expert_slots_slot_bytes(slots, PHASE_PREFILL));
    }
}

static void check_bytes(const struct model_runner *runner, const struct traffic_bytes *before,
                        const struct scenario_result *result, const char *label)
{
    for (int r = 0; r < runner->layout.rank_count; r++) {
        for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++) {
            long long counted = (long long)comm_domain_bytes(box_domain(runner->box), r, kind) -
                                (long long)before->bytes[r][kind];
            cr_assert_eq(counted, result->by_formula.bytes[r][kind], "%s, rank %d, %s", label, r,
                         traffic_names[kind]);
            cr_assert_eq(counted, result->by_walk.bytes[r][kind], "%s, rank %d, %s", label, r,
                         traffic_names[kind]);
        }
    }
}

static void run(struct scenario_result *out, struct model_runner *runner, const char *label)
{
    struct traffic_bytes before;
    for (int r = 0; r < runner->layout.rank_count; r++) {
        for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++)
            before.bytes[r][kind] = (int64_t)comm_domain_bytes(box_domain(runner->box), r, kind);
    }
    scenario_run(out, runner, &scenarios[0]);
    check_bytes(runner, &before, out, label);
}

static bool same_bits(const struct scenario_result *a, const struct scenario_result *b)
{
    return memcmp(a->logits, b->logits, (size_t)(a->token_count * a->vocab) * sizeof(float)) == 0;
}

TestSuite(mixed_layers, .fini = scenario_checkpoints_remove);

/* One layer after another changes, from the last: as one rank alone within what the order of sums
 * makes; before the first and behind the last to the bit as a cold start. */
Test(mixed_layers, are_as_a_cold_start)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        struct model_runner runner, cold, alone, prefill;
        struct scenario_result expected, found, first, last;
        char only_prefill[LAYOUT_TEXT_BYTES];
        snprintf(only_prefill, sizeof only_prefill, "%.*s", (int)strcspn(cases[i].plan, ">"),
                 cases[i].plan);
        open(&alone, i, "tp1|tp1", 1);
        run(&expected, &alone, "one rank");
        model_runner_close(&alone);
        open(&prefill, i, only_prefill, cases[i].rank_count);
        run(&first, &prefill, only_prefill);
        model_runner_close(&prefill);
        open(&cold, i, cases[i].decode, cases[i].rank_count);
        run(&last, &cold, cases[i].decode);
        open(&runner, i, cases[i].plan, cases[i].rank_count);
        for (int64_t changed = 0; changed <= runner.config->layer_count; changed++) {
            if (changed > 0)
                layer_change(&runner, &cold, runner.config->layer_count - changed);
            run(&found, &runner, cases[i].plan);
            double error = scenario_worst(&found, &expected);
            cr_assert_leq(error, 1e-4, "%s, %s, %lld layers changed: off by %.2e", cases[i].model,
                          cases[i].plan, (long long)changed, error);
            if (changed == 0)
                cr_assert(same_bits(&found, &first), "%s", cases[i].plan);
            if (changed == runner.config->layer_count)
                cr_assert(same_bits(&found, &last), "%s", cases[i].plan);
            memory_free(found.logits);
        }
        model_runner_close(&runner);
        model_runner_close(&cold);
        memory_free(expected.logits);
        memory_free(first.logits);
        memory_free(last.logits);
    }
}

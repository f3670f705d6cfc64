/* A planner that stays answers as phasor_plan does, which reads everything anew. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "engine_tools.h"
#include "phasor.h"
#include "sweep.h"

#define MODEL MODELS_DIR "/kjv-moe"

static struct phasor_plan_params params_of(const char *box)
{
    struct phasor_plan_params params = phasor_plan_params_default();
    params.model = MODEL;
    params.box = box;
    return params;
}

static struct phasor_planner *open_planner(const struct phasor_plan_params *params)
{
    struct phasor_planner *planner;
    struct phasor_error err;
    cr_assert_eq(phasor_planner_open(&planner, params, &err), PHASOR_OK, "%s", err.message);
    return planner;
}

/* Text of both, which is freed. */
static void check_same(const struct phasor_planner *planner, struct phasor_plan_params params,
                       const struct phasor_plan_load *load)
{
    char *own, *other;
    struct phasor_error err;
    params.sequences = load->sequences;
    params.prompt_tokens = load->prompt_tokens;
    params.output_tokens = load->output_tokens;
    params.is_queue = load->is_queue;
    params.policy = load->policy;
    params.max_num_seqs = load->max_num_seqs;
    params.max_num_batched_tokens = load->max_num_batched_tokens;
    cr_assert_eq(phasor_planner_ask(&own, planner, load, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(phasor_plan(&other, &params, &err), PHASOR_OK, "%s", err.message);
    cr_expect_str_eq(own, other);
    phasor_text_free(own);
    phasor_text_free(other);
}

static const struct phasor_plan_load loads[] = {
    {.sequences = 32, .prompt_tokens = 100, .output_tokens = 28},
    {.sequences = 1, .prompt_tokens = 1, .output_tokens = 1},
    {.sequences = 8, .prompt_tokens = 900, .output_tokens = 100, .policy = PHASOR_POLICY_EXACT},
    {.sequences = 64, .prompt_tokens = 64, .output_tokens = 512, .is_queue = true},
    {.sequences = 40, .prompt_tokens = 128, .output_tokens = 16, .max_num_seqs = 16},
    {.sequences = 40, .prompt_tokens = 128, .output_tokens = 16, .max_num_batched_tokens = 256},
};

/* What was said when it was opened stays, whatever its load and policy were. */
Test(planner_asked, answers_as_phasor_plan_does)
{
    struct phasor_plan_params params = params_of("h200x4");
    params.memory_bytes = 1 << 30;
    params.routing_deviation = 0.5;
    for (int turn = 0; turn < 2; turn++) {
        char model[] = MODEL;
        struct phasor_plan_params opened = params;
        opened.model = model;
        opened.sequences = turn == 0 ? 0 : 5;
        opened.policy = turn == 0 ? PHASOR_POLICY_EXACT : PHASOR_POLICY_INT4_DECODE;
        struct phasor_planner *planner = open_planner(&opened);
        memset(model, 'x', sizeof model - 1); /* it has a copy */
        for (size_t i = 0; i < 2 * sizeof loads / sizeof *loads; i++) {
            struct phasor_plan_load load = loads[i % (sizeof loads / sizeof *loads)];
            load.size = sizeof load;
            check_same(planner, params, &load);
        }
        phasor_planner_close(planner);
    }
    params.expert_dtype = PHASOR_DTYPE_INT4;
    struct phasor_planner *planner = open_planner(&params);
    struct phasor_plan_load load = loads[0];
    load.size = sizeof load;
    check_same(planner, params, &load);
    phasor_planner_close(planner);
}

/* A box that goes, or becomes another, is as it was. */
Test(planner_asked, has_read_the_box)
{
    char command[4096], path[2048], *before, *after;
    struct phasor_error err;
    snprintf(path, sizeof path, "%s", tools_path(tools_folder(), "own.json"));
    snprintf(command, sizeof command, "cp '%s/a6000x4.json' '%s'", BOXES_DIR, path);
    cr_assert_eq(system(command), 0);
    struct phasor_plan_params params = params_of(path);
    struct phasor_planner *planner = open_planner(&params);
    struct phasor_plan_load load = phasor_plan_load_default();
    cr_assert_eq(load.sequences, params.sequences);
    cr_assert_eq(load.prompt_tokens, params.prompt_tokens);
    cr_assert_eq(load.output_tokens, params.output_tokens);
    load.prompt_tokens = 512;
    cr_assert_eq(phasor_planner_ask(&before, planner, &load, &err), PHASOR_OK, "%s", err.message);
    unlink(path);
    cr_assert_eq(phasor_planner_ask(&after, planner, &load, &err), PHASOR_OK, "%s", err.message);
    cr_expect_str_eq(before, after);
    phasor_text_free(before);
    phasor_text_free(after);
    phasor_planner_close(planner);
    phasor_planner_close(NULL);
}

Test(planner_asked, what_cannot_be_asked_is_refused)
{
    char *text;
    struct phasor_planner *planner;
    struct phasor_error err;
    struct phasor_plan_params params = params_of("h200x4");
    params.input_path = "rows.jsonl";
    cr_expect_eq(phasor_planner_open(&planner, &params, &err), PHASOR_INVALID_ARGUMENT);
    cr_expect(strstr(err.message, "rows.jsonl") != NULL, "%s", err.message);
    params = params_of(NULL);
    cr_expect_eq(phasor_planner_open(&planner, &params, &err), PHASOR_INVALID_ARGUMENT);
    params = params_of(BOXES_DIR "/no-such-box.json");
    cr_expect_eq(phasor_planner_open(&planner, &params, &err), PHASOR_NOT_FOUND);
    params = params_of("h200x4");
    planner = open_planner(&params);
    struct phasor_plan_load load = phasor_plan_load_default();
    load.prompt_tokens = 1 << 20; /* beyond the model's context */
    cr_expect_eq(phasor_planner_ask(&text, planner, &load, &err), PHASOR_INVALID_ARGUMENT);
    load.prompt_tokens = 0;
    cr_expect_eq(phasor_planner_ask(&text, planner, &load, &err), PHASOR_INVALID_ARGUMENT);
    load.prompt_tokens = 64;
    cr_expect_eq(phasor_planner_ask(&text, planner, &load, &err), PHASOR_OK, "%s", err.message);
    phasor_text_free(text);
    phasor_planner_close(planner);
    params.expert_dtype = PHASOR_DTYPE_INT4;
    planner = open_planner(&params);
    load.policy = PHASOR_POLICY_EXACT; /* experts are INT4, which no exact plan has */
    cr_expect_eq(phasor_planner_ask(&text, planner, &load, &err), PHASOR_INVALID_ARGUMENT);
    phasor_planner_close(planner);
}

/* It says that memory was short, and leaves nothing. */
Test(planner_asked, each_allocation_may_fail)
{
    struct phasor_error err;
    struct phasor_planner *planner;
    struct phasor_plan_params params = params_of(BOXES_DIR "/h200x4.json");
    uint64_t live = memory_counters_get().live_count, count = memory_counters_get().alloc_count;
    planner = open_planner(&params);
    count = memory_counters_get().alloc_count - count;
    phasor_planner_close(planner);
    cr_assert_eq(memory_counters_get().live_count, live);
    cr_assert_gt(count, 10);
    uint64_t step = sweep_step(1 + count / 100), refused = 0;
    for (uint64_t n = sweep_first(step); n <= count; n += step) {
        memory_fail_at(n, false);
        enum phasor_status status = phasor_planner_open(&planner, &params, &err);
        memory_fail_at(0, 0);
        cr_assert(status == PHASOR_OK || status == PHASOR_NO_MEMORY, "allocation %d: %s", (int)n,
                  err.message);
        refused += status != PHASOR_OK;
        if (status == PHASOR_OK)
            phasor_planner_close(planner);
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %d leaks", (int)n);
    }
    cr_assert_gt(refused, 0);
}

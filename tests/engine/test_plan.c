/* phasor_plan's parts: a box as a profile, and the memory of a plan. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/plan_box.h"
#include "engine/plan_problem.h"
#include "engine_tools.h"
#include "phasor.h"
#include "sweep.h"

#define MODEL MODELS_DIR "/kjv-moe"

TestSuite(plan, .timeout = 60);

/* ---- A box as a profile ---------------------------------------------------------------------- */

/* Four ranks on one switch, each by a link of 1 GB/s and 1 us; rings in one protocol of 10 us, 2 us
 * a step, at half of the bandwidth. */
static void box_make(struct box_model *box)
{
    memset(box, 0, sizeof *box);
    box->rank_count = 4;
    box->end_count = 6;
    box->host = 5;
    box->disk = -1;
    box->link_count = 5;
    for (int i = 0; i < 5; i++)
        box->links[i] =
            (struct box_link){.ends = {i < 4 ? i : 5, 4}, .bytes_per_second = 1e9, .latency = 1e-6};
    for (int op = 0; op < COLLECTIVE_OP_COUNT; op++)
        box->collectives[op] = (struct box_collective){
            .algorithm = op == COLLECTIVE_OP_ALL_TO_ALL ? ALGORITHM_DIRECT : ALGORITHM_RING,
            .protocol_count = 1,
            .protocols = {{.base_latency = 10e-6, .step_latency = 2e-6, .efficiency = 0.5}}};
    box->device = (struct box_device){.peak_flops = 1e12, .memory_bytes_per_second = 1e11};
    for (int kind = 0; kind < WORK_KIND_COUNT; kind++)
        box->device.flops_efficiency[kind] = box->device.bytes_efficiency[kind] = 0.5;
    for (int rank = 0; rank < 4; rank++)
        box->memory_of[rank] = -1;
}

/* Bytes are what leave a rank: of a ring as much goes over each link. A step has the latency of two
 * links. */
static const struct {
    enum group_op op;
    int size;
    double bytes, seconds;
} calls[] = {
    {GROUP_ALL_GATHER, 4, 1 << 20, 10e-6 + 3 * 4e-6 + (1 << 20) / 0.5e9},
    {GROUP_REDUCE_SCATTER, 2, 1 << 20, 10e-6 + 4e-6 + (1 << 20) / 0.5e9},
    {GROUP_ALL_REDUCE, 4, 1 << 20, 10e-6 + 6 * 4e-6 + (1 << 20) / 0.5e9},
    {GROUP_ALL_TO_ALL, 4, 1 << 20, 10e-6 + 4e-6 + (1 << 20) / 0.5e9},
    {GROUP_ALL_TO_ALL, 2, 1 << 10, 10e-6 + 4e-6 + (1 << 10) / 0.5e9},
};

Test(plan, a_box_gives_the_times_of_its_links)
{
    struct box_model *box = malloc(sizeof *box);
    struct plan_box made;
    struct error err;
    cr_assert_not_null(box);
    box_make(box);
    cr_assert_eq(plan_box_init(&made, box, &err), STATUS_OK, "%s", err.message);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (int strided = 0; strided <= (calls[i].size < 4); strided++) {
            double found = profile_collective_seconds(&made.profile, calls[i].op, calls[i].size,
                                                      strided == 1, calls[i].bytes);
            cr_assert(fabs(found / calls[i].seconds - 1) < 1e-6, "call %zu: %g, not %g", i, found,
                      calls[i].seconds);
        }
    }
    cr_assert_float_eq(made.profile.host_to_device, 1e9 / 4, 1); /* all by the host's one link */
    /* A rank's own link carries four times as much, and exchanges want all of it. */
    cr_assert_float_eq(made.profile.host_to_device_busy, 1e9 / 4 / 1.25, 1);
    cr_assert(isinf(made.profile.disk_read));
    struct work_shape product = {WORK_MATMUL, DTYPE_BF16, {4096, 4096, 4096}};
    cr_assert_float_eq(profile_work_seconds(&made.profile, &product) /
                           (2.0 * 4096 * 4096 * 4096 / 0.5e12),
                       1, 1e-9);
    plan_box_deinit(&made);
    free(box);
}

/* Ranks that share a slot compute one after another, and those of one memory share its rate. */
Test(plan, a_box_gives_what_its_ranks_have_beside_each_other)
{
    static const struct {
        bool one_slot;
        double memory, flops_times, bytes_times; /* of what each takes with all to itself */
    } cases[] = {
        {true, 1e13, 4, 4}, {false, 1e13, 1, 1}, {false, 2e10, 1, 10}, {true, 2e10, 4, 10}};
    const struct work_shape product = {WORK_MATMUL, DTYPE_BF16, {4096, 4096, 4096}},
                            few = {WORK_MATMUL, DTYPE_BF16, {1, 4096, 4096}};
    struct box_model *box = malloc(sizeof *box);
    struct plan_box made;
    struct error err;
    cr_assert_not_null(box);
    box_make(box);
    cr_assert_eq(plan_box_init(&made, box, &err), STATUS_OK, "%s", err.message);
    double flops = profile_work_seconds(&made.profile, &product);
    double bytes = profile_work_seconds(&made.profile, &few);
    cr_assert_eq(made.profile.sharing, 1);
    plan_box_deinit(&made);
    box->memory_count = 1; /* of all four */
    memset(box->memory_of, 0, sizeof box->memory_of);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        box->memory_bytes_per_second[0] = cases[c].memory;
        box->has_one_slot = cases[c].one_slot;
        cr_assert_eq(plan_box_init(&made, box, &err), STATUS_OK, "%s", err.message);
        cr_expect_float_eq(profile_work_seconds(&made.profile, &product) / flops,
                           cases[c].flops_times, 1e-6, "case %zu", c);
        cr_expect_float_eq(profile_work_seconds(&made.profile, &few) / bytes, cases[c].bytes_times,
                           1e-6, "case %zu", c);
        cr_expect_eq(made.profile.sharing, cases[c].one_slot ? 4 : 1);
        plan_box_deinit(&made);
    }
    free(box);
}

/* The host's link has room for all: each rank's own is what copies and exchanges share. Where ranks
 * do not reach one another there is nothing to share. */
Test(plan, copies_and_exchanges_share_a_rank_s_link)
{
    struct box_model *box = malloc(sizeof *box);
    struct plan_box made;
    struct error err;
    cr_assert_not_null(box);
    box_make(box);
    box->links[4].bytes_per_second = 8e9;
    cr_assert_eq(plan_box_init(&made, box, &err), STATUS_OK, "%s", err.message);
    cr_assert_float_eq(made.profile.host_to_device, 1e9, 1);
    cr_assert_float_eq(made.profile.host_to_device_busy, 0.5e9, 1);
    plan_box_deinit(&made);
    box->rank_count = 1;
    cr_assert_eq(plan_box_init(&made, box, &err), STATUS_OK, "%s", err.message);
    cr_assert_float_eq(made.profile.host_to_device_busy, 1e9, 1);
    plan_box_deinit(&made);
    free(box);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static json_t *plan_of(const char *box, int64_t sequences, int64_t pass_tokens)
{
    char *text;
    struct phasor_error err = {.message = ""};
    struct phasor_plan_params params = phasor_plan_params_default();
    params.model = MODEL;
    params.box = box;
    params.prompt_tokens = 100;
    params.output_tokens = 28;
    params.sequences = params.max_num_seqs = sequences;
    params.max_num_batched_tokens = pass_tokens;
    cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_OK, "%s", err.message);
    json_t *root = json_loads(text, 0, NULL);
    cr_assert_not_null(root);
    phasor_text_free(text);
    return root;
}

/* A pass has a token of each sequence that decodes, as a run has it. */
Test(plan, waves_are_no_larger_than_a_pass)
{
    char *text;
    struct phasor_error err = {.message = ""};
    struct phasor_plan_params params = phasor_plan_params_default();
    params.model = MODEL;
    params.box = "h200x4";
    params.prompt_tokens = 100;
    params.output_tokens = 28;
    params.sequences = 256;
    params.max_num_batched_tokens = 64;
    cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_OK, "%s", err.message);
    json_t *root = json_loads(text, 0, NULL), *plans = json_object_get(root, "plans");
    int64_t largest = 0;
    for (size_t i = 0; i < json_array_size(plans); i++) {
        int64_t wave = json_integer_value(json_object_get(json_array_get(plans, i), "wave"));
        largest = wave > largest ? wave : largest;
    }
    cr_assert_eq(largest, 64);
    json_decref(root);
    phasor_text_free(text);
}

static json_t *inspect_of(const char *plan)
{
    char *text;
    struct phasor_error err = {.message = ""};
    struct phasor_inspect_params params = phasor_inspect_params_default();
    params.model = MODEL;
    params.plan = plan;
    params.max_num_seqs = 16;
    params.max_num_batched_tokens = 512;
    cr_assert_eq(phasor_inspect(&text, &params, &err), PHASOR_OK, "%s", err.message);
    json_t *root = json_loads(text, 0, NULL);
    phasor_text_free(text);
    return root;
}

static json_int_t int_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* Weights and activations are those that phasor inspect tells of the fullest rank. */
Test(plan, memory_is_what_inspect_tells)
{
    json_t *root = plan_of("h200x4", 16, 512);
    json_t *plans = json_object_get(root, "plans");
    int checked = 0;
    for (size_t i = 0; i < json_array_size(plans); i++) {
        const json_t *row = json_array_get(plans, i), *memory = json_object_get(row, "memory");
        const char *way = json_string_value(json_object_get(row, "way"));
        bool keeps = strcmp(way, "keep") == 0;
        if (!json_is_object(memory) || (checked > 40 && i % 7 != 0))
            continue;
        json_t *told = inspect_of(json_string_value(json_object_get(row, "plan")));
        const json_t *list = json_object_get(json_object_get(told, "plans"), "list");
        const json_t *ranks = json_object_get(json_array_get(list, 0), "ranks");
        json_int_t most = 0, own = int_of(memory, "total") - int_of(memory, "kv_cache");
        bool dequantizes = strcmp(way, "upload") == 0 &&
                           strstr(json_string_value(json_object_get(row, "plan")), ":int4") == NULL;
        cr_assert_eq(int_of(memory, "buffers") > 0, dequantizes); /* of a GPU's memory */
        own -= int_of(memory, "buffers");
        json_int_t spares = int_of(row, "spares"); /* of which inspect tells one */
        own -= spares > 1 ? (spares - 1) * int_of(memory, "spare") : 0;
        for (size_t r = 0; r < json_array_size(ranks); r++) {
            json_int_t total =
                int_of(json_array_get(ranks, r), keeps ? "total_with_keep" : "total");
            most = total > most ? total : most;
        }
        cr_assert_eq(own, most, "%s by %s: %lld, not %lld",
                     json_string_value(json_object_get(row, "plan")), way, (long long)own,
                     (long long)most);
        json_int_t tokens = 128 * 16; /* two pages for each sequence, none more */
        cr_assert_eq(int_of(memory, "kv_cache") % tokens, 0);
        checked++;
        json_decref(told);
    }
    cr_assert_gt(checked, 40);
    json_decref(root);
}

Test(plan, params_are_checked)
{
    char *text;
    struct phasor_error err;
    struct phasor_plan_params params = phasor_plan_params_default();
    params.model = MODEL;
    cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_INVALID_ARGUMENT);
    params.box = "h200x4";
    params.output_tokens = 0;
    cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_INVALID_ARGUMENT);
    params.output_tokens = INT64_MAX;
    cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_INVALID_ARGUMENT);
    params.output_tokens = 1;
    params.routing_deviation = NAN;
    cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_INVALID_ARGUMENT);
    params.routing_deviation = 0;
    params.max_num_seqs = INT64_MAX;
    cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_INVALID_ARGUMENT);
}

/* Also of what only the report takes: it has an answer, or says that memory was short. */
Test(plan, each_allocation_may_fail)
{
    char *text;
    struct phasor_error err;
    struct phasor_plan_params params = phasor_plan_params_default();
    params.model = MODEL;
    params.box = BOXES_DIR "/h200x4.json";
    uint64_t live = memory_counters_get().live_count, count = memory_counters_get().alloc_count;
    cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_OK, "%s", err.message);
    phasor_text_free(text);
    count = memory_counters_get().alloc_count - count;
    cr_assert_eq(memory_counters_get().live_count, live);
    cr_assert_gt(count, 20);
    uint64_t step = sweep_step(1 + count / 200), refused = 0;
    for (uint64_t n = sweep_first(step); n <= count; n += step) {
        memory_fail_at(n, n % 4 >= 2);
        enum phasor_status status = phasor_plan(&text, &params, &err);
        memory_fail_at(0, 0);
        cr_assert(status == PHASOR_OK || status == PHASOR_NO_MEMORY, "allocation %d: %s", (int)n,
                  err.message);
        refused += status != PHASOR_OK;
        if (status == PHASOR_OK)
            phasor_text_free(text);
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %d leaks", (int)n);
    }
    printf("of %d allocations one in %d, %d refused\n", (int)count, (int)step, (int)refused);
    cr_assert_gt(refused, 0);
}

/* A pass has a token of each sequence that decodes. */
Test(plan, passes_have_room_for_all_who_decode)
{
    char *text;
    struct phasor_error err;
    struct phasor_plan_params params = phasor_plan_params_default();
    params.model = MODEL;
    params.box = "a6000x4";
    params.prompt_tokens = params.output_tokens = 20;
    params.sequences = params.max_num_seqs = 5000;
    cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_OK, "%s", err.message);
    json_t *root = json_loads(text, 0, NULL);
    json_t *plans = json_object_get(root, "plans");
    json_t *best = json_array_get(plans, (size_t)int_of(root, "best"));
    cr_assert_geq(int_of(best, "pass_tokens"), int_of(best, "wave"));
    cr_assert_eq(int_of(best, "wave"), 5000);
    json_decref(root);
    phasor_text_free(text);
}

/* Other times, the same for the same seed, for all plans; a measured box has nothing to draw from.
 */
Test(plan, a_box_may_be_drawn)
{
    struct phasor_error err;
    struct phasor_plan_params params = phasor_plan_params_default();
    double seconds[4];
    params.model = MODEL;
    params.box = "a6000x4";
    params.prompt_tokens = 100;
    params.output_tokens = 28;
    for (int i = 0; i < 4; i++) {
        static const uint64_t draws[] = {0, 5, 5, 6};
        char *text;
        params.draw = draws[i];
        cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_OK, "%s", err.message);
        json_t *root = json_loads(text, 0, NULL);
        json_t *plans = json_object_get(root, "plans");
        json_t *row =
            json_array_get(plans, (size_t)json_integer_value(json_object_get(root, "static_tp")));
        seconds[i] = json_real_value(json_object_get(row, "total_s"));
        json_decref(root);
        phasor_text_free(text);
    }
    cr_assert_gt(seconds[0], 0);
    cr_assert_neq(seconds[1], seconds[0]);
    cr_assert_eq(seconds[2], seconds[1]);
    cr_assert_neq(seconds[3], seconds[1]);
}

/* ---- Many loads ------------------------------------------------------------------------------ */

/* Each cell is the answer to its own question; a prompt beyond the context has none. */
Test(plan, a_map_answers_as_each_question_does)
{
    static const int64_t sequences[] = {1, 7, 64}, prompts[] = {16, 500, INT64_C(1) << 40};
    const struct phasor_plan_axes axes = {sequences, prompts, 3, 3};
    struct phasor_plan_params params = phasor_plan_params_default();
    struct phasor_error err = {.message = ""};
    char *text;
    params.model = MODEL;
    params.box = "a6000x4";
    cr_assert_eq(phasor_plan_map(&text, &params, &axes, &err), PHASOR_OK, "%s", err.message);
    json_t *map = json_loads(text, 0, NULL);
    const json_t *cells = json_object_get(map, "cells");
    phasor_text_free(text);
    cr_assert_eq(json_array_size(cells), 3);
    for (size_t i = 0; i < 9; i++) {
        const json_t *cell = json_array_get(json_array_get(cells, i / 3), i % 3);
        params.sequences = sequences[i / 3];
        params.prompt_tokens = prompts[i % 3];
        if (phasor_plan(&text, &params, &err) != PHASOR_OK) {
            cr_assert(i % 3 == 2 && json_is_null(cell));
            continue;
        }
        json_t *root = json_loads(text, 0, NULL);
        const json_t *plans = json_object_get(root, "plans");
        const json_t *best = json_array_get(plans, (size_t)int_of(root, "best"));
        const json_t *tp = json_array_get(plans, (size_t)int_of(root, "static_tp"));
        double gain = json_real_value(json_object_get(tp, "total_s")) /
                      json_real_value(json_object_get(best, "total_s"));
        cr_assert_str_eq(json_string_value(json_object_get(cell, "plan")),
                         json_string_value(json_object_get(best, "plan")));
        cr_assert_float_eq(json_real_value(json_object_get(cell, "against_static_tp")), gain, 1e-9);
        json_decref(root);
        phasor_text_free(text);
    }
    json_decref(map);
    cr_assert_eq(phasor_plan_map(&text, &params, NULL, &err), PHASOR_INVALID_ARGUMENT);
    const struct phasor_plan_axes none = {(const int64_t[]){0}, prompts, 1, 1};
    cr_assert_eq(phasor_plan_map(&text, &params, &none, &err), PHASOR_INVALID_ARGUMENT);
}

/* Of the rows the loads of a map have how long answers are, and nothing else: what prompts share is
 * of those prompts. */
Test(plan, a_map_is_of_other_loads_than_the_rows)
{
    static const int64_t sequences[] = {7, 64}, prompts[] = {16, 500};
    const struct phasor_plan_axes axes = {sequences, prompts, 2, 2};
    struct phasor_plan_params params = phasor_plan_params_default();
    struct phasor_error err = {.message = ""};
    char *of_rows, *of_none;
    FILE *file = fopen(tools_path(tools_folder(), "rows"), "w");
    cr_assert_not_null(file);
    for (int row = 0; row < 4; row++) {
        fprintf(file,
                "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{"
                "\"max_tokens\":%d,\"prompt\":[1",
                row, row % 2 == 0 ? 80 : 120);
        for (int t = 0; t < 200; t++)
            fprintf(file, ",%d", t % 100);
        fprintf(file, "]}}\n");
    }
    cr_assert_eq(fclose(file), 0);
    params.model = MODEL;
    params.box = "a6000x4";
    params.output_tokens = 100;
    cr_assert_eq(phasor_plan_map(&of_none, &params, &axes, &err), PHASOR_OK, "%s", err.message);
    params.input_path = tools_path(tools_folder(), "rows");
    cr_assert_eq(phasor_plan_map(&of_rows, &params, &axes, &err), PHASOR_OK, "%s", err.message);
    cr_assert_str_eq(of_rows, of_none);
    phasor_text_free(of_rows);
    phasor_text_free(of_none);
}

/* Nobody looks for a box where the load is refused. */
Test(plan, a_load_is_checked_before_its_box)
{
    char *text;
    struct phasor_error err;
    struct phasor_plan_params params = phasor_plan_params_default();
    params.model = MODEL;
    params.box = "no-such-box";
    params.prompt_tokens = INT64_C(1) << 40;
    cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(err.message, "the model's context"), "%s", err.message);
}

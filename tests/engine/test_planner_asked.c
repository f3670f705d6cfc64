/* A planner that stays answers as phasor_plan does, which reads everything anew. */
#include <criterion/criterion.h>
#include <pthread.h>
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

/* With a backup that is named, and counts; whoever asks for exact plans has no use for the former.
 */
Test(planner_asked, has_a_backup_and_counts, .timeout = 120)
{
    static const char counts[] =
        "{\"format\":\"phasor-routing\",\"version\":1,\"experts\":8,\"top_k\":2,"
        "\"layers\":[{},{},{},{},{},{}],\"tokens\":10000,"
        "\"fullest_group\":[{\"groups\":2,\"excess\":1},{\"groups\":4,\"excess\":2},"
        "{\"groups\":8,\"excess\":4}]}";
    char backup[512], routing[512], *text;
    struct phasor_error err;
    struct phasor_quantize_params quantize = phasor_quantize_params_default();
    snprintf(backup, sizeof backup, "%s", tools_path(tools_folder(), "backup"));
    snprintf(routing, sizeof routing, "%s", tools_path(tools_folder(), "counts.json"));
    tools_write_file(routing, counts, sizeof counts - 1);
    quantize.model = MODEL;
    quantize.output_path = backup;
    cr_assert_eq(phasor_quantize(&quantize, NULL, &err), PHASOR_OK, "%s", err.message);
    struct phasor_plan_params params = params_of("a6000x4"), opened = params;
    char box[] = "a6000x4", own_backup[sizeof backup], own_routing[sizeof routing];
    params.routing_path = routing;
    for (int named = 0; named < 2; named++) {
        params.backup_path = named ? backup : NULL;
        opened = params;
        opened.box = strcpy(box, "a6000x4");
        opened.routing_path = strcpy(own_routing, routing);
        opened.backup_path = named ? strcpy(own_backup, backup) : NULL;
        struct phasor_planner *planner = open_planner(&opened);
        memset(box, 'x', sizeof box - 1);
        memset(own_routing, 'x', sizeof own_routing - 1);
        memset(own_backup, 'x', sizeof own_backup - 1);
        struct phasor_plan_load load = loads[0];
        load.size = sizeof load;
        check_same(planner, params, &load);
        load.policy = PHASOR_POLICY_EXACT;
        if (named)
            cr_expect_eq(phasor_planner_ask(&text, planner, &load, &err), PHASOR_INVALID_ARGUMENT);
        else
            check_same(planner, params, &load);
        phasor_planner_close(planner);
    }
}

/* A backup in the cache makes no other of an exact plan. */
Test(planner_asked, has_a_backup_of_the_cache, .timeout = 120)
{
    struct phasor_error err;
    struct phasor_quantize_params quantize = phasor_quantize_params_default();
    setenv("PHASOR_CACHE", tools_folder(), 1);
    quantize.model = MODEL;
    cr_assert_eq(phasor_quantize(&quantize, NULL, &err), PHASOR_OK, "%s", err.message);
    struct phasor_plan_params params = params_of("a6000x4");
    struct phasor_planner *planner = open_planner(&params);
    for (int policy = 0; policy < 2; policy++) {
        struct phasor_plan_load load = loads[0];
        load.size = sizeof load;
        load.policy = policy == 0 ? PHASOR_POLICY_INT4_DECODE : PHASOR_POLICY_EXACT;
        check_same(planner, params, &load);
    }
    phasor_planner_close(planner);
}

/* ---- By several at the same time ------------------------------------------------------------- */

#define THREADS 4

struct asking {
    const struct phasor_planner *planner;
    char *texts[sizeof loads / sizeof *loads];
};

static void *ask_all(void *context)
{
    struct asking *asking = context;
    for (int again = 0; again < 4; again++) {
        for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
            struct phasor_error err;
            struct phasor_plan_load load = loads[i];
            load.size = sizeof load;
            phasor_text_free(asking->texts[i]);
            asking->texts[i] = NULL;
            if (phasor_planner_ask(&asking->texts[i], asking->planner, &load, &err) != PHASOR_OK)
                return NULL;
        }
    }
    return context;
}

Test(planner_asked, answers_several_threads)
{
    struct phasor_plan_params params = params_of("h200x4");
    struct phasor_planner *planner = open_planner(&params);
    struct asking alone = {.planner = planner}, of[THREADS] = {{.planner = NULL}};
    pthread_t threads[THREADS];
    cr_assert_not_null(ask_all(&alone));
    for (int t = 0; t < THREADS; t++) {
        of[t].planner = planner;
        cr_assert_eq(pthread_create(&threads[t], NULL, ask_all, &of[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        void *out;
        pthread_join(threads[t], &out);
        cr_assert_not_null(out);
    }
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        for (int t = 0; t < THREADS; t++) {
            cr_expect_str_eq(of[t].texts[i], alone.texts[i]);
            phasor_text_free(of[t].texts[i]);
        }
        phasor_text_free(alone.texts[i]);
    }
    phasor_planner_close(planner);
}

/* ---- What may change, and what may not be ---------------------------------------------------- */

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

/* It says that memory was short, and leaves nothing: opened and asked. */
static enum phasor_status use(const struct phasor_plan_params *params, struct phasor_error *err)
{
    char *text;
    struct phasor_planner *planner;
    struct phasor_plan_load load = phasor_plan_load_default();
    enum phasor_status status = phasor_planner_open(&planner, params, err);
    if (status != PHASOR_OK)
        return status;
    status = phasor_planner_ask(&text, planner, &load, err);
    if (status == PHASOR_OK)
        phasor_text_free(text);
    phasor_planner_close(planner);
    return status;
}

Test(planner_asked, each_allocation_may_fail, .timeout = 60)
{
    struct phasor_error err;
    struct phasor_plan_params params = params_of(BOXES_DIR "/h200x4.json");
    uint64_t live = memory_counters_get().live_count, count = memory_counters_get().alloc_count;
    cr_assert_eq(use(&params, &err), PHASOR_OK, "%s", err.message);
    count = memory_counters_get().alloc_count - count;
    cr_assert_eq(memory_counters_get().live_count, live);
    cr_assert_gt(count, 20);
    uint64_t step = sweep_step(1 + count / 200), refused = 0;
    for (uint64_t n = sweep_first(step); n <= count; n += step) {
        memory_fail_at(n, n % 4 >= 2);
        enum phasor_status status = use(&params, &err);
        memory_fail_at(0, 0);
        cr_assert(status == PHASOR_OK || status == PHASOR_NO_MEMORY, "allocation %d: %s", (int)n,
                  err.message);
        refused += status != PHASOR_OK;
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %d leaks", (int)n);
    }
    cr_assert_gt(refused, 0);
}

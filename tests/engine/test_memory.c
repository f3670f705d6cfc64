/* --memory: what a run holds stays within it, with far more requests than fit at once. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/system.h"
#include "engine/session.h"
#include "engine_tools.h"
#include "exec/exec.h"
#include "phasor.h"
#include "rss.h"
#include "sweep.h"

#define MODEL        MODELS_DIR "/kjv-moe"
#define PLAN         "tp2dp2|ep4"
#define TWO_LAYOUTS  "tp2dp2|ep4>tp4"
#define VOCAB        2048
#define PROMPT_MAX   1500
#define MIB          (1ull << 20)
#define RSS_TOLERANT (32 * MIB)

/* Requests of mixed lengths: most short, some long, a third beginning alike. */
struct load {
    int64_t count;
    struct load_request {
        int32_t prompt[PROMPT_MAX];
        int64_t prompt_count, token_max, pages;
    } * requests;
    int64_t page_count; /* of all, if none were shared */
};

static struct load load_of(uint64_t seed, int64_t page_count_min)
{
    struct load load = {.requests = calloc((size_t)page_count_min, sizeof *load.requests)};
    struct random random = {.seed = seed};
    cr_assert_not_null(load.requests);
    while (load.page_count < page_count_min) {
        int64_t r = load.count++;
        struct load_request *request = &load.requests[r];
        uint64_t most = random_below(&random, 10) == 0 ? PROMPT_MAX : 200;
        request->prompt_count = 1 + (int64_t)random_below(&random, most);
        request->token_max = 1 + (int64_t)random_below(&random, 40);
        request->pages = kv_pages_for(request->prompt_count + request->token_max);
        load.page_count += request->pages;
        struct random ids = {.seed = random_below(&random, 3) == 0 ? 1 : 100 + (uint64_t)r};
        for (int64_t t = 0; t < request->prompt_count; t++)
            request->prompt[t] = (int32_t)random_below(&ids, VOCAB);
    }
    printf("seed %llu, %lld requests\n", (unsigned long long)seed, (long long)load.count);
    return load;
}

/* All of the load in the full tier, by the quick tier's seed else: at least so much that the
 * longest request fits into either group's half of a cache for a tenth of it. */
static struct load load_of_tier(void)
{
    bool full = sweep_step(2) == 1;
    return load_of(full ? 1 : sweep_first(1000), full ? 6000 : 600);
}

static uint64_t page_bytes(void)
{
    return 2 * 6 * 8 * 16 * KV_PAGE_TOKENS * 2; /* keys and values, layers, heads, width, bf16 */
}

/* What there must be beside the cache: weights, activations of 512 tokens, candidates, tables. */
#define BESIDE_BYTES (41 * MIB)

static uint64_t budget_of(const struct load *load)
{
    return BESIDE_BYTES + (uint64_t)load->page_count / 10 * page_bytes();
}

static void check_peaks(uint64_t budget, uint64_t rss_before)
{
    uint64_t peak = memory_counters_get().peak_bytes, rss = rss_peak() - rss_before;
    uint64_t tolerance = budget / 10 > RSS_TOLERANT ? budget / 10 : RSS_TOLERANT;
    printf("budget %.1f MiB, allocator %.1f MiB, VmHWM %.1f MiB more than before\n",
           (double)budget / MIB, (double)peak / MIB, (double)rss / MIB);
    cr_assert_leq(peak, budget);
    cr_assert_geq(peak, budget / 10 * 8, "the budget is used");
    cr_assert(!rss_is_ours() || rss <= budget + tolerance);
}

/* ---- Sequences ------------------------------------------------------------------------------- */

static void on_end(void *context, const struct sequence_end *end)
{
    cr_assert_eq(end->reason, FINISH_LENGTH);
    ++*(int64_t *)context;
}

static void submit_all(struct generator *generator, const struct load *load, int64_t *done)
{
    for (int64_t r = 0; r < load->count; r++) {
        const struct load_request *request = &load->requests[r];
        struct error err;
        struct sequence_request sequence = {.prompt = request->prompt,
                                            .prompt_count = request->prompt_count,
                                            .token_count_max = request->token_max,
                                            .ignore_eos = true,
                                            .logprobs = -1,
                                            .callbacks = {.finished = on_end},
                                            .context = done};
        cr_assert_eq(generator_submit(generator, &sequence, &err), STATUS_OK, "%s", err.message);
    }
}

Test(memory, sequences_for_ten_times_the_cache_all_finish, .timeout = 3000)
{
    struct load load = load_of_tier();
    struct engine *engine;
    struct session session;
    struct error err;
    int64_t done = 0, waited = 0, peak_pages = 0;
    uint64_t rss = rss_peak(), budget = budget_of(&load);
    struct engine_params model = {
        .model = MODEL, .dtype = DTYPE_BF16, .plan = PLAN, .memory_bytes = budget};
    struct session_params params = {
        .max_num_seqs = 512, .max_num_batched_tokens = 512, .shares_prefixes = true};
    cr_assert_eq(engine_open(&engine, &model, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_open(&session, engine, &params, &err), STATUS_OK, "%s", err.message);
    struct generator_counters counters = generator_counters_get(session.generator);
    printf("%lld pages of %lld\n", (long long)counters.kv_pages_total, (long long)load.page_count);
    cr_assert(counters.kv_pages_total <= load.page_count / 7 &&
              counters.kv_pages_total >= load.page_count / 14);
    submit_all(session.generator, &load, &done);
    while (!generator_is_idle(session.generator)) {
        cr_assert_eq(generator_step(session.generator, &err), STATUS_OK, "%s", err.message);
        counters = generator_counters_get(session.generator);
        waited += counters.waiting > 0;
        peak_pages = counters.kv_pages_used > peak_pages ? counters.kv_pages_used : peak_pages;
    }
    cr_assert_eq(done, load.count);
    cr_assert_gt(waited, 0);
    cr_assert_gt(peak_pages, counters.kv_pages_total / 2);
    cr_assert_eq(counters.kv_pages_used, 0);
    cr_assert_gt(counters.shared_tokens, 0);
    check_peaks(budget, rss);
    session_close(&session);
    engine_close(engine);
    free(load.requests);
}

/* ---- A batch --------------------------------------------------------------------------------- */

static void write_rows(const char *path, const struct load *load)
{
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    for (int64_t r = 0; r < load->count; r++) {
        const struct load_request *request = &load->requests[r];
        fprintf(file,
                "{\"custom_id\":\"%lld\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                "\"body\":{\"max_tokens\":%lld,\"ignore_eos\":true,\"prompt\":[",
                (long long)r, (long long)request->token_max);
        for (int64_t t = 0; t < request->prompt_count; t++)
            fprintf(file, "%s%d", t == 0 ? "" : ",", request->prompt[t]);
        fprintf(file, "]}}\n");
    }
    cr_assert_eq(fclose(file), 0);
}

Test(memory, a_batch_for_ten_times_the_cache_is_done_within_it, .timeout = 3000)
{
    struct load load = load_of_tier();
    const char *input = tools_path(tools_folder(), "in"),
               *output = tools_path(tools_folder(), "out");
    struct phasor_model *model;
    struct phasor_error err;
    struct phasor_batch_result result;
    struct phasor_model_params params = phasor_model_params_default();
    struct phasor_batch_params batch = phasor_batch_params_default();
    write_rows(input, &load);
    uint64_t rss = rss_peak(), budget = budget_of(&load);
    params.model = MODEL;
    params.plan = TWO_LAYOUTS;
    params.transition = PHASOR_TRANSITION_RELOAD; /* which needs staging */
    params.memory_bytes = budget;
    batch.input_path = input;
    batch.output_path = output;
    batch.max_num_seqs = 512;
    batch.max_num_batched_tokens = 512;
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(phasor_batch_run(model, &batch, &result, &err), PHASOR_OK, "%s", err.message);
    phasor_model_close(model);
    cr_assert_eq(result.completed, (uint64_t)load.count);
    cr_assert_gt(result.shared_tokens, 0);
    cr_assert_gt(result.transitions, 10); /* waves */
    check_peaks(budget, rss);
    json_t *rows = tools_read_rows(output);
    cr_assert_eq(json_array_size(rows), (size_t)load.count);
    json_decref(rows);
    free(load.requests);
}

/* What the lines of an earlier run take to be matched is part of the budget. All rows are wrong, so
 * that they are many and done at once. */
Test(memory, a_run_is_resumed_within_it, .timeout = 300)
{
    const int row_count = 60000;
    const char *input = tools_path(tools_folder(), "in"),
               *output = tools_path(tools_folder(), "out");
    struct phasor_model *model;
    struct phasor_error err;
    struct phasor_batch_result result;
    struct phasor_model_params params = phasor_model_params_default();
    struct phasor_batch_params batch = phasor_batch_params_default();
    FILE *file = fopen(input, "w");
    for (int i = 0; i < row_count; i++)
        fprintf(file, "{\"custom_id\":\"%d\"}\n", i);
    cr_assert_eq(fclose(file), 0);
    params.model = MODEL;
    params.plan = PLAN;
    params.memory_bytes = 64 * MIB;
    batch.input_path = input;
    batch.output_path = output;
    batch.max_num_seqs = 16; /* whose cache could take more than there is */
    batch.max_num_batched_tokens = 512;
    uint64_t rss = rss_peak();
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    for (int resumes = 0; resumes < 2; resumes++) {
        batch.resume = resumes > 0;
        cr_assert_eq(phasor_batch_run(model, &batch, &result, &err), PHASOR_OK, "%s", err.message);
        cr_assert_eq(result.failed + result.failed_before, row_count);
        check_peaks(params.memory_bytes, rss);
    }
    phasor_model_close(model);
}

/* ---- What does not fit ----------------------------------------------------------------------- */

Test(memory, what_does_not_fit_is_told_with_the_numbers_and_the_cure)
{
    static const struct {
        uint64_t memory, kv;
        bool opens;
        const char *words[2];
    } cases[] = {
        {1, 0, false, {"the weights need", "--memory is 1 B; raise it"}},
        {1 * MIB, 0, false, {"the weights need", "--memory is 1024 KiB; raise it"}},
        {0, 0, true, {NULL}},
        {20 * MIB, 0, false, {"a pass of 2048 tokens needs", "left of --memory"}},
        {64 * MIB, 60 * MIB, false, {"and the KV cache 60 MiB", "or raise --memory"}},
        {64 * MIB, 4 * MIB, true, {NULL}},
        {64 * MIB, 0, true, {NULL}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct engine *engine = NULL;
        struct session session = {0};
        struct error err = {0};
        uint64_t live = memory_counters_get().live_count;
        struct engine_params model = {
            .model = MODEL, .dtype = DTYPE_BF16, .memory_bytes = cases[c].memory};
        struct session_params params = {
            .max_num_seqs = 64, .max_num_batched_tokens = 2048, .kv_bytes = cases[c].kv};
        enum status status = engine_open(&engine, &model, &err);
        if (status == STATUS_OK)
            status = session_open(&session, engine, &params, &err);
        printf("%s\n", err.message);
        cr_assert_eq(status, cases[c].opens ? STATUS_OK : STATUS_NO_MEMORY, "case %zu: %s", c,
                     err.message);
        for (int w = 0; w < 2 && cases[c].words[w] != NULL; w++)
            cr_assert_not_null(strstr(err.message, cases[c].words[w]), "%s", err.message);
        session_close(&session);
        engine_close(engine);
        cr_assert_eq(memory_counters_get().live_count, live);
    }
}

/* ---- More than there is ---------------------------------------------------------------------- */

/* Of so many sequences of the whole context, which take more than most machines have. */
#define MANY_SEQUENCES 4096
#define MANY_TOKENS    ((uint64_t)MANY_SEQUENCES * 8192)

static uint64_t many_sequences_cache(struct engine_params *model)
{
    struct engine *engine;
    struct session session;
    struct error err;
    struct session_params params = {.max_num_seqs = MANY_SEQUENCES,
                                    .max_num_batched_tokens = MANY_SEQUENCES};
    model->model = MODEL;
    model->dtype = DTYPE_BF16;
    cr_assert_eq(engine_open(&engine, model, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(session_open(&session, engine, &params, &err), STATUS_OK, "%s", err.message);
    struct generator_counters counters = generator_counters_get(session.generator);
    session_close(&session);
    engine_close(engine);
    return (uint64_t)counters.kv_pages_total * counters.kv_page_bytes;
}

Test(memory, a_cache_is_not_larger_than_the_memory_that_there_is)
{
    struct engine_params model = {.memory_bytes = (uint64_t)1 << 50};
    uint64_t there = system_memory_available();
    cr_assert_leq(many_sequences_cache(&model), there + there / 16); /* some becomes free */
}

static enum status plan_choose_large(void *context, struct engine_choice *out,
                                     const struct engine_basis *basis, struct error *err)
{
    (void)basis;
    *out = (struct engine_choice){.is_made = true, .cache_bytes = *(const uint64_t *)context};
    return plan_layouts_parse(&out->layouts, "tp1|tp1", 1, err);
}

/* Where nobody says how large: half of what is left, or what its plan was priced with. */
Test(memory, a_cache_is_as_large_as_its_plan_has_it)
{
    uint64_t there = system_memory_available(), planned = there / 4 * 3;
    uint64_t most = MANY_TOKENS / KV_PAGE_TOKENS * page_bytes();
    struct engine_params model = {.choose = plan_choose_large, .choose_context = &planned};
    uint64_t wanted = planned < most ? planned : most;
    uint64_t found = many_sequences_cache(&model);
    cr_assert(found <= wanted && found > wanted - page_bytes(), "%llu, not %llu",
              (unsigned long long)found, (unsigned long long)wanted);
    planned = there / 4;
    found = many_sequences_cache(&model);
    cr_assert_gt(found, planned < most ? planned : most - 1);
}

/* ---- Ahead ----------------------------------------------------------------------------------- */

/* Of one pass at most, shared among the groups, and no more than the cache has. */
Test(memory, keys_and_values_of_the_expected_prompts_are_written_ahead)
{
    static const struct {
        int64_t expected, pass, pages; /* of both groups */
    } cases[] = {{0, 512, 0},   {1, 512, 2},       {2 * 65, 512, 4},
                 {384, 512, 6}, {1 << 20, 512, 8}, {1 << 20, 4096, -1}};
    struct engine *engine;
    struct error err;
    struct engine_params model = {.model = MODEL, .dtype = DTYPE_BF16, .plan = PLAN};
    cr_assert_eq(engine_open(&engine, &model, &err), STATUS_OK, "%s", err.message);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct session session;
        struct session_params params = {.max_num_seqs = 64,
                                        .max_num_batched_tokens = cases[c].pass,
                                        .max_model_len = 64,
                                        .kv_bytes = 20 * page_bytes(),
                                        .tokens_expected = cases[c].expected};
        cr_assert_eq(session_open(&session, engine, &params, &err), STATUS_OK, "%s", err.message);
        struct generator_counters counters = generator_counters_get(session.generator);
        cr_expect_lt(8, counters.kv_pages_total);
        cr_expect_eq(counters.kv_pages_written,
                     cases[c].pages < 0 ? counters.kv_pages_total : cases[c].pages,
                     "case %zu: %lld", c, (long long)counters.kv_pages_written);
        session_close(&session);
    }
    engine_close(engine);
}

/* Every budget ends in a run within it or in a sentence. */
Test(memory, any_budget, .timeout = 600)
{
    for (uint64_t mib = 1; mib < 80; mib += 1 + (mib > 8) * 6) {
        struct engine *engine = NULL;
        struct session session = {0};
        struct error err = {0};
        struct engine_params model = {.model = MODEL,
                                      .dtype = DTYPE_BF16,
                                      .memory_bytes = mib * MIB,
                                      .plan = TWO_LAYOUTS,
                                      .transition_is_auto = true};
        struct session_params params = {.max_num_seqs = 16, .max_num_batched_tokens = 256};
        enum status status = engine_open(&engine, &model, &err);
        if (status == STATUS_OK)
            status = session_open(&session, engine, &params, &err);
        if (status == STATUS_OK)
            cr_assert_leq(memory_counters_get().live_bytes, mib * MIB);
        else
            cr_assert_not_null(strstr(err.message, "--memory"), "%s", err.message);
        printf("%llu MiB: %s\n", (unsigned long long)mib,
               status == STATUS_OK ? "runs" : err.message);
        session_close(&session);
        engine_close(engine);
    }
}

/* ---- Both layouts, or one ------------------------------------------------------------------- */

/* The model opens, and the run for which it was opened. */
static void check_room(const struct engine_params *model, bool keeps_both)
{
    const struct session_params params = {.max_num_seqs = model->max_num_seqs,
                                          .max_num_batched_tokens = model->max_num_batched_tokens,
                                          .kv_bytes = model->kv_bytes};
    const char *name = model->transition_is_auto ? "auto" : way_names[model->transition];
    struct engine *engine;
    struct session session = {0};
    struct error err;
    cr_assert_eq(engine_open(&engine, model, &err), STATUS_OK, "%s", err.message);
    printf("%s: %.1f MiB", name, (double)memory_counters_get().live_bytes / MIB);
    cr_expect_eq(engine_moves_weights(engine), !keeps_both, "%s", name);
    if (params.max_num_seqs > 0)
        cr_expect_eq(session_open(&session, engine, &params, &err), STATUS_OK, "%s: %s", name,
                     err.message);
    printf(", %.1f MiB with the run's\n", (double)memory_counters_get().live_bytes / MIB);
    cr_expect_leq(memory_counters_get().live_bytes, model->memory_bytes, "%s", name);
    session_close(&session);
    engine_close(engine);
}

/* Nobody says how the layout is to change: both stay only where the runs to come have what they ask
 * for, too; and the run then fits, either way. */
Test(memory, both_layouts_stay_where_runs_have_their_room)
{
    static const struct {
        uint64_t memory, kv;
        int64_t seqs, tokens;
        bool keeps_both;
    } cases[] = {
        {64 * MIB, 0, 0, 0, true},           {64 * MIB, 0, 16, 256, true},
        {64 * MIB, 20 * MIB, 16, 256, true}, {64 * MIB, 32 * MIB, 16, 256, false},
        {64 * MIB, 0, 16, 1700, false},      {64 * MIB, 0, 400, 1400, false},
        {24 * MIB, 0, 0, 0, false},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct engine_params model = {.model = MODEL,
                                      .dtype = DTYPE_BF16,
                                      .memory_bytes = cases[c].memory,
                                      .plan = TWO_LAYOUTS,
                                      .transition_is_auto = true,
                                      .kv_bytes = cases[c].kv,
                                      .max_num_seqs = cases[c].seqs,
                                      .max_num_batched_tokens = cases[c].tokens};
        printf("case %zu\n", c);
        check_room(&model, cases[c].keeps_both);
        /* Which way a trial finds is up to the machine; so by each that it may find. */
        model.transition_is_auto = false;
        for (enum way way = WAY_RESHARD; !cases[c].keeps_both && way < WAY_COUNT; way++) {
            model.transition = way;
            if (way != WAY_UPLOAD) /* for which there is no backup */
                check_room(&model, false);
        }
    }
}

/* Both were asked for, and then a run has no room: the sentence names the cure. */
Test(memory, in_place_is_the_cure_where_both_layouts_were_asked_for)
{
    static const struct {
        uint64_t memory, kv;
        int64_t tokens;
    } cases[] = {{16 * MIB, 0, 256}, {64 * MIB, 0, 8192}, {64 * MIB, 45 * MIB, 256}};
    for (int keeps_both = 0; keeps_both <= 1; keeps_both++) {
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            struct engine *engine = NULL;
            struct session session = {0};
            struct error err = {0};
            struct engine_params model = {.model = MODEL,
                                          .dtype = DTYPE_BF16,
                                          .memory_bytes = cases[c].memory,
                                          .plan = TWO_LAYOUTS,
                                          .transition = keeps_both ? WAY_KEEP : WAY_RESHARD};
            struct session_params params = {.max_num_seqs = 16,
                                            .max_num_batched_tokens = cases[c].tokens,
                                            .kv_bytes = cases[c].kv};
            enum status status = engine_open(&engine, &model, &err);
            if (status == STATUS_OK)
                status = session_open(&session, engine, &params, &err);
            printf("%s\n", err.message);
            bool is_cure = strstr(err.message, "by --transition reshard") != NULL;
            cr_expect_eq(is_cure, keeps_both, "case %zu: %s", c, err.message);
            cr_expect(status == STATUS_NO_MEMORY || !keeps_both);
            session_close(&session);
            engine_close(engine);
        }
    }
}

/* An allocation fails while both layouts are taken: they are not, and it is said. */
static void count_notices(void *context, enum log_level level, const char *message)
{
    *(int *)context += level == LOG_INFO && strstr(message, "they change in place") != NULL;
}

Test(memory, in_place_where_both_layouts_cannot_be_had, .timeout = 300)
{
    int notices = 0, in_place = 0;
    struct engine *engine;
    struct error err;
    struct engine_params model = {.model = MODEL,
                                  .dtype = DTYPE_BF16,
                                  .plan = TWO_LAYOUTS,
                                  .transition_is_auto = true,
                                  .log = {count_notices, &notices}};
    uint64_t live = memory_counters_get().live_count, step = sweep_step(13);
    uint64_t before = memory_counters_get().alloc_count;
    cr_assert_eq(engine_open(&engine, &model, &err), STATUS_OK, "%s", err.message);
    uint64_t total = memory_counters_get().alloc_count - before;
    cr_assert(!engine_moves_weights(engine) && notices == 0);
    engine_close(engine);
    for (uint64_t n = sweep_first(step); n <= total; n += step) {
        int told = notices;
        memory_fail_at(n, 0);
        enum status status = engine_open(&engine, &model, &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK) {
            cr_assert_eq(engine_moves_weights(engine), notices - told == 1, "allocation %llu",
                         (unsigned long long)n);
            in_place += engine_moves_weights(engine);
            engine_close(engine);
        } else {
            cr_assert_eq(status, STATUS_NO_MEMORY, "%s", err.message);
        }
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %llu",
                     (unsigned long long)n);
    }
    printf("%d of %llu allocations ended in one layout\n", in_place, (unsigned long long)total);
    cr_assert_gt(in_place, 0);
}

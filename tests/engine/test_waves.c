/* Waves under a plan with two layouts: who is prefilled together decodes together, weights move
 * only in between, and what comes out is what one layout gives. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "engine/engine.h"
#include "engine_tools.h"
#include "exec/exec.h"
#include "layout/expert_form.h"
#include "phasor.h"

#define MODEL         MODELS_DIR "/kjv-moe"
#define LAYERS        6
#define VOCAB_MAX     65536
#define SEQUENCES_MAX 12
#define STEPS         16

/* What the generator asked for, pass by pass. */
struct passes {
    struct engine *engine;
    bool are_apart;          /* no pass has a transition beside it */
    struct exec_hooks hooks; /* as the engine sets them */
    int64_t early_count;     /* layers that moved while a pass ran */
    int64_t prefills, decodes;
    int64_t turns; /* from prefill to decode */
    enum phase last;
};

struct heard {
    int32_t ids[STEPS];
    float logprobs[STEPS];
    int64_t count;
    double prompt_nll;
    enum finish_reason reason;
    bool is_done;
};

static void check(enum status status, const struct error *err)
{
    cr_assert_eq(status, STATUS_OK, "%s", err->message);
}

/* A rank comes to the end of a pass only when the first layer has moved. */
static void done_slowly(void *context, int rank, int64_t layer)
{
    struct passes *passes = context;
    struct error err;
    if (layer == LAYERS - 1)
        check(transition_await(engine_transition(passes->engine), rank, 0, &err), &err);
    passes->hooks.experts_done(passes->hooks.context, rank, layer);
}

static enum status enter(void *context, const struct generator_pass *pass, struct exec_hooks *hooks,
                         struct error *err)
{
    struct passes *passes = context;
    passes->turns += pass->phase == PHASE_DECODE && passes->last == PHASE_PREFILL;
    ++*(pass->phase == PHASE_DECODE ? &passes->decodes : &passes->prefills);
    passes->last = pass->phase;
    struct generator_pass seen = *pass;
    seen.is_last &= !passes->are_apart;
    TRY(engine_enter(passes->engine, &seen, hooks, err));
    passes->hooks = *hooks;
    if (hooks->experts_done != NULL) {
        hooks->context = passes;
        hooks->experts_done = done_slowly;
    }
    return STATUS_OK;
}

static bool on_token(void *context, const struct generated_token *token)
{
    struct heard *trace = context;
    trace->logprobs[trace->count] = token->logprob;
    trace->ids[trace->count++] = token->id;
    return true;
}

static void on_prompt_token(void *context, int64_t position, const struct generated_token *token)
{
    struct heard *trace = context;
    (void)position;
    trace->prompt_nll -= token->logprob;
}

static void on_end(void *context, const struct sequence_end *end)
{
    struct heard *trace = context;
    trace->reason = end->reason;
    trace->is_done = true;
}

struct wave_case {
    const char *plan;
    enum way way;
    bool in_waves;
    int64_t running_max;
    int64_t count; /* of sequences, of i + 1 prompt tokens each */
    int64_t token_counts[SEQUENCES_MAX];
    int64_t turns;      /* -1: more than in waves */
    bool stops_at_once; /* whatever the first token is */
};

static void run(struct heard traces[SEQUENCES_MAX], struct passes *passes,
                const struct wave_case *of, bool are_apart)
{
    static int32_t prompt[SEQUENCES_MAX] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
    static int32_t all_ids[VOCAB_MAX];
    for (int32_t i = 0; i < VOCAB_MAX; i++)
        all_ids[i] = i;
    struct exec *exec;
    struct generator *generator;
    struct error err;
    struct engine_params model = {
        .model = MODEL, .dtype = DTYPE_F32, .plan = of->plan, .transition = of->way};
    *passes = (struct passes){.last = PHASE_DECODE, .are_apart = are_apart};
    memset(traces, 0, SEQUENCES_MAX * sizeof *traces);
    check(engine_open(&passes->engine, &model, &err), &err);
    check(engine_exec_create(&exec, passes->engine, 64, of->running_max, &err), &err);
    struct generator_params params = {.sequence_count_max = of->running_max,
                                      .batch_token_max = 64,
                                      .context_max = 64,
                                      .kv_bytes_max = 1 << 24,
                                      .in_waves = of->in_waves,
                                      .enter = enter,
                                      .enter_context = passes};
    check(generator_create(&generator, exec, &params, &err), &err);
    for (int64_t i = 0; i < of->count; i++) {
        struct sequence_request request = {
            .prompt = prompt,
            .prompt_count = i + 1,
            .token_count_max = of->token_counts[i],
            .ignore_eos = true,
            .stop_ids = all_ids,
            .stop_count = of->stops_at_once ? VOCAB_MAX : 0,
            .logprobs = 0,
            .prompt_logprobs = i % 2 == 0,
            .callbacks = {.token = on_token, .prompt_token = on_prompt_token, .finished = on_end},
            .context = &traces[i]};
        check(generator_submit(generator, &request, &err), &err);
    }
    while (!generator_is_idle(generator))
        check(generator_step(generator, &err), &err);
    for (int64_t i = 0; i < of->count; i++) {
        cr_assert_eq(traces[i].reason, of->stops_at_once ? FINISH_STOP : FINISH_LENGTH);
        cr_assert_eq(traces[i].count, of->stops_at_once ? 0 : of->token_counts[i]);
        cr_assert(traces[i].is_done);
    }
    const struct transition *transition = engine_transition(passes->engine);
    if (transition != NULL) {
        /* There, and back for each wave but the first; nothing before it is needed. */
        struct transition_counters counters = transition_counters_get(transition);
        int64_t there = of->stops_at_once ? passes->prefills : passes->turns;
        cr_assert_eq(counters.transition_count, there > 0 ? 2 * there - 1 : 0);
        cr_assert_eq(transition_way(transition), of->way);
        passes->early_count = counters.early_count;
    }
    generator_destroy(generator);
    exec_destroy(exec);
    engine_close(passes->engine);
}

Test(waves, prefill_together_and_decode_together)
{
    static const struct wave_case cases[] = {
        /* Four at a time: three waves, the last of two. */
        {"dp2|ep2>tp2", WAY_RESHARD, true, 4, 10, {5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, 3, false},
        /* The shortest waits for the longest of its wave. */
        {"dp2|ep2>tp2", WAY_RELOAD, true, 3, 6, {2, 9, 4, 3, 3, 16}, 2, false},
        {"tp2|tp2>ep2", WAY_RESHARD, true, 2, 4, {8, 2, 2, 8}, 2, false},
        /* Newcomers join in mid-decode, because nothing moves. */
        {"dp2|ep2>tp2", WAY_KEEP, false, 3, 6, {2, 9, 4, 3, 3, 16}, -1, false},
        /* What ends with its prompt is no reason to move; others take its place in the wave. */
        {"dp2|ep2>tp2", WAY_RESHARD, true, 4, 8, {1, 1, 1, 1, 1, 1, 1, 1}, 0, false},
        {"dp2|ep2>tp2", WAY_RESHARD, true, 4, 8, {1, 1, 5, 1, 1, 5, 1, 1}, 1, false},
        {"tp1|tp1", WAY_KEEP, false, 4, 10, {5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, -1, false},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct heard found[SEQUENCES_MAX], expected[SEQUENCES_MAX];
        struct passes passes, ignored;
        struct wave_case alone = cases[c];
        alone.plan = "tp1|tp1";
        alone.in_waves = false;
        run(expected, &ignored, &alone, true);
        run(found, &passes, &cases[c], false);
        printf("%s, case %zu: %lld prefills, %lld decodes, %lld turns\n", cases[c].plan, c,
               (long long)passes.prefills, (long long)passes.decodes, (long long)passes.turns);
        if (cases[c].turns >= 0)
            cr_assert_eq(passes.turns, cases[c].turns, "case %zu: %lld turns", c,
                         (long long)passes.turns);
        else
            cr_assert_gt(passes.turns, 2, "case %zu", c);
        for (int64_t i = 0; i < cases[c].count; i++)
            cr_assert_arr_eq(found[i].ids, expected[i].ids, sizeof found[i].ids, "case %zu, %lld",
                             c, (long long)i);
    }
}

/* Tokens and likelihoods are to the bit those of transitions between passes; and with each turn the
 * first layer, at least, moves while prefill computes. */
Test(waves, layers_move_while_prefill_computes)
{
    static const struct wave_case cases[] = {
        {"dp2|ep2>tp2", WAY_RESHARD, true, 4, 10, {5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, 3, false},
        {"dp2|ep2>tp2", WAY_RELOAD, true, 3, 6, {2, 9, 4, 3, 3, 16}, 2, false},
        {"tp2|tp2>ep2", WAY_RESHARD, true, 2, 4, {8, 2, 2, 8}, 2, false},
        {"dp2|ep2>tp2", WAY_UPLOAD, true, 2, 6, {8, 2, 2, 8, 1, 7}, 3, false},
        {"dp4|ep4>tp2ep2", WAY_RESHARD, true, 4, 8, {1, 1, 5, 1, 1, 5, 1, 1}, 1, false},
    };
    setenv("PHASOR_CACHE", tools_folder(), 1);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct heard beside[SEQUENCES_MAX], apart[SEQUENCES_MAX];
        struct passes passes;
        run(apart, &passes, &cases[c], true);
        cr_assert_eq(passes.early_count, 0, "case %zu", c);
        run(beside, &passes, &cases[c], false);
        cr_assert_eq(passes.turns, cases[c].turns, "case %zu: %lld turns", c,
                     (long long)passes.turns);
        cr_assert_geq(passes.early_count, passes.turns, "case %zu: %lld", c,
                      (long long)passes.early_count);
        cr_assert_arr_eq(beside, apart, sizeof beside, "case %zu", c);
    }
}

/* Layers that moved for a phase that does not come go back, and the next wave enters. */
Test(waves, a_wave_may_end_with_its_first_tokens)
{
    static const struct wave_case all_stop = {"dp2|ep2>tp2",      WAY_RESHARD, true, 2, 6,
                                              {5, 5, 5, 5, 5, 5}, 0,           true};
    struct heard traces[SEQUENCES_MAX];
    struct passes passes;
    run(traces, &passes, &all_stop, false);
    cr_assert_eq(passes.prefills, 3);
    cr_assert_eq(passes.decodes, 0);
    cr_assert_geq(passes.early_count, 3);
}

/* ---- What a run says of it ------------------------------------------------------------------- */

#define ROW(id, count)                                                                             \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"          \
    "{\"prompt\":[5,6,7],\"ignore_eos\":true,\"logprobs\":3,\"max_tokens\":" count "}}\n"

static const char rows[] = ROW("a", "4") ROW("b", "9") ROW("c", "1") ROW("d", "7") ROW("e", "3");

/* Bytes of all ranks for one change of all layers. */
static uint64_t predicted_bytes(const struct engine_params *model, int ranks)
{
    struct engine *engine;
    struct error err;
    int64_t sent[64], blocks = 0;
    check(engine_open(&engine, model, &err), &err);
    const struct plan_layouts *layouts = engine_layouts(engine);
    struct model_shape shape = weights_shape(engine_config(engine));
    moves_sent_blocks(sent, &shape, &layouts->of[PHASE_PREFILL], &layouts->of[PHASE_DECODE]);
    for (int i = 0; i < ranks * ranks; i++)
        blocks += sent[i];
    engine_close(engine);
    return (uint64_t)(blocks * shape.moe_layer_count *
                      expert_block_bytes(&shape, (struct expert_type){.dtype = DTYPE_F32}));
}

static struct phasor_model_params params_of(const char *dir, const char *plan,
                                            enum phasor_transition transition)
{
    struct phasor_model_params params = phasor_model_params_default();
    params.model = dir;
    params.dtype = PHASOR_DTYPE_FLOAT32;
    params.plan = plan;
    params.transition = transition;
    return params;
}

static struct phasor_batch_params batch_of(void)
{
    struct phasor_batch_params batch = phasor_batch_params_default();
    tools_write_file(tools_path(tools_folder(), "in"), rows, sizeof rows - 1);
    batch.input_path = tools_path(tools_folder(), "in");
    batch.output_path = tools_path(tools_folder(), "out");
    batch.max_num_seqs = 2;
    batch.max_model_len = 64;
    return batch;
}

static json_t *summary_of(const char *plan, enum phasor_transition transition,
                          struct phasor_batch_result *result)
{
    const char *summary = tools_path(tools_folder(), "summary");
    struct phasor_model_params params = params_of(MODEL, plan, transition);
    struct phasor_batch_params batch = batch_of();
    struct phasor_model *model;
    struct phasor_error err;
    size_t length;
    batch.summary_path = summary;
    batch.overwrite = true;
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(phasor_batch_run(model, &batch, result, &err), PHASOR_OK, "%s", err.message);
    phasor_model_close(model);
    char *text = tools_read_file(summary, &length);
    json_t *root = json_loads(text, 0, NULL);
    cr_assert_not_null(root, "%s", text);
    free(text);
    return root;
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

Test(waves, the_summary_tells_where_each_layer_lies_and_how_it_came_there)
{
    static const char *const words[] = {"auto", "keep", "reshard", "reload"};
    struct engine_params model = {
        .model = MODEL, .dtype = DTYPE_F32, .plan = "dp2|ep2>tp2", .transition = WAY_RESHARD};
    uint64_t predicted = predicted_bytes(&model, 2);
    for (int t = PHASOR_TRANSITION_AUTO; t <= PHASOR_TRANSITION_RELOAD; t++) {
        struct phasor_batch_result result;
        json_t *root = summary_of("dp2|ep2>tp2", (enum phasor_transition)t, &result);
        const json_t *layers = json_object_get(root, "expert_layers");
        const json_t *bytes = json_object_get(root, "collective_bytes");
        const char *way = t == PHASOR_TRANSITION_AUTO ? "keep" : words[t];
        cr_assert_str_eq(text_of(root, "plan"), "dp2|ep2>tp2");
        cr_assert_str_eq(text_of(root, "transition"), way);
        cr_assert_eq(json_integer_value(json_object_get(root, "transitions")), result.transitions);
        cr_assert(result.transitions > 2 && result.transition_seconds > 0);
        cr_assert_eq(json_array_size(layers), LAYERS);
        for (size_t i = 0; i < LAYERS; i++) {
            const json_t *layer = json_array_get(layers, i);
            cr_assert_eq(json_integer_value(json_object_get(layer, "layer")), (json_int_t)i);
            cr_assert_str_eq(text_of(layer, "layout"), "tp2");
            cr_assert_str_eq(text_of(layer, "by"), way);
        }
        cr_assert_eq(
            json_integer_value(json_object_get(bytes, "transition")),
            (json_int_t)(t == PHASOR_TRANSITION_RESHARD ? result.transitions * predicted : 0));
        json_decref(root);
    }
}

/* The same bits, whichever way the weights came. */
Test(waves, every_way_gives_the_same_rows)
{
    json_t *first = NULL;
    for (int t = PHASOR_TRANSITION_KEEP; t <= PHASOR_TRANSITION_RELOAD; t++) {
        struct phasor_batch_result result;
        json_decref(summary_of("dp2|ep2>tp2", (enum phasor_transition)t, &result));
        json_t *all = tools_read_rows(tools_path(tools_folder(), "out"));
        json_t *choices = json_array();
        for (const char *id = "abcde"; *id != 0; id++) {
            const char name[2] = {*id, 0};
            const json_t *response = json_object_get(tools_row(all, name), "response");
            const json_t *body = json_object_get(response, "body");
            json_array_append(choices, json_object_get(body, "choices"));
        }
        json_decref(all);
        cr_assert_eq(json_array_size(choices), 5);
        if (first == NULL)
            first = json_incref(choices);
        cr_assert(json_equal(first, choices), "way %d", t);
        json_decref(choices);
    }
    json_decref(first);
}

/* One layout: no such keys. */
Test(waves, a_plan_of_one_layout_says_nothing_of_it)
{
    struct phasor_batch_result result;
    json_t *root = summary_of("dp2|ep2>ep2", PHASOR_TRANSITION_RESHARD, &result);
    cr_assert_str_eq(text_of(root, "plan"), "dp2|ep2");
    cr_assert_null(json_object_get(root, "transition"));
    cr_assert_null(json_object_get(root, "expert_layers"));
    cr_assert_eq(result.transitions, 0);
    json_decref(root);
}

/* ---- The INT4 backup ------------------------------------------------------------------------- */

struct notes {
    int made, others;
    char last[512];
};

static void note(void *context, enum phasor_log_level level, const char *message)
{
    struct notes *notes = context;
    if (level == PHASOR_LOG_DEBUG)
        return;
    *(strstr(message, "making the INT4 backup") != NULL ? &notes->made : &notes->others) += 1;
    snprintf(notes->last, sizeof notes->last, "%s", message);
}

static json_t *rows_of(const struct phasor_model_params *params)
{
    struct phasor_batch_params batch = batch_of();
    struct phasor_batch_result result;
    struct phasor_model *model;
    struct phasor_error err;
    batch.overwrite = true;
    batch.summary_path = tools_path(tools_folder(), "summary");
    cr_assert_eq(phasor_model_open(&model, params, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(phasor_batch_run(model, &batch, &result, &err), PHASOR_OK, "%s", err.message);
    phasor_model_close(model);
    json_t *all = tools_read_rows(batch.output_path), *choices = json_array();
    for (const char *id = "abcde"; *id != 0; id++) {
        const char name[2] = {*id, 0};
        const json_t *response = json_object_get(tools_row(all, name), "response");
        json_array_append(choices, json_object_get(json_object_get(response, "body"), "choices"));
    }
    json_decref(all);
    return choices;
}

/* Behind a run that decoded on those of a backup, which the sentence names. */
static void check_resume_wants_the_same_weights(const char *plan, enum phasor_transition transition,
                                                const char *sentence)
{
    struct phasor_model_params params = params_of(MODEL, plan, transition);
    struct phasor_batch_params batch = batch_of();
    struct phasor_batch_result result;
    struct phasor_model *model;
    struct phasor_error err;
    batch.resume = true;
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(phasor_batch_run(model, &batch, &result, &err), PHASOR_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(err.message, sentence), "%s", err.message);
    phasor_model_close(model);
}

/* Made in the cache by the first run, found by the next, the same when it is named; and what it was
 * used for is said. */
Test(waves, upload_makes_the_backup_once)
{
    char cache[256];
    struct phasor_quantize_params quantize = phasor_quantize_params_default();
    struct phasor_model_params params = params_of(MODEL, "dp2|ep2>tp2", PHASOR_TRANSITION_UPLOAD);
    struct notes notes = {0, 0, ""};
    struct phasor_error err;
    size_t length;
    char *path;
    params.log = note;
    params.log_context = &notes;
    snprintf(cache, sizeof cache, "%s", tools_path(tools_folder(), "cache"));
    setenv("PHASOR_CACHE", cache, 1);
    json_t *first = rows_of(&params);
    cr_assert_eq(notes.made, 1);
    cr_assert_not_null(strstr(notes.last, cache), "%s", notes.last);
    json_t *second = rows_of(&params);
    cr_assert_eq(notes.made, 1);

    char *text = tools_read_file(tools_path(tools_folder(), "summary"), &length);
    json_t *root = json_loads(text, 0, NULL);
    const json_t *layers = json_object_get(root, "expert_layers");
    cr_assert_str_eq(text_of(root, "transition"), "upload");
    for (size_t i = 0; i < LAYERS; i++) {
        cr_assert_str_eq(text_of(json_array_get(layers, i), "by"), "upload");
        cr_assert_str_eq(text_of(json_array_get(layers, i), "provenance"), "int4");
    }
    json_decref(root);
    free(text);
    check_resume_wants_the_same_weights("dp2|ep2>tp2", PHASOR_TRANSITION_RESHARD,
                                        "then int4 group 64, now native");
    check_resume_wants_the_same_weights("dp2|ep2>tp2:int4", PHASOR_TRANSITION_AUTO,
                                        "then int4 group 64, now packed int4 group 64");

    quantize.model = MODEL;
    cr_assert_eq(phasor_backup_path(&path, &quantize, &err), PHASOR_OK, "%s", err.message);
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "nothing"), 1);
    params.backup_path = path;
    json_t *third = rows_of(&params);
    cr_assert(json_equal(first, second) && json_equal(first, third));
    cr_assert_eq(notes.made + notes.others, 1);
    phasor_text_free(path);
    json_decref(first);
    json_decref(second);
    json_decref(third);
}

static void check_refused(const struct phasor_model_params *params, const char *words)
{
    struct phasor_model *model;
    struct phasor_error err;
    cr_assert_neq(phasor_model_open(&model, params, &err), PHASOR_OK, "%s", words);
    cr_assert_not_null(strstr(err.message, words), "%s", err.message);
}

Test(waves, backups_that_cannot_be_used_are_refused)
{
    struct phasor_model_params upload = params_of(MODEL, "dp2|ep2>tp2", PHASOR_TRANSITION_UPLOAD);
    struct phasor_model_params params = upload;
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1);
    params.policy = PHASOR_POLICY_EXACT;
    check_refused(&params, "--policy exact allows no INT4 weights");
    params = upload;
    params.expert_dtype = PHASOR_DTYPE_INT4;
    check_refused(&params, "--expert-dtype int4");
    params = upload;
    params.backup_path = tools_path(tools_folder(), "gone");
    check_refused(&params, "gone");
    tools_write_file(tools_path(tools_folder(), "letter"), "a letter", 8);
    params.backup_path = tools_path(tools_folder(), "letter");
    check_refused(&params, "letter");
    params.transition = PHASOR_TRANSITION_RESHARD;
    check_refused(&params, "--backup is for --transition upload or auto");
    /* Nothing was made for any of them. */
    cr_assert_neq(access(getenv("PHASOR_CACHE"), F_OK), 0);
}

/* The backup is made for it, too. Both ways decode on the same weights; by keep, what was started
 * together need not end together. */
Test(waves, packed_decode_is_the_same_by_each_way)
{
    static const char *const plans[] = {"dp2|ep2>tp2:int4", "tp2|tp2>tp2:int4"};
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1);
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        json_t *by_way[2];
        for (int w = 0; w < 2; w++) {
            struct phasor_model_params params = params_of(
                MODEL, plans[p], w == 0 ? PHASOR_TRANSITION_AUTO : PHASOR_TRANSITION_UPLOAD);
            struct notes notes = {0, 0, ""};
            size_t length;
            params.log = note;
            params.log_context = &notes;
            by_way[w] = rows_of(&params);
            cr_assert_eq(notes.made, p + (size_t)w == 0);
            cr_assert_eq(notes.others, 0, "%s", notes.last);
            char *text = tools_read_file(tools_path(tools_folder(), "summary"), &length);
            json_t *root = json_loads(text, 0, NULL);
            const json_t *layers = json_object_get(root, "expert_layers");
            cr_assert_str_eq(text_of(root, "plan"), plans[p]);
            cr_assert_str_eq(text_of(root, "transition"), w == 0 ? "keep" : "upload");
            for (size_t i = 0; i < LAYERS; i++)
                cr_assert_str_eq(text_of(json_array_get(layers, i), "provenance"), "int4");
            json_decref(root);
            free(text);
            check_resume_wants_the_same_weights("dp2|ep2>tp2", PHASOR_TRANSITION_RESHARD,
                                                "then packed int4 group 64, now native");
        }
        cr_assert(json_equal(by_way[0], by_way[1]), "%s", plans[p]);
        json_decref(by_way[0]);
        json_decref(by_way[1]);
    }
}

/* Both slots of each layer where there is room, and no weights move; else one, in which they do. */
Test(waves, auto_keeps_packed_slices_beside_where_there_is_room)
{
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1);
    for (int is_narrow = 0; is_narrow <= 1; is_narrow++) {
        struct engine_params params = {.model = MODEL,
                                       .dtype = DTYPE_F32,
                                       .plan = "tp2|tp2>tp2:int4",
                                       .transition_is_auto = true,
                                       .memory_bytes = is_narrow ? 48 << 20 : 0};
        struct engine *engine;
        struct error err;
        check(engine_open(&engine, &params, &err), &err);
        enum way way = transition_way(engine_transition(engine));
        cr_assert_eq(way, is_narrow ? WAY_UPLOAD : WAY_KEEP);
        cr_assert_eq(engine_moves_weights(engine), is_narrow);
        cr_assert_not_null(engine_backup(engine));
        engine_close(engine);
    }
}

Test(waves, packed_decode_is_refused_where_it_cannot_be)
{
    struct phasor_model_params packed =
        params_of(MODEL, "tp2|tp2>tp2:int4", PHASOR_TRANSITION_AUTO);
    struct phasor_model_params params = packed;
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1);
    params.policy = PHASOR_POLICY_EXACT;
    check_refused(&params, "--policy exact allows no INT4 weights, and a plan with :int4");
    params = packed;
    params.expert_dtype = PHASOR_DTYPE_INT4;
    check_refused(&params, "a plan with :int4 prefills on native experts");
    params = packed;
    params.transition = PHASOR_TRANSITION_RESHARD;
    check_refused(&params, "--transition reshard cannot make the packed weights");
    params.transition = PHASOR_TRANSITION_RELOAD;
    check_refused(&params, "--transition reload cannot make the packed weights");
    params = packed;
    params.backup_path = tools_path(tools_folder(), "gone");
    check_refused(&params, "gone");
    cr_assert_neq(access(getenv("PHASOR_CACHE"), F_OK), 0);
}

/* What auto takes is what the probe says; by policy never upload. */
Test(waves, auto_uploads_only_where_it_may)
{
    struct engine_params params = {.model = MODEL,
                                   .dtype = DTYPE_F32,
                                   .plan = "dp2|ep2>tp2",
                                   .transition_is_auto = true,
                                   .memory_bytes = 64 << 20};
    struct engine_params making = params;
    struct engine *engine;
    struct error err;
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1);
    making.transition_is_auto = false;
    making.transition = WAY_UPLOAD;
    for (int i = 0; i < 4; i++) {
        params.is_exact = i % 2 == 1;
        check(engine_open(&engine, &params, &err), &err);
        cr_assert(engine_moves_weights(engine));
        bool may = i == 2; /* there is one, and the policy allows it */
        cr_assert_eq(engine_backup(engine) != NULL, may, "case %d", i);
        cr_assert(may || transition_way(engine_transition(engine)) != WAY_UPLOAD);
        engine_close(engine);
        if (i == 1) {
            check(engine_open(&engine, &making, &err), &err);
            engine_close(engine);
        }
    }
}

/* ---- A file that is gone --------------------------------------------------------------------- */

static void copy(const char *name, const char *to)
{
    char path[256];
    size_t length;
    snprintf(path, sizeof path, "%s/%s", MODEL, name);
    char *bytes = tools_read_file(path, &length);
    tools_write_file(to, bytes, length);
    free(bytes);
}

/* Once the run has begun. */
static int cut(void *context, const struct phasor_batch_progress *progress)
{
    (void)progress;
    cr_assert_eq(truncate(context, 1 << 20), 0);
    return PHASOR_GO_ON;
}

/* A copy of the model in the test's folder; returns its weights' file. */
static const char *copy_model(void)
{
    static const char *const files[] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                        "model.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        copy(files[i], tools_path(tools_folder(), files[i]));
    return tools_path(tools_folder(), "model.safetensors");
}

static enum phasor_status run_copy(const struct phasor_batch_params *batch,
                                   struct phasor_batch_result *result, struct phasor_error *err)
{
    struct phasor_model_params params =
        params_of(tools_folder(), "dp2|ep2>tp2", PHASOR_TRANSITION_RELOAD);
    struct phasor_model *model;
    cr_assert_eq(phasor_model_open(&model, &params, err), PHASOR_OK, "%s", err->message);
    enum phasor_status status = phasor_batch_run(model, batch, result, err);
    phasor_model_close(model);
    return status;
}

/* To its end, each row once. */
static void resume(struct phasor_batch_params batch)
{
    struct phasor_batch_result result;
    struct phasor_error err;
    batch.progress = NULL;
    batch.resume = true;
    cr_assert_eq(run_copy(&batch, &result, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(result.completed + result.completed_before, 5);
    json_t *all = tools_read_rows(batch.output_path);
    cr_assert_eq(json_array_size(all), 5);
    json_decref(all);
}

/* The checkpoint shrinks while a run reloads from it: the run ends with one sentence, and what was
 * finished stays; when the file is whole again the run is resumed to its end. */
Test(waves, a_run_that_cannot_reload_is_resumed)
{
    char weights[256];
    struct phasor_batch_result result;
    struct phasor_error err;
    snprintf(weights, sizeof weights, "%s", copy_model());
    struct phasor_batch_params batch = batch_of();
    batch.progress = cut;
    batch.progress_context = weights;
    cr_assert_eq(run_copy(&batch, &result, &err), PHASOR_FORMAT);
    cr_assert_not_null(strstr(err.message, "changing the layout of its experts by reload: rank "),
                       "%s", err.message);
    cr_assert_not_null(strstr(err.message, weights), "%s", err.message);
    cr_assert_lt(result.completed, 5);
    copy("model.safetensors", weights);
    resume(batch);
}

/* ---- A stop in the middle of a change ---------------------------------------------------------
 */

static atomic_bool is_slow; /* each read takes READ_NS */
#define READ_NS 10000000

/* In place of the C library's. */
ssize_t pread(int fd, void *out, size_t bytes, off_t offset);
ssize_t pread(int fd, void *out, size_t bytes, off_t offset)
{
    if (atomic_load(&is_slow))
        nanosleep(&(struct timespec){.tv_nsec = READ_NS}, NULL);
    return syscall(SYS_pread64, fd, out, bytes, offset);
}

/* Behind the first pass, in the change of layout that it begins or before it. */
static int drain(void *context, const struct phasor_batch_progress *progress)
{
    (void)context;
    atomic_store(&is_slow, true);
    return progress->prompt_tokens > 0 ? PHASOR_DRAIN : PHASOR_GO_ON;
}

Test(waves, a_stop_does_not_wait_for_all_layers)
{
    struct phasor_batch_result result;
    struct phasor_error err;
    size_t length;
    copy_model();
    struct phasor_batch_params batch = batch_of();
    batch.progress = drain;
    batch.drain_seconds = 0.1;
    batch.summary_path = tools_path(tools_folder(), "summary");
    cr_assert_eq(run_copy(&batch, &result, &err), PHASOR_CANCELLED);
    atomic_store(&is_slow, false);
    cr_assert_not_null(strstr(err.message, "the run was stopped; 0 of 5 rows are done"), "%s",
                       err.message);
    char *text = tools_read_file(batch.summary_path, &length);
    json_t *root = json_loads(text, 0, NULL);
    const json_t *layers = json_object_get(root, "expert_layers");
    size_t moved = 0;
    for (size_t i = 0; i < LAYERS; i++)
        moved += strcmp(text_of(json_array_get(layers, i), "layout"), "tp2") == 0;
    printf("%zu of %d layers had moved\n", moved, LAYERS);
    cr_assert_lt(moved, LAYERS);
    json_decref(root);
    free(text);
    batch.summary_path = NULL;
    resume(batch);
}

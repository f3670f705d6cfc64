/* Runs under plans with two layouts: what they say of themselves, the INT4 backup that they use or
 * make, and that every way gives the same rows. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "engine/engine.h"
#include "layout/expert_form.h"
#include "wave_tools.h"

static void check(enum status status, const struct error *err)
{
    cr_assert_eq(status, STATUS_OK, "%s", err->message);
}

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

static json_t *summary_of(const char *plan, enum phasor_transition transition,
                          struct phasor_batch_result *result)
{
    const char *summary = tools_path(tools_folder(), "summary");
    struct phasor_model_params params = wave_model(WAVE_MODEL, plan, transition);
    struct phasor_batch_params batch = wave_batch(wave_rows);
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

Test(wave_runs, the_summary_tells_where_each_layer_lies_and_how_it_came_there)
{
    static const char *const words[] = {"auto", "keep", "reshard", "reload"};
    struct engine_params model = {
        .model = WAVE_MODEL, .dtype = DTYPE_F32, .plan = "dp2|ep2>tp2", .transition = WAY_RESHARD};
    uint64_t predicted = predicted_bytes(&model, 2);
    for (int t = PHASOR_TRANSITION_AUTO; t <= PHASOR_TRANSITION_RELOAD; t++) {
        struct phasor_batch_result result;
        json_t *root = summary_of("dp2|ep2>tp2", (enum phasor_transition)t, &result);
        const json_t *layers = json_object_get(root, "expert_layers");
        const json_t *bytes = json_object_get(root, "collective_bytes");
        const char *way = t == PHASOR_TRANSITION_AUTO ? "keep" : words[t];
        cr_assert_str_eq(wave_text(root, "plan"), "dp2|ep2>tp2");
        cr_assert_str_eq(wave_text(root, "transition"), way);
        cr_assert_eq((uint64_t)json_integer_value(json_object_get(root, "transitions")),
                     result.transitions);
        cr_assert(result.transitions > 2 && result.transition_seconds > 0);
        cr_assert_eq(json_array_size(layers), WAVE_LAYERS);
        for (size_t i = 0; i < WAVE_LAYERS; i++) {
            const json_t *layer = json_array_get(layers, i);
            cr_assert_eq(json_integer_value(json_object_get(layer, "layer")), (json_int_t)i);
            cr_assert_str_eq(wave_text(layer, "layout"), "tp2");
            cr_assert_str_eq(wave_text(layer, "by"), way);
        }
        cr_assert_eq(
            json_integer_value(json_object_get(bytes, "transition")),
            (json_int_t)(t == PHASOR_TRANSITION_RESHARD ? result.transitions * predicted : 0));
        json_decref(root);
    }
}

/* The same bits, whichever way the weights came. */
Test(wave_runs, every_way_gives_the_same_rows)
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

/* Of so many rows, all of which have room in one wave. */
static uint64_t transitions_of(int row_count)
{
    struct text rows = {0};
    struct phasor_model_params params =
        wave_model(WAVE_MODEL, "dp2|ep2>tp2", PHASOR_TRANSITION_RESHARD);
    struct phasor_model *model;
    struct phasor_error err;
    struct phasor_batch_result result;
    for (int i = 0; i < row_count; i++)
        text_append_format(&rows,
                           "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                           "\"body\":{\"prompt\":[5,%d],\"ignore_eos\":true,\"max_tokens\":4}}\n",
                           i, i);
    cr_assert(!rows.failed);
    struct phasor_batch_params batch = wave_batch(rows.bytes);
    batch.max_num_seqs = 256;
    batch.max_num_batched_tokens = 1024;
    batch.overwrite = true;
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(phasor_batch_run(model, &batch, &result, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(result.completed, (uint64_t)row_count);
    phasor_model_close(model);
    text_deinit(&rows);
    return result.transitions;
}

/* However many rows are read ahead of others' first pass. */
Test(wave_runs, a_wave_is_as_large_as_there_is_room)
{
    uint64_t few = transitions_of(10);
    cr_assert_gt(few, 0);
    cr_assert_eq(transitions_of(200), few);
}

/* One layout: no such keys. */
Test(wave_runs, a_plan_of_one_layout_says_nothing_of_it)
{
    struct phasor_batch_result result;
    json_t *root = summary_of("dp2|ep2>ep2", PHASOR_TRANSITION_RESHARD, &result);
    cr_assert_str_eq(wave_text(root, "plan"), "dp2|ep2");
    cr_assert_null(json_object_get(root, "transition"));
    cr_assert_null(json_object_get(root, "expert_layers"));
    cr_assert_eq(result.transitions, 0);
    json_decref(root);
}

/* ---- The INT4 backup ------------------------------------------------------------------------- */

struct notes {
    int made, read, others; /* backups that are made; that are read, and from where */
    char last[512];
};

static void note(void *context, enum phasor_log_level level, const char *message)
{
    struct notes *notes = context;
    if (level == PHASOR_LOG_DEBUG)
        return;
    if (strstr(message, "upload reads the INT4 backup from: ") != NULL ||
        strstr(message, "reading the INT4 backup into locked memory") != NULL) {
        notes->read++;
        return;
    }
    *(strstr(message, "making the INT4 backup") != NULL ? &notes->made : &notes->others) += 1;
    snprintf(notes->last, sizeof notes->last, "%s", message);
}

static json_t *rows_of(const struct phasor_model_params *params)
{
    struct phasor_batch_params batch = wave_batch(wave_rows);
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
    struct phasor_model_params params = wave_model(WAVE_MODEL, plan, transition);
    struct phasor_batch_params batch = wave_batch(wave_rows);
    struct phasor_batch_result result;
    struct phasor_model *model;
    struct phasor_error err;
    batch.resume = true;
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(phasor_batch_run(model, &batch, &result, &err), PHASOR_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(err.message, sentence), "%s", err.message);
    phasor_model_close(model);
}

/* Of weights that go into the backup, and then of all that are loaded. */
struct load_seen {
    uint64_t total; /* of what is under way */
    int begun;
};

static int see_load(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    struct load_seen *seen = context;
    seen->begun += bytes_total != seen->total;
    seen->total = bytes_total;
    cr_assert_leq(bytes_done, bytes_total);
    return 0;
}

/* Made in the cache by the first run, found by the next, the same when it is named; and what it was
 * used for is said. */
Test(wave_runs, upload_makes_the_backup_once)
{
    char cache[256];
    struct phasor_quantize_params quantize = phasor_quantize_params_default();
    struct phasor_model_params params =
        wave_model(WAVE_MODEL, "dp2|ep2>tp2", PHASOR_TRANSITION_UPLOAD);
    struct notes notes = {0, 0, 0, ""};
    struct phasor_error err;
    size_t length;
    char *path;
    struct load_seen seen = {0, 0};
    params.log = note;
    params.log_context = &notes;
    params.load_progress = see_load;
    params.load_context = &seen;
    snprintf(cache, sizeof cache, "%s", tools_path(tools_folder(), "cache"));
    setenv("PHASOR_CACHE", cache, 1);
    json_t *first = rows_of(&params);
    cr_assert_eq(seen.begun, 2);
    cr_assert_eq(notes.made, 1);
    cr_assert_not_null(strstr(notes.last, cache), "%s", notes.last);
    json_t *second = rows_of(&params);
    cr_assert_eq(notes.made, 1);
    cr_assert_eq(seen.begun, 2); /* only loaded: as many bytes as before */

    char *text = tools_read_file(tools_path(tools_folder(), "summary"), &length);
    json_t *root = json_loads(text, 0, NULL);
    const json_t *layers = json_object_get(root, "expert_layers");
    cr_assert_str_eq(wave_text(root, "transition"), "upload");
    cr_assert_not_null(json_object_get(root, "backup_source"));
    for (size_t i = 0; i < WAVE_LAYERS; i++) {
        cr_assert_str_eq(wave_text(json_array_get(layers, i), "by"), "upload");
        cr_assert_str_eq(wave_text(json_array_get(layers, i), "provenance"), "int4");
    }
    json_decref(root);
    free(text);
    check_resume_wants_the_same_weights("dp2|ep2>tp2", PHASOR_TRANSITION_RESHARD,
                                        "then int4 group 64, now native");
    check_resume_wants_the_same_weights("dp2|ep2>tp2:int4", PHASOR_TRANSITION_AUTO,
                                        "then int4 group 64, now packed int4 group 64");

    quantize.model = WAVE_MODEL;
    cr_assert_eq(phasor_backup_path(&path, &quantize, &err), PHASOR_OK, "%s", err.message);
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "nothing"), 1);
    params.backup_path = path;
    json_t *third = rows_of(&params);
    cr_assert(json_equal(first, second) && json_equal(first, third));
    cr_assert_eq(notes.made + notes.others, 1);
    cr_assert_eq(notes.read, 3);
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

Test(wave_runs, backups_that_cannot_be_used_are_refused)
{
    struct phasor_model_params upload =
        wave_model(WAVE_MODEL, "dp2|ep2>tp2", PHASOR_TRANSITION_UPLOAD);
    struct phasor_model_params params = upload;
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1);
    params.policy = PHASOR_POLICY_EXACT;
    check_refused(&params, "--policy exact allows no INT4 weights");
    params = upload;
    params.expert_dtype = PHASOR_DTYPE_INT4;
    check_refused(&params, "--expert-dtype int4");
    params.transition = PHASOR_TRANSITION_AUTO;
    params.policy = PHASOR_POLICY_EXACT;
    check_refused(&params, "--policy exact allows no INT4 weights, and --expert-dtype int4");
    params.plan = "tp2|tp2";
    check_refused(&params, "--policy exact allows no INT4 weights, and --expert-dtype int4");
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

/* Nothing is read from a backup that nobody needs, and nothing moves; who named one or a way is
 * told. */
Test(wave_runs, a_backup_is_for_plans_that_change_the_layout)
{
    static const struct {
        bool has_path, is_exact;
        enum phasor_transition way;
        const char *words;
    } cases[] = {
        {true, false, PHASOR_TRANSITION_AUTO,
         "--backup is without effect: the plan has one layout"},
        {false, true, PHASOR_TRANSITION_AUTO, "--policy exact is without effect"},
        {true, true, PHASOR_TRANSITION_AUTO, "--backup and --policy exact are without effect"},
        {false, false, PHASOR_TRANSITION_UPLOAD, "--transition upload is without effect"},
        {true, false, PHASOR_TRANSITION_RELOAD,
         "--backup and --transition reload are without effect"},
        {true, true, PHASOR_TRANSITION_KEEP,
         "--backup, --transition keep and --policy exact are without effect"},
        {false, false, PHASOR_TRANSITION_AUTO, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct phasor_model_params params = wave_model(WAVE_MODEL, "tp2|tp2", cases[i].way);
        struct notes notes = {0, 0, 0, ""};
        struct phasor_model *model;
        struct phasor_error err;
        params.log = note;
        params.log_context = &notes;
        params.backup_path = cases[i].has_path ? "/nowhere/at/all" : NULL;
        params.policy = cases[i].is_exact ? PHASOR_POLICY_EXACT : PHASOR_POLICY_INT4_DECODE;
        cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
        phasor_model_close(model);
        cr_assert_eq(notes.others, cases[i].words[0] != 0, "%s", notes.last);
        cr_assert_not_null(strstr(notes.last, cases[i].words), "%s", notes.last);
    }
}

/* The backup is made for it, too. Both ways decode on the same weights; by keep, what was started
 * together need not end together. */
Test(wave_runs, packed_decode_is_the_same_by_each_way)
{
    static const char *const plans[] = {"dp2|ep2>tp2:int4", "tp2|tp2>tp2:int4"};
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1);
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        json_t *by_way[2];
        for (int w = 0; w < 2; w++) {
            struct phasor_model_params params = wave_model(
                WAVE_MODEL, plans[p], w == 0 ? PHASOR_TRANSITION_AUTO : PHASOR_TRANSITION_UPLOAD);
            struct notes notes = {0, 0, 0, ""};
            size_t length;
            params.log = note;
            params.log_context = &notes;
            by_way[w] = rows_of(&params);
            cr_assert_eq(notes.made, p + (size_t)w == 0);
            cr_assert_eq(notes.read, w);
            cr_assert_eq(notes.others, 0, "%s", notes.last);
            char *text = tools_read_file(tools_path(tools_folder(), "summary"), &length);
            json_t *root = json_loads(text, 0, NULL);
            const json_t *layers = json_object_get(root, "expert_layers");
            cr_assert_str_eq(wave_text(root, "plan"), plans[p]);
            cr_assert_str_eq(wave_text(root, "transition"), w == 0 ? "keep" : "upload");
            cr_assert_eq(json_object_get(root, "backup_source") != NULL, w == 1);
            for (size_t i = 0; i < WAVE_LAYERS; i++)
                cr_assert_str_eq(wave_text(json_array_get(layers, i), "provenance"), "int4");
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
Test(wave_runs, auto_keeps_packed_slices_beside_where_there_is_room)
{
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1);
    for (int is_narrow = 0; is_narrow <= 1; is_narrow++) {
        struct engine_params params = {.model = WAVE_MODEL,
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

Test(wave_runs, packed_decode_is_refused_where_it_cannot_be)
{
    struct phasor_model_params packed =
        wave_model(WAVE_MODEL, "tp2|tp2>tp2:int4", PHASOR_TRANSITION_AUTO);
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

static void hear_trial(void *context, enum phasor_log_level level, const char *message)
{
    static const char words[] = "experts change their layout by %*[a-z]: what %lf s of prefill";
    cr_assert(level == PHASOR_LOG_DEBUG || strstr(message, "experts change") == NULL);
    sscanf(message, words, (double *)context);
}

/* In place a choice weighs what a pass of prefill takes; rows know nothing of that pass. */
Test(wave_runs, auto_times_a_pass_before_it_chooses)
{
    double seconds = -1;
    struct phasor_model_params params =
        wave_model(WAVE_MODEL, "dp2|ep2>tp2", PHASOR_TRANSITION_RESHARD);
    json_t *native = rows_of(&params);
    params.transition = PHASOR_TRANSITION_AUTO;
    params.policy = PHASOR_POLICY_EXACT;
    params.memory_bytes = 64 << 20;
    params.log = hear_trial;
    params.log_context = &seconds;
    json_t *chosen = rows_of(&params);
    printf("a pass of prefill takes %g s\n", seconds);
    cr_assert_gt(seconds, 0);
    cr_assert(json_equal(native, chosen));
    json_decref(native);
    json_decref(chosen);
    seconds = -1;
    params.memory_bytes = 0; /* both layouts stay: there is nothing to choose */
    json_decref(rows_of(&params));
    cr_assert_eq(seconds, -1);
}

/* What auto takes is what the trial says; by policy never upload. */
Test(wave_runs, auto_uploads_only_where_it_may)
{
    struct engine_params params = {.model = WAVE_MODEL,
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

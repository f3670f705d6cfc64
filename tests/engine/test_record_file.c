/* The file of --record: when there is one, when there is none, and what it says of its run. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/trace.h"
#include "engine/batch.h"
#include "engine_tools.h"
#include "record_rig.h"
#include "transition/transition.h"

/* ---- When there is none ---------------------------------------------------------------------- */

static char warning[1024];

static void hear(void *context, enum phasor_log_level level, const char *message)
{
    (void)context;
    if (level == PHASOR_LOG_WARNING)
        snprintf(warning, sizeof warning, "%s", message);
}

static int stop(void *context, const struct phasor_batch_progress *progress)
{
    (void)context;
    return progress->prompt_tokens > 0 ? PHASOR_STOP : PHASOR_GO_ON;
}

static enum phasor_status run_public(bool records, const char *devices, const char *record_path,
                                     bool stops, struct phasor_error *err)
{
    static const char row[] = "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":"
                              "\"/v1/completions\",\"body\":{\"prompt\":[3,1,4],"
                              "\"max_tokens\":4000,\"ignore_eos\":true}}\n";
    static const char short_row[] = "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":"
                                    "\"/v1/completions\",\"body\":{\"prompt\":[3,1,4],"
                                    "\"max_tokens\":2,\"ignore_eos\":true}}\n";
    struct phasor_model *model;
    const char *folder = tools_folder();
    struct phasor_model_params params = phasor_model_params_default();
    struct phasor_batch_params batch = phasor_batch_params_default();
    params.model = MODELS_DIR "/kjv-moe";
    params.devices = devices;
    params.records = records;
    params.log = hear;
    enum phasor_status status = phasor_model_open(&model, &params, err);
    if (status != PHASOR_OK)
        return status;
    tools_write_file(tools_path(folder, "in"), stops ? row : short_row,
                     strlen(stops ? row : short_row));
    batch.input_path = tools_path(folder, "in");
    batch.output_path = tools_path(folder, "out");
    batch.record_path = record_path;
    batch.overwrite = true;
    batch.max_num_seqs = 4;
    batch.kv_bytes = 1 << 24;
    batch.progress = stops ? stop : NULL;
    status = phasor_batch_run(model, &batch, NULL, err);
    phasor_model_close(model);
    return status;
}

Test(record_file, needs_a_model_that_was_opened_for_it)
{
    struct phasor_error err;
    const char *path = tools_path(tools_folder(), "recording");
    cr_expect_eq(run_public(false, "cpu", path, false, &err), PHASOR_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(err.message, "--record: "), "%s", err.message);
    cr_expect_neq(access(path, F_OK), 0);
    cr_expect_eq(run_public(true, "cuda:0", path, false, &err), PHASOR_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "--record: "), "%s", err.message);
}

Test(record_file, is_none_of_a_run_that_was_stopped)
{
    struct phasor_error err;
    const char *path = tools_path(tools_folder(), "recording");
    cr_expect_eq(run_public(true, "cpu:2", path, true, &err), PHASOR_CANCELLED, "%s", err.message);
    cr_expect_not_null(strstr(warning, "recording is not written: "), "%s", warning);
    cr_expect_neq(access(path, F_OK), 0);
}

Test(record_file, replaces_no_file_of_others)
{
    struct phasor_error err;
    const char *path = tools_path(tools_folder(), "recording");
    tools_write_file(path, "a poem", 6);
    cr_expect_eq(run_public(true, "cpu", path, false, &err), PHASOR_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(err.message, "--record: "), "%s", err.message);
}

/* ---- Room ------------------------------------------------------------------------------------ */

static const struct record_case two_waves = {"dp2|ep2>tp2", 2, PHASOR_TRANSITION_RESHARD, 512, 2};

static size_t node_count;

static void count_nodes(void *context, const struct record_lane_view *lane)
{
    (void)context;
    node_count += lane->node_count;
}

static size_t nodes_kept(const struct engine *engine)
{
    node_count = 0;
    record_look(engine_trace(engine), count_nodes, NULL);
    return node_count;
}

struct heard {
    const struct engine *engine;
    int warnings;
    size_t nodes; /* kept at the last look */
    bool has_begun;
    char last[1024];
};

static void hear_full(void *context, enum log_level level, const char *message)
{
    struct heard *heard = context;
    if (level != LOG_WARNING || strstr(message, "recording") == NULL)
        return;
    heard->warnings++;
    snprintf(heard->last, sizeof heard->last, "%s", message);
}

/* The recording begins again, with room for less than the run. */
static int begin_small(void *context, const struct phasor_batch_progress *progress)
{
    struct heard *heard = context;
    (void)progress;
    if (!heard->has_begun)
        record_start(engine_trace(heard->engine), 100000);
    heard->has_begun = true;
    heard->nodes = nodes_kept(heard->engine);
    return PHASOR_GO_ON;
}

Test(record_file, ends_with_one_warning_where_a_run_is_too_long)
{
    struct heard heard = {0};
    struct phasor_batch_result result;
    struct error err;
    const struct log_sink log = {.write = hear_full, .context = &heard};
    struct engine *engine = record_engine_open(&two_waves, true);
    struct phasor_batch_params batch = record_batch(&two_waves);
    batch.record_path = tools_path(tools_folder(), "recording");
    batch.progress = begin_small;
    batch.progress_context = &heard;
    heard.engine = engine;
    cr_expect_eq(batch_run(engine, &batch, &log, &result, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(result.completed, 4);
    cr_expect_eq(heard.warnings, 1);
    cr_expect_not_null(strstr(heard.last, "recording is not written: the run's operations take "),
                       "%s", heard.last);
    cr_expect_eq(heard.nodes, 0, "%zu nodes are kept until the run ends", heard.nodes);
    cr_expect_eq(nodes_kept(engine), 0);
    cr_expect_neq(access(batch.record_path, F_OK), 0);
    engine_close(engine);
}

/* A recording takes nothing once its file is there, and another run of the same engine has one. */
Test(record_file, is_of_each_run_of_an_engine)
{
    struct recording first;
    struct phasor_batch_result result;
    struct error err;
    const struct log_sink log = {.write = NULL};
    struct engine *engine = record_engine_open(&two_waves, true);
    struct phasor_batch_params batch = record_batch(&two_waves);
    batch.record_path = tools_path(tools_folder(), "recording");
    for (int i = 0; i < 3; i++) {
        struct recording next;
        cr_assert_eq(batch_run(engine, &batch, &log, &result, &err), STATUS_OK, "%s", err.message);
        cr_expect_eq(nodes_kept(engine), 0);
        cr_assert_eq(recording_read(i == 0 ? &first : &next, batch.record_path, &err), STATUS_OK,
                     "%s", err.message);
        if (i == 0)
            continue;
        cr_expect_eq(next.lane_count, first.lane_count);
        cr_expect_eq(next.group_count, first.group_count);
        recording_deinit(&next);
    }
    recording_deinit(&first);
    engine_close(engine);
}

static int look_at_begin(void *context, const struct phasor_batch_progress *progress)
{
    const struct engine *engine = context;
    if (progress->prompt_tokens == 0)
        cr_expect_not(transition_is_under_way(engine_transition(engine)));
    return PHASOR_GO_ON;
}

/* Rows that end with their prompt leave a transition to decode behind, which waits for a pass that
 * does not come. */
Test(record_file, begins_when_an_earlier_run_is_over)
{
    static const char row[] = "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":"
                              "\"/v1/completions\",\"body\":{\"prompt\":[3,1,4],"
                              "\"max_tokens\":1,\"ignore_eos\":true}}\n";
    struct phasor_batch_result result;
    struct error err;
    const struct log_sink log = {.write = NULL};
    struct engine *engine = record_engine_open(&two_waves, true);
    struct phasor_batch_params batch = record_batch(&two_waves);
    tools_write_file(batch.input_path, row, strlen(row));
    cr_assert_eq(batch_run(engine, &batch, &log, &result, &err), STATUS_OK, "%s", err.message);
    cr_assert(transition_is_under_way(engine_transition(engine)), "nothing is tested");
    batch = record_batch(&two_waves);
    batch.record_path = tools_path(tools_folder(), "recording");
    batch.progress = look_at_begin;
    batch.progress_context = engine;
    cr_assert_eq(batch_run(engine, &batch, &log, &result, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(access(batch.record_path, F_OK), 0);
    engine_close(engine);
}

/* ---- A part ---------------------------------------------------------------------------------- */

static json_int_t about(const char *path, const char *key)
{
    struct recording recording;
    struct error err;
    cr_assert_eq(recording_read(&recording, path, &err), STATUS_OK, "%s", err.message);
    json_t *root = json_loads(recording.about, 0, NULL);
    const json_t *value = json_object_get(root, key);
    cr_assert(json_is_integer(value), "%s: %s", key, recording.about);
    json_int_t count = json_integer_value(value);
    json_decref(root);
    recording_deinit(&recording);
    return count;
}

/* The output loses its last row, as if the run had been killed before it. */
static void lose_last_row(const char *path)
{
    size_t length;
    char *bytes = tools_read_file(path, &length);
    size_t keep = length - 1;
    while (keep > 0 && bytes[keep - 1] != '\n')
        keep--;
    tools_write_file(path, bytes, keep);
    free(bytes);
}

static void expect_note(const char *path, bool is_partial)
{
    struct phasor_replay_params params = phasor_replay_params_default();
    struct phasor_error err;
    char *text;
    params.recording_path = path;
    cr_assert_eq(phasor_replay(&text, &params, &err), PHASOR_OK, "%s", err.message);
    json_t *root = json_loads(text, 0, NULL);
    const json_t *notes = json_object_get(root, "notes");
    cr_expect_eq(json_is_true(json_object_get(root, "partial")), is_partial);
    cr_expect_eq(json_array_size(notes), is_partial);
    cr_expect(!is_partial || strstr(json_string_value(json_array_get(notes, 0)),
                                    "had done 3 of its 4 rows") != NULL);
    json_decref(root);
    phasor_text_free(text);
}

Test(record_file, says_that_its_run_was_resumed)
{
    struct phasor_batch_result result;
    struct error err;
    const struct log_sink log = {.write = NULL};
    struct engine *engine = record_engine_open(&two_waves, true);
    struct phasor_batch_params batch = record_batch(&two_waves);
    const char *path = batch.record_path = tools_path(tools_folder(), "recording");
    cr_assert_eq(batch_run(engine, &batch, &log, &result, &err), STATUS_OK, "%s", err.message);
    cr_expect(about(path, "rows") == 4 && about(path, "rows_before") == 0);
    expect_note(path, false);
    lose_last_row(batch.output_path);
    batch.overwrite = false;
    batch.resume = true;
    cr_assert_eq(batch_run(engine, &batch, &log, &result, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(result.completed_before, 3);
    cr_expect(about(path, "rows") == 4 && about(path, "rows_before") == 3);
    expect_note(path, true);
    /* With nothing left to run, the file stays that of who did the rows. */
    cr_assert_eq(batch_run(engine, &batch, &log, &result, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(about(path, "rows_before"), 3);
    cr_expect_eq(nodes_kept(engine), 0);
    engine_close(engine);
}

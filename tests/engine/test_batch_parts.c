/* A run whose rows have plans of their own: parts, and weights that are loaded anew between them.
 *
 *   rows      are what each part's plan gives alone; counters and summary are of all parts
 *   again     the same model runs the batch again, and other batches
 *   stopped   in any part, or while weights are loaded: resumed, each row is there once
 *   broken    weights that cannot be loaded end the run, which is resumed by a model that is opened
 *             again; the one without weights refuses runs
 *   one       runs that are to have one plan have it
 *   record    parts are kept as they are; what is none is refused
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/memory.h"
#include "base/text.h"
#include "clock.h"
#include "engine/batch_parts.h"
#include "engine_tools.h"
#include "example_profile.h"
#include "phasor.h"

#define MODEL TEST_DATA "/models/mixtral-tied" /* no tokenizer: it loads and runs in a moment */

/* Of each kind: few prompt tokens and long answers, many and short ones. */
#define ROWS          8
#define LONG_PROMPT   60
#define LONG_ANSWER   24
#define SHORT         2
#define RECORD_WRITES 1         /* of a run's record, before the first row */
#define PLAN_ANSWERS  "tp2|tp2" /* which such a box has for long answers, */
#define PLAN_PROMPTS  "dp2|tp2" /* and for long prompts */

TestSuite(batch_parts, .timeout = 120);

struct told {
    char text[8192]; /* notes and warnings */
    size_t length;
};

static void on_log(void *context, enum phasor_log_level level, const char *message)
{
    struct told *told = context;
    if (level != PHASOR_LOG_DEBUG && told->length < sizeof told->text)
        told->length += (size_t)snprintf(told->text + told->length,
                                         sizeof told->text - told->length, "%s\n", message);
}

struct job {
    char input[300], output[300], summary[300], profile[300];
    struct told told;
    struct phasor_batch_params batch;
    struct phasor_model_params model;
};

/* No two prompts begin alike. */
static void row_append(struct text *out, int row, int prompt, int answer)
{
    text_append_format(out,
                       "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                       "\"body\":{\"ignore_eos\":true,\"logprobs\":0,\"max_tokens\":%d,"
                       "\"prompt\":[%d",
                       row, answer, 5 + row);
    for (int i = 1; i < prompt; i++)
        text_append_format(out, ",%d", 5 + (row * 31 + i * 7) % 90);
    text_append_string(out, "]}}\n");
}

static bool has_long_answer(int row)
{
    return row % 2 == 0;
}

static void rows_write(const char *path)
{
    struct text rows = {0};
    for (int row = 0; row < 2 * ROWS; row++)
        row_append(&rows, row, has_long_answer(row) ? SHORT : LONG_PROMPT,
                   has_long_answer(row) ? LONG_ANSWER : SHORT);
    cr_assert(!rows.failed);
    tools_write_file(path, rows.bytes, rows.length);
    text_deinit(&rows);
}

static void job_init(struct job *job)
{
    struct example_profile profile;
    struct error err;
    memset(job, 0, sizeof *job);
    snprintf(job->input, sizeof job->input, "%s/in", tools_folder());
    snprintf(job->output, sizeof job->output, "%s/out", tools_folder());
    snprintf(job->summary, sizeof job->summary, "%s/summary", tools_folder());
    snprintf(job->profile, sizeof job->profile, "%s/box.json", tools_folder());
    rows_write(job->input);
    example_profile_torn(&profile, 2);
    cr_assert(example_profile_write(&profile, job->profile, &err), "%s", err.message);
    cr_assert_eq(setenv("PHASOR_CACHE", tools_folder(), 1), 0);
    job->batch = phasor_batch_params_default();
    job->batch.input_path = job->input;
    job->batch.output_path = job->output;
    job->batch.summary_path = job->summary;
    job->batch.kv_bytes = 64 << 20;
    job->batch.max_num_seqs = 4;
    job->model = phasor_model_params_default();
    job->model.model = MODEL;
    job->model.devices = "cpu:2";
    job->model.plan = "auto";
    job->model.profile_path = job->profile;
    job->model.batch = &job->batch;
    job->model.log = on_log;
    job->model.log_context = &job->told;
}

static struct phasor_model *opened(const struct job *job)
{
    struct phasor_model *model;
    struct phasor_error err;
    cr_assert_eq(phasor_model_open(&model, &job->model, &err), PHASOR_OK, "%s", err.message);
    return model;
}

static struct phasor_batch_result ran(struct phasor_model *model, const struct job *job)
{
    struct phasor_batch_result result;
    struct phasor_error err;
    cr_assert_eq(phasor_batch_run(model, &job->batch, &result, &err), PHASOR_OK, "%s", err.message);
    return result;
}

/* The tokens of each row in their order, by their ids: there is no text; freed by json_decref. */
static json_t *tokens_of(const struct job *job)
{
    json_t *rows = tools_read_rows(job->output), *all = json_array();
    cr_assert_eq(json_array_size(rows), 2 * ROWS);
    for (int row = 0; row < 2 * ROWS; row++) {
        char id[16];
        snprintf(id, sizeof id, "%d", row);
        const json_t *line = tools_row(rows, id);
        cr_assert_not_null(line, "row %d is not there once", row);
        const json_t *body = json_object_get(json_object_get(line, "response"), "body");
        const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
        json_t *tokens = json_object_get(json_object_get(choice, "logprobs"), "tokens");
        cr_assert_eq(json_array_size(tokens), has_long_answer(row) ? LONG_ANSWER : SHORT);
        json_array_append(all, tokens);
    }
    json_decref(rows);
    return all;
}

/* Under one plan that is named, with passes as parts have them. */
static json_t *tokens_under(const char *plan)
{
    struct job job;
    job_init(&job);
    job.model.plan = plan;
    job.batch.overwrite = true;
    struct phasor_model *model = opened(&job);
    ran(model, &job);
    phasor_model_close(model);
    return tokens_of(&job);
}

/* Rows of long answers have the one plan's tokens, the others the other's. */
static void expect_tokens(const struct job *job, const json_t *answers, const json_t *prompts)
{
    json_t *tokens = tokens_of(job);
    for (int row = 0; row < 2 * ROWS; row++)
        cr_expect(json_equal(json_array_get(tokens, (size_t)row),
                             json_array_get(has_long_answer(row) ? answers : prompts, (size_t)row)),
                  "row %d", row);
    json_decref(tokens);
}

/* Made once, before what is tried. */
static json_t *answers, *prompts;

static void tokens_make(void)
{
    answers = tokens_under(PLAN_ANSWERS);
    prompts = tokens_under(PLAN_PROMPTS);
    cr_assert_eq(unlink(tools_path(tools_folder(), "out")), 0);
    cr_assert_eq(unlink(tools_path(tools_folder(), "out.phasor-run")), 0);
}

static void tokens_drop(void)
{
    json_decref(answers);
    json_decref(prompts);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static void expect_counters(const struct phasor_batch_result *result)
{
    uint64_t prompt = ROWS * (SHORT + LONG_PROMPT), output = ROWS * (SHORT + LONG_ANSWER);
    cr_expect_eq(result->completed, 2 * ROWS);
    cr_expect_eq(result->plan_changes, 1);
    cr_expect(result->plan_change_seconds > 0 &&
              result->plan_change_seconds < result->elapsed_seconds);
    cr_expect_eq(result->prompt_tokens, prompt);
    cr_expect_eq(result->completion_tokens, output);
    cr_expect_eq(result->prefill_tokens, prompt);
    cr_expect_eq(result->decode_tokens, output - 2 * ROWS, "the first of each is prefill's");
    cr_expect(result->has_prediction && result->predicted_plan_change_seconds > 0);
    /* What either plan sends: the attention of the one, the experts of both. */
    uint64_t sums = 0, all = 0;
    for (int kind = 0; kind < PHASOR_COLLECTIVE_COUNT; kind++) {
        bool is_attention = strstr(phasor_collective_name(kind), "attention") != NULL;
        sums += is_attention ? result->collective_bytes[kind] : 0;
        all += result->collective_bytes[kind];
    }
    cr_expect(sums > 0 && all > sums);
    cr_expect_eq(result->e2el.count, 2 * ROWS);
}

static void expect_summary(const struct job *job)
{
    size_t length;
    char *bytes = tools_read_file(job->summary, &length);
    json_t *summary = json_loads(bytes, 0, NULL);
    cr_assert_not_null(summary);
    cr_expect_str_eq(json_string_value(json_object_get(summary, "plan")),
                     PLAN_ANSWERS ", then " PLAN_PROMPTS);
    cr_expect_eq(json_integer_value(json_object_get(summary, "plan_changes")), 1);
    cr_expect(json_real_value(json_object_get(summary, "plan_change_s")) > 0);
    cr_expect(json_real_value(json_object_get(summary, "predicted_plan_change_s")) > 0);
    json_decref(summary);
    free(bytes);
}

Test(batch_parts, rows_are_what_their_plan_gives, .init = tokens_make, .fini = tokens_drop)
{
    struct job job;
    job_init(&job);
    uint64_t held = memory_counters_get().live_bytes;
    struct phasor_model *model = opened(&job);
    cr_assert_str_eq(phasor_model_plan(model), PLAN_ANSWERS);
    cr_expect_not_null(strstr(job.told.text, "plan: rows run in 2 parts"), "%s", job.told.text);
    struct phasor_batch_result result = ran(model, &job);
    expect_counters(&result);
    expect_summary(&job);
    expect_tokens(&job, answers, prompts);
    cr_expect_not_null(strstr(job.told.text, "the next rows run under " PLAN_PROMPTS));
    phasor_model_close(model);
    cr_expect_eq(memory_counters_get().live_bytes, held);
}

Test(batch_parts, a_model_runs_the_batch_again_and_others, .init = tokens_make, .fini = tokens_drop)
{
    struct job job;
    struct text other = {0};
    job_init(&job);
    job.batch.overwrite = true;
    struct phasor_model *model = opened(&job);
    ran(model, &job);
    struct phasor_batch_result result = ran(model, &job);
    expect_counters(&result);
    expect_tokens(&job, answers, prompts);
    /* Of another batch nothing was planned: it runs under the plan that is there. */
    row_append(&other, 1, LONG_PROMPT, SHORT);
    tools_write_file(job.input, other.bytes, other.length);
    result = ran(model, &job);
    cr_expect(result.completed == 1 && result.plan_changes == 0 && !result.has_prediction);
    text_deinit(&other);
    phasor_model_close(model);
}

/* ---- Stops ----------------------------------------------------------------------------------- */

/* The clock stands until so many rows are written, and then jumps: the run's caller is asked then.
 */
struct stop {
    uint64_t at;
    int answer;
    uint64_t written;
};

static int stop_at(void *context, const struct phasor_batch_progress *progress)
{
    const struct stop *stop = context;
    return progress->requests_total > 0 && progress->requests_done >= stop->at ? stop->answer
                                                                               : PHASOR_GO_ON;
}

static int let(void *context, enum disk_op op, size_t *length)
{
    (void)context;
    (void)op;
    (void)length;
    return 0;
}

static void count_row(void *context, enum disk_op op)
{
    struct stop *stop = context;
    if (op == DISK_WRITE && ++stop->written == stop->at + RECORD_WRITES)
        clock_advance(1);
}

/* The run ends as it is answered. */
static struct phasor_batch_result stopped(const struct job *asked, struct stop *stop,
                                          const char *what)
{
    struct job job = *asked;
    struct phasor_batch_result result;
    struct phasor_error err;
    const struct disk_hooks hooks = {.before = let, .after = count_row, .context = stop};
    job.batch.progress = stop_at;
    job.batch.progress_context = stop;
    job.model.batch = &job.batch;
    job.model.log_context = &job.told;
    struct phasor_model *model = opened(&job);
    clock_hold();
    disk_hooks_set(&hooks);
    cr_assert_eq(phasor_batch_run(model, &job.batch, &result, &err), PHASOR_CANCELLED, "%s", what);
    disk_hooks_set(NULL);
    cr_expect_not_null(strstr(err.message, "--resume"), "%s", err.message);
    cr_expect_geq(result.completed, stop->at, "%s", what);
    cr_expect_lt(result.completed, 2 * ROWS, "%s", what);
    phasor_model_close(model);
    return result;
}

static void expect_resumed(struct job *job, uint64_t done_before)
{
    struct phasor_batch_params batch = job->batch;
    batch.resume = true;
    batch.progress = NULL;
    job->batch = batch;
    job->model.load_progress = NULL;
    struct phasor_model *model = opened(job);
    struct phasor_batch_result result = ran(model, job);
    cr_expect_geq(result.completed_before, done_before);
    cr_expect_eq(result.completed_before + result.completed, 2 * ROWS);
    expect_tokens(job, answers, prompts);
    phasor_model_close(model);
}

/* In the first part, before the weights of the second are loaded, and in the second. */
Test(batch_parts, a_run_that_is_stopped_is_resumed, .init = tokens_make, .fini = tokens_drop)
{
    static const struct {
        struct stop stop;
        uint64_t changes;
        const char *what;
    } cases[] = {{{3, PHASOR_STOP, 0}, 0, "stopped in the first part"},
                 {{3, PHASOR_DRAIN, 0}, 0, "drained in the first part"},
                 {{ROWS, PHASOR_DRAIN, 0}, 0, "drained between"},
                 {{ROWS + 3, PHASOR_STOP, 0}, 1, "stopped in the second part"},
                 {{ROWS + 3, PHASOR_DRAIN, 0}, 1, "drained in the second part"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job job;
        struct stop stop = cases[i].stop;
        job_init(&job);
        job.batch.overwrite = true;
        struct phasor_batch_result result = stopped(&job, &stop, cases[i].what);
        cr_expect_eq(result.plan_changes, cases[i].changes, "%s", cases[i].what);
        job.batch.overwrite = false;
        expect_resumed(&job, stop.at);
    }
}

static int loads; /* that have begun: each tells of nothing done first, or of its end */

static int stop_second_load(void *context, uint64_t done, uint64_t total)
{
    uint64_t *last = context;
    loads += done < *last || (*last == 0 && loads == 0);
    *last = done;
    (void)total;
    return loads > 1;
}

Test(batch_parts, weights_that_are_not_loaded_end_the_run, .init = tokens_make, .fini = tokens_drop)
{
    struct job job;
    struct phasor_batch_result result;
    struct phasor_error err;
    uint64_t last = 0, held = memory_counters_get().live_bytes;
    job_init(&job);
    job.model.load_progress = stop_second_load;
    job.model.load_context = &last;
    struct phasor_model *model = opened(&job);
    cr_assert_eq(phasor_batch_run(model, &job.batch, &result, &err), PHASOR_CANCELLED);
    cr_expect_not_null(strstr(err.message, "--resume"), "%s", err.message);
    cr_expect(result.completed == ROWS && result.plan_changes == 0 && result.elapsed_seconds > 0);
    cr_expect(result.prefill_tokens == ROWS * SHORT && result.rank_count == 2);
    job.batch.resume = true;
    cr_expect_eq(phasor_batch_run(model, &job.batch, &result, &err), PHASOR_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(err.message, "open the model again"), "%s", err.message);
    phasor_model_close(model);
    cr_expect_eq(memory_counters_get().live_bytes, held);
    expect_resumed(&job, ROWS);
}

/* Passes may be named as long as a run may have them. */
Test(batch_parts, passes_of_ones_own_are_resumed, .init = tokens_make, .fini = tokens_drop)
{
    struct job job;
    struct stop stop = {.at = ROWS + 3, .answer = PHASOR_STOP};
    job_init(&job);
    job.batch.max_num_batched_tokens = 32768;
    stopped(&job, &stop, "passes that are named");
    expect_resumed(&job, stop.at);
}

/* The first part's plan in the record that a run has left becomes another. */
static void record_edit(const char *plan, const char *way)
{
    const char *path = tools_path(tools_folder(), "out.phasor-run");
    size_t length;
    char *bytes = tools_read_file(path, &length);
    json_t *record = json_loads(bytes, 0, NULL);
    json_t *part = json_array_get(json_object_get(json_object_get(record, "parts"), "of"), 0);
    cr_assert_eq(json_object_set_new(part, "plan", json_string(plan)), 0);
    cr_assert_eq(json_object_set_new(part, "transition", json_string(way)), 0);
    cr_assert_eq(json_dump_file(record, path, 0), 0);
    json_decref(record);
    free(bytes);
}

/* Within a budget: experts change their layout in the first part, and lie still in the second. */
Test(batch_parts, changes_of_layout_are_those_of_all_parts, .init = tokens_make,
     .fini = tokens_drop)
{
    struct job job;
    struct stop stop = {.at = 3, .answer = PHASOR_STOP};
    job_init(&job);
    job.model.memory_bytes = 256 << 20;
    stopped(&job, &stop, "a run in parts");
    record_edit("dp2|ep2>tp2", "reload");
    job.batch.resume = true;
    struct phasor_model *model = opened(&job);
    struct phasor_batch_result result = ran(model, &job);
    phasor_model_close(model);
    cr_expect_eq(result.plan_changes, 1);
    cr_expect_geq(result.transitions, 1);
    json_decref(tokens_of(&job)); /* all are there */
    json_t *summary = json_load_file(job.summary, 0, NULL);
    cr_expect_str_eq(json_string_value(json_object_get(summary, "plan")),
                     "dp2|ep2>tp2, then " PLAN_PROMPTS);
    cr_expect_eq((uint64_t)json_integer_value(json_object_get(summary, "transitions")),
                 result.transitions);
    cr_expect_null(json_object_get(summary, "expert_layers"), "the last part has no two layouts");
    json_decref(summary);
}

/* ---- Runs of one plan ------------------------------------------------------------------------ */

static void expect_one_plan(struct job *job, const char *what)
{
    job->batch.overwrite = true;
    struct phasor_model *model = opened(job);
    struct phasor_batch_result result = ran(model, job);
    cr_expect_eq(result.plan_changes, 0, "%s", what);
    cr_expect_null(strstr(job->told.text, "parts"), "%s: %s", what, job->told.text);
    phasor_model_close(model);
}

Test(batch_parts, runs_that_are_to_be_of_one_plan_are)
{
    struct job job;
    char counts[300];
    job_init(&job);
    job.batch.deterministic = true;
    expect_one_plan(&job, "deterministic");
    job_init(&job);
    snprintf(counts, sizeof counts, "%s/counts", tools_folder());
    job.batch.routing_counts_path = counts;
    expect_one_plan(&job, "counted");
    job_init(&job);
    job.model.records = true;
    expect_one_plan(&job, "recorded");
}

/* Who names a plan, or has another file, does not go on with a run in parts. */
Test(batch_parts, another_run_is_not_resumed, .init = tokens_make, .fini = tokens_drop)
{
    struct job job;
    struct phasor_batch_result result;
    struct phasor_error err;
    struct stop stop = {.at = 3, .answer = PHASOR_STOP};
    char counts[300];
    job_init(&job);
    stopped(&job, &stop, "a run in parts");
    job.batch.resume = true;
    job.model.plan = PLAN_ANSWERS;
    struct phasor_model *model = opened(&job);
    cr_assert_eq(phasor_batch_run(model, &job.batch, &result, &err), PHASOR_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(err.message, "which rows run under which plan"), "%s", err.message);
    phasor_model_close(model);
    job.model.plan = "auto";
    snprintf(counts, sizeof counts, "%s/counts", tools_folder());
    job.batch.routing_counts_path = counts;
    model = opened(&job);
    cr_assert_eq(phasor_batch_run(model, &job.batch, &result, &err), PHASOR_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(err.message, "--routing-counts is for runs under one plan"), "%s",
                       err.message);
    phasor_model_close(model);
    job.batch.routing_counts_path = NULL;
    expect_resumed(&job, 3);
}

/* ---- The record ------------------------------------------------------------------------------ */

static const struct model_shape shape = {.layer_count = 2,
                                         .moe_layer_count = 2,
                                         .hidden_dim = 128,
                                         .expert_count = 8,
                                         .expert_top_k = 2,
                                         .expert_dim = 256,
                                         .head_dim = 16,
                                         .head_count = 16,
                                         .kv_head_count = 8,
                                         .vocab_count = 2048};

#define PART(plan, way, end)                                                                       \
    "{\"plan\":\"" plan "\",\"transition\":" way                                                   \
    ",\"pass_tokens\":4096,\"planned_cache_bytes\":1000000,\"class_end\":" end "}"
#define PARTS(bins, of) "{\"class_of_bin\":[" bins "],\"of\":[" of "]}"

Test(batch_parts, records_keep_them)
{
    static const char text[] =
        PARTS("2,0,1", PART("tp2|tp2", "null", "2") "," PART("dp2|ep2>tp2", "\"reload\"", "3"));
    struct batch_parts parts;
    json_t *json = json_loads(text, 0, NULL);
    cr_assert(batch_parts_parse(&parts, json, &shape, 2));
    cr_assert(parts.count == 2 && parts.bin_count == 3 && parts.classes.count == 3);
    cr_expect(!parts.of[0].has_way && parts.of[1].has_way && parts.of[1].way == WAY_RELOAD);
    cr_expect(parts.of[1].pass_tokens == 4096 && parts.of[1].cache_bytes == 1000000);
    json_t *again = batch_parts_json(&parts);
    cr_expect(json_equal(json, again));
    json_decref(again);
    /* Ways, passes and caches may be others; plans and rows not. */
    parts.of[1].way = WAY_RESHARD;
    parts.of[0].pass_tokens = parts.of[0].cache_bytes = 7;
    again = batch_parts_json(&parts);
    cr_expect(!json_equal(json, again) && batch_parts_are_alike(json, again));
    json_decref(again);
    parts.class_end[0] = 1;
    again = batch_parts_json(&parts);
    cr_expect(!batch_parts_are_alike(json, again));
    json_decref(again);
    cr_expect(!batch_parts_are_alike(json, json_null()));
    cr_expect(batch_parts_are_alike(json_null(), json_null()));
    json_decref(json);
    json = batch_parts_json(NULL);
    cr_expect(json_is_null(json));
}

Test(batch_parts, what_is_none_is_refused)
{
#define FIRST PART("tp2|tp2", "null", "1")
#define LAST  PART("dp2|ep2", "null", "2")
    static const char *const wrong[] = {
        "null",
        "[]",
        "{}",
        PARTS("0,1", ""),
        PARTS("0,1", FIRST),
        PARTS("", FIRST "," LAST),
        PARTS("0,0", FIRST "," LAST),
        PARTS("0,2", FIRST "," LAST),
        PARTS("0,-1", FIRST "," LAST),
        PARTS("0,8", FIRST "," LAST),
        PARTS("0,1e0", FIRST "," LAST),
        PARTS("0,\"1\"", FIRST "," LAST),
        PARTS("0,1,0,1,0,1,0,1,0", FIRST "," LAST),
        PARTS("0,1,2", FIRST "," LAST),
        PARTS("0,1", LAST "," FIRST),
        PARTS("0,1", FIRST "," FIRST),
        PARTS("0,1", FIRST "," PART("dp2|ep2", "null", "3")),
        PARTS("0,1", FIRST "," PART("dp4|ep4", "null", "2")),
        PARTS("0,1", FIRST "," PART("tp2", "null", "2")),
        PARTS("0,1", FIRST "," PART("dp2|ep2", "null", "99999999999999")),
        PARTS("0,1", FIRST ",7"),
        PARTS("0,1", FIRST "," PART("dp2|ep2>tp2", "null", "2")),
        PARTS("0,1", FIRST "," PART("tp2|tp2>tp2:int4", "\"keep\"", "2")),
        PARTS("0,1", FIRST "," PART("dp2|ep2>tp2", "\"upload\"", "2")),
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct batch_parts parts;
        json_t *json = json_loads(wrong[i], JSON_DECODE_ANY, NULL);
        cr_assert_not_null(json, "%s", wrong[i]);
        cr_expect(!batch_parts_parse(&parts, json, &shape, 2), "%s", wrong[i]);
        json_decref(json);
    }
}

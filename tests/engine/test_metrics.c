/* What a run says of itself: the file for Prometheus, the summary, and the result they come from.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/log.h"
#include "base/new_file.h"
#include "comm/box.h"
#include "engine/batch.h"
#include "engine/exposition.h"
#include "engine/side_file.h"
#include "engine_tools.h"
#include "exec/exec.h"
#include "exposition_check.h"
#include "layout/traffic.h"

#define MODEL MODELS_DIR "/kjv-moe"

#define ROW(id, body)                                                                              \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{" body    \
    "}}\n"

/* Choices that end in all ways, one of a single token, one of none, and two rows that fail. */
static const char lines[] =
    ROW("long", "\"prompt\":\"In the beginning\",\"max_tokens\":20,\"temperature\":0")
        ROW("twice", "\"prompt\":[\"Behold\",\"And\"],\"max_tokens\":8,\"n\":2,\"seed\":3")
            ROW("short", "\"prompt\":\"the\",\"max_tokens\":1,\"temperature\":0") ROW(
                "stopped", "\"prompt\":\"And Moses said\",\"max_tokens\":20,\"stop\":[\"e\"]")
                ROW("scored", "\"prompt\":\"And God said\",\"max_tokens\":0,"
                              "\"prompt_logprobs\":1")
                    ROW("ended",
                        "\"prompt\":\"In the "
                        "beginning\",\"max_tokens\":20,\"temperature\":0,\"stop_token_ids\":[474]")
                        ROW("wrong", "\"prompt\":7")
                            ROW("too long", "\"prompt\":\"x\",\"max_tokens\":100000");
#define ROW_COUNT       8
#define COMPLETED_COUNT 6

static const char *input, *output, *metrics, *summary;
static int warning_count;
static char warning[1024];

static void make_paths(void)
{
    static char paths[4][512];
    static const char *const names[] = {"in", "out", "metrics.prom", "summary.json"};
    for (int i = 0; i < 4; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%s", tools_folder(), names[i]);
    input = paths[0];
    output = paths[1];
    metrics = paths[2];
    summary = paths[3];
}
TestSuite(metrics, .init = make_paths, .timeout = 120);

static void on_log(void *context, enum log_level level, const char *message)
{
    (void)context;
    if (level != LOG_WARNING)
        return;
    warning_count++;
    snprintf(warning, sizeof warning, "%s", message);
}

static const struct log_sink log_sink = {on_log, NULL};

static struct engine *open_engine(const char *devices, const char *plan)
{
    struct engine *engine;
    struct error err;
    struct engine_params params = {
        .model = MODEL, .dtype_is_auto = true, .thread_count = 1, .devices = devices, .plan = plan};
    cr_assert_eq(engine_open(&engine, &params, &err), STATUS_OK, "%s", err.message);
    return engine;
}

/* Of small_params: a page for each of three sequences in each group of the attention; keys and
 * values x layers x heads x width (of 16, filled up) x tokens x bytes. */
#define KV_BYTES(groups) ((uint64_t)(groups)*3 * 2 * 6 * 8 * 16 * KV_PAGE_TOKENS * 2)

static struct phasor_batch_params small_params(void)
{
    struct phasor_batch_params params = phasor_batch_params_default();
    params.input_path = input;
    params.output_path = output;
    params.metrics_path = metrics;
    params.summary_path = summary;
    params.overwrite = true;
    params.max_num_seqs = 3;
    params.max_num_batched_tokens = 32;
    params.max_model_len = 64;
    params.kv_bytes = 16 << 20;
    return params;
}

static void expect_no_new_files(void)
{
    DIR *listing = opendir(tools_folder());
    cr_assert_not_null(listing);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;)
        cr_expect_null(strstr(entry->d_name, NEW_FILE_SUFFIX), "%s was left", entry->d_name);
    closedir(listing);
}

static struct exposition_read read_metrics(void)
{
    size_t length;
    char *text = tools_read_file(metrics, &length);
    struct exposition_read read = exposition_read(text);
    free(text);
    return read;
}

static double value(const struct exposition_read *read, const char *name)
{
    return exposition_sum(read, name, NULL);
}

static json_t *read_summary(void)
{
    json_t *rows = tools_read_rows(summary), *only = json_incref(json_array_get(rows, 0));
    cr_assert_eq(json_array_size(rows), 1);
    json_decref(rows);
    return only;
}

static json_int_t integer(const json_t *object, const char *key)
{
    const json_t *found = json_object_get(object, key);
    cr_assert(json_is_integer(found), "no integer \"%s\"", key);
    return json_integer_value(found);
}

static double number(const json_t *object, const char *key)
{
    const json_t *found = json_object_get(object, key);
    cr_assert(json_is_number(found), "no number \"%s\"", key);
    return json_number_value(found);
}

/* ---- The format ---------------------------------------------------------------------------- */

Test(metrics, labels_are_escaped)
{
    struct text text = {0};
    struct exposition to = {
        .out = &text, .prefix = "p:", .model_name = "a\"b\\c\nd\xFF\xC3\xA9{,}"};
    exposition_gauge(&to, "x", "Help.", 0.1);
    cr_expect_str_eq(text.bytes,
                     "# HELP p:x Help.\n# TYPE p:x gauge\n"
                     "p:x{model_name=\"a\\\"b\\\\c\\nd\xEF\xBF\xBD\xC3\xA9{,}\"} 0.1\n");
    struct exposition_read read = exposition_read(text.bytes);
    cr_expect_eq(value(&read, "p:x"), 0.1);
    exposition_free(&read);
    text_deinit(&text);
}

Test(metrics, numbers_are_read_back)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0, "0"},           {3, "3"},           {0.1, "0.1"},
        {1e15, "1e+15"},    {2560, "2560"},     {1.0 / 3, NULL},
        {0x1p53, NULL},     {0x1p53 - 1, NULL}, {123456789.25, NULL},
        {1e-300, "1e-300"}, {5e-324, NULL},     {1.7976931348623157e308, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct text text = {0};
        text_append_number(&text, cases[i].value);
        cr_expect_eq(strtod(text.bytes, NULL), cases[i].value, "%s", text.bytes);
        if (cases[i].text != NULL)
            cr_expect_str_eq(text.bytes, cases[i].text);
        text_deinit(&text);
    }
}

/* ---- A run --------------------------------------------------------------------------------- */

/* What the output rows say of themselves, summed. */
struct row_sums {
    json_int_t completed, prompt_tokens, completion_tokens;
};

static struct row_sums sum_rows(void)
{
    struct row_sums sums = {0};
    json_t *rows = tools_read_rows(output), *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        const json_t *body = json_object_get(json_object_get(row, "response"), "body");
        const json_t *usage = json_object_get(body, "usage");
        if (usage == NULL)
            continue;
        sums.completed++;
        sums.prompt_tokens += integer(usage, "prompt_tokens");
        sums.completion_tokens += integer(usage, "completion_tokens");
    }
    json_decref(rows);
    return sums;
}

#define CHOICES        9 /* of the rows that complete; one generates nothing, and one a token */
#define CHOICES_SPOKEN 8
#define CHOICES_LONGER 7

static void expect_sums(const struct exposition_read *read, const struct row_sums *sums)
{
    const struct {
        const char *name;
        double expected;
    } cases[] = {
        {"phasor:input_rows", ROW_COUNT},
        {"phasor:rows_completed_total", (double)sums->completed},
        {"phasor:rows_failed_total", 2},
        {"phasor:prompt_tokens_total", (double)sums->prompt_tokens},
        {"phasor:generation_tokens_total", (double)sums->completion_tokens},
        {"phasor:request_prompt_tokens_sum", (double)sums->prompt_tokens},
        {"phasor:request_prompt_tokens_count", (double)sums->completed},
        {"phasor:request_generation_tokens_sum", (double)sums->completion_tokens},
        {"phasor:request_success_total", CHOICES},
        {"phasor:e2e_request_latency_seconds_count", CHOICES},
        {"phasor:request_queue_time_seconds_count", CHOICES},
        {"phasor:time_to_first_token_seconds_count", CHOICES_SPOKEN},
        {"phasor:request_time_per_output_token_seconds_count", CHOICES_LONGER},
        {"phasor:inter_token_latency_seconds_count",
         (double)sums->completion_tokens - CHOICES_SPOKEN},
        {"phasor:num_requests_running", 0},
        {"phasor:num_requests_waiting", 0},
        {"phasor:run_ended", 1},
    };
    cr_assert_eq(sums->completed, COMPLETED_COUNT);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_expect_eq(value(read, cases[i].name), cases[i].expected, "%s: %g, expected %g",
                     cases[i].name, value(read, cases[i].name), cases[i].expected);
    cr_expect_eq(exposition_sum(read, "phasor:request_success_total", "\"stop\""), 2);
    cr_expect_float_eq(value(read, "phasor:request_queue_time_seconds_sum") +
                           value(read, "phasor:request_inference_time_seconds_sum"),
                       value(read, "phasor:e2e_request_latency_seconds_sum"), 1e-9);
}

/* Each phase's stages in the summary: as in the result, and together the time of the phase. */
static void expect_stages(const json_t *json, const char *key, const double *seconds, double total)
{
    const json_t *stages = json_object_get(json, key);
    double sum = 0;
    cr_assert_eq(json_object_size(stages), PHASOR_STAGE_COUNT);
    for (int stage = 0; stage < PHASOR_STAGE_COUNT; stage++) {
        cr_expect_geq(seconds[stage], stage == 0 ? -1e-3 : 0, "%s", phasor_stage_name(stage));
        cr_expect_float_eq(number(stages, phasor_stage_name(stage)), seconds[stage], 1e-9);
        sum += seconds[stage];
    }
    cr_expect_float_eq(sum, total, 1e-9 + 1e-9 * total);
}

static void expect_result(const struct phasor_batch_result *result,
                          const struct exposition_read *read, const struct row_sums *sums)
{
    json_t *json = read_summary();
    double seconds = number(json, "duration");
    cr_expect_eq(result->prompt_tokens, (uint64_t)sums->prompt_tokens);
    cr_expect_eq(result->e2el.count, CHOICES);
    cr_expect_eq(result->ttft.count, CHOICES_SPOKEN);
    cr_expect_eq(result->tpot.count, CHOICES_LONGER);
    cr_expect_eq(result->itl.count, (uint64_t)(sums->completion_tokens - CHOICES_SPOKEN));
    cr_expect_float_eq(result->itl.mean_seconds * (double)result->itl.count,
                       value(read, "phasor:inter_token_latency_seconds_sum"), 1e-9);
    cr_expect_leq(result->e2el.median_seconds, result->e2el.p99_seconds);
    cr_expect_str_eq(json_string_value(json_object_get(json, "status")), "ok");
    cr_expect_eq(integer(json, "completed"), sums->completed);
    cr_expect_eq(integer(json, "failed"), 2);
    cr_expect_eq(integer(json, "total_input_tokens"), sums->prompt_tokens);
    cr_expect_eq(integer(json, "total_output_tokens"), sums->completion_tokens);
    cr_expect_float_eq(number(json, "mean_input_len") * COMPLETED_COUNT,
                       (double)sums->prompt_tokens, 1e-9);
    cr_expect_float_eq(number(json, "request_throughput") * seconds, COMPLETED_COUNT, 1e-9);
    cr_expect_float_eq(number(json, "output_throughput") * seconds, (double)sums->completion_tokens,
                       1e-6);
    cr_expect_float_eq(number(json, "mean_ttft_ms"), result->ttft.mean_seconds * 1e3, 1e-9);
    cr_expect_float_eq(number(json, "p99_itl_ms"), result->itl.p99_seconds * 1e3, 1e-9);
    cr_expect_float_eq(number(json, "median_e2el_ms"), result->e2el.median_seconds * 1e3, 1e-9);
    expect_stages(json, "prefill_stages_s", result->prefill_stage_seconds, result->prefill_seconds);
    expect_stages(json, "decode_stages_s", result->decode_stage_seconds, result->decode_seconds);
    json_decref(json);
}

/* Bytes by rank and collective in the file, by collective in result and summary, against what the
 * communicators have counted since `before`. */
static void expect_traffic(const struct phasor_batch_result *result,
                           const struct exposition_read *read, struct box *box,
                           uint64_t before[][TRAFFIC_KIND_COUNT])
{
    json_t *json = read_summary();
    const json_t *in_json = json_object_get(json, "collective_bytes");
    uint64_t all = 0;
    cr_assert_eq(result->rank_count, box_rank_count(box));
    cr_assert_eq(json_array_size(json_object_get(json, "rank_peak_memory_bytes")),
                 (size_t)result->rank_count);
    for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++) {
        uint64_t sum = 0;
        for (int r = 0; r < result->rank_count; r++) {
            char labels[128];
            uint64_t now = comm_domain_bytes(box_domain(box), r, kind);
            snprintf(labels, sizeof labels, "rank=\"%d\",collective=\"%s\"", r,
                     phasor_collective_name(kind));
            cr_expect_eq(exposition_sum(read, "phasor:collective_bytes_total", labels),
                         (double)(now - before[r][kind]), "%s", labels);
            sum += now - before[r][kind];
            before[r][kind] = now;
        }
        cr_expect_eq(result->collective_bytes[kind], sum);
        cr_expect_eq((uint64_t)integer(in_json, phasor_collective_name(kind)), sum);
        all += sum;
    }
    cr_expect_eq(all > 0, result->rank_count > 1, "%llu bytes", (unsigned long long)all);
    json_decref(json);
}

static void expect_memory(const struct phasor_batch_result *result,
                          const struct exposition_read *read, struct box *box, int groups)
{
    uint64_t sum = 0;
    for (int r = 0; r < result->rank_count; r++) {
        const struct device *device = box_device(box, r);
        char label[32];
        snprintf(label, sizeof label, "rank=\"%d\"", r);
        cr_expect_eq(exposition_sum(read, "phasor:rank_memory_peak_bytes", label),
                     (double)result->rank_peak_bytes[r]);
        cr_expect_eq(result->rank_peak_bytes[r], device->ops->memory_use(device).peak_bytes);
        cr_expect_gt(result->rank_peak_bytes[r], 0);
        sum += result->rank_peak_bytes[r];
    }
    cr_expect_geq(result->peak_bytes, sum, "the process holds what its ranks hold");
    json_t *json = read_summary();
    cr_expect_eq(result->kv_bytes, KV_BYTES(groups));
    cr_expect(0 < result->kv_taken_bytes && result->kv_taken_bytes <= result->kv_bytes);
    cr_expect_eq((uint64_t)integer(json, "kv_cache_bytes"), result->kv_bytes);
    cr_expect_eq((uint64_t)integer(json, "kv_cache_taken_bytes"), result->kv_taken_bytes);
    json_decref(json);
}

/* An executor of the same engine, for its box. */
static struct exec *open_exec(struct engine *engine)
{
    struct exec *exec;
    struct error err;
    cr_assert_eq(engine_exec_create(&exec, engine, 1, 1, &err), STATUS_OK, "%s", err.message);
    return exec;
}

Test(metrics, files_agree_with_rows_and_counters)
{
    static const struct {
        const char *devices, *plan;
        int groups;
    } cases[] = {{NULL, NULL, 1}, {"cpu:2", NULL, 1}, {"cpu:2", "dp2|ep2", 2}};
    tools_write_file(input, lines, sizeof lines - 1);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct engine *engine = open_engine(cases[c].devices, cases[c].plan);
        static uint64_t before[LAYOUT_RANKS_MAX][TRAFFIC_KIND_COUNT];
        memset(before, 0, sizeof before);
        for (int run = 0; run < 2; run++) { /* the second has counters of its own */
            struct phasor_batch_params params = small_params();
            struct phasor_batch_result result;
            struct error err;
            cr_assert_eq(batch_run(engine, &params, &log_sink, &result, &err), STATUS_OK, "%s",
                         err.message);
            struct exec *exec = open_exec(engine);
            struct exposition_read read = read_metrics();
            struct row_sums sums = sum_rows();
            expect_sums(&read, &sums);
            expect_result(&result, &read, &sums);
            expect_traffic(&result, &read, exec_box(exec), before);
            expect_memory(&result, &read, exec_box(exec), cases[c].groups);
            exposition_free(&read);
            exec_destroy(exec);
        }
        engine_close(engine);
    }
    expect_no_new_files();
}

/* While it runs the file is there, too. */
static int stop_soon(void *context, const struct phasor_batch_progress *progress)
{
    const enum phasor_answer *answer = context;
    if (progress->requests_done == 0)
        return PHASOR_GO_ON;
    struct exposition_read read = read_metrics();
    cr_expect_eq(value(&read, "phasor:run_ended"), 0);
    cr_expect_eq(value(&read, "phasor:input_rows"), 400);
    exposition_free(&read);
    return (int)*answer;
}

Test(metrics, a_run_that_is_stopped_has_its_files)
{
    static enum phasor_answer answers[] = {PHASOR_STOP, PHASOR_DRAIN};
    char many[400 * 128];
    size_t length = 0;
    for (int i = 0; i < 400; i++)
        length += (size_t)sprintf(many + length, "%s%d%s", "{\"custom_id\":\"r", i,
                                  "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{"
                                  "\"prompt\":\"a\",\"max_tokens\":16}}\n");
    tools_write_file(input, many, length);
    struct engine *engine = open_engine(NULL, NULL);
    for (size_t i = 0; i < 2; i++) {
        struct phasor_batch_params params = small_params();
        struct phasor_batch_result result;
        struct error err;
        params.progress = stop_soon;
        params.progress_context = &answers[i];
        cr_assert_eq(batch_run(engine, &params, &log_sink, &result, &err), STATUS_CANCELLED);
        cr_assert_lt(result.completed, 400);
        struct exposition_read read = read_metrics();
        struct row_sums sums = sum_rows();
        cr_expect_eq(value(&read, "phasor:run_ended"), 1);
        cr_expect_eq(value(&read, "phasor:rows_completed_total"), sums.completed);
        cr_expect_eq(value(&read, "phasor:prompt_tokens_total"), sums.prompt_tokens);
        cr_expect_geq(value(&read, "phasor:generation_tokens_total"), sums.completion_tokens);
        exposition_free(&read);
        json_t *json = read_summary();
        cr_expect_str_eq(json_string_value(json_object_get(json, "status")), "cancelled");
        cr_expect_eq(integer(json, "completed"), sums.completed);
        json_decref(json);
    }
    engine_close(engine);
}

/* ---- Files that cannot be written ---------------------------------------------------------- */

Test(metrics, a_full_disk_is_told_once_and_ends_nothing)
{
    tools_write_file(input, lines, sizeof lines - 1);
    struct engine *engine = open_engine(NULL, NULL);
    struct phasor_batch_params params = small_params();
    struct phasor_batch_result result;
    struct error err;
    params.metrics_path = "/dev/full";
    warning_count = 0;
    cr_assert_eq(batch_run(engine, &params, &log_sink, &result, &err), STATUS_OK, "%s",
                 err.message);
    cr_expect_eq(result.completed, COMPLETED_COUNT);
    cr_expect_eq(warning_count, 1, "%d warnings, the last: %s", warning_count, warning);
    cr_expect(strstr(warning, "--metrics-file") != NULL && strstr(warning, "/dev/full") != NULL &&
                  strstr(warning, "No space") != NULL,
              "%s", warning);
    json_decref(read_summary());
    struct stat about;
    cr_expect(stat("/dev/full", &about) == 0 && S_ISCHR(about.st_mode), "a device stays one");
    engine_close(engine);
}

struct trouble {
    enum disk_op op;
    int failure;
};

static int fail_op(void *context, enum disk_op op, size_t *length)
{
    const struct trouble *trouble = context;
    if (op == DISK_WRITE && trouble->failure == 0 && *length > 3)
        *length = 3; /* in small pieces */
    return op == trouble->op ? trouble->failure : 0;
}

static void nothing(void *context, enum disk_op op)
{
    (void)context;
    (void)op;
}

Test(metrics, a_failed_write_leaves_the_old_content)
{
    static const struct {
        struct trouble trouble;
        const char *expected;
    } cases[] = {{{DISK_WRITE, ENOSPC}, "the old content"},
                 {{DISK_RENAME, EIO}, "the old content"},
                 {{DISK_WRITE, 0}, "the new one"}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct trouble trouble = cases[c].trouble;
        const struct disk_hooks hooks = {fail_op, nothing, &trouble};
        struct side_file file = {.path = metrics, .flag = "--metrics-file"};
        struct text text = {0};
        size_t length;
        tools_write_file(metrics, "the old content", 15);
        text_append_string(&text, "the new one");
        warning_count = 0;
        disk_hooks_set(&hooks);
        side_file_write(&file, &text, &log_sink);
        side_file_write(&file, &text, &log_sink);
        disk_hooks_set(NULL);
        char *content = tools_read_file(metrics, &length);
        cr_expect_str_eq(content, cases[c].expected);
        cr_expect_eq(warning_count, trouble.failure != 0);
        expect_no_new_files();
        free(content);
        text_deinit(&text);
    }
}

Test(metrics, what_cannot_be_written_is_refused)
{
    const char *folder = tools_folder();
    char link[512], other_name[512], missing[512];
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(other_name, sizeof other_name, "%s/./out", folder);
    snprintf(missing, sizeof missing, "%s/none/metrics.prom", folder);
    tools_write_file(input, lines, sizeof lines - 1);
    cr_assert_eq(symlink(input, link), 0);
    const struct {
        const char *metrics, *summary, *fragment;
    } cases[] = {
        {output, NULL, "another file of this run"}, {other_name, NULL, "another file of this run"},
        {input, NULL, "another file of this run"},  {link, NULL, "another file of this run"},
        {NULL, output, "--summary-file"},           {metrics, metrics, "--summary-file"},
        {folder, NULL, "Is a directory"},           {missing, NULL, "No such file"},
        {"-", NULL, "expected the name of a file"}, {"", NULL, "expected the name of a file"},
    };
    struct engine *engine = open_engine(NULL, NULL);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct phasor_batch_params params = small_params();
        struct phasor_batch_result result;
        struct error err;
        params.metrics_path = cases[c].metrics;
        params.summary_path = cases[c].summary;
        cr_expect_neq(batch_run(engine, &params, &log_sink, &result, &err), STATUS_OK, "case %zu",
                      c);
        cr_expect_not_null(strstr(err.message, cases[c].fragment), "%s", err.message);
        cr_expect_neq(access(output, F_OK), 0, "nothing was made");
        cr_expect_neq(access(metrics, F_OK), 0, "nothing was made");
    }
    size_t length;
    char *content = tools_read_file(input, &length);
    cr_expect_str_eq(content, lines);
    free(content);
    engine_close(engine);
}

/* --resume: what it goes on with, and what it refuses. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "clock.h"
#include "engine/batch_past.h"
#include "engine_tools.h"
#include "resume_tools.h"

static struct job job;
static struct phasor_model *model;

static void open_job(void)
{
    job_init(&job);
    job_expect(&job);
    model = job_model(JOB_MODEL);
}
static void close_job(void)
{
    phasor_model_close(model);
    job_deinit(&job);
}
TestSuite(resume, .init = open_job, .fini = close_job, .timeout = 120);

static struct phasor_batch_params resuming(void)
{
    struct phasor_batch_params params = job_params(&job);
    params.resume = true;
    return params;
}

static struct phasor_batch_result expect_ok(const struct phasor_batch_params *params)
{
    struct phasor_batch_result result;
    struct phasor_error err;
    cr_assert_eq(job_run(model, params, &result, &err), PHASOR_OK, "%s", err.message);
    return result;
}

/* A refusal, whose sentence has these words, and which changes no file. */
static void expect_refused(const struct phasor_batch_params *params, enum phasor_status wanted,
                           const char *words)
{
    struct phasor_error err = {.message = ""};
    size_t before, behind;
    char *old = tools_read_file(params->output_path, &before);
    enum phasor_status status = job_run(model, params, NULL, &err);
    char *now = tools_read_file(params->output_path, &behind);
    cr_expect_eq(status, wanted, "%s: status %d: %s", words, status, err.message);
    cr_expect_not_null(strstr(err.message, words), "\"%s\" is not in: %s", words, err.message);
    cr_expect(before == behind && memcmp(old, now, before) == 0, "%s: the output changed", words);
    free(old);
    free(now);
}

static void cut_output(size_t bytes)
{
    cr_assert_eq(truncate(job.output, (off_t)bytes), 0);
}

/* ---- What goes on -------------------------------------------------------------------------- */

Test(resume, nothing_to_resume_starts_anew)
{
    struct phasor_batch_params params = resuming();
    struct phasor_batch_result result = expect_ok(&params);
    cr_expect(result.completed == 5 && result.failed == 5 && result.completed_before == 0);
    job_check(&job, "no files");
    job_clear(&job);
    tools_write_file(job.output, "", 0);
    tools_write_file(job.record, "{\"phasor_run\": 1, \"begun\": 3}", 29); /* of another input */
    expect_ok(&params);
    job_check(&job, "empty output");
}

Test(resume, a_finished_run_stays)
{
    struct phasor_batch_params params = job_params(&job);
    expect_ok(&params);
    params.resume = true;
    struct phasor_batch_result result = expect_ok(&params);
    cr_expect(result.completed == 0 && result.failed == 0);
    cr_expect(result.completed_before == 5 && result.failed_before == 5 && result.total == 10);
    job_check(&job, "finished");
}

Test(resume, limits_of_the_batch_may_change)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    expect_ok(&params);
    cut_output(900);
    again.max_num_seqs = 5;
    again.max_num_batched_tokens = 64;
    again.kv_bytes = 8 << 20;
    struct phasor_batch_result result = expect_ok(&again);
    cr_expect_gt(result.completed, 0);
    job_check(&job, "other limits");
}

/* What did not fit then does not now; with less than then it is another run. */
Test(resume, a_larger_cache_goes_on_as_the_one_of_then)
{
    static const char rows[] = ROW("a", "\"prompt\":[1],\"max_tokens\":5")
        ROW("b", "\"prompt\":[2],\"max_tokens\":5") ROW("c", "\"prompt\":[3],\"max_tokens\":5")
            ROW("long", "\"prompt\":[4],\"max_tokens\":300,\"ignore_eos\":true");
    struct phasor_batch_params params = job_params(&job), again = resuming();
    struct phasor_batch_result result;
    tools_write_file(job.input, rows, strlen(rows));
    params.kv_bytes = 64 << 10;
    result = expect_ok(&params);
    cr_assert(result.completed == 3 && result.failed == 1);
    char *expected = job_lines(&job);
    cut_output(500);
    tools_write_file(job.errors, "", 0);
    again.kv_bytes = 33 << 10;
    expect_refused(&again, PHASOR_INVALID_ARGUMENT, "--kv-memory");
    again.kv_bytes = 4 << 20;
    result = expect_ok(&again);
    cr_expect(result.completed > 0 && result.failed == 1);
    char *lines = job_lines(&job);
    cr_expect_str_eq(lines, expected);
    free(lines);
    free(expected);
}

Test(resume, rows_of_lines_that_were_taken_out_are_run_again)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    size_t length;
    expect_ok(&params);
    char *lines = tools_read_file(job.output, &length);
    char *second = strchr(lines, '\n') + 1;
    tools_write_file(job.output, second, strlen(second));
    tools_write_file(job.errors, "", 0);
    struct phasor_batch_result result = expect_ok(&again);
    cr_expect(result.completed == 1 && result.failed == 5);
    job_check(&job, "lines taken out");
    free(lines);
}

Test(resume, without_deterministic_rows_are_the_same_but_for_created)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    params.deterministic = again.deterministic = false;
    params.error_path = again.error_path = NULL;
    expect_ok(&params);
    cut_output(1500);
    expect_ok(&again);
    json_t *rows = tools_read_rows(job.output);
    cr_expect_eq(json_array_size(rows), 10);
    json_decref(rows);
}

/* Its record has but a hash of the name. */
Test(resume, a_model_keeps_a_name_that_is_no_utf8)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    const char *path = tools_path(job.folder, "m\xFF"),
               *shown = tools_path(job.folder, "m\xEF\xBF\xBD");
    struct phasor_error err;
    cr_assert_eq(symlink(JOB_MODEL, path), 0);
    struct phasor_model *named = job_model(path);
    cr_assert_eq(job_run(named, &params, NULL, &err), PHASOR_OK, "%s", err.message);
    cut_output(900);
    cr_assert_eq(job_run(named, &again, NULL, &err), PHASOR_OK, "%s", err.message);
    phasor_model_close(named);
    json_t *rows = tools_read_rows(job.output), *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        const json_t *body = json_object_get(json_object_get(row, "response"), "body");
        cr_expect_str_eq(json_string_value(json_object_get(body, "model")), shown, "row %zu", i);
    }
    json_decref(rows);
}

/* ---- What is refused ----------------------------------------------------------------------- */

struct change {
    const char *words;
    void (*make)(struct phasor_batch_params *params);
};

static void change_seed(struct phasor_batch_params *params)
{
    params->seed = UINT64_MAX;
}
static void change_eos(struct phasor_batch_params *params)
{
    params->ignore_eos = true;
}
static void change_scores(struct phasor_batch_params *params)
{
    params->prompt_logprobs = true;
}
static void change_length(struct phasor_batch_params *params)
{
    params->max_model_len = 30;
}
static void change_determinism(struct phasor_batch_params *params)
{
    params->deterministic = false;
}
static void change_errors(struct phasor_batch_params *params)
{
    params->error_path = NULL;
}
static void change_input(struct phasor_batch_params *params)
{
    size_t length;
    char *bytes = tools_read_file(params->input_path, &length);
    *strstr(bytes, "[1,2,3]") = ' '; /* ids and lines are as they were */
    tools_write_file(params->input_path, bytes, length);
    free(bytes);
}
static void change_model(struct phasor_batch_params *params)
{
    (void)params;
    phasor_model_close(model);
    model = job_model(JOB_OTHER);
}

Test(resume, a_run_that_is_not_the_same_is_refused)
{
    static const struct change changes[] = {
        {"--seed is not as when the run began", change_seed},
        {"then 0, now 18446744073709551615", change_seed},
        {"--ignore-eos", change_eos},
        {"--prompt-logprobs", change_scores},
        {"--max-model-len", change_length},
        {"--deterministic", change_determinism},
        {"--error-file", change_errors},
        {"the input file is not the one", change_input},
        {"the model is not the one", change_model},
    };
    struct phasor_batch_params params = job_params(&job);
    size_t length;
    char *input = tools_read_file(job.input, &length);
    expect_ok(&params);
    cut_output(900);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct phasor_batch_params again = resuming();
        changes[i].make(&again);
        expect_refused(&again, PHASOR_INVALID_ARGUMENT, changes[i].words);
        tools_write_file(job.input, input, length);
    }
    free(input);
}

/* The run goes on on another kind of processor: its kernels sum in another order. */
Test(resume, other_kernels_are_refused_where_every_byte_counts)
{
    for (int exact = 0; exact <= 1; exact++) {
        struct phasor_batch_params params = job_params(&job), again = resuming();
        params.deterministic = again.deterministic = exact;
        params.overwrite = true;
        expect_ok(&params);
        cut_output(900);
        json_t *record = json_load_file(job.record, 0, NULL);
        const char *now = json_string_value(json_object_get(record, "kernels"));
        cr_assert(now != NULL && strncmp(now, "cpu (", 5) == 0);
        json_object_set_new(record, "kernels", json_string("cpu (abacus)"));
        cr_assert_eq(json_dump_file(record, job.record, 0), 0);
        json_decref(record);
        if (exact)
            expect_refused(&again, PHASOR_INVALID_ARGUMENT,
                           "the kind of processor is not as when the run began");
        else
            expect_ok(&again);
    }
}

Test(resume, what_is_missing_is_named)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    expect_ok(&params);
    expect_refused(&params, PHASOR_INVALID_ARGUMENT, "--resume, replace it with --overwrite");
    unlink(job.errors);
    expect_refused(&again, PHASOR_NOT_FOUND, "the error file");
    cr_expect_neq(access(job.errors, F_OK), 0, "it was not made");
    tools_write_file(job.errors, "", 0);
    unlink(job.record);
    expect_refused(&again, PHASOR_NOT_FOUND, "out.phasor-run) is not there");
    again.overwrite = true;
    expect_refused(&again, PHASOR_INVALID_ARGUMENT, "give one of them");
    again = resuming();
    again.output_path = "-";
    struct phasor_error err;
    cr_expect_eq(job_run(model, &again, NULL, &err), PHASOR_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(err.message, "standard output"), "%s", err.message);
}

Test(resume, records_may_be_anything)
{
    static const char *const records[] = {
        "",
        "[]",
        "{\"phasor_run\":1}",
        "{\"phasor_run\":\"1\"}",
        "{\"phasor_run\":7}",
        "{\"phasor_run\":1,\"begun\":-1}",
        "\xff\xfe",
        "{\"phasor_run\":1e999}",
    };
    struct phasor_batch_params params = job_params(&job), again = resuming();
    expect_ok(&params);
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        struct phasor_error err;
        tools_write_file(job.record, records[i], strlen(records[i]));
        cr_expect_neq(job_run(model, &again, NULL, &err), PHASOR_OK, "%s", records[i]);
        cr_expect_not_null(strstr(err.message, "out.phasor-run"), "%s", err.message);
    }
    /* What is no record is the user's, and is not replaced. */
    params.overwrite = true;
    tools_write_file(job.record, "my notes\n", 9);
    expect_refused(&params, PHASOR_INVALID_ARGUMENT, "something else");
}

Test(resume, one_run_at_a_time)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    const char *const files[] = {job.output, job.errors};
    expect_ok(&params);
    for (int i = 0; i < 2; i++) {
        int fd = open(files[i], O_RDONLY);
        cr_assert_eq(flock(fd, LOCK_EX), 0);
        expect_refused(&again, PHASOR_INVALID_ARGUMENT, "another run is writing");
        params.overwrite = true; /* the record goes with the output */
        expect_refused(&params, PHASOR_INVALID_ARGUMENT, "another run is writing");
        close(fd);
    }
    expect_ok(&again);
    job_check(&job, "after the other run");
}

Test(resume, one_file_under_two_names)
{
    struct phasor_batch_params params = job_params(&job);
    char other[512];
    snprintf(other, sizeof other, "%s/./out", job.folder);
    params.error_path = other;
    for (int i = 0; i < 2; i++) {
        expect_ok(&params);
        json_t *rows = tools_read_rows(job.output);
        cr_expect_eq(json_array_size(rows), 10);
        json_decref(rows);
        params.resume = true;
    }
}

/* ---- Outputs that may be anything ---------------------------------------------------------- */

#define HEX      "0123456789abcdef0123456789abcdef"
#define BEGIN    "{\"id\":\"batch_req_" HEX "\",\"custom_id\":"
#define GOOD_END "\"response\":{\"body\":{}},\"error\":null}\n"

struct hostile {
    const char *words;
    const char *bytes;
    size_t length;
};
#define HOSTILE(words, bytes)                                                                      \
    {                                                                                              \
        words, bytes, sizeof bytes - 1                                                             \
    }

Test(resume, outputs_may_be_anything)
{
    static const struct hostile lines[] = {
        HOSTILE("does not begin", "hello\n"),
        HOSTILE("does not begin", "\n"),
        HOSTILE("does not begin", "{}\n"),
        HOSTILE("does not begin", "\xef\xbb\xbf" BEGIN "\"a\"," GOOD_END),
        HOSTILE("does not begin", "\xff\xfe\xfd\n"),
        HOSTILE("does not begin", "{\"id\":\"batch_req_0123\",\"custom_id\":" GOOD_END),
        HOSTILE("does not begin", "{\"id\":\"batch_req_ABCDEF6789abcdef0123456789abcdef\","
                                  "\"custom_id\":" GOOD_END),
        HOSTILE("does not end", BEGIN "\"a\",\"response\":{}}\n"),
        HOSTILE("does not end", BEGIN "\"a\",\"response\":{\"body\":{}},\"error\":null}\r\n"),
        HOSTILE("does not begin", BEGIN "\n"), /* nor is there room for an end */
        HOSTILE("NUL", BEGIN "\"\0\"," GOOD_END),
        HOSTILE("NUL", "\0\0\0\0\0\0\0\0\n"),
        HOSTILE("a second line", BEGIN "\"a\",\"resp" BEGIN "\"a\"," GOOD_END),
        HOSTILE("no row of the input", BEGIN "\"a\"," GOOD_END),
        HOSTILE("does not begin", "no newline, and not phasor's"),
    };
    struct phasor_batch_params params = job_params(&job), again = resuming();
    size_t length;
    expect_ok(&params);
    char *right = tools_read_file(job.output, &length); /* five lines */
    char *mixed = malloc(length + 4096);
    memcpy(mixed, right, length);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        tools_write_file(job.output, lines[i].bytes, lines[i].length);
        expect_refused(&again, PHASOR_FORMAT, lines[i].words);
        expect_refused(&again, PHASOR_FORMAT, "out, line 1:");
        memcpy(mixed + length, lines[i].bytes, lines[i].length);
        tools_write_file(job.output, mixed, length + lines[i].length);
        expect_refused(&again, PHASOR_FORMAT, lines[i].words);
        expect_refused(&again, PHASOR_FORMAT, "out, line 6:");
    }
    free(mixed);
    free(right);
}

Test(resume, two_lines_of_one_row_are_refused)
{
    struct phasor_batch_params params = job_params(&job), again = resuming();
    size_t length;
    expect_ok(&params);
    char *lines = tools_read_file(job.output, &length), *both = calloc(2, length + 1);
    strcat(strcpy(both, lines), lines);
    tools_write_file(job.output, both, 2 * length);
    expect_refused(&again, PHASOR_FORMAT, "out, line 1, and ");
    tools_write_file(job.output, lines, length);
    tools_write_file(job.errors, lines, (size_t)(strchr(lines, '\n') + 1 - lines));
    expect_refused(&again, PHASOR_FORMAT, "err, line 1, answer the same row");
    free(lines);
    free(both);
}

/* ---- Lines at the seams of the buffer ------------------------------------------------------ */

/* A good line with so many bytes in its custom_id, and then `inner`. */
static void write_line(FILE *file, int number, size_t filling, const char *inner)
{
    static char bytes[600000];
    memset(bytes, 'x', sizeof bytes);
    fprintf(file, "{\"id\":\"batch_req_%032x\",\"custom_id\":\"", number);
    fwrite(bytes, 1, filling, file);
    fprintf(file, "%s\",\"response\":{\"body\":{}},\"error\":null}\n", inner);
}

static enum status read_past(struct batch_past *past, struct error *err)
{
    struct batch_writer *writer;
    const struct batch_writer_params params = {
        .output_path = job.output, .mode = BATCH_FILES_RESUME, .input_fd = -1};
    cr_assert_eq(batch_writer_open(&writer, &params, err), STATUS_OK);
    enum status status = batch_past_read(past, writer, 1, err);
    batch_writer_abandon(writer);
    return status;
}

Test(resume, lines_cross_the_buffer)
{
    for (size_t around = 0; around < 200; around++) {
        for (int fused = 0; fused < 2; fused++) {
            struct batch_past past = {.completed_count = 0};
            struct error err;
            FILE *file = fopen(job.output, "wb");
            write_line(file, 1, 262144 - 200 + around, fused ? BEGIN : "");
            write_line(file, 2, 3, "");
            write_line(file, 3, around % 20 == 0 ? 600000 : 1, "");
            fclose(file);
            enum status status = read_past(&past, &err);
            cr_assert_eq(status, fused ? STATUS_FORMAT : STATUS_OK, "%zu: %s", around, err.message);
            cr_assert(fused || (past.completed_count == 3 && past.rows.count == 3));
            batch_past_deinit(&past);
        }
    }
}

static enum status count_calls(void *context, struct error *err)
{
    return ++*(int *)context < 3 ? STATUS_OK : error_set(err, STATUS_CANCELLED, "enough");
}

/* Whoever waits while gigabytes of lines are read can see that, and stop it. */
Test(resume, reading_lines_can_be_watched_and_stopped)
{
    int calls = 0;
    struct error err;
    struct batch_past past = {.watch = {.ask = count_calls, .context = &calls}};
    FILE *file = fopen(job.output, "wb");
    for (int i = 0; i < 160; i++)
        write_line(file, i, 599000, "");
    fclose(file);
    cr_expect_eq(read_past(&past, &err), STATUS_CANCELLED);
    cr_expect_eq(calls, 3);
    cr_expect(past.completed_count > 50 && past.completed_count < 160);
    batch_past_deinit(&past);
}

/* ---- Draining ------------------------------------------------------------------------------ */

struct drain {
    uint64_t token_count; /* what has to be generated before the answer */
    int answer;
};

static int answer(void *context, const struct phasor_batch_progress *progress)
{
    const struct drain *drain = context;
    bool is_time =
        progress->requests_total > 0 && progress->completion_tokens >= drain->token_count;
    return is_time ? drain->answer : PHASOR_GO_ON;
}

static void write_long_rows(void)
{
    FILE *file = fopen(job.input, "wb");
    for (int i = 0; i < 400; i++)
        fprintf(file, ROW("r%d", "\"prompt\":[%d],\"max_tokens\":30,\"ignore_eos\":true"), i,
                i % 50);
    fclose(file);
}

Test(resume, a_drained_run_finishes_rows_in_flight)
{
    struct phasor_batch_params params = job_params(&job);
    struct phasor_batch_result result;
    struct phasor_error err;
    struct drain drain = {.token_count = 1, .answer = PHASOR_DRAIN};
    write_long_rows();
    clock_hurry(1); /* it is asked each time */
    params.progress = answer;
    params.progress_context = &drain;
    params.drain_seconds = 1e9;
    cr_assert_eq(job_run(model, &params, &result, &err), PHASOR_CANCELLED);
    cr_expect_not_null(strstr(err.message, "--resume runs the rest"), "%s", err.message);
    cr_expect(result.completed >= 1 && result.completed < 400, "%d rows", (int)result.completed);
    uint64_t done = result.completed;
    params.progress = NULL;
    params.resume = true;
    result = expect_ok(&params);
    cr_expect_eq(result.completed_before, done);
    cr_expect_eq(result.completed, 400 - done);
    json_t *rows = tools_read_rows(job.output);
    cr_expect_eq(json_array_size(rows), 400);
    json_decref(rows);
}

/* A row that waits in the generator is not in flight: it would take the time of those that are. */
Test(resume, a_drained_run_admits_nobody)
{
    struct phasor_batch_params params = job_params(&job);
    struct phasor_batch_result result;
    struct phasor_error err;
    struct drain drain = {.token_count = 0, .answer = PHASOR_DRAIN};
    write_long_rows();
    clock_hurry(1);
    params.progress = answer;
    params.progress_context = &drain;
    cr_assert_eq(job_run(model, &params, &result, &err), PHASOR_CANCELLED);
    cr_expect_eq(result.completed, 0, "%d rows", (int)result.completed);
    cr_expect_eq(result.prefill_tokens, 0);
    params.progress = NULL;
    params.resume = true;
    cr_expect_eq(expect_ok(&params).completed, 400);
}

Test(resume, draining_has_an_end)
{
    struct phasor_batch_params params = job_params(&job);
    struct phasor_batch_result result;
    struct phasor_error err;
    struct drain drain = {.token_count = 1, .answer = PHASOR_DRAIN};
    static const char line[] =
        ROW("long", "\"prompt\":[1],\"max_tokens\":200,\"ignore_eos\":true,\"n\":128");
    tools_write_file(job.input, line, sizeof line - 1);
    clock_hurry(1);
    params.progress = answer;
    params.progress_context = &drain;
    params.drain_seconds = 0.05;
    cr_expect_eq(job_run(model, &params, &result, &err), PHASOR_CANCELLED);
    cr_expect_eq(result.completed, 0);
    drain = (struct drain){.answer = PHASOR_STOP};
    params.overwrite = true;
    cr_expect_eq(job_run(model, &params, &result, &err), PHASOR_CANCELLED);
}

/* Whole runs through the public interface, with the bundled model and the real generator. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/memory.h"
#include "base/text.h"
#include "clock.h"
#include "engine_tools.h"
#include "phasor.h"
#include "sweep.h"

#define MODEL   MODELS_DIR "/kjv-moe"
#define TINY    TEST_DATA "/models/mixtral" /* no tokenizer */
#define CONTEXT "8192"

#define ROW(id, body)                                                                              \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{" body    \
    "}}\n"
#define CHAT(id, body)                                                                             \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{"    \
    "\"messages\":[{\"role\":\"user\",\"content\":\"Who was Moses?\"}]," body "}}\n"

static const char *folder;
static void make_folder(void)
{
    folder = tools_folder();
}
TestSuite(run, .init = make_folder, .timeout = 120);

static struct phasor_model *open_model(const char *path)
{
    struct phasor_model *model;
    struct phasor_error err;
    struct phasor_model_params params = phasor_model_params_default();
    params.model = path;
    enum phasor_status status = phasor_model_open(&model, &params, &err);
    cr_assert_eq(status, PHASOR_OK, "%s", err.message);
    return model;
}

static struct phasor_batch_params small_params(const char *input, const char *output)
{
    struct phasor_batch_params params = phasor_batch_params_default();
    params.input_path = input;
    params.output_path = output;
    params.max_num_seqs = 8;
    params.max_num_batched_tokens = 128;
    params.kv_bytes = 64 << 20;
    return params;
}

/* Runs `lines` and returns the output rows. */
static json_t *run_lines(const char *model_path, const char *lines,
                         struct phasor_batch_result *result)
{
    const char *input = tools_path(folder, "in"), *output = tools_path(folder, "out");
    struct phasor_batch_params params = small_params(input, output);
    struct phasor_error err;
    tools_write_file(input, lines, strlen(lines));
    unlink(output);
    struct phasor_model *model = open_model(model_path);
    enum phasor_status status = phasor_batch_run(model, &params, result, &err);
    cr_assert_eq(status, PHASOR_OK, "%s", err.message);
    phasor_model_close(model);
    return tools_read_rows(output);
}

static json_t *body_of(const json_t *rows, const char *id)
{
    const json_t *row = tools_row(rows, id);
    cr_assert_not_null(row, "no single row \"%s\"", id);
    return json_object_get(json_object_get(row, "response"), "body");
}

static const json_t *choice_of(const json_t *rows, const char *id, size_t index)
{
    const json_t *choices = json_object_get(body_of(rows, id), "choices");
    cr_assert_gt(json_array_size(choices), index, "row \"%s\"", id);
    return json_array_get(choices, index);
}

static const char *text_of(const json_t *rows, const char *id, size_t index)
{
    return json_string_value(json_object_get(choice_of(rows, id, index), "text"));
}

static const char *error_code_of(const json_t *rows, const char *id)
{
    const char *code =
        json_string_value(json_object_get(json_object_get(body_of(rows, id), "error"), "code"));
    return code == NULL ? "none" : code;
}

static const char *string_of(const json_t *rows, const char *id, const char *key)
{
    const char *text = json_string_value(json_object_get(choice_of(rows, id, 0), key));
    return text == NULL ? "null" : text;
}

#define TEN(x) x x x x x x x x x x

/* ---- Rows ---------------------------------------------------------------------------------- */

/* Prompt tokens of a row. */
static json_int_t prompt_tokens_of(const json_t *rows, const char *id)
{
    const json_t *response = json_object_get(tools_row(rows, id), "response");
    const json_t *usage = json_object_get(json_object_get(response, "body"), "usage");
    return json_integer_value(json_object_get(usage, "prompt_tokens"));
}

Test(run, text_becomes_a_control_token_only_when_asked)
{
    static const char lines[] =
        ROW("plain", "\"prompt\":\"</s>\",\"add_special_tokens\":false,\"max_tokens\":1")
            ROW("asked", "\"prompt\":\"</s>\",\"add_special_tokens\":false,\"max_tokens\":1,"
                         "\"parse_special\":true");
    struct phasor_batch_result result;
    json_t *rows = run_lines(MODEL, lines, &result);
    cr_expect_eq(result.completed, 2);
    cr_expect_eq(prompt_tokens_of(rows, "asked"), 1);
    cr_expect_gt(prompt_tokens_of(rows, "plain"), 1);
    json_decref(rows);
}

Test(run, what_cannot_be_done_is_refused)
{
    static const char many[] =
        ROW("scores", "\"prompt\":\"" TEN(
                          TEN(TEN("word "))) "\",\"n\":128,\"max_tokens\":1,"
                                             "\"prompt_logprobs\":20,\"echo\":true,\"logprobs\":20")
            ROW("few", "\"prompt\":\"word\",\"prompt_logprobs\":20,\"max_tokens\":1");
    static const char stops[] = ROW("stop", "\"prompt\":[1,2],\"stop\":\"x\",\"max_tokens\":1")
        ROW("ids", "\"prompt\":[1,2],\"stop_token_ids\":[1],\"max_tokens\":1");
    struct phasor_batch_result result;
    json_t *rows = run_lines(MODEL, many, &result);
    cr_expect_eq(result.completed, 1);
    cr_expect_str_eq(error_code_of(rows, "scores"), "invalid_value");
    json_decref(rows);
    rows = run_lines(TEST_DATA "/models/mixtral", stops, &result);
    cr_expect_eq(result.completed, 1);
    cr_expect_str_eq(error_code_of(rows, "stop"), "unsupported_parameter");
    json_decref(rows);
}

Test(run, wrong_rows_leave_their_neighbours_alone)
{
    static const char good[] = ROW("a", "\"prompt\":\"In the beginning\",\"temperature\":0")
        ROW("b", "\"prompt\":\"And Moses\",\"seed\":5");
    static const char mixed[] =
        ROW("a", "\"prompt\":\"In the beginning\",\"temperature\":0") "{\"broken\n" ROW(
            "x", "\"prompt\":\"\",\"add_special_tokens\":false") ROW("y", "\"prompt\":[1,2,99999]")
            ROW("z", "\"prompt\":\"a\",\"max_tokens\":" CONTEXT) ROW("a", "\"prompt\":\"again\"")
                ROW("v", "\"prompt\":\"a\",\"tools\":[1],\"n\":0")
                    ROW("b", "\"prompt\":\"And Moses\",\"seed\":5");
    struct phasor_batch_result result;
    json_t *alone = run_lines(MODEL, good, &result);
    cr_expect_eq(result.completed, 2);
    char *a = strdup(text_of(alone, "a", 0)), *b = strdup(text_of(alone, "b", 0));
    json_decref(alone);
    json_t *rows = run_lines(MODEL, mixed, &result);
    cr_expect_eq(result.total, 8);
    cr_expect_eq(result.completed, 2);
    cr_expect_eq(result.failed, 6);
    cr_expect_eq(json_array_size(rows), 8);
    cr_expect_str_eq(error_code_of(rows, "x"), "invalid_value");
    cr_expect_str_eq(error_code_of(rows, "y"), "invalid_value");
    cr_expect_str_eq(error_code_of(rows, "z"), "context_length_exceeded");
    cr_expect_str_eq(text_of(rows, "b", 0), b);
    json_t *row;
    size_t i, found = 0;
    json_array_foreach(rows, i, row)
    {
        const json_t *body = json_object_get(json_object_get(row, "response"), "body");
        const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
        const char *text = json_string_value(json_object_get(choice, "text"));
        found += text != NULL && strcmp(text, a) == 0;
    }
    cr_expect_eq(found, 1, "the first of two rows \"a\" is run");
    json_decref(rows);
    free(a);
    free(b);
}

Test(run, an_empty_file_gives_an_empty_output)
{
    struct phasor_batch_result result;
    json_t *rows = run_lines(MODEL, "\n\n", &result);
    cr_expect_eq(json_array_size(rows), 0);
    cr_expect_eq(result.total, 0);
    json_decref(rows);
}

Test(run, stop_strings_cut_the_text)
{
    /* The greedy text is asked for first; then strings out of its middle stop it. */
    struct phasor_batch_result result;
    json_t *rows = run_lines(
        MODEL, ROW("a", "\"prompt\":\"In the beginning\",\"temperature\":0,\"max_tokens\":24"),
        &result);
    char whole[512], lines[4096];
    snprintf(whole, sizeof whole, "%s", text_of(rows, "a", 0));
    json_decref(rows);
    size_t length = strlen(whole);
    cr_assert_gt(length, 24);
    cr_expect_eq(whole[0], ' ', "the text goes on behind the prompt: \"%s\"", whole);
    char stop[6];
    snprintf(stop, sizeof stop, "%.5s", whole + length / 2);
    snprintf(lines, sizeof lines,
             ROW("cut", "\"prompt\":\"In the beginning\",\"temperature\":0,\"max_tokens\":24,"
                        "\"stop\":\"%s\"")
                 ROW("kept", "\"prompt\":\"In the beginning\",\"temperature\":0,\"max_tokens\":24,"
                             "\"stop\":[\"never-said\",\"%s\"],"
                             "\"include_stop_str_in_output\":true"),
             stop, stop);
    rows = run_lines(MODEL, lines, &result);
    size_t at = (size_t)(strstr(whole, stop) - whole);
    cr_expect_eq(strlen(text_of(rows, "cut", 0)), at);
    cr_expect_eq(strncmp(text_of(rows, "cut", 0), whole, at), 0);
    cr_expect_eq(strlen(text_of(rows, "kept", 0)), at + strlen(stop));
    cr_expect_str_eq(string_of(rows, "cut", "finish_reason"), "stop");
    cr_expect_str_eq(string_of(rows, "cut", "stop_reason"), stop);
    json_decref(rows);
}

Test(run, seeds_make_rows_repeatable_and_different)
{
    static const char lines[] = ROW("a", "\"prompt\":\"And\",\"seed\":7,\"n\":3,\"max_tokens\":12")
        ROW("b", "\"prompt\":\"And\",\"seed\":7,\"max_tokens\":12")
            ROW("c", "\"prompt\":\"And\",\"seed\":8,\"max_tokens\":12")
                ROW("d", "\"prompt\":\"And\",\"max_tokens\":12")
                    ROW("e", "\"prompt\":\"And\",\"max_tokens\":12");
    struct phasor_batch_result result;
    json_t *rows = run_lines(MODEL, lines, &result);
    cr_expect_str_eq(text_of(rows, "a", 0), text_of(rows, "b", 0));
    cr_expect_str_eq(text_of(rows, "a", 1), text_of(rows, "c", 0), "choice i has seed + i");
    cr_expect_str_neq(text_of(rows, "a", 0), text_of(rows, "a", 1));
    cr_expect_str_neq(text_of(rows, "d", 0), text_of(rows, "e", 0));
    json_t *again = run_lines(MODEL, ROW("e", "\"prompt\":\"And\",\"max_tokens\":12"), &result);
    cr_expect_str_eq(text_of(rows, "e", 0), text_of(again, "e", 0),
                     "a row is the same whatever stands around it");
    json_decref(rows);
    json_decref(again);
}

/* ---- Log probabilities --------------------------------------------------------------------- */

static double sum_prompt_logprobs(const json_t *choice, const json_t *ids)
{
    const json_t *scored = json_object_get(choice, "prompt_logprobs");
    double sum = 0;
    cr_assert_eq(json_array_size(scored), json_array_size(ids));
    for (size_t i = 1; i < json_array_size(scored); i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", (int)json_integer_value(json_array_get(ids, i)));
        const json_t *entry = json_object_get(json_array_get(scored, i), key);
        cr_assert_not_null(entry);
        sum += json_number_value(json_object_get(entry, "logprob"));
    }
    return sum;
}

Test(run, a_prompt_is_scored_the_same_in_all_formats)
{
    static const char lines[] =
        ROW("vllm", "\"prompt\":\"In the beginning God created\",\"max_tokens\":0,"
                    "\"prompt_logprobs\":0,\"return_token_ids\":true")
            ROW("echo", "\"prompt\":\"In the beginning God created\",\"max_tokens\":0,"
                        "\"echo\":true,\"logprobs\":1")
                ROW("plain", "\"prompt\":\"In the beginning\",\"max_tokens\":0,\"echo\":true,"
                             "\"n\":2")
                    CHAT("chat", "\"max_tokens\":3,\"logprobs\":true,\"top_logprobs\":2,"
                                 "\"prompt_logprobs\":1");
    struct phasor_batch_result result;
    json_t *rows = run_lines(MODEL, lines, &result);
    const json_t *choice = choice_of(rows, "vllm", 0);
    double score = sum_prompt_logprobs(choice, json_object_get(choice, "prompt_token_ids"));
    const json_t *logprobs = json_object_get(choice_of(rows, "echo", 0), "logprobs");
    const json_t *values = json_object_get(logprobs, "token_logprobs"), *value;
    double echoed = 0;
    size_t i;
    json_array_foreach(values, i, value) echoed += json_number_value(value);
    cr_expect(json_is_null(json_array_get(values, 0)));
    cr_expect_lt(fabs(score - echoed), 1e-4, "%f %f", score, echoed);
    cr_expect_str_eq(text_of(rows, "echo", 0), "In the beginning God created");
    cr_expect_str_eq(text_of(rows, "plain", 1), "In the beginning");
    const json_t *offsets = json_object_get(logprobs, "text_offset");
    cr_expect_eq(json_array_size(offsets), json_array_size(values));
    const json_t *chat = json_object_get(choice_of(rows, "chat", 0), "logprobs");
    cr_expect_eq(json_array_size(json_object_get(chat, "content")), 3);
    cr_expect_gt(json_array_size(json_object_get(body_of(rows, "chat"), "prompt_logprobs")), 3);
    json_decref(rows);
}

/* ---- Token ids only ------------------------------------------------------------------------ */

Test(run, a_checkpoint_without_tokenizer_takes_ids)
{
    static const char lines[] =
        ROW("ids", "\"prompt\":[[1,2,3],[4,5]],\"max_tokens\":4,\"temperature\":0,"
                   "\"return_token_ids\":true,\"ignore_eos\":true")
            ROW("text", "\"prompt\":\"In the beginning\"") CHAT("chat", "\"max_tokens\":2");
    struct phasor_batch_result result;
    json_t *rows = run_lines(TINY, lines, &result);
    cr_expect_eq(json_array_size(json_object_get(choice_of(rows, "ids", 1), "token_ids")), 4);
    cr_expect_str_eq(error_code_of(rows, "text"), "unsupported_parameter");
    cr_expect_str_eq(error_code_of(rows, "chat"), "unsupported_parameter");
    json_decref(rows);
}

/* ---- The run as a whole -------------------------------------------------------------------- */

static char *many_rows(int count)
{
    char *lines = malloc((size_t)count * 256);
    size_t length = 0;
    for (int i = 0; i < count; i++)
        length += (size_t)sprintf(
            lines + length,
            "{\"custom_id\":\"r%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{"
            "\"prompt\":\"And the LORD\",\"max_tokens\":%d}}\n",
            i, 1 + i % 40);
    return lines;
}

static int stop_after_some(void *context, const struct phasor_batch_progress *progress)
{
    (void)context;
    return progress->requests_done >= 3;
}

Test(run, a_cancelled_run_keeps_what_was_finished)
{
    const char *input = tools_path(folder, "in"), *output = tools_path(folder, "out");
    struct phasor_batch_params params = small_params(input, output);
    struct phasor_batch_result result;
    struct phasor_error err;
    char *lines = many_rows(3000);
    tools_write_file(input, lines, strlen(lines));
    params.progress = stop_after_some;
    struct phasor_model *model = open_model(MODEL);
    cr_assert_eq(phasor_batch_run(model, &params, &result, &err), PHASOR_CANCELLED);
    cr_expect_eq(result.total, 3000);
    cr_expect_geq(result.completed, 3);
    cr_expect_lt(result.completed, 3000);
    json_t *rows = tools_read_rows(output);
    cr_expect_eq(json_array_size(rows), result.completed);
    json_decref(rows);
    /* The model is as good as before. */
    params.overwrite = true;
    params.progress = NULL;
    tools_write_file(input, lines, strlen(lines) / 60);
    cr_assert_eq(phasor_batch_run(model, &params, &result, &err), PHASOR_OK);
    phasor_model_close(model);
    free(lines);
}

/* An input of more than is read at once, which changes when something is first written. */
#define CHANGING_ROWS 1200

struct changing {
    const char *path;
    void (*change)(const char *path);
};

static int change_once(void *context, enum disk_op op, size_t *length)
{
    struct changing *changing = context;
    (void)length;
    if (op == DISK_WRITE && changing->change != NULL) {
        changing->change(changing->path);
        changing->change = NULL;
    }
    return 0;
}

static void change_nothing(void *context, enum disk_op op)
{
    (void)context;
    (void)op;
}

static void rows_append(const char *path)
{
    FILE *file = fopen(path, "a");
    fputs(ROW("new", "\"prompt\":[1],\"max_tokens\":1"), file);
    fputs(ROW("new", "\"prompt\":[1],\"max_tokens\":1"), file);
    fclose(file);
}

static void rows_cut(const char *path)
{
    struct stat about;
    cr_assert_eq(stat(path, &about), 0);
    cr_assert_eq(truncate(path, about.st_size / CHANGING_ROWS * 900), 0);
}

/* The last row's answer is to have another length. */
static void row_change(const char *path)
{
    FILE *file = fopen(path, "r+");
    cr_assert_eq(fseek(file, -(long)strlen("1}}\n"), SEEK_END), 0);
    fputc('2', file);
    fclose(file);
}

static void rows_write(const char *path, int count)
{
    struct text lines = {0};
    for (int i = 0; i < count; i++)
        text_append_format(&lines, ROW("%06d", "\"prompt\":[1],\"max_tokens\":1"), i);
    tools_write_file(path, lines.bytes, lines.length);
    text_deinit(&lines);
}

static enum phasor_status run_changing(struct phasor_batch_result *result, struct phasor_error *err,
                                       void (*change)(const char *path))
{
    const char *input = tools_path(folder, "in"), *output = tools_path(folder, "out");
    struct phasor_batch_params params = small_params(input, output);
    struct changing changing = {input, change};
    rows_write(input, CHANGING_ROWS);
    params.overwrite = true;
    params.max_num_seqs = 4;
    const struct disk_hooks hooks = {change_once, change_nothing, &changing};
    struct phasor_model *model = open_model(TINY);
    disk_hooks_set(&hooks);
    enum phasor_status status = phasor_batch_run(model, &params, result, err);
    disk_hooks_set(NULL);
    phasor_model_close(model);
    cr_assert_null(changing.change);
    json_decref(tools_read_rows(output)); /* all whole */
    return status;
}

Test(run, an_input_that_changes_meanwhile)
{
    struct phasor_batch_result result;
    struct phasor_error err = {0};
    cr_assert_eq(run_changing(&result, &err, rows_append), PHASOR_OK, "%s", err.message);
    cr_expect_eq(result.completed, CHANGING_ROWS);
    cr_assert_eq(run_changing(&result, &err, rows_cut), PHASOR_IO);
    cr_expect_not_null(strstr(err.message, "changed while it was read"), "%s", err.message);
    cr_expect_leq(result.completed, 900);
    cr_assert_eq(run_changing(&result, &err, row_change), PHASOR_IO);
    cr_expect_not_null(strstr(err.message, "changed while it was read"), "%s", err.message);
}

/* Rows are known by then, and none has begun. */
static int drain_when_counted(void *context, const struct phasor_batch_progress *progress)
{
    (void)context;
    return progress->requests_total > 0 ? PHASOR_DRAIN : PHASOR_GO_ON;
}

Test(run, a_stop_is_heard_while_strict_looks_at_all_rows)
{
    const char *input = tools_path(folder, "in"), *output = tools_path(folder, "out");
    struct phasor_batch_params params = small_params(input, output);
    struct phasor_batch_result result;
    struct phasor_error err = {0};
    rows_write(input, 5000);
    params.strict = true;
    params.progress = drain_when_counted;
    struct phasor_model *model = open_model(TINY);
    clock_hurry(1);
    cr_assert_eq(phasor_batch_run(model, &params, &result, &err), PHASOR_CANCELLED);
    cr_expect_not_null(strstr(err.message, "before it began"), "%s", err.message);
    phasor_model_close(model);
}

static void expect_refused(struct phasor_model *model, const struct phasor_batch_params *params,
                           enum phasor_status wanted, const char *word)
{
    struct phasor_batch_result result;
    struct phasor_error err = {0};
    enum phasor_status status = phasor_batch_run(model, params, &result, &err);
    cr_expect_eq(status, wanted, "%s: %s", word, err.message);
    cr_expect_not_null(strstr(err.message, word), "%s: %s", word, err.message);
    cr_expect_eq(result.completed, 0);
}

Test(run, refusals_leave_the_output_alone)
{
    static const char lines[] = ROW("a", "\"prompt\":\"a\"") ROW("b", "\"prompt\":7");
    const char *input = tools_path(folder, "in"), *output = tools_path(folder, "out");
    struct phasor_model *model = open_model(MODEL);
    tools_write_file(input, lines, strlen(lines));
    struct phasor_batch_params params = small_params(input, output);
    params.strict = true;
    expect_refused(model, &params, PHASOR_INVALID_ARGUMENT, "line 2");
    params = small_params("/nonexistent/in", output);
    expect_refused(model, &params, PHASOR_NOT_FOUND, "/nonexistent/in");
    params = small_params(input, output);
    params.max_num_batched_tokens = 7;
    expect_refused(model, &params, PHASOR_INVALID_ARGUMENT, "--max-num-batched-tokens");
    params = small_params(input, output);
    params.max_num_seqs = 0;
    expect_refused(model, &params, PHASOR_INVALID_ARGUMENT, "--max-num-seqs");
    params = small_params(input, output);
    params.max_model_len = 1 << 30;
    expect_refused(model, &params, PHASOR_INVALID_ARGUMENT, "--max-model-len");
    params = small_params(input, output);
    params.chat_template = "no-such";
    expect_refused(model, &params, PHASOR_INVALID_ARGUMENT, "no-such");
    params = small_params(input, output);
    params.kv_bytes = 1;
    expect_refused(model, &params, PHASOR_NO_MEMORY, "--kv-memory");
    cr_expect_neq(access(output, F_OK), 0, "no output file was made");
    params = small_params(input, input);
    expect_refused(model, &params, PHASOR_INVALID_ARGUMENT, "input file");
    params.size = 0;
    expect_refused(model, &params, PHASOR_INVALID_ARGUMENT, "size");
    phasor_model_close(model);
}

Test(run, errors_can_have_a_file_of_their_own)
{
    static const char lines[] = ROW("a", "\"prompt\":\"a\"") ROW("b", "\"prompt\":7");
    const char *input = tools_path(folder, "in"), *output = tools_path(folder, "out");
    const char *errors = tools_path(folder, "err");
    struct phasor_batch_params params = small_params(input, output);
    struct phasor_batch_result result;
    struct phasor_error err;
    params.error_path = errors;
    tools_write_file(input, lines, strlen(lines));
    struct phasor_model *model = open_model(MODEL);
    cr_assert_eq(phasor_batch_run(model, &params, &result, &err), PHASOR_OK, "%s", err.message);
    phasor_model_close(model);
    json_t *good = tools_read_rows(output), *bad = tools_read_rows(errors);
    cr_expect(json_array_size(good) == 1 && tools_row(good, "a") != NULL);
    cr_expect(json_array_size(bad) == 1 && tools_row(bad, "b") != NULL);
    json_decref(good);
    json_decref(bad);
}

/* The n-th allocation of a run fails, for growing n until none does. A row may get an error, the
 * run may end; nothing leaks and nothing crashes. */
Test(run, allocations_may_fail_anywhere)
{
    static const char lines[] =
        ROW("a", "\"prompt\":[\"In\",\"And\"],\"n\":2,\"max_tokens\":4,\"logprobs\":2,"
                 "\"echo\":true,\"prompt_logprobs\":1,\"stop\":[\"zzz\"]")
            CHAT("b", "\"max_tokens\":3,\"logprobs\":true") "{\n";
    const char *input = tools_path(folder, "in"), *output = tools_path(folder, "out");
    struct phasor_batch_params params = small_params(input, output);
    struct phasor_batch_result result;
    struct phasor_error err;
    params.overwrite = true;
    params.metrics_path = tools_path(folder, "metrics.prom");
    params.summary_path = tools_path(folder, "summary.json");
    params.max_num_seqs = 2;
    params.max_num_batched_tokens = 16;
    tools_write_file(input, lines, strlen(lines));
    struct phasor_model *model = open_model(MODEL);
    /* Caches of the model fill in a first run. */
    cr_assert_eq(phasor_batch_run(model, &params, &result, &err), PHASOR_OK, "%s", err.message);
    uint64_t live = memory_counters_get().live_count, count = memory_counters_get().alloc_count;
    cr_assert_eq(phasor_batch_run(model, &params, &result, &err), PHASOR_OK);
    count = memory_counters_get().alloc_count - count;
    cr_expect_eq(memory_counters_get().live_count, live);
    uint64_t step = sweep_step(1 + count / 40);
    for (uint64_t n = sweep_first(step); n <= count; n += step) {
        memory_fail_at(n, n % 4 >= 2);
        enum phasor_status status = phasor_batch_run(model, &params, &result, &err);
        memory_fail_at(0, 0);
        cr_assert(status == PHASOR_OK || status == PHASOR_NO_MEMORY, "allocation %d: %s", (int)n,
                  err.message);
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %d leaks", (int)n);
        json_decref(tools_read_rows(output));
    }
    phasor_model_close(model);
}

/* ---- One prompt ---------------------------------------------------------------------------- */

static int collect(void *context, const char *text, size_t length)
{
    char *out = context;
    strncat(out, text, length);
    return strlen(out) > 400;
}

Test(run, generate_streams_the_text)
{
    char text[1024] = "";
    struct phasor_generate_result generated;
    struct phasor_batch_result result;
    struct phasor_error err;
    struct phasor_generate_params params = phasor_generate_params_default();
    struct phasor_model *model = open_model(MODEL);
    params.prompt = "In the beginning";
    params.max_tokens = 16;
    params.text = collect;
    params.text_context = text;
    cr_assert_eq(phasor_generate(model, &params, &generated, &err), PHASOR_OK, "%s", err.message);
    json_t *rows =
        run_lines(MODEL, ROW("a", "\"prompt\":\"In the beginning\",\"temperature\":0"), &result);
    cr_expect_str_eq(text, text_of(rows, "a", 0));
    json_decref(rows);
    cr_expect_eq(generated.completion_tokens, 16);
    cr_expect(generated.reached_length);
    text[0] = 0;
    params.chat = true;
    cr_assert_eq(phasor_generate(model, &params, NULL, &err), PHASOR_OK, "%s", err.message);
    params.max_tokens = 4000;
    params.ignore_eos = true;
    cr_expect_eq(phasor_generate(model, &params, NULL, &err), PHASOR_CANCELLED);
    params.max_tokens = 0;
    cr_expect_eq(phasor_generate(model, &params, NULL, &err), PHASOR_INVALID_ARGUMENT);
    phasor_model_close(model);
}

#include "resume_tools.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine_tools.h"

static const char *const job_rows[] = {
    ROW("a", "\"prompt\":[1,2,3],\"max_tokens\":3,\"ignore_eos\":true"),
    ROW("b", "\"prompt\":[[4,5],[6]],\"n\":2,\"max_tokens\":5,\"return_token_ids\":true"),
    "no json\n",
    "\n",
    ROW("a", "\"prompt\":[9],\"max_tokens\":1"),
    "{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[1]}}\n",
    ROW("c", "\"prompt\":[7,8],\"max_tokens\":9,\"logprobs\":2"),
    ROW("d", "\"prompt\":[7,8],\"max_tokens\":4,\"temperature\":0"),
    "no json\n",
    ROW("e \\u00e9 \\\"{\\\"id\\\":\\\"batch_req_", "\"prompt\":[3],\"max_tokens\":2,\"n\":0"),
    ROW("f", "\"prompt\":[[2,1,2]],\"max_tokens\":2"),
};

static void write_rows(const char *path)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    for (size_t i = 0; i < sizeof job_rows / sizeof *job_rows; i++)
        fputs(job_rows[i], file);
    cr_assert_eq(fclose(file), 0);
}

void job_init(struct job *job)
{
    *job = (struct job){.expected = NULL};
    snprintf(job->folder, sizeof job->folder, "%s", tools_folder());
    snprintf(job->input, sizeof job->input, "%s/in", job->folder);
    snprintf(job->output, sizeof job->output, "%s/out", job->folder);
    snprintf(job->errors, sizeof job->errors, "%s/err", job->folder);
    snprintf(job->record, sizeof job->record, "%s/out.phasor-run", job->folder);
    write_rows(job->input);
}

void job_expect(struct job *job)
{
    struct phasor_batch_params params = job_params(job);
    cr_assert_eq(job_run_apart(&params, NULL), 0);
    job->expected = job_lines(job);
    job_clear(job);
}

void job_deinit(struct job *job)
{
    free(job->expected);
}

void job_clear(const struct job *job)
{
    unlink(job->output);
    unlink(job->errors);
    unlink(job->record);
}

struct phasor_batch_params job_params(const struct job *job)
{
    struct phasor_batch_params params = phasor_batch_params_default();
    params.input_path = job->input;
    params.output_path = job->output;
    params.error_path = job->errors;
    params.deterministic = true;
    params.max_num_seqs = 2;
    params.max_num_batched_tokens = 16;
    params.kv_bytes = 4 << 20;
    return params;
}

struct phasor_model *job_model(const char *path)
{
    struct phasor_model *model;
    struct phasor_error err;
    struct phasor_model_params params = phasor_model_params_default();
    params.model = path;
    params.thread_count = 1;
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    return model;
}

enum phasor_status job_run(struct phasor_model *model, const struct phasor_batch_params *params,
                           struct phasor_batch_result *result, struct phasor_error *err)
{
    struct phasor_batch_result ignored;
    return phasor_batch_run(model, params, result == NULL ? &ignored : result, err);
}

int job_run_apart(const struct phasor_batch_params *params, const struct disk_hooks *hooks)
{
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        struct phasor_error err = {.status = PHASOR_OK};
        struct phasor_model *model = job_model(JOB_MODEL);
        disk_hooks_set(hooks);
        enum phasor_status status = job_run(model, params, NULL, &err);
        phasor_model_close(model);
        _exit((int)status); /* without the test's own ends */
    }
    int ending;
    cr_assert_eq(waitpid(child, &ending, 0), child);
    return ending;
}

/* ---- Lines --------------------------------------------------------------------------------- */

static int compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Takes `created` out, so that runs of different times can be compared. */
static void blank_created(char *line, long long begun)
{
    char *at = line;
    while ((at = strstr(at, "\"created\":")) != NULL) {
        char *end;
        at += strlen("\"created\":");
        cr_assert_eq(strtoll(at, &end, 10), begun, "created is not when the run began: %s", line);
        memmove(at, end, strlen(end) + 1);
    }
}

static size_t split_lines(char *bytes, char **lines, size_t count, const char *path)
{
    for (char *at = bytes; *at != 0;) {
        char *end = strchr(at, '\n');
        cr_assert_not_null(end, "the last line of %s is not whole: %s", path, at);
        *end = 0;
        cr_assert_lt(count, 64);
        lines[count++] = at;
        at = end + 1;
    }
    return count;
}

char *job_lines(const struct job *job)
{
    size_t length, count = 0, total = 1;
    char *lines[64], *joined = NULL;
    char *record = tools_read_file(job->record, &length);
    long long begun = strtoll(strstr(record, "\"begun\":") + 8, NULL, 10);
    char *output = tools_read_file(job->output, &length);
    char *errors = tools_read_file(job->errors, &length);
    count = split_lines(output, lines, count, job->output);
    count = split_lines(errors, lines, count, job->errors);
    for (size_t i = 0; i < count; i++) {
        blank_created(lines[i], begun);
        total += strlen(lines[i]) + 1;
    }
    qsort(lines, count, sizeof *lines, compare_lines);
    joined = calloc(total, 1);
    for (size_t i = 0; i < count; i++)
        strcat(strcat(joined, lines[i]), "\n");
    free(record);
    free(output);
    free(errors);
    return joined;
}

void job_check(const struct job *job, const char *what)
{
    char *lines = job_lines(job);
    cr_assert_str_eq(lines, job->expected, "%s", what);
    free(lines);
}

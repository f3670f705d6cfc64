#include "bench_run.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "answer.h"
#include "table.h"

#define PATH_BYTES  900
#define WARM_PROMPT 32
#define WARM_OUTPUT 4

/* A batch of rows that are alike. */
struct rows {
    int64_t sequences, prompt_tokens, output_tokens;
};

static enum phasor_status error_of(struct phasor_error *err, enum phasor_status status,
                                   const char *what, const char *path)
{
    err->status = status;
    snprintf(err->message, sizeof err->message, "%s: cannot be %s: %s", path, what,
             strerror(errno));
    return status;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* SplitMix64 (Steele, Lea and Flood, 2014). */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static enum phasor_status vocab_of(int64_t *out, const char *model, struct phasor_error *err)
{
    struct phasor_inspect_params params = phasor_inspect_params_default();
    json_t *root;
    params.model = model;
    enum phasor_status status = answer_inspect(&root, &params, err);
    if (status != PHASOR_OK)
        return status;
    *out = table_int(root, "vocab_count");
    json_decref(root);
    return PHASOR_OK;
}

static void row_write(FILE *file, const struct rows *rows, int64_t row, int64_t vocab,
                      uint64_t *state)
{
    fprintf(file,
            "{\"custom_id\":\"%" PRId64 "\",\"method\":\"POST\",\"url\":\"/v1/completions\","
            "\"body\":{\"max_tokens\":%" PRId64 ",\"temperature\":0,\"ignore_eos\":true,"
            "\"prompt\":[",
            row, rows->output_tokens);
    for (int64_t i = 0; i < rows->prompt_tokens; i++)
        fprintf(file, "%s%" PRIu64, i > 0 ? "," : "", random_next(state) % (uint64_t)vocab);
    fputs("]}}\n", file);
}

/* The file of these rows for the model; it is made once. */
static enum phasor_status rows_path(char out[PATH_BYTES], const struct bench_runner *runner,
                                    int model, const struct rows *rows, struct phasor_error *err)
{
    const struct bench_question *question = &runner->results->question;
    uint64_t state = question->seed;
    int64_t vocab = 0;
    snprintf(out, PATH_BYTES, "%s/rows-%d-%" PRId64 "-%" PRId64 "-%" PRId64, runner->folder, model,
             rows->sequences, rows->prompt_tokens, rows->output_tokens);
    if (access(out, R_OK) == 0)
        return PHASOR_OK;
    enum phasor_status status = vocab_of(&vocab, question->models[model], err);
    if (status != PHASOR_OK)
        return status;
    FILE *file = fopen(out, "w");
    if (file == NULL)
        return error_of(err, PHASOR_IO, "made", out);
    for (int64_t row = 0; row < rows->sequences; row++)
        row_write(file, rows, row, vocab, &state);
    bool has_failed = ferror(file) != 0;
    if (fclose(file) != 0 || has_failed) {
        error_of(err, PHASOR_IO, "written", out);
        unlink(out);
        return PHASOR_IO;
    }
    return PHASOR_OK;
}

static enum phasor_status batch_run(struct phasor_batch_result *result,
                                    const struct bench_runner *runner, struct phasor_model *model,
                                    int model_index, const struct bench_plan *plan,
                                    const struct rows *rows, struct phasor_error *err)
{
    struct phasor_batch_params params = phasor_batch_params_default();
    char input[PATH_BYTES], output[PATH_BYTES];
    enum phasor_status status = rows_path(input, runner, model_index, rows, err);
    if (status != PHASOR_OK)
        return status;
    snprintf(output, sizeof output, "%s/answers", runner->folder);
    params.input_path = input;
    params.output_path = output;
    params.overwrite = true;
    params.strict = true;
    params.shares_prefixes = false;
    params.max_num_seqs = plan->wave;
    params.max_num_batched_tokens = plan->pass_tokens > plan->wave ? plan->pass_tokens : plan->wave;
    params.progress = runner->progress;
    params.progress_context = runner->context;
    return phasor_batch_run(model, &params, result, err);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

/* Threads, pages and caches that nobody has used yet, and a change of layout. */
static enum phasor_status warm(const struct bench_runner *runner, struct phasor_model *model,
                               const struct bench_cell *cell, const struct bench_plan *plan,
                               struct phasor_error *err)
{
    const struct bench_scenario *scenario = &runner->results->question.scenarios[cell->scenario];
    struct phasor_batch_result result;
    struct rows rows = {cell->device_count, WARM_PROMPT, WARM_OUTPUT};
    if (rows.prompt_tokens > scenario->prompt_tokens)
        rows.prompt_tokens = scenario->prompt_tokens;
    return batch_run(&result, runner, model, cell->model, plan, &rows, err);
}

static enum phasor_status open_get(struct phasor_model **out, struct bench_runner *runner,
                                   const struct bench_cell *cell, const struct bench_plan *plan,
                                   struct phasor_error *err)
{
    bool is_new;
    uint64_t bytes = plan->memory * (uint64_t)cell->device_count;
    enum phasor_status status =
        bench_models_get(out, &is_new, &runner->models, cell, plan, bytes, err);
    return status == PHASOR_OK && is_new ? warm(runner, *out, cell, plan, err) : status;
}

static void result_keep(struct bench_run *out, const struct phasor_batch_result *result)
{
    out->prefill = result->prefill_seconds;
    out->decode = result->decode_seconds;
    out->between = result->transition_seconds;
    out->total = result->elapsed_seconds;
    out->ttft = result->ttft.median_seconds;
    out->ttft_p99 = result->ttft.p99_seconds;
    out->tpot = result->tpot.median_seconds;
    out->tpot_p99 = result->tpot.p99_seconds;
    out->prompt_tokens = result->prompt_tokens;
    out->completion_tokens = result->completion_tokens;
    out->peak_bytes = 0;
    for (int rank = 0; rank < result->rank_count; rank++)
        out->peak_bytes += result->rank_peak_bytes[rank];
    out->collective_bytes = 0;
    for (int i = 0; i < PHASOR_COLLECTIVE_COUNT; i++)
        out->collective_bytes += out->bytes_of[i] = result->collective_bytes[i];
}

enum phasor_status bench_runner_run(struct bench_runner *runner, struct bench_run *out,
                                    struct phasor_error *err)
{
    const struct bench_cell *cell = &runner->results->cells[out->cell];
    const struct bench_plan *plan = &cell->plans[out->plan];
    const struct bench_question *question = &runner->results->question;
    const struct bench_scenario *scenario = &question->scenarios[cell->scenario];
    const struct rows rows = {question->batch_sizes[cell->batch_size], scenario->prompt_tokens,
                              scenario->output_tokens};
    struct phasor_batch_result result;
    struct phasor_model *model;
    enum phasor_status status = open_get(&model, runner, cell, plan, err);
    if (status == PHASOR_OK)
        status = batch_run(&result, runner, model, cell->model, plan, &rows, err);
    out->has_failed = status != PHASOR_OK;
    if (status == PHASOR_OK)
        result_keep(out, &result);
    return status;
}

bool bench_runner_init(struct bench_runner *out, const struct bench_results *results)
{
    const char *temporary = getenv("TMPDIR");
    *out = (struct bench_runner){.results = results, .models = {.question = &results->question}};
    int length = snprintf(out->folder, sizeof out->folder, "%s/phasor-bench-XXXXXX",
                          temporary == NULL || *temporary == 0 ? "/tmp" : temporary);
    if (length > 0 && (size_t)length < sizeof out->folder && mkdtemp(out->folder) != NULL)
        return true;
    fprintf(stderr, "phasor: %s: cannot be made: %s\n", out->folder, strerror(errno));
    *out->folder = 0;
    return false;
}

/* Rows, answers, and what a run that was stopped has left beside them. */
static void folder_remove(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char path[sizeof entry->d_name + PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlink(path);
    }
    if (dir != NULL)
        closedir(dir);
    rmdir(folder);
}

void bench_runner_deinit(struct bench_runner *runner)
{
    bench_models_close(&runner->models);
    if (*runner->folder != 0)
        folder_remove(runner->folder);
}

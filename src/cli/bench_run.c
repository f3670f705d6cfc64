#include "bench_run.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "table.h"

#define PATH_BYTES  192
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
    char *text;
    params.model = model;
    enum phasor_status status = phasor_inspect(&text, &params, err);
    if (status != PHASOR_OK)
        return status;
    json_t *root = json_loads(text, 0, NULL);
    *out = table_int(root, "vocab_count");
    json_decref(root);
    phasor_text_free(text);
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
                                    const struct bench_runner *runner,
                                    const struct bench_open *open, const struct bench_plan *plan,
                                    const struct rows *rows, struct phasor_error *err)
{
    struct phasor_batch_params params = phasor_batch_params_default();
    char input[PATH_BYTES], output[PATH_BYTES];
    enum phasor_status status = rows_path(input, runner, open->model, rows, err);
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
    return phasor_batch_run(open->of, &params, result, err);
}

/* ---- Models ---------------------------------------------------------------------------------- */

static void open_close(struct bench_runner *runner, int index)
{
    phasor_model_close(runner->open[index].of);
    runner->open[index] = runner->open[--runner->open_count];
}

static uint64_t open_bytes(const struct bench_runner *runner)
{
    uint64_t bytes = 0;
    for (int i = 0; i < runner->open_count; i++)
        bytes += runner->open[i].bytes;
    return bytes;
}

/* Room for one more: those go whose last use is longest ago. */
static void room_make(struct bench_runner *runner, uint64_t bytes)
{
    while (runner->open_count > 0 && (runner->open_count == BENCH_OPEN_MAX ||
                                      open_bytes(runner) + bytes > runner->bytes_max)) {
        int oldest = 0;
        for (int i = 1; i < runner->open_count; i++) {
            if (runner->open[i].used_at < runner->open[oldest].used_at)
                oldest = i;
        }
        open_close(runner, oldest);
    }
}

static enum phasor_transition way_of(const char *name)
{
    static const struct {
        const char *name;
        enum phasor_transition way;
    } ways[] = {{"keep", PHASOR_TRANSITION_KEEP},
                {"reshard", PHASOR_TRANSITION_RESHARD},
                {"reload", PHASOR_TRANSITION_RELOAD},
                {"upload", PHASOR_TRANSITION_UPLOAD}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(ways[i].name, name) == 0)
            return ways[i].way;
    }
    return PHASOR_TRANSITION_AUTO; /* one layout: there is nothing to choose */
}

static enum phasor_status model_open(struct phasor_model **out, const struct bench_runner *runner,
                                     const struct bench_cell *cell, const struct bench_plan *plan,
                                     struct phasor_error *err)
{
    const struct bench_question *question = &runner->results->question;
    struct phasor_model_params params = phasor_model_params_default();
    params.model = question->models[cell->model];
    params.devices = question->devices;
    params.thread_count = (int)question->threads;
    params.memory_bytes = question->memory * (uint64_t)cell->device_count;
    params.plan = plan->plan;
    params.transition = way_of(plan->way);
    params.max_num_seqs = plan->wave;
    params.max_num_batched_tokens = plan->pass_tokens;
    params.log = runner->log;
    params.log_context = runner->context;
    return phasor_model_open(out, &params, err);
}

static struct bench_open *open_find(struct bench_runner *runner, int model,
                                    const struct bench_plan *plan)
{
    for (int i = 0; i < runner->open_count; i++) {
        struct bench_open *open = &runner->open[i];
        if (open->model == model && strcmp(open->plan, plan->plan) == 0 &&
            strcmp(open->way, plan->way) == 0)
            return open;
    }
    return NULL;
}

/* Threads, pages and caches that nobody has used yet, and a change of layout. */
static enum phasor_status warm(const struct bench_runner *runner, const struct bench_open *open,
                               const struct bench_cell *cell, const struct bench_plan *plan,
                               struct phasor_error *err)
{
    const struct bench_scenario *scenario = &runner->results->question.scenarios[cell->scenario];
    struct phasor_batch_result result;
    struct rows rows = {cell->device_count, WARM_PROMPT, WARM_OUTPUT};
    if (rows.prompt_tokens > scenario->prompt_tokens)
        rows.prompt_tokens = scenario->prompt_tokens;
    return batch_run(&result, runner, open, plan, &rows, err);
}

static enum phasor_status open_get(struct bench_open **out, struct bench_runner *runner,
                                   const struct bench_cell *cell, const struct bench_plan *plan,
                                   struct phasor_error *err)
{
    *out = open_find(runner, cell->model, plan);
    if (*out != NULL)
        return PHASOR_OK;
    struct bench_open open = {.model = cell->model,
                              .bytes = plan->memory * (uint64_t)cell->device_count};
    snprintf(open.plan, sizeof open.plan, "%s", plan->plan);
    snprintf(open.way, sizeof open.way, "%s", plan->way);
    room_make(runner, open.bytes);
    enum phasor_status status = model_open(&open.of, runner, cell, plan, err);
    if (status != PHASOR_OK)
        return status;
    *out = &runner->open[runner->open_count++];
    **out = open;
    return warm(runner, *out, cell, plan, err);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

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
    out->peak_bytes = result->peak_bytes;
    out->collective_bytes = 0;
    for (int i = 0; i < PHASOR_COLLECTIVE_COUNT; i++)
        out->collective_bytes += result->collective_bytes[i];
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
    struct bench_open *open;
    enum phasor_status status = open_get(&open, runner, cell, plan, err);
    if (status == PHASOR_OK) {
        open->used_at = ++runner->run_count;
        status = batch_run(&result, runner, open, plan, &rows, err);
    }
    out->has_failed = status != PHASOR_OK;
    if (status == PHASOR_OK)
        result_keep(out, &result);
    return status;
}

/* Of GPUs one model at a time: what a host has free says nothing of theirs. */
static uint64_t bytes_for_models(const struct bench_question *question)
{
    long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    bool is_cpu = strncmp(question->devices, "cpu", 3) == 0;
    return is_cpu && pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / 2 : 0;
}

bool bench_runner_init(struct bench_runner *out, const struct bench_results *results)
{
    const char *temporary = getenv("TMPDIR");
    *out = (struct bench_runner){.results = results,
                                 .bytes_max = bytes_for_models(&results->question)};
    int length = snprintf(
        out->folder, sizeof out->folder, "%s/phasor-bench-XXXXXX",
        temporary == NULL || *temporary == 0 || strlen(temporary) > 40 ? "/tmp" : temporary);
    if (length > 0 && mkdtemp(out->folder) != NULL)
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
    while (runner->open_count > 0)
        open_close(runner, 0);
    if (*runner->folder != 0)
        folder_remove(runner->folder);
}

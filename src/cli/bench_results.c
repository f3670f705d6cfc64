#include "bench_results.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "bench_lines.h"
#include "commands.h"
#include "phasor.h"

#define FORMAT_VERSION 1
#define LINE_MAX_BYTES (1 << 20) /* longer than any that is written */

int bench_cells_of(const struct bench_question *question)
{
    return question->model_count * question->scenario_count * question->batch_size_count;
}

int bench_cell_number(const struct bench_question *question, const struct bench_cell *cell)
{
    return (cell->model * question->scenario_count + cell->scenario) * question->batch_size_count +
           cell->batch_size;
}

const struct bench_plan *bench_plan_of(const struct bench_cell *cell, enum bench_mode mode)
{
    for (int i = 0; i < cell->plan_count; i++) {
        if ((cell->plans[i].modes & 1u << mode) != 0)
            return *cell->plans[i].plan == 0 ? NULL : &cell->plans[i];
    }
    return NULL;
}

const struct bench_run *bench_run_find(const struct bench_results *results, int cell, int plan,
                                       int round)
{
    size_t place = results->cells[cell].last_run[plan];
    while (place > 0 && results->runs[place - 1].round != round)
        place = results->runs[place - 1].before;
    return place == 0 ? NULL : &results->runs[place - 1];
}

void bench_run_count(struct bench_run *run, const struct bench_question *question,
                     const struct bench_cell *cell)
{
    const struct bench_scenario *scenario = &question->scenarios[cell->scenario];
    int64_t sequences = question->batch_sizes[cell->batch_size];
    run->prompt_tokens = (uint64_t)(sequences * scenario->prompt_tokens);
    run->completion_tokens = (uint64_t)(sequences * scenario->output_tokens);
    if (scenario->output_tokens > 1)
        run->tpot = run->tpot_p99 = run->decode / (double)(scenario->output_tokens - 1);
}

void bench_text_keep(char *out, size_t capacity, const char *text)
{
    snprintf(out, capacity, "%s", text);
    for (size_t length = strlen(out); length > 0; length--) {
        json_t *string = json_string(out);
        bool is_whole = string != NULL;
        json_decref(string);
        if (is_whole)
            return;
        out[length - 1] = 0;
    }
}

static bool no_memory(void)
{
    fprintf(stderr, "phasor: out of memory for the results\n");
    return false;
}

/* ---- Keeping --------------------------------------------------------------------------------- */

static bool cell_keep(struct bench_results *results, const struct bench_cell *cell)
{
    if (results->cell_count == results->cell_room) {
        int room = 2 * results->cell_room + 16;
        void *cells = realloc(results->cells, (size_t)room * sizeof *results->cells);
        if (cells == NULL)
            return no_memory();
        results->cells = cells;
        results->cell_room = room;
    }
    results->cells[results->cell_count++] = *cell;
    return true;
}

static bool run_keep(struct bench_results *results, const struct bench_run *run)
{
    if (results->run_count == results->run_room) {
        size_t room = 2 * results->run_room + 64;
        void *runs = realloc(results->runs, room * sizeof *results->runs);
        if (runs == NULL)
            return no_memory();
        results->runs = runs;
        results->run_room = room;
    }
    size_t *last = &results->cells[run->cell].last_run[run->plan];
    results->runs[results->run_count] = *run;
    results->runs[results->run_count].before = *last;
    *last = ++results->run_count;
    return true;
}

/* What was planned, as text: the same for what was made and for what was read. */
static bool hash_make(char out[17], const struct bench_results *results)
{
    XXH3_state_t *state = XXH3_createState();
    bool is_whole = state != NULL && XXH3_64bits_reset(state) == XXH_OK;
    for (int i = 0; i < results->cell_count && is_whole; i++) {
        json_t *line = bench_cell_json(&results->question, &results->cells[i]);
        char *text = line == NULL ? NULL : json_dumps(line, JSON_COMPACT | JSON_SORT_KEYS);
        is_whole = text != NULL && XXH3_64bits_update(state, text, strlen(text)) == XXH_OK;
        free(text);
        json_decref(line);
    }
    if (is_whole)
        snprintf(out, 17, "%016llx", (unsigned long long)XXH3_64bits_digest(state));
    XXH3_freeState(state);
    return is_whole || no_memory();
}

void bench_results_free(struct bench_results *results)
{
    bench_question_free(&results->question);
    if (results->file != NULL)
        fclose(results->file);
    free(results->began);
    free(results->version);
    free(results->cells);
    free(results->runs);
    free(results->path);
    *results = (struct bench_results){.cell_count = 0};
}

/* ---- Reading --------------------------------------------------------------------------------- */

static bool wrong(const struct bench_results *results, int64_t line, const char *what)
{
    fprintf(stderr,
            "phasor: %s:%" PRId64 ": %s; it is no results of this version's phasor bench, or was "
            "changed since\n",
            results->path, line, what);
    return false;
}

static bool cannot(const struct bench_results *results, const char *what)
{
    fprintf(stderr, "phasor: %s: cannot be %s: %s\n", results->path, what, strerror(errno));
    return false;
}

/* One for each model, or null; older files have none. */
static bool identities_read(struct bench_results *out, const json_t *list)
{
    bool is_good = list == NULL || json_array_size(list) == (size_t)out->question.model_count;
    for (size_t i = 0; i < json_array_size(list) && is_good; i++) {
        const json_t *one = json_array_get(list, i);
        is_good = json_is_null(one) ||
                  (json_is_string(one) && json_string_length(one) == PHASOR_FINGERPRINT_BYTES - 1);
        if (is_good && json_is_string(one))
            memcpy(out->identities[i], json_string_value(one), PHASOR_FINGERPRINT_BYTES);
    }
    return is_good;
}

static bool head_read(struct bench_results *out, const json_t *object)
{
    const char *began = json_string_value(json_object_get(object, "began"));
    const char *version = json_string_value(json_object_get(object, "phasor"));
    if (json_integer_value(json_object_get(object, "format")) != FORMAT_VERSION || began == NULL ||
        version == NULL)
        return wrong(out, 1, "expected a line of kind \"bench\" and format 1");
    if (!bench_question_read(&out->question, json_object_get(object, "question")))
        return wrong(out, 1, "\"question\" is none");
    if (!identities_read(out, json_object_get(object, "checkpoints")))
        return wrong(out, 1, "\"checkpoints\" are not those of the models");
    out->began = strdup(began);
    out->version = strdup(version);
    return (out->began != NULL && out->version != NULL) || no_memory();
}

static bool hash_read(struct bench_results *out, int64_t line, const json_t *object)
{
    const char *hash = json_string_value(json_object_get(object, "hash"));
    if (out->cell_count != bench_cells_of(&out->question))
        return wrong(out, line, "not every cell has its plans before it");
    if (!hash_make(out->plans_hash, out))
        return false;
    return (hash != NULL && strcmp(hash, out->plans_hash) == 0) ||
           wrong(out, line, "the plans are not those of the hash");
}

/* In the order of the question, each once. */
static bool cell_read(struct bench_results *out, int64_t line, const json_t *object)
{
    struct bench_cell cell;
    bool is_next = out->cell_count < bench_cells_of(&out->question) &&
                   bench_cell_read(&cell, &out->question, object) &&
                   bench_cell_number(&out->question, &cell) == out->cell_count;
    return is_next ? cell_keep(out, &cell)
                   : wrong(out, line, "the line is not of the cell that comes next");
}

static bool line_read(struct bench_results *out, int64_t line, const json_t *object)
{
    const char *kind = json_string_value(json_object_get(object, "kind"));
    struct bench_run run;
    if (kind == NULL || (line == 1) != (strcmp(kind, "bench") == 0))
        return wrong(out, line, "the line is of no kind that stands here");
    if (line == 1)
        return head_read(out, object);
    if (strcmp(kind, "cell") == 0)
        return cell_read(out, line, object);
    if (strcmp(kind, "plans") == 0)
        return hash_read(out, line, object);
    if (strcmp(kind, "run") != 0 || *out->plans_hash == 0 || !bench_run_read(&run, out, object))
        return wrong(out, line, "the line is of no run of these plans");
    const struct bench_run *before = bench_run_find(out, run.cell, run.plan, run.round);
    if (before != NULL && !before->has_failed)
        return wrong(out, line, "this run was there before");
    return run_keep(out, &run);
}

static bool text_read(struct bench_results *out, int64_t line, const char *text, size_t length)
{
    json_t *object = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL);
    bool is_good = json_is_object(object) ? line_read(out, line, object)
                                          : wrong(out, line, "the line is no JSON object");
    json_decref(object);
    return is_good;
}

/* `*end`: behind the last whole line. */
static bool lines_read(struct bench_results *out, FILE *file, long *end)
{
    char *text = malloc(LINE_MAX_BYTES);
    bool is_good = text != NULL || no_memory();
    int64_t line = 0;
    *end = 0;
    while (is_good && fgets(text, LINE_MAX_BYTES, file) != NULL) {
        size_t length = strlen(text);
        if (length == 0 || text[length - 1] != '\n') {
            is_good =
                feof(file) != 0 || wrong(out, line + 1, "the line is too long, or has a NUL byte");
            break;
        }
        is_good = text_read(out, ++line, text, length);
        *end = ftell(file);
    }
    if (is_good && ferror(file) != 0)
        is_good = cannot(out, "read");
    free(text);
    if (is_good && line == 0)
        return wrong(out, 1, "the file has no line");
    return is_good;
}

static bool path_keep(struct bench_results *out, const char *path)
{
    *out = (struct bench_results){.path = strdup(path)};
    return out->path != NULL || no_memory();
}

bool bench_results_read(struct bench_results *out, const char *path)
{
    long end;
    if (!path_keep(out, path))
        return false;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return cannot(out, "read");
    bool is_good = lines_read(out, file, &end);
    fclose(file);
    return is_good;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Takes over the line; NULL: memory was short for it. */
static bool line_write(struct bench_results *results, json_t *line)
{
    if (line == NULL)
        return no_memory();
    bool is_good = true;
    if (results->file != NULL) {
        char *text = json_dumps(line, JSON_COMPACT);
        is_good = text != NULL || no_memory();
        if (is_good &&
            (fprintf(results->file, "%s\n", text) < 0 || fflush(results->file) != 0 ||
             (fdatasync(fileno(results->file)) != 0 && errno != EINVAL && errno != EROFS)))
            is_good = cannot(results, "written");
        free(text);
    }
    json_decref(line);
    return is_good;
}

/* A model of which only the configuration is there can be planned for, and who runs it is told. */
static bool identities_get(struct bench_results *out)
{
    struct phasor_error err;
    for (int i = 0; i < out->question.model_count && out->question.clock != BENCH_PREDICTED; i++) {
        enum phasor_status status =
            phasor_fingerprint(out->identities[i], out->question.models[i], NULL, &err);
        if (status != PHASOR_OK)
            *out->identities[i] = 0;
        if (status != PHASOR_OK && status != PHASOR_NOT_FOUND) {
            fail(&err);
            return false;
        }
    }
    return true;
}

static json_t *identities_json(const struct bench_results *results)
{
    json_t *list = json_array();
    for (int i = 0; i < results->question.model_count; i++)
        json_array_append_new(
            list, *results->identities[i] == 0 ? json_null() : json_string(results->identities[i]));
    return list;
}

static json_t *head_json(const struct bench_results *results)
{
    return json_pack("{s:s, s:i, s:s, s:s, s:o, s:o}", "kind", "bench", "format", FORMAT_VERSION,
                     "phasor", results->version, "began", results->began, "question",
                     bench_question_json(&results->question), "checkpoints",
                     identities_json(results));
}

static bool question_take(struct bench_results *out, struct bench_question *question)
{
    char began[32];
    time_t now = time(NULL);
    strftime(began, sizeof began, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    out->question = *question;
    *question = (struct bench_question){.model_count = 0};
    out->began = strdup(began);
    out->version = strdup(phasor_version());
    return (out->began != NULL && out->version != NULL) || no_memory();
}

/* A file without its whole head would be no results, and in the way of those to come. */
static bool file_begin(struct bench_results *out)
{
    out->is_new = identities_get(out) && line_write(out, head_json(out));
    if (!out->is_new)
        unlink(out->path);
    return out->is_new;
}

/* Two that write would each write over the other's lines. The lock goes with the process. */
static bool file_lock(const struct bench_results *out)
{
    if (flock(fileno(out->file), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return true;
    fprintf(stderr,
            "phasor: another bench is writing %s; wait until it ends, or give another file\n",
            out->path);
    return false;
}

bool bench_results_begin(struct bench_results *out, struct bench_question *question,
                         const char *path)
{
    if (!path_keep(out, path == NULL ? "the results" : path) || !question_take(out, question))
        return false;
    if (path == NULL)
        return true;
    out->file = fopen(path, "wx");
    if (out->file == NULL)
        return cannot(out, "made");
    return file_lock(out) && file_begin(out);
}

static bool is_same(const struct bench_question *a, const struct bench_question *b)
{
    json_t *one = bench_question_json(a), *other = bench_question_json(b);
    bool is_equal = one != NULL && json_equal(one, other);
    json_decref(one);
    json_decref(other);
    return is_equal;
}

/* Behind the last cell. */
static bool plans_close(struct bench_results *results)
{
    return hash_make(results->plans_hash, results) &&
           line_write(results,
                      json_pack("{s:s, s:s}", "kind", "plans", "hash", results->plans_hash));
}

bool bench_results_resume(struct bench_results *out, struct bench_question *question,
                          const char *path)
{
    long end;
    struct stat about;
    if (!path_keep(out, path))
        return false;
    out->file = fopen(path, "r+");
    if (out->file == NULL)
        return cannot(out, "opened");
    if (!file_lock(out))
        return false;
    if (fstat(fileno(out->file), &about) == 0 && S_ISREG(about.st_mode) && about.st_size == 0)
        return question_take(out, question) && file_begin(out);
    if (!lines_read(out, out->file, &end))
        return false;
    if (!is_same(&out->question, question)) {
        fprintf(stderr,
                "phasor: %s is of another bench: other models, loads, modes, devices or counts; "
                "give it those that stand in its first line, or another file\n",
                path);
        return false;
    }
    if (ftruncate(fileno(out->file), end) != 0 || fseek(out->file, end, SEEK_SET) != 0)
        return cannot(out, "written");
    bool lacks_hash = out->cell_count == bench_cells_of(&out->question) && *out->plans_hash == 0;
    return !lacks_hash || plans_close(out);
}

bool bench_results_add_cell(struct bench_results *results, const struct bench_cell *cell)
{
    if (!cell_keep(results, cell) ||
        !line_write(results, bench_cell_json(&results->question, cell)))
        return false;
    return results->cell_count < bench_cells_of(&results->question) || plans_close(results);
}

bool bench_results_add_run(struct bench_results *results, const struct bench_run *run)
{
    return line_write(results, bench_run_json(results, run)) && run_keep(results, run);
}

#include "bench_question.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

#define COUNT_TOP INT64_C(2147483647)

const char *const bench_mode_names[BENCH_MODE_COUNT] = {
    "static-tp",      "static-ep", "static-ep-dp",   "best-attention", "best-static",
    "static-tp-int4", "hap",       "adaptive-exact", "adaptive",
};

bool bench_mode_plans(enum bench_mode mode)
{
    return mode == BENCH_BEST_ATTENTION || mode == BENCH_BEST_STATIC || mode == BENCH_HAP ||
           mode == BENCH_ADAPTIVE_EXACT || mode == BENCH_ADAPTIVE;
}

static const char *const clock_names[BENCH_CLOCK_COUNT] = {"wall", "modelled", "predicted"};

const char *bench_clock_name(const struct bench_question *question)
{
    return clock_names[question->clock];
}

const char *bench_time_clock(const struct bench_question *question, enum bench_time time)
{
    static const char *const modelled[BENCH_TIME_COUNT] = {
        [BENCH_PREFILL] = "replay",
        [BENCH_DECODE] = "modelled",
        [BENCH_BETWEEN] = "predicted",
        [BENCH_TOTAL] = "modelled",
    };
    return question->clock == BENCH_MODELLED ? modelled[time] : bench_clock_name(question);
}

const char *bench_clock_label(const struct bench_question *question)
{
    return question->clock == BENCH_MODELLED
               ? "modelled (prefill by replay, decode modelled, changes of layout predicted)"
               : bench_clock_name(question);
}

void bench_prompts_words(char out[BENCH_PROMPTS_BYTES], const struct bench_question *question)
{
    if (question->clock == BENCH_MODELLED) /* a recorder draws its own, the same for each pass */
        snprintf(out, BENCH_PROMPTS_BYTES, "token ids at random");
    else
        snprintf(out, BENCH_PROMPTS_BYTES, "%s at random, seed %" PRIu64,
                 question->clock == BENCH_WALL ? "token ids" : "the box's numbers", question->seed);
}

const char *bench_planning_words(const struct bench_question *question)
{
    return question->clock == BENCH_WALL ? "planning (wall, in the total)" : "planning (left out)";
}

const char *bench_bytes_words(const struct bench_question *question)
{
    static const char *const words[BENCH_CLOCK_COUNT] = {
        [BENCH_WALL] = "bytes between ranks (the largest kinds)",
        [BENCH_MODELLED] = "bytes between ranks (of the passes)",
        [BENCH_PREDICTED] = "bytes between ranks (not counted)",
    };
    return words[question->clock];
}

const char *bench_memory_words(const struct bench_question *question)
{
    return question->clock == BENCH_WALL ? "peak memory (all ranks, since loading)"
                                         : "memory (predicted, fullest device)";
}

const char *bench_clock_sentence(const struct bench_question *question)
{
    static const char *const sentences[BENCH_CLOCK_COUNT] = {
        [BENCH_WALL] = "Seconds by the clock.",
        [BENCH_MODELLED] =
            "Modelled: prefill by replay of passes that were recorded on this machine's ranks, "
            "over links as much slower than the box's as they compute slower; decode by the box's "
            "figures; changes of layout as they are predicted.",
        [BENCH_PREDICTED] =
            "Predicted: the plans as they were chosen, each round priced with the box's numbers "
            "drawn anew, each from its range; nothing ran.",
    };
    return sentences[question->clock];
}

const char *bench_interval_words(const struct bench_question *question)
{
    return question->clock == BENCH_PREDICTED
               ? "in the median of all rounds, with the least and the most of them"
               : "with the interval of 95 % over pairs of rounds";
}

static bool clock_parse(struct bench_question *out, const char *name)
{
    int clock = 0;
    while (clock < BENCH_CLOCK_COUNT && strcmp(name, clock_names[clock]) != 0)
        clock++;
    out->clock = (enum bench_clock)clock;
    return clock < BENCH_CLOCK_COUNT;
}

void bench_model_name(char out[BENCH_NAME_BYTES], const struct bench_question *question, int model)
{
    static const char file[] = "/config.json"; /* of a model of which no more is there */
    const char *path = question->models[model];
    size_t length = strlen(path), tail = sizeof file - 1;
    if (length > tail && strcmp(path + length - tail, file) == 0)
        length -= tail;
    while (length > 1 && path[length - 1] == '/')
        length--;
    size_t begin = length;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    if (length - begin >= BENCH_NAME_BYTES)
        length = begin + BENCH_NAME_BYTES - 1;
    memcpy(out, path + begin, length - begin);
    out[length - begin] = 0;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

/* One thing of a list: false where it is none, or too much. */
typedef bool item_fn(struct bench_question *out, const char *text);

static bool list_parse(struct bench_question *out, const char *text, item_fn *item)
{
    char *copy = strdup(text), *rest = copy, *one;
    bool is_good = copy != NULL;
    while (is_good && (one = strsep(&rest, ",")) != NULL)
        is_good = item(out, one);
    free(copy);
    return is_good;
}

static bool count_parse(int64_t *out, const char *text)
{
    return number_parse_count(out, text) && *out >= 1 && *out <= COUNT_TOP;
}

static bool scenario_add(struct bench_question *out, const char *text)
{
    struct bench_scenario scenario;
    char prompt[32];
    const char *slash = strchr(text, '/');
    if (slash == NULL || (size_t)(slash - text) >= sizeof prompt ||
        out->scenario_count == BENCH_LIST_MAX)
        return false;
    snprintf(prompt, sizeof prompt, "%.*s", (int)(slash - text), text);
    if (!count_parse(&scenario.prompt_tokens, prompt) ||
        !count_parse(&scenario.output_tokens, slash + 1))
        return false;
    for (int i = 0; i < out->scenario_count; i++) {
        if (memcmp(&out->scenarios[i], &scenario, sizeof scenario) == 0)
            return false;
    }
    out->scenarios[out->scenario_count++] = scenario;
    return true;
}

static bool batch_size_add(struct bench_question *out, const char *text)
{
    int64_t size;
    if (!count_parse(&size, text) || out->batch_size_count == BENCH_LIST_MAX)
        return false;
    for (int i = 0; i < out->batch_size_count; i++) {
        if (out->batch_sizes[i] == size)
            return false;
    }
    out->batch_sizes[out->batch_size_count++] = size;
    return true;
}

static bool mode_add(struct bench_question *out, const char *text)
{
    for (int mode = 0; mode < BENCH_MODE_COUNT; mode++) {
        if (strcmp(bench_mode_names[mode], text) != 0)
            continue;
        bool is_new = (out->modes & 1u << mode) == 0;
        out->modes |= 1u << mode;
        return is_new;
    }
    return false;
}

static bool routing_add(struct bench_question *out, const char *text)
{
    if (out->routing_count == BENCH_LIST_MAX || *text == 0)
        return false;
    char *copy = strdup(text);
    if (copy != NULL)
        out->routing[out->routing_count++] = copy;
    return copy != NULL;
}

bool bench_scenarios_parse(struct bench_question *out, const char *text)
{
    out->scenario_count = 0;
    return list_parse(out, text, scenario_add);
}

bool bench_batch_sizes_parse(struct bench_question *out, const char *text)
{
    out->batch_size_count = 0;
    return list_parse(out, text, batch_size_add);
}

bool bench_modes_parse(struct bench_question *out, const char *text)
{
    out->modes = 0;
    return list_parse(out, text, mode_add);
}

bool bench_routing_parse(struct bench_question *out, const char *text)
{
    return list_parse(out, text, routing_add);
}

/* ---- As a command ---------------------------------------------------------------------------- */

void bench_word_put(FILE *file, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./:,=@%+-";
    if (*word != 0 && word[strspn(word, plain)] == 0) {
        fputs(word, file);
        return;
    }
    fputc('\'', file);
    for (; *word != 0; word++) {
        if (*word == '\'')
            fputs("'\\'", file); /* ends the quotes, one as it is, and begins them again */
        fputc(*word, file);
    }
    fputc('\'', file);
}

static void option_put(FILE *file, const char *flag, const char *word)
{
    fprintf(file, " %s ", flag);
    bench_word_put(file, word);
}

/* Which times are asked for, and of what. */
static void clock_put(FILE *file, const struct bench_question *question)
{
    static const char *const flags[BENCH_CLOCK_COUNT] = {"--box", "--replay", "--predict"};
    if (question->clock != BENCH_PREDICTED)
        option_put(file, "--devices", question->devices);
    option_put(file, flags[question->clock], question->box);
    if (question->clock == BENCH_MODELLED)
        fputs(" --recordings DIR", file);
}

static void lists_put(FILE *file, const struct bench_question *question)
{
    const char *between = " --scenarios ";
    for (int i = 0; i < question->scenario_count; i++, between = ",")
        fprintf(file, "%s%" PRId64 "/%" PRId64, between, question->scenarios[i].prompt_tokens,
                question->scenarios[i].output_tokens);
    between = " --batch-sizes ";
    for (int i = 0; i < question->batch_size_count; i++, between = ",")
        fprintf(file, "%s%" PRId64, between, question->batch_sizes[i]);
    between = " --modes ";
    for (int mode = 0; mode < BENCH_MODE_COUNT; mode++) {
        if ((question->modes & 1u << mode) == 0)
            continue;
        fprintf(file, "%s%s", between, bench_mode_names[mode]);
        between = ",";
    }
}

char *bench_question_command(const struct bench_question *question, int rounds, const char *path)
{
    char *out = NULL;
    size_t length;
    FILE *file = open_memstream(&out, &length);
    if (file == NULL)
        return NULL;
    fputs("phasor bench", file);
    for (int i = 0; i < question->model_count; i++) {
        fputc(' ', file);
        bench_word_put(file, question->models[i]);
    }
    clock_put(file, question);
    for (int i = 0; i < question->routing_count; i++) {
        fputs(i == 0 ? " --routing " : ",", file);
        bench_word_put(file, question->routing[i]);
    }
    lists_put(file, question);
    if (question->threads > 0)
        fprintf(file, " --threads %" PRId64, question->threads);
    if (question->memory > 0)
        fprintf(file, " --memory %" PRIu64, question->memory);
    if (question->seed > 0)
        fprintf(file, " --seed %" PRIu64, question->seed);
    if (rounds > 0)
        fprintf(file, " -r %d", rounds);
    else
        fputs(" --plans-only", file);
    option_put(file, "--results", path);
    bool is_whole = ferror(file) == 0;
    if (fclose(file) != 0 || !is_whole) {
        free(out);
        return NULL;
    }
    return out;
}

/* ---- As JSON --------------------------------------------------------------------------------- */

static json_t *scenario_json(const struct bench_scenario *scenario)
{
    char text[48];
    snprintf(text, sizeof text, "%" PRId64 "/%" PRId64, scenario->prompt_tokens,
             scenario->output_tokens);
    return json_string(text);
}

json_t *bench_question_json(const struct bench_question *question)
{
    json_t *models = json_array(), *scenarios = json_array(), *sizes = json_array();
    json_t *modes = json_array();
    for (int i = 0; i < question->model_count; i++)
        json_array_append_new(models, json_string(question->models[i]));
    for (int i = 0; i < question->scenario_count; i++)
        json_array_append_new(scenarios, scenario_json(&question->scenarios[i]));
    for (int i = 0; i < question->batch_size_count; i++)
        json_array_append_new(sizes, json_integer(question->batch_sizes[i]));
    for (int mode = 0; mode < BENCH_MODE_COUNT; mode++) {
        if ((question->modes & 1u << mode) != 0)
            json_array_append_new(modes, json_string(bench_mode_names[mode]));
    }
    json_t *routing = question->routing_count > 0 ? json_array() : NULL;
    for (int i = 0; i < question->routing_count; i++)
        json_array_append_new(routing, json_string(question->routing[i]));
    /* json_pack takes over what it is given, and gives it up where anything of it is missing. */
    return json_pack("{s:o, s:o*, s:o, s:o, s:o, s:s, s:s, s:s, s:I, s:I, s:I}", "models", models,
                     "routing", routing, "scenarios", scenarios, "batch_sizes", sizes, "modes",
                     modes, "devices", question->devices, "box", question->box, "clock",
                     bench_clock_name(question), "threads", (json_int_t)question->threads, "seed",
                     (json_int_t)question->seed, "memory", (json_int_t)question->memory);
}

/* Each string of the list. */
static bool list_read(struct bench_question *out, const json_t *object, const char *key,
                      item_fn *item)
{
    const json_t *list = json_object_get(object, key);
    bool is_good = json_array_size(list) > 0;
    for (size_t i = 0; i < json_array_size(list) && is_good; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        is_good = text != NULL && item(out, text);
    }
    return is_good;
}

static bool model_add(struct bench_question *out, const char *text)
{
    if (out->model_count == BENCH_LIST_MAX)
        return false;
    char *copy = strdup(text);
    if (copy != NULL)
        out->models[out->model_count++] = copy;
    return copy != NULL;
}

/* Absent, or of each model. */
static bool routing_read(struct bench_question *out, const json_t *object)
{
    return json_object_get(object, "routing") == NULL ||
           (list_read(out, object, "routing", routing_add) &&
            out->routing_count == out->model_count);
}

static bool sizes_read(struct bench_question *out, const json_t *object)
{
    const json_t *list = json_object_get(object, "batch_sizes");
    bool is_good = json_array_size(list) > 0;
    for (size_t i = 0; i < json_array_size(list) && is_good; i++) {
        char text[32];
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT,
                 json_integer_value(json_array_get(list, i)));
        is_good = batch_size_add(out, text);
    }
    return is_good;
}

bool bench_question_read(struct bench_question *out, const json_t *object)
{
    const char *devices = json_string_value(json_object_get(object, "devices"));
    const char *box = json_string_value(json_object_get(object, "box"));
    *out = (struct bench_question){.model_count = 0};
    const char *clock = json_string_value(json_object_get(object, "clock"));
    if (devices == NULL || box == NULL || clock == NULL || !clock_parse(out, clock))
        return false;
    out->devices = strdup(devices);
    out->box = strdup(box);
    out->threads = json_integer_value(json_object_get(object, "threads"));
    if (out->threads < 0)
        return false;
    out->seed = (uint64_t)json_integer_value(json_object_get(object, "seed"));
    out->memory = (uint64_t)json_integer_value(json_object_get(object, "memory"));
    return out->devices != NULL && out->box != NULL &&
           list_read(out, object, "models", model_add) && routing_read(out, object) &&
           list_read(out, object, "scenarios", scenario_add) &&
           list_read(out, object, "modes", mode_add) && sizes_read(out, object);
}

void bench_question_free(struct bench_question *question)
{
    for (int i = 0; i < question->model_count; i++)
        free(question->models[i]);
    for (int i = 0; i < question->routing_count; i++)
        free(question->routing[i]);
    free(question->devices);
    free(question->box);
    *question = (struct bench_question){.model_count = 0};
}

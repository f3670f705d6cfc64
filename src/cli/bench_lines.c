#include "bench_lines.h"

#include <math.h>
#include <string.h>

#include "phasor.h"

/* ---- What a line is about -------------------------------------------------------------------- */

static bool put_subject(json_t *object, const struct bench_question *question,
                        const struct bench_cell *cell)
{
    const struct bench_scenario *scenario = &question->scenarios[cell->scenario];
    return json_object_set_new(object, "model", json_string(question->models[cell->model])) == 0 &&
           json_object_set_new(object, "prompt_tokens", json_integer(scenario->prompt_tokens)) ==
               0 &&
           json_object_set_new(object, "output_tokens", json_integer(scenario->output_tokens)) ==
               0 &&
           json_object_set_new(object, "batch_size",
                               json_integer(question->batch_sizes[cell->batch_size])) == 0;
}

static bool subject_read(struct bench_cell *out, const struct bench_question *question,
                         const json_t *object)
{
    const char *model = json_string_value(json_object_get(object, "model"));
    int64_t prompt = json_integer_value(json_object_get(object, "prompt_tokens"));
    int64_t output = json_integer_value(json_object_get(object, "output_tokens"));
    int64_t size = json_integer_value(json_object_get(object, "batch_size"));
    int m = 0, s = 0, b = 0;
    while (m < question->model_count && (model == NULL || strcmp(question->models[m], model) != 0))
        m++;
    while (s < question->scenario_count && (question->scenarios[s].prompt_tokens != prompt ||
                                            question->scenarios[s].output_tokens != output))
        s++;
    while (b < question->batch_size_count && question->batch_sizes[b] != size)
        b++;
    out->model = m;
    out->scenario = s;
    out->batch_size = b;
    return m < question->model_count && s < question->scenario_count &&
           b < question->batch_size_count;
}

/* Longer than anybody waits, so that no sum or ratio is beyond a double. */
#define SECONDS_MAX 1e12
#define SECONDS_MIN 1e-12

/* A number of seconds. */
static bool number_read(double *out, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    *out = json_number_value(value);
    return json_is_number(value) && isfinite(*out) && *out >= 0 && *out <= SECONDS_MAX;
}

static bool count_read(uint64_t *out, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    *out = (uint64_t)json_integer_value(value);
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static bool text_read(char *out, size_t capacity, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL || strlen(text) >= capacity)
        return false;
    memcpy(out, text, strlen(text) + 1);
    return true;
}

/* ---- Cells ----------------------------------------------------------------------------------- */

static json_t *modes_json(unsigned modes)
{
    json_t *list = json_array();
    for (int mode = 0; mode < BENCH_MODE_COUNT; mode++) {
        if ((modes & 1u << mode) != 0)
            json_array_append_new(list, json_string(bench_mode_names[mode]));
    }
    return list;
}

static json_t *plan_json(const struct bench_plan *plan)
{
    if (*plan->plan == 0)
        return json_pack("{s:o, s:n, s:s}", "modes", modes_json(plan->modes), "plan", "why",
                         plan->why);
    json_t *object =
        json_pack("{s:o, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:I}", "modes", modes_json(plan->modes),
                  "plan", plan->plan, "way", plan->way, "wave", (json_int_t)plan->wave,
                  "pass_tokens", (json_int_t)plan->pass_tokens, "predicted_prefill_s",
                  plan->predicted_prefill, "predicted_between_s", plan->predicted_between,
                  "predicted_decode_s", plan->predicted_decode, "memory", (json_int_t)plan->memory);
    /* A line that came without it is the same line again: the hash is of its text. */
    if (object != NULL && plan->kv_cache > 0)
        json_object_set_new(object, "kv_cache", json_integer((json_int_t)plan->kv_cache));
    return object;
}

json_t *bench_cell_json(const struct bench_question *question, const struct bench_cell *cell)
{
    json_t *plans = json_array();
    for (int i = 0; i < cell->plan_count; i++)
        json_array_append_new(plans, plan_json(&cell->plans[i]));
    json_t *object = json_pack("{s:s, s:s, s:i, s:f, s:f, s:o}", "kind", "cell", "box", cell->box,
                               "devices", cell->device_count, "host_step_s", cell->host_step,
                               "planning_s", cell->planning_seconds, "plans", plans);
    if (object != NULL && !put_subject(object, question, cell)) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static bool modes_read(unsigned *out, const json_t *list, unsigned allowed)
{
    *out = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        int mode = 0;
        while (mode < BENCH_MODE_COUNT &&
               (name == NULL || strcmp(bench_mode_names[mode], name) != 0))
            mode++;
        if (mode == BENCH_MODE_COUNT || (allowed & 1u << mode) == 0)
            return false;
        *out |= 1u << mode;
    }
    return *out != 0;
}

static bool plan_read(struct bench_plan *out, const json_t *object, unsigned allowed)
{
    uint64_t wave, pass_tokens;
    if (!modes_read(&out->modes, json_object_get(object, "modes"), allowed))
        return false;
    if (json_is_null(json_object_get(object, "plan")))
        return text_read(out->why, sizeof out->why, object, "why");
    if (!count_read(&wave, object, "wave") || !count_read(&pass_tokens, object, "pass_tokens"))
        return false;
    out->wave = (int64_t)wave;
    out->pass_tokens = (int64_t)pass_tokens;
    return text_read(out->plan, sizeof out->plan, object, "plan") && *out->plan != 0 &&
           text_read(out->way, sizeof out->way, object, "way") && out->wave > 0 &&
           out->pass_tokens > 0 &&
           number_read(&out->predicted_prefill, object, "predicted_prefill_s") &&
           number_read(&out->predicted_between, object, "predicted_between_s") &&
           number_read(&out->predicted_decode, object, "predicted_decode_s") &&
           count_read(&out->memory, object, "memory") &&
           (json_object_get(object, "kv_cache") == NULL ||
            count_read(&out->kv_cache, object, "kv_cache"));
}

/* Each mode has one plan, or a reason why there is none. */
bool bench_cell_read(struct bench_cell *out, const struct bench_question *question,
                     const json_t *object)
{
    const json_t *plans = json_object_get(object, "plans");
    json_int_t devices = json_integer_value(json_object_get(object, "devices"));
    unsigned left = question->modes;
    *out = (struct bench_cell){.device_count = (int)devices};
    if (devices < 1 || devices > PHASOR_RANKS_MAX || !subject_read(out, question, object) ||
        !text_read(out->box, sizeof out->box, object, "box") ||
        !number_read(&out->planning_seconds, object, "planning_s") ||
        !number_read(&out->host_step, object, "host_step_s") ||
        json_array_size(plans) > BENCH_MODE_COUNT)
        return false;
    for (size_t i = 0; i < json_array_size(plans); i++) {
        struct bench_plan *plan = &out->plans[out->plan_count++];
        if (!plan_read(plan, json_array_get(plans, i), left))
            return false;
        left &= ~plan->modes;
    }
    return left == 0;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static const struct run_number {
    const char *key;
    size_t offset;
    bool is_count;
} run_numbers[] = {
    {"prefill_s", offsetof(struct bench_run, prefill), false},
    {"decode_s", offsetof(struct bench_run, decode), false},
    {"between_s", offsetof(struct bench_run, between), false},
    {"total_s", offsetof(struct bench_run, total), false},
    {"median_ttft_s", offsetof(struct bench_run, ttft), false},
    {"p99_ttft_s", offsetof(struct bench_run, ttft_p99), false},
    {"median_tpot_s", offsetof(struct bench_run, tpot), false},
    {"p99_tpot_s", offsetof(struct bench_run, tpot_p99), false},
    {"total_input_tokens", offsetof(struct bench_run, prompt_tokens), true},
    {"total_output_tokens", offsetof(struct bench_run, completion_tokens), true},
    {"collective_bytes", offsetof(struct bench_run, collective_bytes), true},
    {"peak_bytes", offsetof(struct bench_run, peak_bytes), true},
};
#define RUN_NUMBERS (sizeof run_numbers / sizeof *run_numbers)

json_t *bench_collectives_json(const uint64_t *bytes_of)
{
    json_t *object = json_object();
    for (int i = 0; i < PHASOR_COLLECTIVE_COUNT; i++) {
        if (bytes_of[i] > 0)
            json_object_set_new(object, phasor_collective_name(i),
                                json_integer((json_int_t)bytes_of[i]));
    }
    return object;
}

/* Kinds may come to less than all bytes, as in older files, and never to more: what is left of them
 * is told as others. */
static bool collectives_read(struct bench_run *out, const json_t *object)
{
    bool is_good = object == NULL || json_is_object(object); /* nothing was sent */
    uint64_t left = out->collective_bytes;
    for (int i = 0; i < PHASOR_COLLECTIVE_COUNT && is_good; i++) {
        const char *name = phasor_collective_name(i);
        if (json_object_get(object, name) == NULL)
            continue;
        is_good = count_read(&out->bytes_of[i], object, name) && out->bytes_of[i] <= left;
        left -= is_good ? out->bytes_of[i] : 0;
    }
    return is_good;
}

json_t *bench_run_json(const struct bench_results *results, const struct bench_run *run)
{
    const struct bench_cell *cell = &results->cells[run->cell];
    const struct bench_plan *plan = &cell->plans[run->plan];
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:i, s:s}", "kind", "run", "plan", plan->plan, "way", plan->way,
                  "round", run->round, "clock", bench_clock_name(&results->question));
    bool is_whole = object != NULL && put_subject(object, &results->question, cell);
    if (is_whole && run->has_failed)
        is_whole = json_object_set_new(object, "failed", json_string(run->message)) == 0;
    for (size_t i = 0; i < RUN_NUMBERS && is_whole && !run->has_failed; i++) {
        const void *at = (const char *)run + run_numbers[i].offset;
        json_t *value = run_numbers[i].is_count ? json_integer((json_int_t) * (const uint64_t *)at)
                                                : json_real(*(const double *)at);
        is_whole = json_object_set_new(object, run_numbers[i].key, value) == 0;
    }
    if (is_whole && run->collective_bytes > 0)
        is_whole =
            json_object_set_new(object, "collectives", bench_collectives_json(run->bytes_of)) == 0;
    if (!is_whole) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static int cell_find(const struct bench_results *results, const json_t *object)
{
    struct bench_cell cell;
    if (!subject_read(&cell, &results->question, object))
        return -1;
    int number = bench_cell_number(&results->question, &cell);
    return number < results->cell_count ? number : -1;
}

static int plan_find(const struct bench_cell *cell, const json_t *object)
{
    const char *plan = json_string_value(json_object_get(object, "plan"));
    const char *way = json_string_value(json_object_get(object, "way"));
    for (int i = 0; i < cell->plan_count && plan != NULL && way != NULL; i++) {
        if (strcmp(cell->plans[i].plan, plan) == 0 && strcmp(cell->plans[i].way, way) == 0)
            return i;
    }
    return -1;
}

bool bench_run_read(struct bench_run *out, const struct bench_results *results,
                    const json_t *object)
{
    const json_t *round = json_object_get(object, "round");
    *out = (struct bench_run){.cell = cell_find(results, object)};
    if (out->cell < 0)
        return false;
    out->plan = plan_find(&results->cells[out->cell], object);
    if (out->plan < 0 || json_integer_value(round) < 1 ||
        json_integer_value(round) > BENCH_ROUNDS_MAX)
        return false;
    out->round = (int)json_integer_value(round);
    const char *failed = json_string_value(json_object_get(object, "failed"));
    out->has_failed = failed != NULL;
    bench_text_keep(out->message, sizeof out->message, failed == NULL ? "" : failed);
    bool is_good = true;
    for (size_t i = 0; i < RUN_NUMBERS && is_good && !out->has_failed; i++) {
        void *at = (char *)out + run_numbers[i].offset;
        is_good = run_numbers[i].is_count ? count_read(at, object, run_numbers[i].key)
                                          : number_read(at, object, run_numbers[i].key);
    }
    if (out->has_failed) /* and has no numbers */
        return true;
    return is_good && collectives_read(out, json_object_get(object, "collectives")) &&
           out->total >= SECONDS_MIN;
}

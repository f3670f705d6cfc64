/* Plan "auto" of the library: which profile is read, what is chosen by it, and what a run is told.
 * tests/cli/test_auto.sh has what users meet. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "engine/profile_file.h"
#include "engine_tools.h"
#include "example_profile.h"
#include "phasor.h"

#define MODEL MODELS_DIR "/kjv-moe"

TestSuite(auto_plan, .timeout = 60);

#define ROW(id, body)                                                                              \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{" body    \
    "}}\n"

static const char lines[] = ROW("a", "\"prompt\":\"In the beginning\",\"max_tokens\":8")
    ROW("b", "\"prompt\":\"And God said\",\"max_tokens\":8");

/* What was logged last, and how often. */
struct told {
    char last[1024];
    int notes, warnings;
};

static void on_log(void *context, enum phasor_log_level level, const char *message)
{
    struct told *told = context;
    if (level == PHASOR_LOG_DEBUG)
        return;
    snprintf(told->last, sizeof told->last, "%s", message);
    told->notes += level == PHASOR_LOG_INFO;
    told->warnings += level == PHASOR_LOG_WARNING;
}

struct asked {
    char input[300], output[300], profile[300];
    struct told told;
    struct phasor_batch_params batch;
    struct phasor_model_params model;
};

/* Two ranks, where gathering is slow: not static tensor parallelism. */
static void asked_init(struct asked *asked)
{
    struct example_profile profile;
    struct error err;
    memset(asked, 0, sizeof *asked);
    snprintf(asked->input, sizeof asked->input, "%s/in", tools_folder());
    snprintf(asked->output, sizeof asked->output, "%s/out", tools_folder());
    snprintf(asked->profile, sizeof asked->profile, "%s/box.json", tools_folder());
    tools_write_file(asked->input, lines, strlen(lines));
    example_profile_init(&profile, 2);
    profile.gather_rate = 1e6;
    cr_assert(example_profile_write(&profile, asked->profile, &err), "%s", err.message);
    cr_assert_eq(setenv("PHASOR_CACHE", tools_folder(), 1), 0);
    asked->batch = phasor_batch_params_default();
    asked->batch.input_path = asked->input;
    asked->batch.output_path = asked->output;
    asked->batch.kv_bytes = 64 << 20;
    asked->model = phasor_model_params_default();
    asked->model.model = MODEL;
    asked->model.devices = "cpu:2";
    asked->model.plan = "auto";
    asked->model.profile_path = asked->profile;
    asked->model.batch = &asked->batch;
    asked->model.log = on_log;
    asked->model.log_context = &asked->told;
}

static struct phasor_model *opened(const struct asked *asked)
{
    struct phasor_model *model;
    struct phasor_error err;
    cr_assert_eq(phasor_model_open(&model, &asked->model, &err), PHASOR_OK, "%s", err.message);
    return model;
}

static struct phasor_batch_result ran(struct phasor_model *model, const struct asked *asked)
{
    struct phasor_batch_result result;
    struct phasor_error err;
    cr_assert_eq(phasor_batch_run(model, &asked->batch, &result, &err), PHASOR_OK, "%s",
                 err.message);
    return result;
}

/* The choice, its prediction, and of which runs that is. */
Test(auto_plan, a_program_is_told_what_was_chosen)
{
    struct asked asked;
    asked_init(&asked);
    uint64_t held = memory_counters_get().live_bytes;
    struct phasor_model *model = opened(&asked);
    cr_assert_str_neq(phasor_model_plan(model), "tp2|tp2");
    cr_assert_eq(asked.told.notes, 1);
    cr_assert_not_null(strstr(asked.told.last, phasor_model_plan(model)), "%s", asked.told.last);
    struct phasor_batch_result result = ran(model, &asked);
    cr_assert(result.has_prediction);
    cr_assert(result.predicted_prefill_seconds > 0 && result.predicted_decode_seconds > 0);
    asked.batch.overwrite = true;
    cr_assert(ran(model, &asked).has_prediction, "the same batch again");
    tools_write_file(asked.input, lines, strlen(lines) / 2 + 1); /* another one */
    cr_assert(!ran(model, &asked).has_prediction, "another batch");
    phasor_model_close(model);
    cr_assert_eq(memory_counters_get().live_bytes, held);
}

/* An older program's params end before the batch. */
Test(auto_plan, nothing_known_is_static)
{
    struct asked asked;
    asked_init(&asked);
    asked.model.size = offsetof(struct phasor_model_params, batch);
    struct phasor_model *model = opened(&asked);
    cr_assert_str_eq(phasor_model_plan(model), "tp2|tp2");
    phasor_model_close(model);
    asked_init(&asked);
    asked.model.batch = NULL;
    model = opened(&asked);
    cr_assert_str_eq(phasor_model_plan(model), "tp2|tp2");
    phasor_model_close(model);
    asked.model.load = (struct phasor_load){4, 100, 50};
    model = opened(&asked);
    cr_assert_str_neq(phasor_model_plan(model), "tp2|tp2");
    phasor_model_close(model);
    asked.model.load =
        (struct phasor_load){1, INT64_MAX, INT64_MAX}; /* as far as the context goes */
    phasor_model_close(opened(&asked));
}

Test(auto_plan, loads_are_checked)
{
    struct asked asked;
    struct phasor_model *model;
    struct phasor_error err;
    static const struct phasor_load wrong[] = {{-1, 1, 1}, {1, 0, 1}, {1, 1, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        asked_init(&asked);
        asked.model.load = wrong[i];
        cr_assert_eq(phasor_model_open(&model, &asked.model, &err), PHASOR_INVALID_ARGUMENT);
    }
    asked_init(&asked);
    asked.batch.input_path = "/nowhere/in";
    cr_assert_eq(phasor_model_open(&model, &asked.model, &err), PHASOR_NOT_FOUND);
    asked.batch.size = 0;
    cr_assert_eq(phasor_model_open(&model, &asked.model, &err), PHASOR_INVALID_ARGUMENT);
}

/* The run's record has a plan for as many devices as it had. */
Test(auto_plan, other_devices_have_another_plan)
{
    struct asked asked;
    asked_init(&asked);
    struct phasor_model *model = opened(&asked);
    ran(model, &asked);
    phasor_model_close(model);
    asked.batch.resume = true;
    asked.model.profile_path = NULL;
    asked.model.devices = "cpu:4";
    model = opened(&asked);
    cr_assert_str_eq(phasor_model_plan(model), "tp4|tp4");
    cr_assert_not_null(strstr(asked.told.last, "calibrate --devices cpu:4"));
    phasor_model_close(model);
}

static int stop(void *context, const struct phasor_batch_progress *progress)
{
    (void)context;
    (void)progress;
    return PHASOR_STOP;
}

/* While rows are read ahead, too; and nothing stays. */
Test(auto_plan, reading_ahead_can_be_stopped)
{
    struct asked asked;
    struct phasor_model *model;
    struct phasor_error err;
    struct text many = {0};
    asked_init(&asked);
    for (int i = 0; i < 5000; i++)
        text_append_format(&many,
                           "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":"
                           "\"/v1/completions\",\"body\":{\"prompt\":[5]}}\n",
                           i);
    cr_assert(!many.failed);
    tools_write_file(asked.input, many.bytes, many.length);
    text_deinit(&many);
    asked.batch.progress = stop;
    uint64_t held = memory_counters_get().live_bytes;
    cr_assert_eq(phasor_model_open(&model, &asked.model, &err), PHASOR_CANCELLED);
    cr_assert_eq(memory_counters_get().live_bytes, held);
}

/* ---- Where profiles lie ---------------------------------------------------------------------- */

static char *path_of(const struct profile_identity *identity)
{
    char *path;
    struct error err;
    cr_assert_eq(profile_path_in_cache(&path, identity, &err), STATUS_OK, "%s", err.message);
    return path;
}

static bool is_elsewhere(const struct profile_identity *one, const struct profile_identity *two)
{
    char *first = path_of(one), *second = path_of(two);
    bool differ = strcmp(first, second) != 0;
    memory_free(first);
    memory_free(second);
    return differ;
}

/* What makes a profile foreign is in its name, what makes it stale is not. */
Test(auto_plan, profiles_are_found_by_machine_and_devices)
{
    struct profile_identity here, other;
    cr_assert_eq(setenv("PHASOR_CACHE", "/c", 1), 0);
    profile_identity_here(&here, "cpu (plain)", 2, 4);
    cr_assert_eq(here.threads, 4);
    other = here;
    other.devices.rank_count = 4;
    cr_assert(is_elsewhere(&here, &other));
    other = here;
    other.threads = 8;
    cr_assert(is_elsewhere(&here, &other));
    other = here;
    other.cores++;
    cr_assert(is_elsewhere(&here, &other));
    other = here;
    snprintf(other.processor, sizeof other.processor, "Abacus");
    cr_assert(is_elsewhere(&here, &other));
    profile_identity_here(&other, "cpu (stone)", 2, 4);
    snprintf(other.version, sizeof other.version, "0.0.1");
    cr_assert(!is_elsewhere(&here, &other));
    char *path = path_of(&here), *told;
    struct phasor_error err;
    struct phasor_calibrate_params params = phasor_calibrate_params_default();
    params.devices = "cpu:2";
    params.thread_count = 4;
    cr_assert_eq(phasor_profile_path(&told, &params, &err), PHASOR_OK, "%s", err.message);
    cr_assert_str_eq(told, path);
    cr_assert_eq(strncmp(told, "/c/profile-cpu2-", 16), 0, "%s", told);
    phasor_text_free(told);
    memory_free(path);
}

/* A rank has a thread at least, as in a run. */
Test(auto_plan, threads_are_those_of_a_run)
{
    struct profile_identity few;
    profile_identity_here(&few, "cpu (plain)", 8, 2);
    cr_assert_eq(few.threads, 8);
}

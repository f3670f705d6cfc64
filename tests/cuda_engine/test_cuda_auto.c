/* Runs on emulated GPUs whose plan nobody names: by the times that were measured there. What else a
 * run chooses by: tests/engine/test_auto_plan.c. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cache_folder.h"
#include "base/memory.h"
#include "cuda_batch.h"
#include "cuda_profile.h"
#include "example_profile.h"
#include "exec/weights.h"
#include "gpu.h"
#include "model/checkpoint.h"
#include "simt_control.h"
#include "wave_tools.h"

/* A backup that the user has in the cache would be decoded on. */
static void cache_leave(void)
{
    cr_assert_eq(setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1), 0);
}

TestSuite(cuda_auto, .timeout = 250, .init = cache_leave);

#define MIB ((size_t)1 << 20)

/* What was logged, but for details: all notes, and the last warning. */
struct told {
    char notes[4096], warning[1024];
    char plan[LAYOUT_TEXT_BYTES]; /* that was chosen */
    int warnings;
};

static void note(struct told *told, const char *message)
{
    size_t length = strlen(told->notes);
    snprintf(told->notes + length, sizeof told->notes - length, "%s\n", message);
    if (sscanf(message, "plan: %95[^ ]", told->plan) == 1 && *told->plan != 0 &&
        told->plan[strlen(told->plan) - 1] == ':')
        told->plan[strlen(told->plan) - 1] = 0;
}

static void on_log(void *context, enum phasor_log_level level, const char *message)
{
    struct told *told = context;
    if (level == PHASOR_LOG_INFO)
        note(told, message);
    if (level != PHASOR_LOG_WARNING)
        return;
    snprintf(told->warning, sizeof told->warning, "%s", message);
    told->warnings++;
}

/* In f32, so that tokens do not depend on how a sum is cut. */
static struct phasor_model_params params_of(struct told *told, const char *devices,
                                            const char *profile)
{
    struct phasor_model_params params = wave_model(WAVE_MODEL, "auto", PHASOR_TRANSITION_AUTO);
    memset(told, 0, sizeof *told);
    params.devices = devices;
    params.profile_path = profile;
    params.log = on_log;
    params.log_context = told;
    return params;
}

/* Of these GPUs, in a file of the test's folder. */
static const char *profile_write(const struct example_profile *rates, const char *devices)
{
    static char path[512]; /* not of tools_path: it is used for long */
    struct example_profile profile = *rates;
    struct engine_devices parsed;
    struct error err;
    cr_assert_eq(engine_devices_parse(&parsed, devices, &err), STATUS_OK);
    snprintf(path, sizeof path, "%s/example.json", tools_folder());
    cr_assert_eq(profile_identity_of(&profile.identity, &parsed, 0, &err), STATUS_OK, "%s",
                 err.message);
    cr_assert(example_profile_write(&profile, path, &err), "%s", err.message);
    return path;
}

/* On which gathering is slow: not static tensor parallelism. */
static const char *example_of(const char *devices)
{
    struct example_profile profile;
    example_profile_init(&profile, 2);
    profile.gather_rate = 1e6;
    return profile_write(&profile, devices);
}

static json_t *cpu_rows(const char *devices)
{
    struct phasor_model_params params = wave_model(WAVE_MODEL, "static", PHASOR_TRANSITION_AUTO);
    params.devices = devices;
    return cuda_batch_rows(&params, NULL);
}

static void check_plan_is_legal(const char *plan, int ranks)
{
    struct plan_layouts layouts;
    struct checkpoint *checkpoint;
    struct error err;
    cr_assert_eq(checkpoint_open(&checkpoint, WAVE_MODEL, &err), STATUS_OK, "%s", err.message);
    struct model_shape shape = weights_shape(checkpoint_config(checkpoint));
    checkpoint_close(checkpoint);
    cr_assert_eq(plan_layouts_parse(&layouts, plan, ranks, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(plan_layouts_check(&layouts, &shape, &err), STATUS_OK, "%s", err.message);
}

/* From devices to tokens: measured, chosen, predicted, run. */
Test(cuda_auto, a_run_takes_the_plan_of_a_calibration)
{
    static const struct {
        const char *devices, *on_cpu;
        int ranks;
    } boxes[] = {{"cuda:0", "cpu:1", 1}, {"cuda:0-1", "cpu:2", 2}, {"cuda:0x4", "cpu:4", 4}};
    gpu_count_use(2);
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        const char *path = tools_path(tools_folder(), "box.json");
        struct calibrate_report report;
        struct phasor_batch_result result;
        struct told told;
        cuda_profile_measure(&report, path, boxes[i].devices);
        struct phasor_model_params params = params_of(&told, boxes[i].devices, path);
        json_t *rows = cuda_batch_rows(&params, &result);
        cr_expect_eq(told.warnings, 0, "%s", told.warning);
        check_plan_is_legal(told.plan, boxes[i].ranks);
        cr_expect(result.has_prediction);
        cr_expect(result.predicted_prefill_seconds > 0 && result.predicted_decode_seconds > 0);
        cuda_batch_compare(rows, cpu_rows(boxes[i].on_cpu), boxes[i].devices);
        gpu_check_nothing_left();
    }
}

Test(cuda_auto, a_plan_that_is_not_static)
{
    static const char *const devices[] = {"cuda:0-1", "cuda:0x2"};
    gpu_count_use(2);
    for (int i = 0; i < 2; i++) {
        struct told told;
        struct phasor_model_params params = params_of(&told, devices[i], example_of(devices[i]));
        json_t *rows = cuda_batch_rows(&params, NULL);
        cr_expect_eq(told.warnings, 0, "%s", told.warning);
        check_plan_is_legal(told.plan, 2);
        cr_expect_str_neq(told.plan, "tp2|tp2");
        cuda_batch_compare(rows, cpu_rows("cpu:2"), devices[i]);
        gpu_check_nothing_left();
    }
}

/* What a run on these devices is told, with the profile at `path`; NULL: the one in the cache. */
static void check_told(const char *devices, const char *path, bool is_warning, const char *sentence)
{
    struct told told;
    struct phasor_model *model;
    struct phasor_error err;
    struct phasor_batch_params batch = wave_batch(wave_rows);
    struct phasor_model_params params = params_of(&told, devices, path);
    params.batch = &batch;
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    phasor_model_close(model);
    cr_expect_eq(told.warnings, is_warning, "%s", told.warning);
    cr_expect_not_null(strstr(is_warning ? told.warning : told.notes, sentence), "%s; %s",
                       told.warning, told.notes);
}

Test(cuda_auto, a_profile_of_others_is_foreign)
{
    gpu_count_use(3);
    gpu_capability_use(86);
    const char *path = example_of("cuda:0-1");
    check_told("cuda:0-1", path, false, "plan: ");
    check_told("cuda:1-2", path, true,
               "foreign: it was measured with the devices \"cuda:0-1\", here it is \"cuda:1-2\"");
    check_told("cpu:2", path, true, "foreign: it was measured with the devices \"cuda:0-1\"");
    gpu_capability_use(75);
    check_told("cuda:0-1", path, true,
               "foreign: it was measured with the GPUs \"2 x emulated GPU (sm_86)\", here it is "
               "\"2 x emulated GPU (sm_75)\"");
    check_told("cuda:0-1", path, true, "calibrate --devices cuda:0-1 -o ");
}

/* Parts that are given when a run is planned and not when its ranks are opened, whichever call of
 * the driver fails. A rank whose own stream is not made is a failure. */
Test(cuda_auto, ranks_that_have_other_parts_than_the_profile)
{
#if CUDART_VERSION >= 12050
    const char *path = example_of("cuda:0x2");
    struct phasor_batch_params batch = wave_batch(wave_rows);
    int warned = 0;
    bool is_ahead = false;
    for (int n = 1; !is_ahead; n++) {
        struct told told;
        struct phasor_model *model;
        struct phasor_error err;
        struct phasor_model_params params = params_of(&told, "cuda:0x2", path);
        params.batch = &batch;
        simt_green_fail_at((uint64_t)n);
        bool is_open = phasor_model_open(&model, &params, &err) == PHASOR_OK;
        is_ahead = simt_green_fail_is_ahead();
        simt_green_fail_at(0);
        cr_assert(is_open || strstr(err.message, "cuda_partition_stream on cuda:0") != NULL, "%s",
                  err.message);
        if (!is_open)
            continue;
        phasor_model_close(model);
        bool is_foreign = strstr(told.warning, "foreign") != NULL;
        bool has_others = strstr(told.warning, "but they are on emulated GPU (sm_75)") != NULL;
        cr_expect(has_others || is_foreign || told.warnings == 0, "at %d: %s", n, told.warning);
        cr_expect(!is_ahead || told.warnings == 0, "%s", told.warning);
        warned += has_others;
    }
    cr_expect_geq(warned, 2 * 5, "%d", warned);
#endif
}

Test(cuda_auto, a_profile_in_the_cache_is_found)
{
    struct profile_identity here;
    struct engine_devices devices;
    struct error err;
    char *in_cache;
    gpu_count_use(2);
    cr_assert_eq(setenv("PHASOR_CACHE", tools_folder(), 1), 0);
    check_told("cuda:0-1", NULL, false, "phasor calibrate --devices cuda:0-1, once,");
    cr_assert_eq(engine_devices_parse(&devices, "cuda:0-1", &err), STATUS_OK);
    cr_assert_eq(profile_identity_of(&here, &devices, 0, &err), STATUS_OK);
    cr_assert_eq(profile_path_in_cache(&in_cache, &here, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(rename(example_of("cuda:0-1"), in_cache), 0);
    memory_free(in_cache);
    check_told("cuda:0-1", NULL, false, "times as fast as static tensor parallelism");
    check_told("cuda:0x2", NULL, false, "phasor calibrate --devices cuda:0x2, once,");
}

/* ---- Rows with plans of their own ------------------------------------------------------------ */

#define TORN_ROWS  16
#define TORN_MODEL TEST_DATA "/models/mixtral" /* without a tokenizer; it runs in a moment */

/* Of one prompt token and long answers, of long prompts and short answers. */
static const char *torn_write(void)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/torn", tools_folder());
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    for (int row = 0; row < TORN_ROWS; row++) {
        fprintf(file,
                "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                "\"body\":{\"ignore_eos\":true,\"logprobs\":0,\"max_tokens\":%d,\"prompt\":[%d",
                row, row % 2 == 0 ? 24 : 2, row);
        for (int i = 1; i < (row % 2 == 0 ? 2 : 60); i++)
            fprintf(file, ",%d", (row * 5 + i * 7) % 90);
        fprintf(file, "]}}\n");
    }
    fclose(file);
    return path;
}

static json_t *torn_rows(const struct phasor_model_params *asked, const char *trace,
                         struct phasor_batch_result *result)
{
    struct phasor_model *model;
    struct phasor_error err;
    struct phasor_model_params params = *asked;
    struct phasor_batch_params batch = wave_batch(wave_rows);
    batch.input_path = torn_write();
    batch.trace_path = trace;
    batch.overwrite = true;
    batch.max_num_seqs = 4;
    params.model = TORN_MODEL;
    params.batch = &batch;
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(phasor_batch_run(model, &batch, result, &err), PHASOR_OK, "%s", err.message);
    phasor_model_close(model);
    return tools_read_rows(batch.output_path);
}

/* By their ids: there is no text. */
static const json_t *tokens_of(const json_t *rows, const char *id)
{
    const json_t *body = json_object_get(json_object_get(tools_row(rows, id), "response"), "body");
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    const json_t *tokens = json_object_get(json_object_get(choice, "logprobs"), "tokens");
    cr_assert_geq(json_array_size(tokens), 2, "row %s", id);
    return tokens;
}

static void trace_check(const char *path)
{
    size_t length;
    char *bytes = tools_read_file(path, &length);
    json_t *trace = json_loads(bytes, 0, NULL);
    cr_assert_not_null(trace);
    const char *kernels =
        json_string_value(json_object_get(json_object_get(trace, "otherData"), "kernels"));
    cr_expect(kernels != NULL && strncmp(kernels, "cuda", 4) == 0, "%s", kernels);
    json_decref(trace);
    free(bytes);
}

/* Ranks of the first plan are gone when the run tells of itself. */
Test(cuda_auto, rows_have_plans_of_their_own)
{
    struct told told;
    char trace[512];
    struct phasor_batch_result result;
    gpu_count_use(2);
    struct example_profile profile;
    example_profile_torn(&profile, 2);
    struct phasor_model_params params =
        params_of(&told, "cuda:0-1", profile_write(&profile, "cuda:0-1"));
    snprintf(trace, sizeof trace, "%s/trace", tools_folder());
    json_t *found = torn_rows(&params, trace, &result);
    cr_assert_not_null(strstr(told.notes, "plan: rows run in 2 parts"), "%s", told.notes);
    cr_expect_eq(result.plan_changes, 1);
    trace_check(trace);
    params = wave_model(WAVE_MODEL, "static", PHASOR_TRANSITION_AUTO);
    params.devices = "cpu:2";
    json_t *expected = torn_rows(&params, NULL, &result);
    for (int row = 0; row < TORN_ROWS; row++) {
        char id[16];
        snprintf(id, sizeof id, "%d", row);
        cr_expect(json_equal(tokens_of(found, id), tokens_of(expected, id)), "row %d", row);
    }
    json_decref(found);
    json_decref(expected);
}

/* However much the host has, a plan is for the memory of the GPUs. */
Test(cuda_auto, a_plan_is_for_the_memory_of_the_gpus)
{
    struct told told;
    struct phasor_model *model;
    struct phasor_error err;
    struct phasor_batch_params batch = wave_batch(wave_rows);
    gpu_count_use(2);
    struct phasor_model_params params = params_of(&told, "cuda:0-1", example_of("cuda:0-1"));
    params.batch = &batch;
    simt_global_bytes_set(8 * MIB);
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_NO_MEMORY);
    cr_expect_eq(told.warnings, 1);
    cr_expect_not_null(strstr(told.warning, "nothing fits: the smallest, "), "%s", told.warning);
    gpu_check_nothing_left();
}

/* ---- phasor plan ----------------------------------------------------------------------------- */

static json_t *planned(const char *path)
{
    struct phasor_plan_params params = phasor_plan_params_default();
    struct phasor_error err;
    json_error_t ignored;
    char *text;
    params.model = WAVE_MODEL;
    params.box = path;
    params.sequences = 4;
    params.prompt_tokens = 16;
    params.output_tokens = 4;
    params.dtype = PHASOR_DTYPE_FLOAT32;
    cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_OK, "%s", err.message);
    json_t *root = json_loads(text, 0, &ignored);
    phasor_text_free(text);
    cr_assert_not_null(root);
    return root;
}

/* Also where the GPUs are not: then with a warning. Their memory is in the profile. */
Test(cuda_auto, plans_are_made_of_a_profile)
{
    gpu_count_use(2);
    simt_global_bytes_set(256 * MIB);
    const char *path = example_of("cuda:0x4");
    for (int count = 2; count >= 0; count -= 2) {
        gpu_count_use(count);
        json_t *root = planned(path), *box = json_object_get(root, "box");
        const char *warning = json_string_value(json_object_get(box, "warning"));
        cr_expect_eq(json_integer_value(json_object_get(box, "devices")), 4);
        cr_expect_eq(json_integer_value(json_object_get(box, "memory_of_device")),
                     (json_int_t)(64 * (double)MIB * 0.92));
        cr_expect_not_null(strstr(json_string_value(json_object_get(box, "title")),
                                  "4 ranks on emulated GPU (sm_75)"));
        cr_expect_not(json_is_null(json_object_get(root, "best")));
        cr_expect(count > 0 ? warning == NULL
                            : strstr(warning, "foreign: cuda:0 cannot be used") != NULL,
                  "%s", warning);
        json_decref(root);
    }
}

/* Prefill and decode of a whole run, predicted from a calibrated profile and measured, under every
 * static layout; see bench/README.md.
 *
 * Predicted: plan_prefill_cost and plan_decode_cost, for just this load. Measured: prefill_seconds
 * and decode_seconds of a batch run: forward passes, logits and sampling. Nothing is fitted: all
 * predictions are printed before the first run. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/batch.h"
#include "engine/plan_problem.h"
#include "engine/profile_file.h"
#include "exec/stage.h"
#include "head.h"
#include "measure/meter.h"
#include "own_points.h"
#include "parts.h"

#define ROUNDS_MAX      99
#define LAYOUTS_MAX     (2 * LAYOUT_LIST_MAX)
#define VOCAB           2000 /* token ids below it, above the special ones */
#define PASS_TOKENS_MAX 16384
#define GOAL            0.10
#define CALM            0.05
#define RANK_BYTES      ((uint64_t)384 << 20) /* what calibration reads, or more than caches hold */

/* Points that are measured again. */
#define POINTS_MAX    12
#define POINT_SECONDS 20e-6
#define DECODE_ROWS   8
#define PREFILL_ROWS  64

/* What `phasor plan` takes where nobody says otherwise. */
static const struct routing assumed = {.deviation = 0.3};

enum { PREFILL, DECODE, PHASES };
static const char *const phase_words[PHASES] = {"prefill", "decode"};

struct forecast {
    struct layout layout;
    char text[LAYOUT_TEXT_BYTES];
    double predicted[PHASES], predicted_parts[PHASES][PART_COUNT];
    double walls[PHASES][ROUNDS_MAX], parts[PHASES][PART_COUNT][ROUNDS_MAX];
    double points[PHASES]; /* see own_points_now */
};

static struct forecast forecasts[LAYOUTS_MAX];
static int forecast_count;
static struct plan_load load = PLAN_LOAD(8, 256, 32);
static struct profile_file file;
static struct model_config config;
static char folder[] = "/tmp/bench-forecast-XXXXXX", in_path[64], out_path[64], run_path[80];

static void fail(const char *what)
{
    fprintf(stderr, "bench_forecast: %s\n", what);
    exit(1);
}

static void check(enum status status, const struct error *err)
{
    if (status != STATUS_OK)
        fail(err->message);
}

static void note(void *context, enum log_level level, const char *message)
{
    (void)context;
    if (level == LOG_WARNING)
        fprintf(stderr, "%s\n", message);
}

static int64_t pass_tokens(void)
{
    int64_t all = load.sequences * load.prompt_tokens;
    return all < PASS_TOKENS_MAX ? all : PASS_TOKENS_MAX;
}

/* ---- Predictions ----------------------------------------------------------------------------- */

static void predict(struct forecast *out, const struct plan_problem *problem)
{
    struct prefill_cost prefill =
        plan_prefill_cost(problem, &out->layout, pass_tokens(), load.sequences);
    struct pass_cost decode = plan_decode_cost(problem, &out->layout, false, load.sequences);
    out->predicted[PREFILL] = pass_cost_total(&prefill.cost);
    out->predicted[DECODE] = pass_cost_total(&decode);
    parts_of_cost(out->predicted_parts[PREFILL], &prefill.cost);
    parts_of_cost(out->predicted_parts[DECODE], &decode);
    if (!isfinite(out->predicted[PREFILL] + out->predicted[DECODE]))
        fail("the profile lacks a table that a layout needs; calibrate again");
}

/* With a shared expert that is replicated apart, where it could be cut. */
static void layout_add(const struct layout *layout, const struct plan_problem *problem)
{
    struct error ignored;
    if (layout_check(layout, problem->shape, &ignored) != STATUS_OK)
        return;
    struct forecast *forecast = &forecasts[forecast_count++];
    forecast->layout = *layout;
    layout_format(forecast->text, layout);
    predict(forecast, problem);
    struct layout other = *layout;
    other.attention.replicate_ffn = true;
    int64_t width = problem->shape->shared_expert_dim;
    if (!layout->attention.replicate_ffn && layout->attention.tp > 1 && width > 0 &&
        layout_ffn_is_cut(layout, width))
        layout_add(&other, problem);
}

static void predict_all(void)
{
    struct plan_subject subject;
    struct layout layouts[LAYOUT_LIST_MAX];
    struct error err;
    int ranks = file.identity.devices.rank_count;
    check(plan_subject_init(&subject,
                            &(struct plan_subject_params){
                                .config = &config,
                                .profile = &file.profile,
                                .rank_count = ranks,
                                .dtype = config.dtype == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16,
                                .load = load,
                                .max_num_seqs = load.sequences,
                                .max_num_batched_tokens = pass_tokens(),
                                .routing = &assumed,
                            },
                            &err),
          &err);
    int count = layout_list(layouts, LAYOUT_LIST_MAX, ranks);
    for (int i = 0; i < count; i++)
        layout_add(&layouts[i], &subject.problem);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static void paths_make(void)
{
    if (mkdtemp(folder) == NULL)
        fail("cannot make a folder in /tmp");
    snprintf(in_path, sizeof in_path, "%s/in", folder);
    snprintf(out_path, sizeof out_path, "%s/out", folder);
    snprintf(run_path, sizeof run_path, "%s.phasor-run", out_path);
}

static void paths_remove(void)
{
    remove(in_path);
    remove(out_path);
    remove(run_path);
    rmdir(folder);
}

/* Ids at random: no two prompts begin alike. */
static void write_input(void)
{
    uint32_t state = 12345;
    FILE *out = fopen(in_path, "w");
    for (int64_t row = 0; out != NULL && row < load.sequences; row++) {
        fprintf(out,
                "{\"custom_id\":\"%lld\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
                "{\"max_tokens\":%lld,\"ignore_eos\":true,\"temperature\":0,\"prompt\":[",
                (long long)row, (long long)load.output_tokens);
        for (int64_t t = 0; t < load.prompt_tokens; t++) {
            state = state * 1664525u + 1013904223u;
            fprintf(out, "%d%s", 3 + (int)(state >> 16) % (VOCAB - 3),
                    t + 1 < load.prompt_tokens ? "," : "]}}\n");
        }
    }
    if (out == NULL || fclose(out) != 0)
        fail("cannot write the input file");
}

static struct phasor_batch_result run_batch(struct engine *engine)
{
    struct phasor_batch_params params = phasor_batch_params_default();
    struct phasor_batch_result result;
    struct log_sink log = {note, NULL};
    struct error err;
    params.input_path = in_path;
    params.output_path = out_path;
    params.overwrite = true;
    params.max_num_seqs = load.sequences;
    params.max_num_batched_tokens = pass_tokens();
    check(batch_run(engine, &params, &log, &result, &err), &err);
    if (result.prefill_tokens != (uint64_t)(load.sequences * load.prompt_tokens) ||
        result.decode_tokens != (uint64_t)(load.sequences * (load.output_tokens - 1)))
        fail("not every token was computed");
    return result;
}

static void round_keep(struct forecast *forecast, int round,
                       const struct phasor_batch_result *result)
{
    const double *stages[PHASES] = {result->prefill_stage_seconds, result->decode_stage_seconds};
    forecast->walls[PREFILL][round] = result->prefill_seconds;
    forecast->walls[DECODE][round] = result->decode_seconds;
    for (int phase = 0; phase < PHASES; phase++) {
        for (int stage = 0; stage < STAGE_KIND_COUNT; stage++)
            forecast->parts[phase][part_of_stage(stage)][round] += stages[phase][stage];
    }
}

/* The profile's are of the same devices, or say nothing. */
static void check_identity(const struct engine *engine)
{
    struct profile_identity here;
    struct error difference;
    profile_identity_here(&here, engine_kernels(engine), file.identity.devices.rank_count,
                          engine_thread_count(engine));
    if (profile_identity_fit(&file.identity, &here, &difference) != PROFILE_FITS)
        fail(difference.message);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Products and experts of a few rows, as decode has them, or of many. Points of a microsecond or
 * two are of calls, not of work. */
static bool is_of_phase(const struct own_point *point, int phase)
{
    const struct work_shape *work = &point->work;
    bool is_product =
        !point->is_collective && work->dtype == DTYPE_BF16 &&
        (work->kind == WORK_MATMUL || work->kind == WORK_FFN_UP || work->kind == WORK_FFN_DOWN);
    if (!is_product || point->seconds < POINT_SECONDS)
        return false;
    int64_t rows = work->dims[0] / (work->kind == WORK_MATMUL ? 1 : work->dims[1]);
    return phase == DECODE ? rows <= DECODE_ROWS : rows >= PREFILL_ROWS;
}

/* How much longer points that the profile has of each phase take now, by the median of some of
 * them: the same ones each time. */
static void points_take(double out[PHASES], struct meter *meter)
{
    for (int phase = 0; phase < PHASES; phase++) {
        struct random draws = {.seed = 1};
        struct own_point points[POINTS_MAX];
        double ratios[POINTS_MAX];
        int count = own_points_draw(points, POINTS_MAX, &file, meter, &draws, is_of_phase, phase);
        if (count == 0)
            fail("the profile has no points that can be measured again; calibrate again");
        for (int i = 0; i < count; i++) {
            struct measured found;
            struct error err;
            check(meter_work(&found, meter, &points[i].work, &err), &err);
            ratios[i] = found.seconds / points[i].seconds;
        }
        out[phase] = median(ratios, count);
    }
}

static void own_points_now(double out[PHASES])
{
    const struct profile_identity *identity = &file.identity;
    struct box *box;
    struct meter *meter;
    struct error err;
    check(box_open(&box,
                   &(struct box_params){.rank_count = identity->devices.rank_count,
                                        .thread_count = identity->threads},
                   &err),
          &err);
    struct meter_params params =
        meter_params_default(box, RANK_BYTES * (uint64_t)identity->devices.rank_count);
    params.shares_cores = identity->threads > identity->cores;
    check(meter_create(&meter, &params, &err), &err);
    points_take(out, meter);
    meter_destroy(meter);
    box_close(box);
}

/* The first run touches memory for the first time, and does not count. */
static void run_layout(struct forecast *forecast, const char *model, int rounds)
{
    struct engine *engine;
    struct error err;
    double before[PHASES], behind[PHASES];
    char devices[16];
    snprintf(devices, sizeof devices, "cpu:%d", file.identity.devices.rank_count);
    struct engine_params params = {.model = model,
                                   .dtype_is_auto = true,
                                   .thread_count = file.identity.threads,
                                   .devices = devices,
                                   .plan = forecast->text,
                                   .max_num_seqs = load.sequences,
                                   .max_num_batched_tokens = pass_tokens(),
                                   .log = {note, NULL}};
    own_points_now(before);
    check(engine_open(&engine, &params, &err), &err);
    check_identity(engine);
    run_batch(engine);
    for (int r = 0; r < rounds; r++) {
        struct phasor_batch_result result = run_batch(engine);
        round_keep(forecast, r, &result);
    }
    engine_close(engine);
    own_points_now(behind);
    for (int phase = 0; phase < PHASES; phase++)
        forecast->points[phase] = (before[phase] + behind[phase]) / 2 - 1;
}

/* ---- Report ---------------------------------------------------------------------------------- */

static void print_predictions(void)
{
    printf("# predicted, before anything was run:\n");
    for (int i = 0; i < forecast_count; i++)
        printf("#   %-16s prefill %.4f s, decode %.4f s\n", forecasts[i].text,
               forecasts[i].predicted[PREFILL], forecasts[i].predicted[DECODE]);
    fflush(stdout);
}

static void print_parts(struct forecast *forecast, int phase, int rounds)
{
    double found[PART_COUNT];
    for (int part = 0; part < PART_COUNT; part++)
        found[part] = median(forecast->parts[phase][part], rounds);
    printf("#");
    parts_print(forecast->predicted_parts[phase], found);
}

static double print_phase(struct forecast *forecast, int phase, int rounds)
{
    double *walls = forecast->walls[phase], middle = median(walls, rounds);
    double spread = (walls[rounds - 1 - rounds / 4] - walls[rounds / 4]) / middle;
    double error = forecast->predicted[phase] / middle - 1;
    printf("%-16s %-8s %9.4f %9.4f (%.4f to %.4f) %5.1f %% %+7.1f %% %+7.1f %%\n", forecast->text,
           phase_words[phase], forecast->predicted[phase], middle, walls[0], walls[rounds - 1],
           100 * spread, 100 * error, 100 * forecast->points[phase]);
    return fabs(error);
}

static void print_report(int rounds, bool has_parts)
{
    static double errors[PHASES * LAYOUTS_MAX];
    int count = 0, within[PHASES] = {0}, calm = 0, calm_within = 0;
    printf(
        "# points: how much longer points of the profile took, before and behind a layout's runs\n"
        "# layout         phase    predicted s measured s                spread    error    "
        "points\n");
    if (has_parts)
        printf("# parts: predicted/measured, ms; measured ones are means over the ranks, and those "
               "of\n# exchange have what a rank waited for the others\n");
    for (int i = 0; i < forecast_count; i++) {
        for (int phase = 0; phase < PHASES; phase++) {
            double error = print_phase(&forecasts[i], phase, rounds);
            bool is_calm = fabs(forecasts[i].points[phase]) <= CALM;
            if (has_parts)
                print_parts(&forecasts[i], phase, rounds);
            within[phase] += error <= GOAL;
            calm += is_calm;
            calm_within += is_calm && error <= GOAL;
            errors[count++] = error;
        }
    }
    double middle = median(errors, count);
    printf("# within %.0f %%: %d of %d (prefill %d, decode %d); error: median %.1f %%, most %.1f "
           "%%\n",
           100 * GOAL, within[PREFILL] + within[DECODE], count, within[PREFILL], within[DECODE],
           100 * middle, 100 * errors[count - 1]);
    printf("# of the %d whose points came back within %.0f %%: %d\n", calm, 100 * CALM,
           calm_within);
}

/* "8x256/32" */
static bool load_parse(const char *text)
{
    long long sequences, prompt, output;
    char end;
    if (sscanf(text, "%lldx%lld/%lld%c", &sequences, &prompt, &output, &end) != 3)
        return false;
    load = (struct plan_load)PLAN_LOAD(sequences, prompt, output);
    return sequences >= 1 && sequences <= 1024 && prompt >= 1 && output >= 2;
}

int main(int argc, char **argv)
{
    struct error err;
    int rounds = argc > 3 ? atoi(argv[3]) : 5;
    bool has_parts = argc > 5 && strcmp(argv[5], "parts") == 0;
    if (argc < 3 || argc > 6 || rounds < 1 || rounds > ROUNDS_MAX ||
        (argc > 4 && !load_parse(argv[4])) || (argc > 5 && !has_parts))
        fail("usage: bench_forecast PROFILE MODEL [rounds (5) [load (8x256/32) [parts]]]");
    check(profile_file_read(&file, argv[1], &err), &err);
    check(model_config_load(&config, argv[2], &err), &err);
    predict_all();
    bench_print_head(argc, argv);
    printf("# %s of %d layers; %lld prompts of %lld tokens, %lld to generate; %d devices of %d "
           "threads, %s\n# clock: CLOCK_MONOTONIC; median (least to most) of %d rounds, spread of "
           "the middle half\n",
           config.architecture->model_type, (int)config.layer_count, (long long)load.sequences,
           (long long)load.prompt_tokens, (long long)load.output_tokens,
           file.identity.devices.rank_count, file.identity.threads, file.identity.kernels, rounds);
    print_predictions();
    paths_make();
    write_input();
    for (int i = 0; i < forecast_count; i++) {
        run_layout(&forecasts[i], argv[2], rounds);
        fprintf(stderr, "%d of %d: %s\n", i + 1, forecast_count, forecasts[i].text);
    }
    print_report(rounds, has_parts);
    paths_remove();
    profile_file_deinit(&file);
    return 0;
}

/* How long it takes to plan; see bench/README.md.
 *
 * Inside the timed window: one question of an engine that has its config and its box's profile, as
 * phasor plan and --plan auto put it (plan_answer_find, and of rows plan_parts_find), and freeing
 * the answer. So the memory that is worked out once for all passes and waves is in it, every
 * division of rows into classes, and every class under its own plan. Outside: reading the config
 * and the rows, pricing the box, telling why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/system.h"
#include "engine/box_files.h"
#include "engine/calibrate_grid.h"
#include "engine/plan_answer.h"
#include "engine/plan_box.h"
#include "engine/plan_parts.h"
#include "head.h"
#include "model/synth_parts.h"

#define REPEATS_MOST 201

static const char *const models[] = {"mixtral-8x7b", "qwen2-57b-a14b", "qwen3-30b-a3b"};
#define MODELS (sizeof models / sizeof *models)

/* 256 sequences, or rows of different lengths: nine waves may be chosen, and five passes. */
static const struct {
    const char *name;
    int64_t max_num_seqs, max_num_batched_tokens;
    bool has_rows;
    int repeats;
    double goal; /* ms */
} questions[] = {{"given", 64, 8192, false, REPEATS_MOST, 1},
                 {"all", 0, 0, false, REPEATS_MOST, 20},
                 {"rows", 0, 0, true, 11, 500}};
#define QUESTIONS (sizeof questions / sizeof *questions)

/* As many as there may be bins. */
static const struct plan_load rows[] = {PLAN_LOAD(1250, 32, 24),    PLAN_LOAD(1250, 32, 96),
                                        PLAN_LOAD(1250, 32, 384),   PLAN_LOAD(1250, 32, 768),
                                        PLAN_LOAD(1250, 1024, 24),  PLAN_LOAD(1250, 1024, 96),
                                        PLAN_LOAD(1250, 1024, 384), PLAN_LOAD(1250, 1024, 768)};
_Static_assert(sizeof rows / sizeof *rows == PLAN_BINS_MAX, "each is a bin of its own");

static void check(enum status status, const struct error *err)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "bench_plan: %s\n", err->message);
    exit(1);
}

/* ---- Profiles -------------------------------------------------------------------------------- */

/* The box's operations with the axes that phasor calibrate begins with, and no ratio: as long to
 * look up as what was measured. */
static struct profile_axis axes[WORK_KIND_COUNT * 3][PROFILE_AXES_MAX];
static struct work_table gridded[WORK_KIND_COUNT * 3];
static double values[WORK_KIND_COUNT * 3][PROFILE_AXES_MAX][GRID_VALUES_MAX];
static double ratios[65536]; /* 0 each */

static void axis_copy(struct profile_axis *to, double *own, const struct grid_axis *axis)
{
    *to = (struct profile_axis){axis->size, axis->over, axis->count, own};
    for (int v = 0; v < axis->count; v++)
        own[v] = axis->values[v];
}

static void profile_grid(struct profile *out, const struct profile *profile)
{
    const struct calibrate_plan *plan = &calibrate_plan_default;
    *out = *profile;
    out->work = gridded;
    for (int t = 0; t < profile->work_count; t++) {
        gridded[t] = profile->work[t];
        gridded[t].log_ratios = ratios;
        for (int g = 0; g < plan->grid_count; g++) {
            const struct grid *grid = &plan->grids[g];
            if (grid->kind != gridded[t].kind || grid->dtype != gridded[t].dtype)
                continue;
            gridded[t].axis_count = grid->axis_count;
            for (int a = 0; a < grid->axis_count; a++)
                axis_copy(&axes[t][a], values[t][a], &grid->axes[a]);
            memcpy(gridded[t].axes, axes[t], sizeof axes[t]);
        }
    }
}

/* ---- Timing ---------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double one = *(const double *)a, two = *(const double *)b;
    return one < two ? -1 : one > two;
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct taken {
    double wall, cpu; /* seconds */
};

static void rows_mix(struct plan_mix *out, int64_t context_max)
{
    static struct plan_cells cells;
    int64_t sequences = 0;
    memset(&cells, 0, sizeof cells);
    for (int i = 0; i < PLAN_BINS_MAX; i++) {
        double own = (double)rows[i].sequences, prompt = (double)rows[i].prompt_tokens;
        double output = (double)rows[i].output_tokens;
        cells.of[plan_cell_of(prompt, output)] =
            (struct plan_cell){.sequences = own,
                               .prompt_tokens = own * prompt,
                               .output_tokens = own * output,
                               .output_squares = own * output * output};
        sequences += rows[i].sequences;
    }
    plan_mix_make(out, &cells, sequences, context_max);
}

static struct taken plan_once(int *candidates, const struct model_config *config,
                              const struct profile *profile, const struct box_model *box,
                              size_t question)
{
    static const struct routing assumed = {.deviation = 0.3};
    struct plan_mix mix = {.bin_count = 0};
    struct plan_prices prices = {.of = NULL};
    struct plan_answer answer;
    struct plan_parts parts;
    struct error err;
    int64_t context_max = config->position_count_max;
    bool has_rows = questions[question].has_rows;
    const struct plan_subject_params params = {
        .config = config,
        .profile = profile,
        .rank_count = box->rank_count,
        .dtype = DTYPE_BF16,
        .memory_bytes = box->device.memory_bytes,
        .load = has_rows ? plan_loads_mean(rows, PLAN_BINS_MAX, context_max)
                         : (struct plan_load)PLAN_LOAD(256, 2048, 256),
        .is_queue = !has_rows,
        .allows_int4 = true,
        .max_num_seqs = questions[question].max_num_seqs,
        .max_num_batched_tokens = questions[question].max_num_batched_tokens,
        .routing = &assumed,
    };
    const struct plan_question of_all = {
        .subject = &params,
        .mix = &mix,
        .prices = &prices,
        .context_max = context_max,
        .may_stay = true,
    };
    if (has_rows)
        rows_mix(&mix, context_max);
    double begin = system_seconds(), cpu_begin = cpu_seconds();
    check(plan_answer_find(&answer, &of_all, &err), &err);
    *candidates = answer.table.count;
    if (has_rows && answer.chosen >= 0)
        check(plan_parts_find(&parts, &of_all, &answer.table.candidates[answer.chosen], &err),
              &err);
    plan_answer_deinit(&answer);
    plan_prices_deinit(&prices);
    return (struct taken){system_seconds() - begin, cpu_seconds() - cpu_begin};
}

static void plan_time(const char *model, const struct model_config *config, const char *of,
                      const struct profile *profile, const struct box_model *box, size_t question)
{
    double ms[REPEATS_MOST], cpu_ms[REPEATS_MOST];
    int candidates, repeats = questions[question].repeats;
    for (int i = 0; i < repeats; i++) {
        struct taken taken = plan_once(&candidates, config, profile, box, question);
        ms[i] = 1e3 * taken.wall;
        cpu_ms[i] = 1e3 * taken.cpu;
    }
    qsort(ms, (size_t)repeats, sizeof *ms, by_value);
    qsort(cpu_ms, (size_t)repeats, sizeof *cpu_ms, by_value);
    double middle = ms[repeats / 2];
    printf("%-16s %-8s %-6s %6d %9.3f %9.3f %7.1f %% %6.0f  %s\n", model, of,
           questions[question].name, candidates, middle, cpu_ms[repeats / 2],
           100 * (ms[repeats - 1 - repeats / 4] - ms[repeats / 4]) / middle,
           questions[question].goal, middle < questions[question].goal ? "yes" : "NO");
}

int main(int argc, char **argv)
{
    static struct box_model box;
    static struct model_config config;
    struct plan_box made;
    struct profile measured;
    struct text path = {0};
    struct error err;
    check(box_files_find(&path, argc > 1 ? argv[1] : "a100x8", &err), &err);
    check(box_model_read(&box, path.bytes, &err), &err);
    check(plan_box_init(&made, &box, &err), &err);
    profile_grid(&measured, &made.profile);
    bench_print_head(argc, argv);
    printf(
        "# clock: CLOCK_MONOTONIC; median of %d questions, spread of their middle half; and of "
        "the\n"
        "# thread's CPU time, which others on the machine do not add to\n"
        "# box: %s, %d ranks; 256 sequences of 2048 and 256 tokens; rows: 10,000 of eight lengths, "
        "%d questions\n",
        REPEATS_MOST, box.name, box.rank_count, questions[QUESTIONS - 1].repeats);
    printf("# model          profile  sizes   plans    ms           cpu    spread   goal  met\n");
    for (size_t m = 0; m < MODELS; m++) {
        json_t *json;
        check(synth_config(&json, &config, &(struct synth_params){.preset = models[m]}, &err),
              &err);
        json_decref(json);
        for (size_t q = 0; q < QUESTIONS; q++) {
            plan_time(models[m], &config, "box", &made.profile, &box, q);
            plan_time(models[m], &config, "grid", &measured, &box, q);
        }
    }
    plan_box_deinit(&made);
    text_deinit(&path);
    return 0;
}

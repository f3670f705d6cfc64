/* A calibration of a small grid: what comes of it, and what is left of one that was stopped. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"
#include "engine/calibrate.h"
#include "engine/calibrate_store.h"
#include "engine/profile_names.h"
#include "engine_tools.h"
#include "model_shapes.h"
#include "planner/pass_cost.h"

TestSuite(calibrate, .timeout = 120);

#define SMALL_FFN(kind_, dtype_)                                                                   \
    {                                                                                              \
        .kind = (kind_), .dtype = (dtype_), .axis_count = 4, .points_max = 24,                     \
        .axes = {{0, 1, 1, 2, {1, 8}},                                                             \
                 {1, -1, 1, 2, {1, 4}},                                                            \
                 {2, -1, 16, 2, {48, 128}},                                                        \
                 {3, -1, 16, 1, {64}}},                                                            \
        .most_flops = {(kind_), (dtype_), {16, 1, 64, 64}},                                        \
        .most_bytes = {(kind_), (dtype_), {2, 2, 64, 64}},                                         \
        .least = {(kind_), (dtype_), {1, 1, 16, 64}},                                              \
    }

static const struct grid small_grids[] = {
    {
        .kind = WORK_MATMUL,
        .dtype = DTYPE_BF16,
        .axis_count = 3,
        .points_max = 20,
        .axes = {{0, -1, 1, 2, {1, 16}}, {1, -1, 16, 2, {16, 1 << 28}}, {2, -1, 16, 1, {64}}},
        .most_flops = {WORK_MATMUL, DTYPE_BF16, {16, 64, 64}},
        .most_bytes = {WORK_MATMUL, DTYPE_BF16, {1, 64, 64}},
        .least = {WORK_MATMUL, DTYPE_BF16, {1, 16, 64}},
    },
    SMALL_FFN(WORK_FFN_UP, DTYPE_BF16),
    SMALL_FFN(WORK_FFN_DOWN, DTYPE_BF16),
    SMALL_FFN(WORK_FFN_UP, DTYPE_INT4),
    SMALL_FFN(WORK_FFN_DOWN, DTYPE_INT4),
    {
        .kind = WORK_ATTENTION,
        .dtype = DTYPE_BF16,
        .axis_count = 4,
        .points_max = 24,
        .segments_max = 8,
        .tokens_max = 4096,
        .axes = {{WORK_SIZE_SCORE_ROWS, -1, 1, 2, {1, 16}},
                 {2, 0, 1, 2, {1, 64}},
                 {3, 4, 1, 2, {1, 2}},
                 {5, -1, 32, 1, {32}}},
        .most_flops = {WORK_ATTENTION, DTYPE_BF16, {16, 136, 16, 2, 1, 32}},
        .most_bytes = {WORK_ATTENTION, DTYPE_BF16, {1, 64, 64, 2, 1, 32}},
        .least = {WORK_ATTENTION, DTYPE_BF16, {1, 1, 1, 1, 1, 32}},
    },
    {
        .kind = WORK_ROWS,
        .dtype = DTYPE_F32,
        .axis_count = 2,
        .points_max = 8,
        .axes = {{0, -1, 1, 2, {1, 16}}, {1, -1, 16, 1, {64}}},
        .most_flops = {WORK_ROWS, DTYPE_F32, {4, 64}},
        .most_bytes = {WORK_ROWS, DTYPE_F32, {16, 64}},
        .least = {WORK_ROWS, DTYPE_F32, {1, 16}},
    },
    {
        .kind = WORK_DEQUANTIZE,
        .dtype = DTYPE_INT4,
        .axis_count = 0,
        .points_max = 1,
        .most_flops = {WORK_DEQUANTIZE, DTYPE_INT4, {65536}},
        .most_bytes = {WORK_DEQUANTIZE, DTYPE_INT4, {65536}},
        .least = {WORK_DEQUANTIZE, DTYPE_INT4, {32768}},
    },
};

static const int64_t small_bytes[] = {64, 4096, (int64_t)1 << 40};

static const struct calibrate_plan small_plan = {
    .grids = small_grids,
    .grid_count = (int)(sizeof small_grids / sizeof *small_grids),
    .collective_bytes = small_bytes,
    .collective_count = 3,
    .collective_points_max = 4,
    .file_bytes = 4 << 20,
    .launch_seconds = 0.1,
    .tolerance = 0.03,
    .point_seconds = 1e-4,
    .sample_seconds = 1e-5,
};

/* Stops before the n-th point; 0: never. */
struct stopper {
    uint64_t calls, stop_at, last, total;
    bool goes_back;
};

static int on_progress(void *context, uint64_t done, uint64_t total, const char *what)
{
    struct stopper *stopper = context;
    cr_assert_not_null(what);
    stopper->goes_back |= done < stopper->last || done > total;
    stopper->last = done;
    stopper->total = total;
    return ++stopper->calls == stopper->stop_at;
}

static struct calibrate_params params_of(const char *path, struct stopper *stopper)
{
    return (struct calibrate_params){.output_path = path,
                                     .devices = {.rank_count = 4},
                                     .memory_bytes = (uint64_t)32 << 20,
                                     .plan = &small_plan,
                                     .progress = on_progress,
                                     .progress_context = stopper};
}

static bool exists(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0;
}

static void calibrated(struct calibrate_report *report, const struct calibrate_params *params)
{
    struct error err;
    cr_assert_eq(calibrate_run(report, params, &err), STATUS_OK, "%s", err.message);
}

/* ---- What comes of it ------------------------------------------------------------------------ */

/* From 1 to `most`, even in the logarithm. */
static int64_t draw(struct random *random, double most)
{
    return (int64_t)exp(random_unit(random_next(random)) * log(most));
}

/* Of no more work than can be counted: whatever is multiplied, and by 64 at most. */
static struct work_shape work_draw(struct random *random, const struct grid *grid)
{
    struct work_shape work = {.kind = grid->kind, .dtype = grid->dtype};
    double left = 0x1p56;
    for (int i = 0, first = (int)random_below(random, WORK_SHAPE_DIMS); i < WORK_SHAPE_DIMS; i++) {
        int64_t *dim = &work.dims[(first + i) % WORK_SHAPE_DIMS];
        *dim = draw(random, fmin(left, 1e6));
        left /= (double)*dim;
    }
    return work;
}

static void is_positive(double seconds, const char *what)
{
    cr_assert(isfinite(seconds) && seconds > 0, "%s: %g", what, seconds);
}

static void check_predictions(const struct profile *profile)
{
    int to_one = 0;
    const char *seed = getenv("PHASOR_TEST_SEED");
    struct random random = {.seed = seed == NULL ? 0 : strtoull(seed, NULL, 10)};
    for (int i = 0; i < 20000; i++) {
        struct work_shape work = work_draw(
            &random, &small_grids[random_below(&random, (uint64_t)small_plan.grid_count)]);
        is_positive(profile_work_seconds(profile, &work), "work");
        is_positive(profile_collective_seconds(profile, (enum group_op)(i % 4), i % 3 ? 4 : 2,
                                               false, (double)draw(&random, 1e12)),
                    "collective");
    }
    is_positive(profile_collective_seconds(profile, GROUP_ALL_TO_ALL, 2, true, 1), "strided");
    for (int i = 0; i < profile->collective_count; i++)
        to_one += profile->collectives[i].to_one;
    cr_assert_eq(to_one, 3,
                 "all-to-alls to one member of groups of two, strided ones, and of four");
}

/* Every part of a pass of a model has a time. */
static void check_pass(const struct profile *profile)
{
    static const char *const layouts[] = {"tp4|tp4", "dp4|ep4", "tp2dp2|tp2ep2"};
    for (size_t i = 0; i < 3; i++) {
        struct error err;
        struct layout layout;
        cr_assert_eq(layout_parse(&layout, layouts[i], 4, &err), STATUS_OK, "%s", err.message);
        for (int is_packed = 0; is_packed < 2; is_packed++) {
            struct cost_types types = {DTYPE_BF16, is_packed ? DTYPE_INT4 : DTYPE_BF16, DTYPE_BF16};
            struct routing routing = {.deviation = 0.3};
            struct pass_shape pass = {
                .form = FORM_OWNED, .rows = 512, .pairs = 512 * 100, .seen = 512, .logit_rows = 4};
            struct pass_cost cost = pass_cost(profile, &model_shapes[MIXTRAL_8X7B].shape, &layout,
                                              &types, &routing, &pass);
            is_positive(pass_cost_total(&cost), layouts[i]);
        }
    }
}

Test(calibrate, gives_a_profile_that_has_a_time_for_everything)
{
    struct stopper stopper = {0};
    struct calibrate_report report;
    struct profile_file file;
    struct error err;
    const char *path = tools_path(tools_folder(), "box.json");
    struct calibrate_params params = params_of(path, &stopper);
    calibrated(&report, &params);
    cr_expect_eq(report.points_found, 0);
    cr_expect_eq(report.identity.devices.rank_count, 4);
    cr_expect_not(stopper.goes_back);
    cr_expect_eq(stopper.total, (uint64_t)calibrate_plan_points(&small_plan, 4));
    cr_expect_not(exists(tools_path(tools_folder(), "box.json.partial")));
    cr_expect_not(exists(tools_path(tools_folder(), "box.json.partial-read")));
    cr_assert_eq(profile_file_read(&file, path, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(profile_identity_fit(&file.identity, &report.identity, NULL), PROFILE_FITS);
    cr_expect_eq(file.profile.work_count, small_plan.grid_count);
    cr_expect_eq(file.profile.collective_count, 3 * 5);
    is_positive(file.profile.disk_read - PROFILE_NO_RATE, "disk");
    is_positive(file.profile.host_step, "step");
    check_predictions(&file.profile);
    check_pass(&file.profile);
    profile_file_deinit(&file);
}

/* Attention has the bytes of its place, but for what one segment of one KV head has already, or as
 * many tokens as there may be have not. */
static void check_bytes(const struct grid *grid, const struct work_shape *work, double wanted)
{
    double found = work_shape_size(work, WORK_SIZE_BYTES);
    int64_t tokens = work->dims[2], rows = work->dims[0];
    bool is_one =
        work->dims[4] == 1 &&
        tokens * (tokens + 1) / 2 - (tokens - rows) * (tokens - rows + 1) / 2 == work->dims[1];
    bool is_most = 2 * tokens > grid->tokens_max || 2 * rows > grid->segments_max;
    cr_expect(found < 2 * wanted || is_one, "%g bytes for %g", found, wanted);
    cr_expect(found > wanted / 2 || is_most, "%g bytes for %g", found, wanted);
}

/* A point's shape has the sizes of its place, but for what is rounded to whole rows and heads, one
 * at least; few rows of scores are of fewer heads. */
static void check_place(const struct grid *grid, const double values[PROFILE_AXES_MAX])
{
    struct work_shape work = grid_work(grid, values);
    for (int a = 0; a < grid->axis_count; a++) {
        const struct grid_axis *axis = &grid->axes[a];
        double over = axis->over < 0 ? 1 : work_shape_size(&work, axis->over);
        double found = work_shape_size(&work, axis->size) / over;
        bool is_heads = grid->kind == WORK_ATTENTION && axis->over == 4;
        if (grid->kind == WORK_ATTENTION && axis->size == WORK_SIZE_BYTES) {
            check_bytes(grid, &work, values[a]);
            continue;
        }
        if (grid->kind == WORK_ROWS && axis->size == WORK_SIZE_BYTES && work.dims[0] == 1) {
            cr_expect_geq(found, values[a]);
            continue;
        }
        cr_expect(is_heads ? found >= 1 && found <= values[a] : fabs(found / values[a] - 1) < 0.3,
                  "%s: size %d is %g, not %g", profile_kind_name(grid->kind), axis->size, found,
                  values[a]);
    }
}

static void check_shapes(const struct calibrate_plan *plan)
{
    for (int g = 0; g < plan->grid_count; g++) {
        const struct grid *grid = &plan->grids[g];
        int64_t points = 1;
        for (int a = 0; a < grid->axis_count; a++)
            points *= grid->axes[a].count;
        cr_assert_leq(points, grid->points_max);
        for (int64_t i = 0; i < points; i++) {
            double values[PROFILE_AXES_MAX];
            int64_t rest = i;
            for (int a = grid->axis_count - 1; a >= 0; a--) {
                values[a] = grid->axes[a].values[rest % grid->axes[a].count];
                rest /= grid->axes[a].count;
            }
            check_place(grid, values);
        }
    }
}

Test(calibrate, shapes_of_the_grids)
{
    static const struct engine_devices cpus = {.rank_count = 2}, gpus = {.cuda = true};
    cr_assert_neq(calibrate_plan_of(&cpus), calibrate_plan_of(&gpus));
    check_shapes(calibrate_plan_of(&cpus));
    check_shapes(calibrate_plan_of(&gpus));
}

/* At the points of a table the profile says what was measured there, to the six digits that a file
 * has of it, and of what it is a ratio to. */
Test(calibrate, predicts_what_it_measured)
{
    struct stopper stopper = {0};
    struct calibrate_report report;
    struct profile_file file;
    struct error err;
    const char *path = tools_path(tools_folder(), "box.json");
    struct calibrate_params params = params_of(path, &stopper);
    calibrated(&report, &params);
    cr_assert_eq(profile_file_read(&file, path, &err), STATUS_OK, "%s", err.message);
    int compared = 0;
    for (int g = 0; g < small_plan.grid_count; g++) {
        const struct work_table *table = &file.profile.work[g];
        if (table->kind == WORK_ATTENTION) /* whose shapes are rounded beside its axes */
            continue;
        for (int64_t i = 0; i < profile_table_points(table); i++) {
            double values[PROFILE_AXES_MAX];
            int64_t rest = i;
            for (int a = table->axis_count - 1; a >= 0; a--) {
                values[a] = table->axes[a].values[rest % table->axes[a].count];
                rest /= table->axes[a].count;
            }
            if (file.work_points[g][i].repeats == 0 || table->axis_count == 0)
                continue;
            struct work_shape work = grid_work(&small_grids[g], values);
            double predicted = profile_work_seconds(&file.profile, &work);
            cr_expect(fabs(predicted / file.work_points[g][i].seconds - 1) < 2e-5, "%g, not %g",
                      predicted, file.work_points[g][i].seconds);
            compared++;
        }
    }
    cr_expect_geq(compared, 40);
    profile_file_deinit(&file);
}

/* What is named is enough, and nothing was measured before it was said. */
Test(calibrate, memory_that_is_too_little_is_told_with_what_is_enough)
{
    struct stopper stopper = {.stop_at = 1};
    struct calibrate_report report;
    struct error err;
    const char *path = tools_path(tools_folder(), "box.json");
    struct calibrate_params params = params_of(path, &stopper);
    params.plan = NULL;
    params.devices.rank_count = 2;
    params.memory_bytes = (uint64_t)64 << 20;
    cr_assert_eq(calibrate_run(&report, &params, &err), STATUS_NO_MEMORY, "%s", err.message);
    unsigned long long mebibytes = 0;
    cr_assert_eq(sscanf(err.message, "--memory: expected at least %llu MiB", &mebibytes), 1, "%s",
                 err.message);
    cr_expect_eq(stopper.calls, 0);
    cr_expect_not(exists(tools_path(tools_folder(), "box.json.partial")));
    params.memory_bytes = (mebibytes - 1) << 20;
    cr_expect_eq(calibrate_run(&report, &params, &err), STATUS_NO_MEMORY, "%s", err.message);
    params.memory_bytes = mebibytes << 20;
    cr_expect_eq(calibrate_run(&report, &params, &err), STATUS_CANCELLED, "%s", err.message);
}

/* ---- One that was stopped -------------------------------------------------------------------- */

static void stopped(const char *path, uint64_t at)
{
    struct stopper stopper = {.stop_at = at};
    struct calibrate_report report;
    struct error err;
    struct calibrate_params params = params_of(path, &stopper);
    cr_assert_eq(calibrate_run(&report, &params, &err), STATUS_CANCELLED);
    cr_expect(strstr(err.message, ".partial") != NULL, "%s", err.message);
    cr_expect_eq(stopper.calls, at);
}

/* Every point that it had is in the store of the next, unchanged, and none of them is measured
 * again. */
Test(calibrate, goes_on_where_it_was_stopped)
{
    const char *path = tools_path(tools_folder(), "box.json");
    const char *partial = tools_path(tools_folder(), "box.json.partial");
    struct calibrate_store first, second;
    struct error err;
    tools_write_file(tools_path(tools_folder(), "box.json.partial-read"), "x",
                     1); /* of a killed one */
    stopped(path, 20);
    cr_expect_not(exists(path));
    cr_expect_not(exists(tools_path(tools_folder(), "box.json.partial-read")));
    cr_assert_eq(calibrate_store_read(&first, partial, &err), STATUS_OK, "%s", err.message);
    cr_expect_geq(first.count, 19);
    for (size_t i = 0; i < first.count; i++) { /* all once, before anything is a second time */
        struct calibrate_key again = calibrate_key_again(&first.entries[i].key);
        cr_expect_null(calibrate_store_find(&first, &again));
    }
    stopped(path, 15);
    cr_assert_eq(calibrate_store_read(&second, partial, &err), STATUS_OK, "%s", err.message);
    cr_expect_geq(second.count, first.count + 14);
    for (size_t i = 0; i < first.count; i++)
        cr_expect_eq(memcmp(&first.entries[i], &second.entries[i], sizeof *first.entries), 0);
    struct stopper stopper = {0};
    struct calibrate_report report;
    struct calibrate_params params = params_of(path, &stopper);
    calibrated(&report, &params);
    cr_expect_eq(report.points_found, second.count);
    cr_expect_not(exists(partial));
    for (size_t i = 0; i < second.count; i++) {
        for (size_t j = 0; j < i; j++)
            cr_expect_neq(
                memcmp(&second.entries[i].key, &second.entries[j].key, sizeof second.entries->key),
                0, "points %zu and %zu are one", j, i);
    }
    calibrate_store_deinit(&first);
    calibrate_store_deinit(&second);
}

/* Makes every first look 1 s long, and the second as given. */
static int looks_make_up(struct calibrate_store *store, double second)
{
    int count = 0;
    for (size_t i = 0; i < store->count; i++) {
        for (size_t j = 0; j < store->count; j++) {
            struct calibrate_key again = calibrate_key_again(&store->entries[i].key);
            if (memcmp(&store->entries[j].key, &again, sizeof again) != 0)
                continue;
            store->entries[i].point.seconds = 1;
            store->entries[j].point.seconds = second;
            count++;
        }
    }
    return count;
}

/* Asked for the last point it was stopped: all else is in the partial file. The plan has as many
 * points each time. */
static struct calibrate_params stopped_at_the_last(struct calibrate_plan *plan,
                                                   struct stopper *stopper, const char *path)
{
    struct calibrate_params params = params_of(path, stopper);
    struct calibrate_report report;
    struct error err;
    *plan = small_plan;
    plan->tolerance = plan->launch_seconds = 1e6;
    params.plan = plan;
    params.overwrites = true;
    calibrated(&report, &params);
    *stopper = (struct stopper){.stop_at = stopper->calls};
    cr_assert_eq(calibrate_run(&report, &params, &err), STATUS_CANCELLED);
    return params;
}

/* All has been looked at twice when the last point is asked for, and the faster look counts. */
Test(calibrate, the_faster_of_two_looks_counts)
{
    static const double seconds[] = {2, 0.5};
    const char *path = tools_path(tools_folder(), "box.json");
    const char *partial = tools_path(tools_folder(), "box.json.partial");
    struct stopper stopper = {0};
    struct calibrate_report report;
    struct calibrate_store store;
    struct profile_file file;
    struct error err;
    struct calibrate_plan plan;
    struct calibrate_params params = stopped_at_the_last(&plan, &stopper, path);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(calibrate_store_read(&store, partial, &err), STATUS_OK, "%s", err.message);
        int twice = looks_make_up(&store, seconds[i]);
        cr_expect_geq(2 * twice + RATE_COUNT + 1, (int)store.count);
        cr_assert_eq(calibrate_store_write(&store, partial, &err), STATUS_OK, "%s", err.message);
        stopper = (struct stopper){0};
        calibrated(&report, &params);
        cr_assert_eq(profile_file_read(&file, path, &err), STATUS_OK, "%s", err.message);
        cr_expect_eq(file.work_points[0][0].seconds, fmin(1, seconds[i]));
        cr_expect_eq(file.collective_points[0][0].seconds, fmin(1, seconds[i]));
        profile_file_deinit(&file);
        cr_assert_eq(calibrate_store_write(&store, partial, &err), STATUS_OK, "%s", err.message);
        calibrate_store_deinit(&store);
    }
}

/* Of a look that met another machine than was usual no more is known, be it the faster; what was
 * usual is known of what was measured before the calibration was stopped, too. */
Test(calibrate, the_look_that_had_calm_counts)
{
    static const double probes[][2] = {{2, 1}, {1, 2}, {0.5, 1}, {1, 0.5}, {1.1, 0.9}};
    static const double expected[] = {2, 1, 2, 1, 1};
    const char *path = tools_path(tools_folder(), "box.json");
    const char *partial = tools_path(tools_folder(), "box.json.partial");
    struct stopper stopper = {0};
    struct calibrate_report report;
    struct profile_file file;
    struct error err;
    struct calibrate_plan plan;
    struct calibrate_params params = stopped_at_the_last(&plan, &stopper, path);
    for (int i = 0; i < 5; i++) {
        struct calibrate_store store;
        cr_assert_eq(calibrate_store_read(&store, partial, &err), STATUS_OK, "%s", err.message);
        cr_expect_gt(looks_make_up(&store, 2), 0);
        for (size_t e = 0; e < store.count; e++) {
            double seconds = store.entries[e].point.seconds;
            store.entries[e].probe = CALM_MEMORY;
            store.entries[e].probe_seconds = probes[i][seconds == 2];
        }
        const struct collective_shape none = {GROUP_ALL_REDUCE, 99, false, 99, 1};
        struct calibrate_entry usual = {
            calibrate_key_of_collective(&none), {1, 0, 1}, CALM_MEMORY, 1};
        struct calibrate_entry other = usual;
        other.probe = CALM_COMPUTE;
        other.probe_seconds = 3;
        for (size_t count = store.count + 1; count > 0; count--)
            cr_assert_eq(calibrate_store_add(&store, &usual, &err), STATUS_OK);
        for (int count = CALM_SEEN_MIN - (i > 0); count > 0; count--)
            cr_assert_eq(calibrate_store_add(&store, &other, &err), STATUS_OK);
        cr_assert_eq(calibrate_store_write(&store, partial, &err), STATUS_OK, "%s", err.message);
        stopper = (struct stopper){0};
        calibrated(&report, &params);
        cr_assert_eq(profile_file_read(&file, path, &err), STATUS_OK, "%s", err.message);
        cr_expect_eq(file.work_points[0][0].seconds, expected[i], "%d: %g", i,
                     file.work_points[0][0].seconds);
        cr_expect_eq(file.collective_points[0][0].seconds, expected[i]);
        cr_expect_float_eq(file.probe_seconds[CALM_MEMORY], 1, 0.01, "what is usual is told");
        cr_expect_float_eq(file.probe_seconds[CALM_COMPUTE], i > 0 ? 0 : 3, 0.03,
                           "where it is known");
        profile_file_deinit(&file);
        cr_assert_eq(calibrate_store_write(&store, partial, &err), STATUS_OK, "%s", err.message);
        calibrate_store_deinit(&store);
    }
}

/* Twice from the same store: only the last point, of a collective, is measured anew. */
Test(calibrate, the_same_points_give_the_same_tables)
{
    const char *path = tools_path(tools_folder(), "box.json");
    const char *partial = tools_path(tools_folder(), "box.json.partial");
    struct calibrate_report report;
    struct stopper stopper = {0};
    struct error err;
    size_t length, ignored_length;
    struct calibrate_params params = params_of(path, &stopper);
    struct calibrate_plan plan = small_plan;
    /* There are as many points each time: none is added, and none takes too long. */
    plan.tolerance = plan.launch_seconds = 1e6;
    params.plan = &plan;
    params.overwrites = true;
    calibrated(&report, &params);
    stopper = (struct stopper){.stop_at = stopper.calls};
    cr_assert_eq(calibrate_run(&report, &params, &err), STATUS_CANCELLED);
    char *kept = tools_read_file(partial, &length);
    json_t *profiles[2];
    for (int i = 0; i < 2; i++) {
        json_error_t reason;
        tools_write_file(partial, kept, length);
        stopper = (struct stopper){0};
        calibrated(&report, &params);
        cr_expect_eq(report.points_measured, 1);
        char *text = tools_read_file(path, &ignored_length);
        profiles[i] = json_loads(text, 0, &reason);
        cr_assert_not_null(profiles[i]);
        free(text);
    }
    static const char *const parts[] = {"box", "rates", "work"};
    for (int i = 0; i < 3; i++)
        cr_expect(json_equal(json_object_get(profiles[0], parts[i]),
                             json_object_get(profiles[1], parts[i])),
                  "%s", parts[i]);
    json_decref(profiles[0]);
    json_decref(profiles[1]);
    free(kept);
}

static void note(void *context, enum log_level level, const char *message)
{
    cr_expect_eq(level, LOG_WARNING);
    cr_expect(strstr(message, "is not gone on with") != NULL, "%s", message);
    ++*(int *)context;
}

Test(calibrate, what_is_of_another_box_is_not_gone_on_with)
{
    const char *path = tools_path(tools_folder(), "box.json");
    int notes = 0;
    struct error err;
    struct stopper stopper = {.stop_at = 3};
    struct calibrate_report report;
    stopped(path, 20);
    struct calibrate_params params = params_of(path, &stopper);
    params.devices.rank_count = 2;
    params.log = (struct log_sink){note, &notes};
    cr_expect_eq(calibrate_run(&report, &params, &err), STATUS_CANCELLED);
    cr_expect_eq(notes, 1);
    struct calibrate_store store;
    cr_assert_eq(calibrate_store_read(&store, tools_path(tools_folder(), "box.json.partial"), &err),
                 STATUS_OK);
    cr_expect_eq(store.identity.devices.rank_count, 2);
    cr_expect_leq(store.count, 3);
    calibrate_store_deinit(&store);
}

/* ---- What is in its way ---------------------------------------------------------------------- */

static void is_refused(const struct calibrate_params *params, enum status status,
                       const char *sentence)
{
    struct calibrate_report report;
    struct error err;
    cr_expect_eq(calibrate_run(&report, params, &err), status);
    cr_expect(strstr(err.message, sentence) != NULL, "%s", err.message);
}

Test(calibrate, replaces_nothing_but_profiles)
{
    const char *path = tools_path(tools_folder(), "letter");
    struct stopper stopper = {0};
    struct calibrate_params params = params_of(path, &stopper);
    params.overwrites = true;
    tools_write_file(path, "a letter", 8);
    is_refused(&params, STATUS_INVALID_ARGUMENT, "is there and is no profile");
    tools_write_file(path, "{}", 2);
    is_refused(&params, STATUS_INVALID_ARGUMENT, "is there and is no profile");
    tools_write_file(path, "{\"phasor_profile\":0}", 20); /* of any version */
    params.overwrites = false;
    is_refused(&params, STATUS_INVALID_ARGUMENT, "--overwrite");
    cr_expect_eq(stopper.calls, 0);
    params.output_path = tools_path(tools_folder(), "no/box.json");
    is_refused(&params, STATUS_NOT_FOUND, "no/box.json.partial");
    params.output_path = tools_path(tools_folder(), "box.json");
    tools_write_file(tools_path(tools_folder(), "box.json.partial"), "a letter", 8);
    is_refused(&params, STATUS_FORMAT, "remove the file to begin anew");
    params.output_path = tools_path(tools_folder(), "little.json");
    params.memory_bytes = 1 << 20;
    is_refused(&params, STATUS_NO_MEMORY, "to measure 4 devices, found");
}

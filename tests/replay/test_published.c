/* A second opinion: what replay finds for one collective, beside what others measured of it and
 * published (published.json, with the sources). No box has anything of the points that it is held
 * against: its protocols are the constants that NCCL plans by, or are fitted to another machine, or
 * to other sizes of the same one (`fitted_to`; docs/boxes.md says which is which).
 *
 *   held out     no point is one of those that its box is fitted to
 *   within       a point without `misses_by` is within 15 %
 *   known        one with it misses by as much as is written there, and by more than 15 %
 *   counts       there are points of each kind of collective, of PCIe and of NVLink
 *   itself       of the sizes between those that a box is fitted to, replay tells at least 95 for
 * each 100 that a straight line between the same table's next sizes tells
 *
 * The table of all points is printed:
 *   test_replay --filter published/collectives_take_as_long_as_others_measured
 */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "builder.h"

#define BOUND     0.15
#define UNCHANGED 0.01 /* of a miss that is known */

static const struct {
    const char *name;
    enum collective_op op;
} ops[] = {
    {"all_gather", COLLECTIVE_OP_ALL_GATHER},
    {"reduce_scatter", COLLECTIVE_OP_REDUCE_SCATTER},
    {"all_reduce", COLLECTIVE_OP_ALL_REDUCE},
    {"all_to_all", COLLECTIVE_OP_ALL_TO_ALL},
};
#define OP_COUNT (sizeof ops / sizeof *ops)

static json_t *published;
static struct box_model box;

/* ---- What was published ---------------------------------------------------------------------- */

static void open_published(void)
{
    json_error_t error;
    published = json_load_file(REPLAY_DIR "/published.json", 0, &error);
    cr_assert_not_null(published, "line %d: %s", error.line, error.text);
}

static void close_published(void)
{
    json_decref(published);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    cr_assert_not_null(text, "no %s", key);
    return text;
}

static size_t op_of(const json_t *series)
{
    size_t op = 0;
    while (op < OP_COUNT && strcmp(ops[op].name, text_of(series, "op")) != 0)
        op++;
    cr_assert_lt(op, OP_COUNT, "%s is no collective", text_of(series, "op"));
    return op;
}

/* "a6000x4" is one of phasor's boxes, "tests/rtx4090x8" is one of the tests'. */
static void read_box(const char *name)
{
    char path[512];
    struct error err;
    bool is_own = strncmp(name, "tests/", 6) == 0;
    snprintf(path, sizeof path, "%s/%s.json", is_own ? REPLAY_DIR "/boxes" : BOXES_DIR,
             is_own ? name + 6 : name);
    cr_assert_eq(box_model_read(&box, path, &err), STATUS_OK, "%s", err.message);
}

/* The points that a box is fitted to (tools/fit_box). Free with json_decref. */
static json_t *open_fitted(const char *name)
{
    char path[512];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s.json", POINTS_DIR, name);
    json_t *fitted = json_load_file(path, 0, &error);
    cr_assert_not_null(fitted, "%s: line %d: %s", path, error.line, error.text);
    return fitted;
}

/* The points of a series among them: [[bytes, us]...], of rising bytes. NULL: none. Borrowed. */
static const json_t *fitted_points(const json_t *fitted, const json_t *series)
{
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(fitted, "series"), i, one)
    {
        if (strcmp(text_of(one, "op"), text_of(series, "op")) == 0 &&
            json_integer_value(json_object_get(one, "ranks")) ==
                json_integer_value(json_object_get(series, "ranks")))
            return json_object_get(one, "points");
    }
    return NULL;
}

static double fitted_value(const json_t *point, size_t which)
{
    double value = json_number_value(json_array_get(point, which));
    cr_assert_gt(value, 0);
    return value;
}

static bool is_fitted(const json_t *fitted, const json_t *series, json_int_t bytes)
{
    size_t k;
    const json_t *point;
    json_array_foreach(fitted_points(fitted, series), k, point)
    {
        if (fitted_value(point, 0) == (double)bytes)
            return true;
    }
    return false;
}

/* Returns how many points the box was fitted to. */
static size_t check_held_out(const json_t *series, const char *name)
{
    size_t k, count = 0;
    const json_t *point, *one;
    json_t *fitted = open_fitted(name);
    json_array_foreach(json_object_get(series, "points"), k, point)
    {
        json_int_t bytes = json_integer_value(json_object_get(point, "bytes"));
        cr_expect_not(is_fitted(fitted, series, bytes), "%s %s: fitted to %lld bytes", name,
                      text_of(series, "op"), (long long)bytes);
    }
    json_array_foreach(json_object_get(fitted, "series"), k, one)
    {
        count += json_array_size(json_object_get(one, "points"));
    }
    json_decref(fitted);
    return count;
}

/* ---- What replay finds ----------------------------------------------------------------------- */

/* By nccl-tests' sizes: of what a rank has in the end (all-gather) or had (all others). */
static void fill_counts(int64_t *counts, enum collective_op op, int size, int member, int64_t bytes)
{
    for (int i = 0; i < size; i++) {
        counts[i] = op == COLLECTIVE_OP_ALL_REDUCE ? (i == 0 ? bytes : 0) : bytes / size;
        if (op == COLLECTIVE_OP_ALL_TO_ALL && i == member)
            counts[i] = 0;
    }
}

/* One call of the first `size` ranks of the box, by itself. */
static double replay_seconds(enum collective_op op, int size, int64_t bytes)
{
    struct builder builder;
    struct simulation simulation;
    struct error err;
    int ranks[RECORDING_RANKS_MAX];
    int64_t counts[RECORDING_RANKS_MAX];
    build_begin(&builder, box.rank_count);
    for (int r = 0; r < size; r++)
        ranks[r] = r;
    uint32_t group = build_group(&builder, size, ranks);
    for (int r = 0; r < size; r++) {
        fill_counts(counts, op, size, r, bytes);
        build_collective(&builder, build_lane(&builder, LANE_STREAM, r), group, op, counts);
    }
    build_finish(&builder);
    const struct simulation_params params = {.recording = &builder.recording, .box = &box};
    cr_assert_eq(simulate(&simulation, &params, &err), STATUS_OK, "%s", err.message);
    double seconds = simulation.seconds;
    simulation_deinit(&simulation);
    build_end(&builder);
    return seconds;
}

/* ---- One beside the other -------------------------------------------------------------------- */

static void print_point(const json_t *series, double bytes, double measured, double found,
                        double miss)
{
    printf("%-22s %-15s %2d ranks %11.0f B %10.1f us %10.1f us %+7.2f %%%s\n",
           text_of(series, "box"), text_of(series, "op"),
           (int)json_integer_value(json_object_get(series, "ranks")), bytes, measured * 1e6,
           found * 1e6, 100 * miss, fabs(miss) <= BOUND ? "" : "  misses");
}

/* Returns whether it is within the bound. */
static bool check_point(const json_t *series, const json_t *point)
{
    enum collective_op op = ops[op_of(series)].op;
    int size = (int)json_integer_value(json_object_get(series, "ranks"));
    int64_t bytes = json_integer_value(json_object_get(point, "bytes"));
    double measured = json_number_value(json_object_get(point, "us")) * 1e-6;
    const json_t *known = json_object_get(point, "misses_by");
    double found = replay_seconds(op, size, bytes), miss = found / measured - 1;
    print_point(series, (double)bytes, measured, found, miss);
    if (known == NULL) {
        cr_expect_leq(fabs(miss), BOUND, "%s %s %d %lld: misses by %.3f", text_of(series, "box"),
                      text_of(series, "op"), size, (long long)bytes, miss);
        return fabs(miss) <= BOUND;
    }
    cr_expect_leq(fabs(miss - json_number_value(known)), UNCHANGED,
                  "%s %s %d %lld: misses by %.3f, no more by %.3f", text_of(series, "box"),
                  text_of(series, "op"), size, (long long)bytes, miss, json_number_value(known));
    cr_expect_gt(fabs(miss), BOUND, "%s %s %d %lld: misses no more", text_of(series, "box"),
                 text_of(series, "op"), size, (long long)bytes);
    cr_expect_gt(strlen(text_of(series, "reason")), 0);
    return false;
}

Test(published, collectives_take_as_long_as_others_measured, .init = open_published,
     .fini = close_published)
{
    size_t i, k, counts[OP_COUNT] = {0}, within[OP_COUNT] = {0};
    const json_t *series, *point;
    printf("%-22s %-15s %8s %13s %13s %13s\n", "box", "collective", "", "", "measured", "replay");
    json_array_foreach(json_object_get(published, "series"), i, series)
    {
        read_box(text_of(series, "box"));
        cr_expect_gt(strlen(text_of(series, "source")), 0);
        cr_expect_gt(strlen(text_of(series, "machine")), 0);
        json_array_foreach(json_object_get(series, "points"), k, point)
        {
            counts[op_of(series)]++;
            within[op_of(series)] += check_point(series, point);
        }
    }
    for (size_t op = 0; op < OP_COUNT; op++) {
        printf("%s: %zu of %zu points within %.0f %%\n", ops[op].name, within[op], counts[op],
               100 * BOUND);
        cr_expect_gt(counts[op], 0);
    }
}

Test(published, no_box_is_held_against_what_it_is_fitted_to, .init = open_published,
     .fini = close_published)
{
    size_t i, count = 0;
    const json_t *series;
    json_array_foreach(json_object_get(published, "series"), i, series)
    {
        if (json_object_get(series, "fitted_to") == NULL)
            continue;
        cr_expect_gt(check_held_out(series, text_of(series, "fitted_to")), 0);
        count++;
    }
    cr_expect_gt(count, 0);
}

/* ---- A table beside itself ------------------------------------------------------------------- */

/* Microseconds by a straight line, in logarithms, between the next smaller and the next larger size
 * of the points; 0 where there is none. */
static double between(const json_t *points, double bytes)
{
    for (size_t i = 1; i < json_array_size(points); i++) {
        const json_t *low = json_array_get(points, i - 1), *high = json_array_get(points, i);
        double from = fitted_value(low, 0), to = fitted_value(high, 0);
        cr_assert_lt(from, to);
        if (bytes <= from || bytes >= to)
            continue;
        double share = log(bytes / from) / log(to / from);
        return fitted_value(low, 1) * pow(fitted_value(high, 1) / fitted_value(low, 1), share);
    }
    return 0;
}

struct told {
    size_t count, by_replay, by_table;
};

static void tell_between(struct told *out, const json_t *series)
{
    size_t k;
    const json_t *point;
    json_t *fitted = open_fitted(text_of(series, "fitted_to"));
    json_array_foreach(json_object_get(series, "points"), k, point)
    {
        double us = json_number_value(json_object_get(point, "us"));
        double bytes = json_number_value(json_object_get(point, "bytes"));
        double line = between(fitted_points(fitted, series), bytes);
        if (line == 0)
            continue;
        out->count++;
        out->by_table += fabs(line / us - 1) <= BOUND;
        out->by_replay += json_object_get(point, "misses_by") == NULL;
    }
    json_decref(fitted);
}

/* What a size takes is not told better by the table's own next sizes: so much of the rest is the
 * measurement's, not replay's. */
Test(published, replay_tells_what_a_table_tells_of_itself, .init = open_published,
     .fini = close_published)
{
    size_t i;
    struct told all = {0};
    const json_t *series;
    json_array_foreach(json_object_get(published, "series"), i, series)
    {
        struct told told = {0};
        if (json_object_get(series, "fitted_to") == NULL)
            continue;
        tell_between(&told, series);
        printf("%-22s %-15s %2d ranks: of %2zu replay %2zu, the table itself %2zu\n",
               text_of(series, "box"), text_of(series, "op"),
               (int)json_integer_value(json_object_get(series, "ranks")), told.count,
               told.by_replay, told.by_table);
        all.count += told.count;
        all.by_replay += told.by_replay;
        all.by_table += told.by_table;
    }
    printf("of %zu points %zu are told within %.0f %% by replay, and %zu by the table itself\n",
           all.count, all.by_replay, 100 * BOUND, all.by_table);
    cr_expect_gt(all.by_table, 0);
    cr_expect_geq(100 * all.by_replay, 95 * all.by_table);
}

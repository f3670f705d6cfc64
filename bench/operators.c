/* How far predictions of a profile are from what is measured, on shapes that were never measured;
 * see bench/README.md.
 *
 * Shapes are drawn log-uniformly over what the planner asks about, from the seed that is printed.
 * Each is predicted, and measured twice, all shapes once before any is measured again. As in a
 * calibration a shape is measured again while the machine is not as it usually is, and the better
 * of the two counts (src/measure/calm.h). Usual is what the calibration found, whose probes are in
 * the profile; of a profile without them it is what this run finds. Inside the timed window: what
 * src/measure/meter.h says of a point.
 *
 * A profile tells of the machine that was calibrated, so there are two tables: of the shapes that
 * met it, and of all.
 *
 * No prediction can be better than the machine repeats itself. What the other measurement differs
 * by is that within minutes, where both found the machine as usual. Between the profile and now it
 * is by how much points that the profile has differ from what it has of them: with each shape the
 * one that is nearest to it is measured, since what memory does to large shapes small ones do not
 * feel. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/system.h"
#include "engine/profile_file.h"
#include "engine/profile_names.h"
#include "forest.h"
#include "head.h"
#include "measure/calm.h"
#include "own_points.h"

#define DRAWS_MAX      1000
#define LAUNCH_SECONDS 0.3 /* longer ones are drawn anew: they are sums of shorter ones */
#define RANK_BYTES     ((uint64_t)768 << 20)

#define PATIENCE_SECONDS 30.0 /* as a calibration has */

static void fail(const char *what)
{
    fprintf(stderr, "bench_operators: %s\n", what);
    exit(1);
}

static void check(enum status status, const struct error *err)
{
    if (status != STATUS_OK)
        fail(err->message);
}

static struct random draws;
static struct box *box;
static struct meter *meter;
static struct calm_meter calm;
static struct profile_file file;

static bool knows_probes(void)
{
    return file.probe_seconds[CALM_COMPUTE] > 0 && file.probe_seconds[CALM_MEMORY] > 0;
}

/* ---- Drawing --------------------------------------------------------------------------------- */

static double draw(double least, double most)
{
    return least * exp(random_unit(random_next(&draws)) * log(most / least));
}

static int64_t draw_whole(double least, double most)
{
    return (int64_t)fmin(draw(least, most + 1), most);
}

static int64_t draw_blocks(double least, double most)
{
    return round_up((int64_t)draw(least, most), PACK_BLOCK);
}

static struct work_shape draw_matmul(enum dtype dtype)
{
    return (struct work_shape){
        WORK_MATMUL, dtype, {draw_whole(1, 4096), draw_blocks(64, 32768), draw_blocks(512, 8192)}};
}

static struct work_shape draw_ffn(enum work_kind kind, enum dtype dtype)
{
    int64_t experts = draw_whole(1, 64);
    int64_t rows = (int64_t)((double)experts * draw(1, 512));
    return (struct work_shape){kind,
                               dtype,
                               {rows < experts ? experts : rows, experts, draw_blocks(48, 14336),
                                draw_blocks(1024, 8192)}};
}

static struct work_shape draw_attention(bool is_decode)
{
    int64_t count = is_decode ? draw_whole(1, 64) : draw_whole(1, 8);
    int64_t rows = is_decode ? 1 : draw_whole(16, 2048);
    int64_t before = is_decode ? draw_whole(16, 16384) : draw_whole(1, 8192) - 1;
    int64_t kv_heads = draw_whole(1, 8);
    if (!is_decode && random_below(&draws, 2) == 0)
        before = 0; /* prompts in one piece */
    return (struct work_shape){WORK_ATTENTION,
                               DTYPE_BF16,
                               {count * rows, count * (rows * before + rows * (rows + 1) / 2),
                                count * (rows + before), kv_heads * draw_whole(1, 8), kv_heads,
                                random_below(&draws, 2) == 0 ? 64 : 128}};
}

/* What is told apart in the result. */
enum subject {
    MATMUL,
    FFN_UP,
    FFN_UP_INT4,
    FFN_DOWN,
    FFN_DOWN_INT4,
    PREFILL,
    DECODE,
    ROWS,
    DEQUANTIZE,
    COLLECTIVE,
    UNEVEN, /* all-to-all, of which one member gets more */
    SUBJECT_COUNT
};

static const char *const subject_names[SUBJECT_COUNT] = {
    "matmul bfloat16", "ffn_up bfloat16",   "ffn_up int4",       "ffn_down bfloat16",
    "ffn_down int4",   "attention prefill", "attention decode",  "rows",
    "dequantize",      "collectives",       "uneven all-to-all",
};

static bool is_collective(enum subject subject)
{
    return subject >= COLLECTIVE;
}

static struct work_shape draw_work(enum subject subject)
{
    switch (subject) {
    case MATMUL:
        return draw_matmul(DTYPE_BF16);
    case FFN_UP:
        return draw_ffn(WORK_FFN_UP, DTYPE_BF16);
    case FFN_UP_INT4:
        return draw_ffn(WORK_FFN_UP, DTYPE_INT4);
    case FFN_DOWN:
        return draw_ffn(WORK_FFN_DOWN, DTYPE_BF16);
    case FFN_DOWN_INT4:
        return draw_ffn(WORK_FFN_DOWN, DTYPE_INT4);
    case PREFILL:
    case DECODE:
        return draw_attention(subject == DECODE);
    case ROWS:
        return (struct work_shape){
            WORK_ROWS, DTYPE_F32, {draw_whole(1, 4096), draw_blocks(1024, 8192)}};
    default:
        return (struct work_shape){WORK_DEQUANTIZE, DTYPE_INT4, {draw_blocks(65536, 1 << 26)}};
    }
}

/* ---- Samples --------------------------------------------------------------------------------- */

enum role {
    HELD_OUT,
    TRAINING, /* of the baseline */
    OWN       /* a point of the profile */
};

struct sample {
    enum subject subject;
    enum role role;
    struct work_shape work;
    struct collective_shape collective;
    double predicted;
    struct calm_point looks[2];
};

static struct sample samples[3 * SUBJECT_COUNT * DRAWS_MAX];
static int sample_count;

static const struct calm_point *look_of(const struct sample *sample)
{
    return calm_better(&calm.calm, &sample->looks[0], &sample->looks[1]);
}

static double seconds_of(const struct sample *sample)
{
    return look_of(sample)->measured.seconds;
}

/* Of a table of those that met the machine as usual, or of all. */
static bool is_told(const struct sample *sample, bool all)
{
    return all || calm_is_usual(&calm.calm, look_of(sample));
}

/* By how much the slower look is that, of two that met the machine as usual; -1: not both have. */
static double repeat_of(const struct sample *sample)
{
    double a = sample->looks[0].measured.seconds, b = sample->looks[1].measured.seconds;
    for (int look = 0; look < 2; look++) {
        if (!calm_is_usual(&calm.calm, &sample->looks[look]))
            return -1;
    }
    return fmax(a, b) / fmin(a, b) - 1;
}

static bool work_draw(struct sample *out)
{
    out->work = draw_work(out->subject);
    out->predicted = profile_work_seconds(&file.profile, &out->work);
    if (isinf(out->predicted))
        fail("the profile has no table for a kind of work; calibrate again");
    return meter_holds(meter, &out->work) && out->predicted <= LAUNCH_SECONDS;
}

static bool collective_draw(struct sample *out)
{
    struct collective_shape *shape = &out->collective;
    int ranks = box_rank_count(box);
    bool is_uneven = out->subject == UNEVEN;
    shape->op = is_uneven ? GROUP_ALL_TO_ALL : (enum group_op)random_below(&draws, GROUP_OP_COUNT);
    shape->size = 2 + (int)random_below(&draws, (uint64_t)ranks - 1);
    shape->is_strided = shape->size < ranks && random_below(&draws, 2) == 0;
    if (ranks % shape->size != 0)
        return false;
    shape->bytes = meter_collective_bytes(shape->op, shape->size, draw_whole(64, 16 << 20));
    shape->fullest = is_uneven ? draw(1, shape->size) : 1;
    double bytes = (double)shape->bytes;
    out->predicted = is_uneven
                         ? profile_all_to_all_seconds(&file.profile, shape->size, shape->is_strided,
                                                      bytes, shape->fullest)
                         : profile_collective_seconds(&file.profile, shape->op, shape->size,
                                                      shape->is_strided, bytes);
    return shape->bytes <= meter_collective_bytes_max(meter);
}

static void samples_draw(int count)
{
    int last = box_rank_count(box) > 1 ? SUBJECT_COUNT : COLLECTIVE;
    for (int role = HELD_OUT; role <= TRAINING; role++) {
        for (int s = 0; s < last; s++) {
            for (int i = 0; i < count; i++) {
                struct sample *sample = &samples[sample_count++];
                *sample = (struct sample){.subject = (enum subject)s, .role = (enum role)role};
                while (
                    !(is_collective(sample->subject) ? collective_draw(sample) : work_draw(sample)))
                    ;
            }
        }
    }
}

/* ---- Points of the profile ------------------------------------------------------------------- */

/* The nearest point of each shape that is held out. */
static void points_add(void)
{
    const int drawn = sample_count;
    for (int i = 0; i < drawn; i++) {
        const struct sample *sample = &samples[i];
        struct own_point near;
        if (sample->role != HELD_OUT)
            continue;
        bool has_one = is_collective(sample->subject)
                           ? own_point_near_collective(&near, &file, meter, &sample->collective)
                           : own_point_near_work(&near, &file, meter, &sample->work);
        if (has_one)
            samples[sample_count++] = (struct sample){.subject = sample->subject,
                                                      .role = OWN,
                                                      .work = near.work,
                                                      .collective = near.collective,
                                                      .predicted = near.seconds};
    }
}

/* So that what changes while all are measured changes all alike. */
static void samples_shuffle(void)
{
    for (int i = 0; i < sample_count; i++) {
        int other = i + (int)random_below(&draws, (uint64_t)(sample_count - i));
        struct sample held = samples[i];
        samples[i] = samples[other];
        samples[other] = held;
    }
}

static void samples_measure(int round)
{
    for (int i = 0; i < sample_count; i++) {
        struct sample *sample = &samples[i];
        struct calm_point *found = &sample->looks[round];
        struct error err;
        if (is_collective(sample->subject))
            check(calm_collective(found, &calm, &sample->collective, &err), &err);
        else
            check(calm_work(found, &calm, &sample->work, &err), &err);
        if (i % 100 == 99)
            fprintf(stderr, "round %d: %d of %d\n", round + 1, i + 1, sample_count);
    }
}

/* ---- HAP's estimator --------------------------------------------------------------------------
 *
 * HAP, section III-B: the time of an operation is its flops over the device's peak times an
 * efficiency that a random forest learns from the operation's sizes; of a collective its bytes over
 * the bandwidth, likewise. What has no flops is estimated by its bytes here. It is trained on as
 * many shapes as are held out, drawn in the same way, once for each row of the result. */

static double amount_of(const struct sample *sample)
{
    if (is_collective(sample->subject))
        return (double)sample->collective.bytes;
    double flops = work_shape_flops(&sample->work);
    return flops > 0 ? flops : work_shape_bytes(&sample->work);
}

static void features_of(double out[FOREST_FEATURES], const struct sample *sample)
{
    for (int f = 0; f < FOREST_FEATURES; f++)
        out[f] = f < WORK_SHAPE_DIMS ? log((double)sample->work.dims[f] + 1) : 0;
    if (is_collective(sample->subject)) {
        const struct collective_shape *shape = &sample->collective;
        out[0] = log((double)shape->bytes);
        out[1] = (double)shape->op;
        out[2] = shape->size;
        out[3] = shape->is_strided;
        out[4] = shape->fullest;
    }
}

/* NAN: there was nothing to learn from. */
static void baseline(double *out, enum subject subject, bool all)
{
    static double features[DRAWS_MAX][FOREST_FEATURES], targets[DRAWS_MAX];
    int count = 0, filled = 0;
    double peak = 0;
    for (int i = 0; i < sample_count; i++) {
        if (samples[i].subject == subject && samples[i].role == TRAINING &&
            is_told(&samples[i], all))
            peak = fmax(peak, amount_of(&samples[i]) / seconds_of(&samples[i]));
    }
    for (int i = 0; i < sample_count; i++) {
        if (samples[i].subject != subject || samples[i].role != TRAINING ||
            !is_told(&samples[i], all))
            continue;
        features_of(features[count], &samples[i]);
        targets[count++] = amount_of(&samples[i]) / seconds_of(&samples[i]) / peak;
    }
    struct forest *forest = NULL;
    if (count > 0) {
        forest =
            forest_create((const double(*)[FOREST_FEATURES])features, targets, count, draws.seed);
        if (forest == NULL)
            fail("out of memory");
    }
    for (int i = 0; i < sample_count; i++) {
        double own[FOREST_FEATURES];
        if (samples[i].subject != subject || samples[i].role != HELD_OUT)
            continue;
        features_of(own, &samples[i]);
        out[filled++] =
            forest == NULL ? NAN : amount_of(&samples[i]) / (peak * forest_value(forest, own));
    }
    forest_destroy(forest);
}

/* ---- Report ---------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_errors(double *errors, int count)
{
    if (count == 0) {
        printf(" %8s %8s ", "-", "-");
        return;
    }
    qsort(errors, (size_t)count, sizeof *errors, by_value);
    printf(" %8.1f %8.1f ", 100 * errors[count / 2], 100 * errors[count * 9 / 10]);
}

static void report(enum subject subject, bool all)
{
    static double predicted[DRAWS_MAX], repeated[DRAWS_MAX], forest[DRAWS_MAX], times[DRAWS_MAX];
    static double own[DRAWS_MAX];
    int count = 0, held_out = 0, own_count = 0, repeat_count = 0, forest_count = 0;
    baseline(times, subject, all);
    for (int i = 0; i < sample_count; i++) {
        const struct sample *sample = &samples[i];
        double seconds = seconds_of(sample), repeat = repeat_of(sample);
        bool counts = sample->subject == subject && is_told(sample, all);
        if (counts && sample->role == OWN)
            own[own_count++] = fabs(sample->predicted / seconds - 1);
        if (sample->subject != subject || sample->role != HELD_OUT)
            continue;
        double by_forest = times[held_out++];
        if (!counts)
            continue;
        predicted[count] = fabs(sample->predicted / seconds - 1);
        if (repeat >= 0)
            repeated[repeat_count++] = repeat;
        if (!isnan(by_forest))
            forest[forest_count++] = fabs(by_forest / seconds - 1);
        count++;
    }
    printf("%-20s %5d", subject_names[subject], count);
    print_errors(predicted, count);
    print_errors(own, own_count);
    print_errors(repeated, repeat_count);
    printf("%5d", repeat_count);
    print_errors(forest, forest_count);
    printf("\n");
}

static void report_all(bool all)
{
    printf("%-20s %5s %17s %18s %18s %4s %18s\n", "", "", "profile", "its points", "repeat", "of",
           "forest");
    for (int s = 0; s < SUBJECT_COUNT; s++) {
        if (s < COLLECTIVE || file.identity.devices.rank_count > 1)
            report((enum subject)s, all);
    }
}

static double probe_ratio(const struct calm_point *point)
{
    return point->probe_seconds / calm_usual(&calm.calm, point->probe);
}

static void collective_print(const struct collective_shape *shape)
{
    printf(" %s %d%s %lld", profile_group_op_name(shape->op), shape->size,
           shape->is_strided ? " strided" : "", (long long)shape->bytes);
    if (shape->fullest > 1)
        printf(", fullest %.2f", shape->fullest);
}

/* Every shape with its times, for who wants to know where the errors are. */
static void print_samples(void)
{
    for (int i = 0; i < sample_count; i++) {
        const struct sample *sample = &samples[i];
        if (sample->role == TRAINING)
            continue;
        printf("# %s%s:", subject_names[sample->subject], sample->role == OWN ? ", own" : "");
        if (is_collective(sample->subject))
            collective_print(&sample->collective);
        for (int d = 0; d < WORK_SHAPE_DIMS && sample->work.dims[d] > 0; d++)
            printf(" %lld", (long long)sample->work.dims[d]);
        printf(": %.3g us, then %.3g; predicted %.3g; probes %.2f and %.2f\n",
               sample->looks[0].measured.seconds * 1e6, sample->looks[1].measured.seconds * 1e6,
               sample->predicted * 1e6, probe_ratio(&sample->looks[0]),
               probe_ratio(&sample->looks[1]));
    }
}

static void box_get(const char *path)
{
    struct error err;
    struct profile_identity here;
    check(profile_file_read(&file, path, &err), &err);
    check(box_open(&box,
                   &(struct box_params){.rank_count = file.identity.devices.rank_count,
                                        .thread_count = file.identity.threads},
                   &err),
          &err);
    profile_identity_here(&here, box_device(box, 0)->ops->name, file.identity.devices.rank_count,
                          file.identity.threads);
    if (profile_identity_fit(&file.identity, &here, &err) != PROFILE_FITS)
        fail(err.message);
    uint64_t bytes = RANK_BYTES * (uint64_t)file.identity.devices.rank_count;
    uint64_t most = system_memory_available() / 4;
    struct meter_params params = meter_params_default(box, bytes < most ? bytes : most);
    params.shares_cores = file.identity.threads > file.identity.cores;
    check(meter_create(&meter, &params, &err), &err);
    struct calm_params as_usual = {.patience_seconds = PATIENCE_SECONDS};
    if (knows_probes())
        memcpy(as_usual.usual, file.probe_seconds, sizeof as_usual.usual);
    check(calm_meter_init(&calm, meter, &as_usual, &err), &err);
}

int main(int argc, char **argv)
{
    int count = argc > 2 ? atoi(argv[2]) : 100;
    draws.seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    bool prints_all = argc > 4 && strcmp(argv[4], "all") == 0;
    if (argc < 2 || count < 2 || count > DRAWS_MAX)
        fail("usage: bench_operators PROFILE [shapes of each kind, 2 to 1000 (100)] [seed (1)] "
             "[all: every shape]");
    box_get(argv[1]);
    bench_print_head(argc, argv);
    printf("# %d devices, %d threads, %s; seed %llu; clock: CLOCK_MONOTONIC\n",
           file.identity.devices.rank_count, file.identity.threads, file.identity.kernels,
           (unsigned long long)draws.seed);
    samples_draw(count);
    points_add();
    samples_shuffle();
    for (int round = 0; round < 2; round++)
        samples_measure(round);
    if (prints_all)
        print_samples();
    printf("# %llu of %d measurements while the machine was slower or faster than %s, as "
           "src/measure/calm.h sees it\n",
           (unsigned long long)calm.calm.disturbed, 2 * sample_count,
           knows_probes() ? "when it was calibrated" : "usual in this run");
    printf(
        "# relative errors in %%: median and 90th percentile, of the profile's predictions, of its "
        "points nearest to\n# them, of the slower of two measurements beside the faster (where "
        "both met the machine as usual), and of a random\n# forest on as many shapes more "
        "(HAP)\n#\n# Shapes that met the machine as usual:\n");
    report_all(false);
    printf("# All of them:\n");
    report_all(true);
    meter_destroy(meter);
    box_close(box);
    profile_file_deinit(&file);
    return 0;
}

#include "passes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "replay/report.h"
#include "replay/simulate.h"

#define DECODE_REPEATS 3 /* of a round; a prefill pass is long enough to be measured once */
#define PATH_BYTES     512

static void fail(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
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

/* ---- Files ----------------------------------------------------------------------------------- */

static int repeats_of(const struct pass_case *of)
{
    return of->phase == PHASE_DECODE ? DECODE_REPEATS : 1;
}

/* A layout's text without what a file's name had better not have. */
static void path_of(char out[PATH_BYTES], const struct passes *passes, const struct layout *layout,
                    const struct pass_case *of, int round, int repeat)
{
    char text[LAYOUT_TEXT_BYTES], what[96];
    layout_format(text, layout);
    for (char *at = text; *at != 0; at++)
        *at = *at == '|' ? '_' : *at == ':' ? '-' : *at;
    if (of->phase == PHASE_DECODE)
        snprintf(what, sizeof what, "step%s-%lldx%lld", of->is_packed ? "-int4" : "",
                 (long long)of->sequences, (long long)of->context);
    else
        snprintf(what, sizeof what, "prefill-%lld-of-%lld-%lld", (long long)of->tokens,
                 (long long)of->prompt, (long long)of->pass_index);
    int length = snprintf(out, PATH_BYTES, "%s/%s.%s.%s.%d.%d", passes->folder, passes->name, text,
                          what, round, repeat);
    if (length >= PATH_BYTES)
        fail("the folder's path is too long");
}

static bool is_there(const struct passes *passes, const struct layout *layout,
                     const struct pass_case *of, int round)
{
    for (int repeat = 0; repeat < repeats_of(of); repeat++) {
        char path[PATH_BYTES];
        path_of(path, passes, layout, of, round, repeat);
        if (access(path, R_OK) != 0)
            return false;
    }
    return true;
}

/* ---- Recording ------------------------------------------------------------------------------- */

static void engine_get(struct engine **out, const struct passes *passes,
                       const struct layout *layout, bool is_packed)
{
    struct error err;
    char text[LAYOUT_TEXT_BYTES], devices[16];
    struct plan_layouts layouts = plan_layouts_static(layout);
    layouts.decode_is_packed = is_packed;
    plan_layouts_format(text, &layouts);
    snprintf(devices, sizeof devices, "cpu:%d", passes->rank_count);
    check(engine_open(out,
                      &(struct engine_params){.model = passes->model,
                                              .dtype_is_auto = true,
                                              .thread_count = passes->rank_count,
                                              .devices = devices,
                                              .plan = text,
                                              .transition = WAY_KEEP,
                                              .records = true,
                                              .log = {note, NULL}},
                      &err),
          &err);
}

static int case_record(struct pass_recorder *recorder, const struct passes *passes,
                       const struct layout *layout, const struct pass_case *of, int round)
{
    for (int repeat = 0; repeat < repeats_of(of); repeat++) {
        struct error err;
        char path[PATH_BYTES];
        struct recording recording;
        check(pass_recorder_run(recorder, of, &recording, &err), &err);
        path_of(path, passes, layout, of, round, repeat);
        check(recording_write(&recording, path, &err), &err);
        recording_deinit(&recording);
    }
    return repeats_of(of);
}

int passes_record(const struct passes *passes, const struct layout *layout,
                  const struct pass_case *cases, int count, int round)
{
    int done = 0;
    for (int is_packed = 0; is_packed < 2; is_packed++) {
        struct error err;
        struct engine *engine = NULL;
        struct pass_recorder *recorder = NULL;
        struct pass_contexts contexts = {0};
        for (int i = 0; i < count; i++) {
            if (cases[i].is_packed != is_packed || is_there(passes, layout, &cases[i], round))
                continue;
            if (engine == NULL) {
                engine_get(&engine, passes, layout, is_packed);
                check(pass_recorder_create(&recorder, engine, &contexts, cases, count, true, &err),
                      &err);
            }
            done += case_record(recorder, passes, layout, &cases[i], round);
        }
        pass_recorder_destroy(recorder);
        pass_contexts_deinit(&contexts);
        engine_close(engine);
    }
    return done;
}

/* ---- Replay ---------------------------------------------------------------------------------- */

void passes_pool(struct passes *passes, const struct layout *layout, const struct pass_case *cases,
                 int count, int round)
{
    struct error err;
    for (int i = 0; i < count; i++) {
        for (int repeat = 0; repeat < repeats_of(&cases[i]); repeat++) {
            char path[PATH_BYTES];
            struct recording recording;
            path_of(path, passes, layout, &cases[i], round, repeat);
            check(recording_read(&recording, path, &err), &err);
            check(pool_add(&passes->pool, &recording, &err), &err);
            recording_deinit(&recording);
        }
    }
}

static void parts_fill(double parts[PART_COUNT], const struct report *report,
                       const struct recording *recording)
{
    for (int p = 0; p < RECORD_PHASE_COUNT; p++) {
        const struct report_phase *phase = &report->phases[p];
        for (uint32_t stage = 0; stage < recording->stage_count; stage++)
            parts[part_of_stage((int)stage)] += phase->compute_seconds[stage];
        for (uint32_t tag = 0; tag < recording->tag_count; tag++)
            parts[PART_EXCHANGE] += phase->collective_seconds[tag];
        parts[PART_OTHERS] += phase->others_seconds;
        parts[PART_HOST] += phase->copy_seconds + phase->wait_seconds;
    }
}

static struct pass_time replay(const char *path, const struct pool *pool,
                               const struct box_model *box)
{
    struct recording recording;
    struct simulation simulation;
    struct report report;
    struct pass_time time = {0};
    struct error err;
    struct simulation_params params = {.recording = &recording, .box = box};
    check(recording_read(&recording, path, &err), &err);
    pool_apply(pool, &recording);
    check(simulate(&simulation, &params, &err), &err);
    check(report_make(&report, &recording, &simulation, &err), &err);
    time.seconds = simulation.seconds;
    parts_fill(time.parts, &report, &recording);
    report_deinit(&report);
    simulation_deinit(&simulation);
    recording_deinit(&recording);
    return time;
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const struct pass_time *)a)->seconds, y = ((const struct pass_time *)b)->seconds;
    return (x > y) - (x < y);
}

struct pass_time passes_time(const struct passes *passes, const struct layout *layout,
                             const struct pass_case *of, int round_count,
                             const struct box_model *box)
{
    struct pass_time times[PASSES_ROUNDS_MAX * DECODE_REPEATS];
    int count = 0;
    for (int round = 0; round < round_count; round++) {
        for (int repeat = 0; repeat < repeats_of(of); repeat++) {
            char path[PATH_BYTES];
            path_of(path, passes, layout, of, round, repeat);
            times[count++] = replay(path, &passes->pool, box);
        }
    }
    qsort(times, (size_t)count, sizeof *times, by_seconds);
    if (count % 2 == 0)
        times[count / 2].seconds = (times[count / 2 - 1].seconds + times[count / 2].seconds) / 2;
    return times[count / 2];
}

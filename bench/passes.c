#include "passes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/record.h"
#include "base/trace.h"
#include "engine/batch_recording.h"
#include "engine/engine.h"
#include "exec/exec.h"
#include "exec/sampler.h"
#include "replay/report.h"
#include "replay/simulate.h"

#define NODES_MAX      ((int64_t)1 << 22)
#define DECODE_REPEATS 3 /* of a round; a prefill pass is long enough to be measured once */
#define PATH_BYTES     512
#define SEGMENTS_MAX   4096
#define KV_BYTE        0x3c /* bf16 of it are small numbers */

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
        snprintf(what, sizeof what, "decode%s-%lldx%lld", of->is_packed ? "-int4" : "",
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

/* ---- What a pass has ------------------------------------------------------------------------- */

int64_t passes_period(const struct layout *layout, int64_t prompt, int64_t tokens)
{
    int64_t of_group = tokens / layout->attention.dp;
    return of_group < prompt ? prompt / of_group : 1;
}

static int64_t of_group(const struct layout *layout, int64_t count)
{
    return ceil_div(count, layout->attention.dp);
}

/* Sequences of a group that have pages, and pages of each. */
static int64_t sequences_of(const struct layout *layout, const struct pass_case *of)
{
    if (of->phase == PHASE_DECODE)
        return of_group(layout, of->sequences);
    return ceil_div((of->pass_index + 1) * of_group(layout, of->tokens), of->prompt);
}

static int64_t pages_of(const struct pass_case *of)
{
    return kv_pages_for(of->phase == PHASE_DECODE ? of->context : of->prompt);
}

/* An executor over a model under one layout, and what its passes need. */
struct runner {
    const struct layout *layout;
    struct engine *engine;
    struct exec *exec;
    struct kv_cache cache;
    struct sampler sampler;
    int32_t *tokens, *pages; /* at random; 0, 1, 2 ... */
    struct exec_segment segments[SEGMENTS_MAX];
    int32_t wanted[SEGMENTS_MAX]; /* rows whose logits are */
    int64_t segment_count, wanted_count, row_count;
};

static void segment_add(struct runner *runner, const struct pass_case *of, int group,
                        int64_t sequence, int64_t first, int64_t count, bool has_logits)
{
    if (runner->segment_count == SEGMENTS_MAX)
        fail("too many sequences");
    int64_t number = (int64_t)group * sequences_of(runner->layout, of) + sequence;
    int64_t token = of->phase == PHASE_DECODE ? number : number * of->prompt + first;
    runner->segments[runner->segment_count++] =
        (struct exec_segment){.tokens = runner->tokens + token,
                              .token_count = count,
                              .first_position = first,
                              .pages = runner->pages + sequence * pages_of(of),
                              .group = group};
    runner->row_count += count;
    if (has_logits)
        runner->wanted[runner->wanted_count++] = (int32_t)runner->row_count - 1;
}

/* A group goes through its prompts one after another. */
static void prefill_add(struct runner *runner, const struct pass_case *of, int group)
{
    int64_t share = of_group(runner->layout, of->tokens), at = of->pass_index * share;
    int64_t end = at + share;
    while (at < end) {
        int64_t first = at % of->prompt, left = of->prompt - first;
        int64_t count = left < end - at ? left : end - at;
        segment_add(runner, of, group, at / of->prompt, first, count, count == left);
        at += count;
    }
}

static void segments_fill(struct runner *runner, const struct pass_case *of)
{
    runner->segment_count = runner->wanted_count = runner->row_count = 0;
    for (int group = 0; group < runner->layout->attention.dp; group++) {
        struct range here = layout_share(of->sequences, runner->layout->attention.dp, group);
        for (int64_t s = 0; of->phase == PHASE_DECODE && s < here.count; s++)
            segment_add(runner, of, group, s, of->context - 1, 1, true);
        if (of->phase == PHASE_PREFILL)
            prefill_add(runner, of, group);
    }
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Of all cases that the layout has: the largest. */
struct sizes {
    int64_t tokens, sequences, pages;
    int64_t drawn; /* tokens at random */
};

static struct sizes sizes_of(const struct layout *layout, const struct pass_case *cases, int count)
{
    struct sizes sizes = {1, 1, 1, 1};
    for (int i = 0; i < count; i++) {
        const struct pass_case *of = &cases[i];
        bool is_decode = of->phase == PHASE_DECODE;
        int64_t tokens = is_decode ? of->sequences : of->tokens;
        int64_t sequences = is_decode ? of->sequences : layout->attention.dp;
        int64_t groups = layout->attention.dp, here = sequences_of(layout, of);
        int64_t pages = here * pages_of(of);
        int64_t drawn = groups * here * (is_decode ? 1 : of->prompt);
        sequences = sequences < groups * here ? groups * here : sequences;
        sizes.tokens = tokens > sizes.tokens ? tokens : sizes.tokens;
        sizes.sequences = sequences > sizes.sequences ? sequences : sizes.sequences;
        sizes.pages = pages > sizes.pages ? pages : sizes.pages;
        sizes.drawn = drawn > sizes.drawn ? drawn : sizes.drawn;
    }
    sizes.tokens = sizes.tokens < sizes.sequences ? sizes.sequences : sizes.tokens;
    return sizes;
}

static void arrays_fill(struct runner *runner, const struct sizes *sizes)
{
    struct error err;
    int64_t vocab = engine_config(runner->engine)->vocab_count;
    struct random random = {.seed = 1};
    check(memory_get((void **)&runner->tokens, (size_t)sizes->drawn, sizeof(int32_t), "ids", &err),
          &err);
    check(memory_get((void **)&runner->pages, (size_t)sizes->pages, sizeof(int32_t), "pages", &err),
          &err);
    for (int64_t i = 0; i < sizes->drawn; i++)
        runner->tokens[i] = (int32_t)random_below(&random, (uint64_t)vocab);
    for (int64_t i = 0; i < sizes->pages; i++)
        runner->pages[i] = (int32_t)i;
}

/* Pages that nobody wrote to would be one page of zeros, which a cache holds. */
static void cache_fill(struct runner *runner, int64_t page_count)
{
    struct error err;
    const struct model_config *config = engine_config(runner->engine);
    check(kv_cache_init(&runner->cache,
                        &(struct kv_cache_params){.box = exec_box(runner->exec),
                                                  .config = config,
                                                  .layout = runner->layout,
                                                  .dtype = exec_kv_dtype(runner->exec),
                                                  .page_count = page_count},
                        &err),
          &err);
    for (int rank = 0; rank < runner->layout->rank_count; rank++) {
        for (int64_t layer = 0; layer < config->layer_count; layer++) {
            struct kv_layer kv = kv_cache_layer(&runner->cache, rank, layer);
            size_t bytes = (size_t)(kv_page_values(&kv) * page_count * dtype_bytes(kv.dtype));
            memset(kv.keys, KV_BYTE, bytes);
            memset(kv.values, KV_BYTE, bytes);
        }
    }
}

static void runner_open(struct runner *runner, const struct passes *passes,
                        const struct layout *layout, bool is_packed, const struct sizes *sizes)
{
    struct error err;
    char text[LAYOUT_TEXT_BYTES], devices[16];
    struct plan_layouts layouts = plan_layouts_static(layout);
    layouts.decode_is_packed = is_packed;
    plan_layouts_format(text, &layouts);
    snprintf(devices, sizeof devices, "cpu:%d", passes->rank_count);
    *runner = (struct runner){.layout = layout};
    check(engine_open(&runner->engine,
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
    check(engine_exec_create(&runner->exec, runner->engine, sizes->tokens, sizes->sequences, &err),
          &err);
    check(sampler_init(&runner->sampler, engine_config(runner->engine)->vocab_count, &err), &err);
    arrays_fill(runner, sizes);
    cache_fill(runner, sizes->pages);
}

static void runner_close(struct runner *runner)
{
    memory_free(runner->tokens);
    memory_free(runner->pages);
    sampler_deinit(&runner->sampler);
    kv_cache_deinit(&runner->cache);
    exec_destroy(runner->exec);
    engine_close(runner->engine);
}

static struct exec_head head_of(const struct runner *runner, int64_t first)
{
    int64_t left = runner->wanted_count - first;
    return (struct exec_head){.rows = runner->wanted + first,
                              .row_count = left < EXEC_LOGIT_ROWS ? left : EXEC_LOGIT_ROWS};
}

static void choose(struct runner *runner, const struct exec_head *head)
{
    const struct sampler_choice choice = {.top_p = 1};
    for (int64_t i = 0; i < head->row_count; i++) {
        const float *logits = head->logits + i * head->stride;
        if (!sampler_can_choose(logits, runner->sampler.vocab_count))
            fail("the logits are no numbers");
        sampler_choose(&runner->sampler, logits, &choice);
    }
}

/* As a step of the generator that draws tokens: all logits come to the host, which is what the
 * planner prices; a greedy step leaves them on the device. */
static void pass_run(struct runner *runner, const struct pass_case *of)
{
    struct error err;
    bool is_prefill = of->phase == PHASE_PREFILL;
    enum layer_form form = is_prefill ? FORM_OWNED : exec_decode_form(runner->exec);
    struct exec_head head = head_of(runner, 0);
    check(exec_step(runner->exec, &runner->cache, form, runner->segments, runner->segment_count,
                    &head, &err),
          &err);
    choose(runner, &head);
    for (int64_t first = EXEC_LOGIT_ROWS; first < runner->wanted_count; first += EXEC_LOGIT_ROWS) {
        head = head_of(runner, first);
        check(exec_head(runner->exec, &head, &err), &err);
        choose(runner, &head);
    }
}

static void pass_record(struct runner *runner, const struct passes *passes,
                        const struct pass_case *of, int round, int repeat)
{
    struct error err;
    char path[PATH_BYTES];
    struct trace *trace = engine_trace(runner->engine);
    struct phasor_batch_result none = {0};
    struct recording recording;
    record_start(trace, NODES_MAX);
    record_phase(trace, of->phase == PHASE_PREFILL ? RECORD_PREFILL : RECORD_DECODE);
    pass_run(runner, of);
    if (record_stop(trace) != RECORD_WHOLE)
        fail("a pass has too many operations to be recorded");
    check(batch_recording_get(&recording,
                              &(struct batch_recording_params){
                                  .engine = runner->engine, .result = &none, .wall_seconds = 1},
                              &err),
          &err);
    path_of(path, passes, runner->layout, of, round, repeat);
    check(recording_write(&recording, path, &err), &err);
    recording_deinit(&recording);
}

static void phase_enter(struct runner *runner, enum phase phase)
{
    struct error err;
    struct exec_hooks hooks = {0};
    check(engine_enter(runner->engine, &(struct generator_pass){.phase = phase}, &hooks, &err),
          &err);
}

/* A pass warms up before those of each phase: threads, and weights that nobody has read. */
static int cases_run(struct runner *runner, const struct passes *passes,
                     const struct pass_case *cases, int count, bool is_packed, int round)
{
    int done = 0, warm[PHASE_COUNT] = {0};
    struct trace_lane *before = trace_lane_use(engine_lane(runner->engine));
    for (int i = 0; i < count; i++) {
        const struct pass_case *of = &cases[i];
        if (of->is_packed != is_packed || is_there(passes, runner->layout, of, round))
            continue;
        segments_fill(runner, of);
        if (warm[of->phase]++ == 0) {
            phase_enter(runner, of->phase);
            if (of->phase == PHASE_DECODE)
                pass_run(runner, of);
        }
        for (int repeat = 0; repeat < repeats_of(of); repeat++, done++)
            pass_record(runner, passes, of, round, repeat);
    }
    trace_lane_use(before);
    return done;
}

int passes_record(const struct passes *passes, const struct layout *layout,
                  const struct pass_case *cases, int count, int round)
{
    int done = 0;
    struct sizes sizes = sizes_of(layout, cases, count);
    for (int is_packed = 0; is_packed < 2; is_packed++) {
        static struct runner runner;
        int missing = 0;
        for (int i = 0; i < count; i++)
            missing +=
                cases[i].is_packed == is_packed && !is_there(passes, layout, &cases[i], round);
        if (missing == 0)
            continue;
        runner_open(&runner, passes, layout, is_packed, &sizes);
        done += cases_run(&runner, passes, cases, count, is_packed, round);
        runner_close(&runner);
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

#include "record_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/batch.h"
#include "engine_tools.h"

#define MODEL MODELS_DIR "/kjv-moe"

static const struct log_sink no_log;

static void write_rows(const char *path)
{
    char rows[16384];
    size_t length = 0;
    for (int row = 0; row < 4; row++) {
        length += (size_t)snprintf(rows + length, sizeof rows - length,
                                   "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":"
                                   "\"/v1/completions\",\"body\":{\"prompt\":[7",
                                   row);
        for (int t = 0; t < 40 + 9 * row; t++)
            length += (size_t)snprintf(rows + length, sizeof rows - length, ",%d",
                                       3 + (t * 7 + row * 31) % 200);
        length +=
            (size_t)snprintf(rows + length, sizeof rows - length,
                             "],\"max_tokens\":%d,\"ignore_eos\":true,\"logprobs\":2}}\n", 4 + row);
    }
    tools_write_file(path, rows, length);
}

struct phasor_batch_params record_batch(const struct record_case *of)
{
    const char *folder = tools_folder();
    struct phasor_batch_params batch = phasor_batch_params_default();
    batch.input_path = tools_path(folder, "in");
    write_rows(batch.input_path);
    batch.output_path = tools_path(folder, "out");
    batch.overwrite = true;
    batch.kv_bytes = 1 << 24;
    batch.max_num_seqs = of->max_num_seqs;
    batch.max_num_batched_tokens = of->max_num_batched_tokens;
    return batch;
}

struct engine *record_engine_open(const struct record_case *of, bool records)
{
    struct engine *engine;
    struct error err;
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1);
    struct engine_params params = {
        .model = MODEL,
        .dtype_is_auto = true,
        .plan = of->plan,
        .transition_is_auto = of->transition == PHASOR_TRANSITION_AUTO,
        .transition =
            of->transition == PHASOR_TRANSITION_AUTO ? WAY_KEEP : (enum way)(of->transition - 1),
        .records = records,
        .kv_bytes = 1 << 24,
        .max_num_seqs = of->max_num_seqs,
        .max_num_batched_tokens = of->max_num_batched_tokens,
    };
    cr_assert_eq(engine_open(&engine, &params, &err), STATUS_OK, "%s", err.message);
    return engine;
}

/* ---- What depends on what -------------------------------------------------------------------- */

static void *grow(void *array, size_t count, size_t more, size_t size)
{
    array = realloc(array, (count + more + 1) * size);
    cr_assert_not_null(array);
    return array;
}

/* With its needs and values, which stand in its own lists here. */
static void node_copy(struct rig_lane *to, const struct record_lane_view *view, size_t n)
{
    struct record_node *node = &to->nodes[n];
    const int64_t *values = record_values_of(view, record_node_at(view, n));
    *node = *record_node_at(view, n);
    to->needs = grow(to->needs, to->need_count, node->need_count, sizeof *to->needs);
    for (uint32_t i = 0; i < node->need_count; i++)
        to->needs[to->need_count + i] = record_need_at(view, node, i);
    node->need_first = (uint32_t)to->need_count;
    to->need_count += node->need_count;
    if (values == NULL)
        return;
    size_t count = RECORD_VALUES + 2 * (size_t)values[RECORD_VALUE_SIZE];
    to->values = grow(to->values, to->value_count, count, sizeof *values);
    memcpy(to->values + to->value_count, values, count * sizeof *values);
    node->value_first = (uint32_t)to->value_count;
    to->value_count += count;
}

static void see(void *context, const struct record_lane_view *view)
{
    struct record_run *run = context;
    cr_assert_lt(run->lane_count, RIG_LANES_MAX);
    if (view->node_count == 0)
        return;
    struct rig_lane *lane = &run->lanes[run->lane_count++];
    *lane = (struct rig_lane){.number = view->number,
                              .rank = view->rank,
                              .name = view->name,
                              .kind = view->kind,
                              .node_count = view->node_count,
                              .nodes = grow(NULL, 0, view->node_count, sizeof *lane->nodes)};
    for (size_t n = 0; n < view->node_count; n++)
        node_copy(lane, view, n);
}

/* Nodes are there until the file is written: they are looked at when all rows are done. */
static int look_at_end(void *context, const struct phasor_batch_progress *progress)
{
    struct record_run *run = context;
    struct trace *trace = engine_trace(run->engine);
    if (progress->requests_done < progress->requests_total || run->lane_count > 0)
        return PHASOR_GO_ON;
    cr_assert_eq(record_stop(trace), RECORD_WHOLE);
    record_look(trace, see, run);
    return PHASOR_GO_ON;
}

static int lane_of(const struct record_run *run, uint32_t number)
{
    for (int l = 0; l < run->lane_count; l++) {
        if (run->lanes[l].number == number)
            return l;
    }
    cr_assert_fail("a node needs lane %u, which has none", number);
    return -1;
}

static void join(uint32_t *clock, const uint32_t *other)
{
    for (int l = 0; l < RIG_LANES_MAX; l++)
        clock[l] = other[l] > clock[l] ? other[l] : clock[l];
}

/* False: one that it needs has no clock yet. */
static bool clock_set(struct record_run *run, int lane, size_t n, const size_t *done)
{
    const struct rig_lane *view = &run->lanes[lane];
    const struct record_node *node = &view->nodes[n];
    uint32_t *clock = run->clocks[lane][n];
    memset(clock, 0, sizeof run->clocks[lane][n]);
    for (uint32_t i = 0; i < node->need_count; i++) {
        struct record_mark need = view->needs[node->need_first + i];
        int other = lane_of(run, need.lane);
        cr_assert(need.count >= 1 && need.count <= run->lanes[other].node_count);
        if (done[other] < need.count)
            return false;
        join(clock, run->clocks[other][need.count - 1]);
        clock[other] = need.count > clock[other] ? need.count : clock[other];
    }
    if (n > 0)
        join(clock, run->clocks[lane][n - 1]);
    clock[lane] = (uint32_t)n;
    return true;
}

static void clocks_set(struct record_run *run)
{
    size_t done[RIG_LANES_MAX] = {0};
    for (int l = 0; l < run->lane_count; l++)
        run->clocks[l] = malloc(run->lanes[l].node_count * sizeof *run->clocks[l]);
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (int l = 0; l < run->lane_count; l++) {
            while (done[l] < run->lanes[l].node_count && clock_set(run, l, done[l], done)) {
                done[l]++;
                goes_on = true;
            }
        }
    }
    for (int l = 0; l < run->lane_count; l++)
        cr_assert_eq(done[l], run->lanes[l].node_count, "rank %d, %s: node %zu waits for ever",
                     run->lanes[l].rank, run->lanes[l].name, done[l]);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

void record_run_open(struct record_run *run, const struct record_case *of)
{
    struct error err;
    *run = (struct record_run){.engine = record_engine_open(of, true)};
    struct phasor_batch_params batch = record_batch(of);
    batch.record_path = tools_path(tools_folder(), "recording");
    batch.trace_path = tools_path(tools_folder(), "trace");
    batch.progress = look_at_end;
    batch.progress_context = run;
    cr_assert_eq(batch_run(run->engine, &batch, &no_log, &run->result, &err), STATUS_OK, "%s",
                 err.message);
    cr_assert_eq(recording_read(&run->recording, batch.record_path, &err), STATUS_OK, "%s",
                 err.message);
    cr_assert_gt(run->lane_count, 0);
    clocks_set(run);
}

static void rig_lane_deinit(struct record_run *run, int l)
{
    free(run->clocks[l]);
    free(run->lanes[l].nodes);
    free(run->lanes[l].needs);
    free(run->lanes[l].values);
}

void record_run_close(struct record_run *run)
{
    for (int l = 0; l < run->lane_count; l++)
        rig_lane_deinit(run, l);
    recording_deinit(&run->recording);
    engine_close(run->engine);
}

json_t *record_rows_plain(const struct record_case *of)
{
    struct error err;
    struct phasor_batch_result result;
    struct engine *engine = record_engine_open(of, false);
    struct phasor_batch_params batch = record_batch(of);
    cr_assert_eq(batch_run(engine, &batch, &no_log, &result, &err), STATUS_OK, "%s", err.message);
    engine_close(engine);
    return tools_read_rows(batch.output_path);
}

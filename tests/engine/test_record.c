/* Recordings of real runs: a graph without a cycle, in which everything that ran is there once,
 * with its bytes, and depends on what let it run. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/trace.h"
#include "engine_tools.h"
#include "exec/stage.h"
#include "layout/traffic.h"
#include "layout/work.h"
#include "record_rig.h"
#include "replay/simulate.h"

#define LAYERS 6

/* The way, and what of it is in the recording. */
static const struct record_case cases[] = {
    {"tp1|tp1", 1, PHASOR_TRANSITION_AUTO, 512, 4},
    {"tp1|tp1", 1, PHASOR_TRANSITION_AUTO, 24, 3}, /* prefill in chunks */
    {"tp2|tp2", 2, PHASOR_TRANSITION_AUTO, 512, 4},
    {"dp2|ep2", 2, PHASOR_TRANSITION_AUTO, 40, 4},
    {"dp2|ep2>tp2", 2, PHASOR_TRANSITION_KEEP, 512, 2},
    {"dp2|ep2>tp2", 2, PHASOR_TRANSITION_RESHARD, 512, 2}, /* two waves */
    {"dp2|ep2>tp2", 2, PHASOR_TRANSITION_RELOAD, 64, 2},
    {"dp2|ep2>tp2", 2, PHASOR_TRANSITION_UPLOAD, 512, 2},
    {"dp2|ep2>tp2", 2, PHASOR_TRANSITION_MIXED, 512, 2},
    {"tp2|ep2>tp2:int4", 2, PHASOR_TRANSITION_UPLOAD, 512, 2},
    {"tp2dp2|ep4>tp2ep2", 4, PHASOR_TRANSITION_RESHARD, 512, 2},
    {"tp4|tp4", 4, PHASOR_TRANSITION_AUTO, 512, 4},
};
#define CASES (sizeof cases / sizeof *cases)

static bool is_named(const struct rig_lane *lane, const char *name)
{
    return strcmp(lane->name, name) == 0;
}

static bool is_stream(const struct rig_lane *lane)
{
    return lane->kind == RECORD_LANE_STREAM || lane->kind == RECORD_LANE_LOW;
}

/* ---- What is in it --------------------------------------------------------------------------- */

/* Bytes that the members of a call send to others: as comm.h says, and not as they were counted. */
static int64_t sent_by(const struct recording *recording, const struct recording_collective *call)
{
    const int64_t *counts = recording->counts + call->count_first;
    int size = recording->groups[call->group].size;
    int64_t sum = 0, parts, first;
    for (int m = 0; m < size; m++)
        sum += counts[m];
    switch ((enum collective_op)call->op) {
    case COLLECTIVE_OP_ALL_GATHER:
        return counts[call->member] * (size - 1);
    case COLLECTIVE_OP_REDUCE_SCATTER:
        return sum - counts[call->member];
    case COLLECTIVE_OP_ALL_REDUCE:
        comm_part(&first, &parts, counts[0] / 4, size, call->member);
        return counts[0] - parts * 4 + parts * 4 * (size - 1);
    default:
        return sum;
    }
}

static void expect_traffic(const struct record_run *run, const char *plan)
{
    const struct recording *recording = &run->recording;
    int64_t bytes[TRAFFIC_KIND_COUNT] = {0};
    for (uint32_t c = 0; c < recording->collective_count; c++)
        bytes[recording->collectives[c].tag] += sent_by(recording, &recording->collectives[c]);
    for (int tag = 0; tag < TRAFFIC_KIND_COUNT; tag++)
        cr_expect_eq(bytes[tag], (int64_t)run->result.collective_bytes[tag],
                     "%s: %s: %lld bytes, not %lld", plan, traffic_names[tag],
                     (long long)bytes[tag], (long long)run->result.collective_bytes[tag]);
}

/* Each span of an operation of a rank's streams in the trace is a node of that name, once. */
struct spans {
    const char *name;
    int64_t count;
};

static void count_spans(void *context, const struct trace_lane_view *lane)
{
    struct spans *spans = context;
    bool is_of_stream = strcmp(lane->name, "passes") == 0 || strcmp(lane->name, "beside") == 0;
    for (int64_t s = 0; is_of_stream && s < lane->span_count; s++)
        spans->count += strcmp(lane->spans[s].name, spans->name) == 0;
}

static void expect_operations(const struct record_run *run, const char *plan)
{
    static const char *const names[] = {"embed",
                                        "rms_norm",
                                        "add",
                                        "matmul",
                                        "attention",
                                        "route",
                                        "rope_append",
                                        "dispatch",
                                        "group",
                                        "ffn_up",
                                        "ffn_down",
                                        "combine",
                                        "gather",
                                        "copy",
                                        "dequantize",
                                        "check",
                                        "attention reduction",
                                        "dispatch counts",
                                        "transition"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct spans spans = {.name = names[i]};
        int64_t count = 0;
        trace_look(engine_trace(run->engine), count_spans, &spans);
        for (int l = 0; l < run->lane_count; l++) {
            for (size_t n = 0; is_stream(&run->lanes[l]) && n < run->lanes[l].node_count; n++)
                count += strcmp(run->lanes[l].nodes[n].name, names[i]) == 0;
        }
        cr_expect_eq(count, spans.count, "%s: %s: %lld nodes of %lld", plan, names[i],
                     (long long)count, (long long)spans.count);
    }
}

/* Each layer's routed experts in each pass, with the rows that they had: what the ranks count
 * together is the same for any plan. */
static void expect_work(const struct record_run *run, const struct record_case *of)
{
    int64_t products = 0, rows = 0;
    for (uint32_t n = 0; n < run->recording.node_count; n++) {
        const struct recording_node *node = &run->recording.nodes[n];
        bool is_up = strcmp(run->recording.strings[node->name], "ffn_up") == 0;
        cr_expect(!is_up || (node->work == WORK_FFN_UP && node->layer >= 0));
        if (!is_up || node->stage != STAGE_EXPERTS)
            continue;
        cr_expect(node->phase == RECORD_PREFILL || node->phase == RECORD_DECODE);
        cr_expect_eq(node->flops, 4 * (uint64_t)node->dims[0] * (uint64_t)node->dims[2] *
                                      (uint64_t)node->dims[3]);
        products++;
        rows += (int64_t)node->dims[0] * node->dims[2];
    }
    cr_expect_gt(products, 0);
    int64_t tokens = (int64_t)(run->result.prefill_tokens + run->result.decode_tokens);
    const struct model_config *config = engine_config(run->engine);
    cr_expect_eq(rows, tokens * LAYERS * config->expert_top_k * config->expert_dim,
                 "%s: %lld rows x width", of->plan, (long long)rows);
}

/* ---- What depends on what -------------------------------------------------------------------- */

/* As it was, nothing began before what it needed had ended. */
static void expect_times(const struct record_run *run, const char *plan)
{
    for (int l = 0; l < run->lane_count; l++) {
        const struct rig_lane *lane = &run->lanes[l];
        for (size_t n = 0; n < lane->node_count; n++) {
            const struct record_node *node = &lane->nodes[n];
            cr_expect_leq(node->begin_ns, node->end_ns);
            cr_expect_leq(node->duration_ns, node->end_ns - node->begin_ns + 1000000,
                          "%s: rank %d, %s: %s, node %zu, works for %llu ns of %llu", plan,
                          lane->rank, lane->name, node->name, n,
                          (unsigned long long)node->duration_ns,
                          (unsigned long long)(node->end_ns - node->begin_ns));
            if (n > 0)
                cr_expect_leq(lane->nodes[n - 1].end_ns, node->begin_ns,
                              "%s: rank %d, %s: node %zu", plan, lane->rank, lane->name, n);
            for (uint32_t i = 0; i < node->need_count; i++) {
                struct record_mark need = lane->needs[node->need_first + i];
                for (int o = 0; o < run->lane_count; o++) {
                    if (run->lanes[o].number != need.lane)
                        continue;
                    cr_expect_leq(run->lanes[o].nodes[need.count - 1].end_ns, node->begin_ns,
                                  "%s: rank %d, %s: %s, node %zu, began before %s of rank %d ended",
                                  plan, lane->rank, lane->name, node->name, n, run->lanes[o].name,
                                  run->lanes[o].rank);
                }
            }
        }
    }
}

/* Nodes of a lane that had ended by then. */
static uint32_t ended_by(const struct rig_lane *lane, uint64_t ns)
{
    uint32_t count = 0;
    while (count < lane->node_count && lane->nodes[count].end_ns <= ns)
        count++;
    return count;
}

/* The driver works when no pass does, and passes when it rests: so each of its nodes depends on all
 * of theirs before it, and each of theirs on all of its own before them. */
static void expect_driven(const struct record_run *run, const char *plan)
{
    int driver = 0;
    while (driver < run->lane_count && run->lanes[driver].kind != RECORD_LANE_DRIVER)
        driver++;
    cr_assert_lt(driver, run->lane_count);
    for (int l = 0; l < run->lane_count; l++) {
        const struct rig_lane *lane = &run->lanes[l], *by = &run->lanes[driver];
        if (lane->kind != RECORD_LANE_STREAM && !is_named(lane, "host"))
            continue;
        for (size_t n = 0; n < lane->node_count; n++)
            cr_expect_eq(run->clocks[l][n][driver], ended_by(by, lane->nodes[n].begin_ns),
                         "%s: rank %d, %s: node %zu, %s, and the driver", plan, lane->rank,
                         lane->name, n, lane->nodes[n].name);
        for (size_t n = 0; n < by->node_count; n++)
            cr_expect_eq(run->clocks[driver][n][l], ended_by(lane, by->nodes[n].begin_ns),
                         "%s: the driver's node %zu and rank %d, %s", plan, n, lane->rank,
                         lane->name);
    }
}

/* Commands come from a host of their rank, which stands at most some microseconds behind: each node
 * depends on the host's work before it was put, and each rank's host on the stream it waited for.
 */
static void expect_put(const struct record_run *run, const char *plan)
{
    for (int l = 0; l < run->lane_count; l++) {
        const struct rig_lane *lane = &run->lanes[l];
        for (int h = 0; h < run->lane_count; h++) {
            const struct rig_lane *host = &run->lanes[h];
            bool is_of =
                lane->kind == RECORD_LANE_STREAM ? is_named(host, "host") : is_named(host, "reads");
            if (!is_stream(lane) || host->rank != lane->rank || !is_of)
                continue;
            for (size_t n = 0; n < lane->node_count; n++)
                cr_expect_gt(run->clocks[l][n][h], 0, "%s: rank %d, %s: node %zu, %s: from nowhere",
                             plan, lane->rank, lane->name, n, lane->nodes[n].name);
            cr_expect_gt(run->clocks[h][host->node_count - 1][l], 0);
        }
    }
}

static const struct record_node *first_use(const struct rig_lane *lane, int32_t layer, size_t *n)
{
    for (*n = 0; *n < lane->node_count; (*n)++) {
        const struct record_node *node = &lane->nodes[*n];
        if (strcmp(node->name, "ffn_up") == 0 && node->stage == STAGE_EXPERTS &&
            node->phase == RECORD_DECODE && node->layer == layer)
            return node;
    }
    cr_assert_fail("no decode of layer %d", layer);
    return NULL;
}

/* The nodes of the first way to decode: layers move in their order, and the way back begins again
 * with the first. */
static size_t first_way(const struct rig_lane *lane)
{
    size_t count = 1;
    while (count < lane->node_count && lane->nodes[count].layer >= lane->nodes[count - 1].layer)
        count++;
    return count;
}

/* Experts that moved are there before they are used: where decode comes to a layer first, it
 * depends on all that any rank has done for that layer. Returns what that was. */
static int64_t expect_moved(const struct record_run *run, const char *plan, int l, int o)
{
    const struct rig_lane *lane = &run->lanes[l], *other = &run->lanes[o];
    int64_t moves = 0;
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        size_t n;
        uint32_t last = 0;
        const struct record_node *use = first_use(lane, layer, &n);
        for (size_t m = 0; m < first_way(other); m++) {
            if (other->nodes[m].layer != layer)
                continue;
            cr_expect_leq(other->nodes[m].end_ns, use->begin_ns);
            last = (uint32_t)m + 1;
            moves++;
        }
        cr_expect_geq(run->clocks[l][n][o], last,
                      "%s: rank %d: layer %d is used before rank %d has moved it", plan, lane->rank,
                      layer, other->rank);
    }
    return moves;
}

static void expect_all_moved(const struct record_run *run, const struct record_case *of)
{
    int64_t moves = 0;
    for (int l = 0; l < run->lane_count; l++) {
        for (int o = 0; o < run->lane_count; o++) {
            if (run->lanes[l].kind == RECORD_LANE_STREAM && run->lanes[o].kind == RECORD_LANE_LOW)
                moves += expect_moved(run, of->plan, l, o);
        }
    }
    bool moves_bytes =
        of->transition != PHASOR_TRANSITION_AUTO && of->transition != PHASOR_TRANSITION_KEEP;
    cr_expect_eq(moves > 0, moves_bytes, "%s: %lld moves", of->plan, (long long)moves);
}

/* Where there is one spare slot, a layer's new experts are written over those that the layer before
 * it had: behind the last use of these on every rank. */
static void expect_released(const struct record_run *run, const struct record_case *of)
{
    for (int o = 0; o < run->lane_count; o++) {
        const struct rig_lane *low = &run->lanes[o];
        if (low->kind != RECORD_LANE_LOW || of->transition != PHASOR_TRANSITION_RESHARD)
            continue;
        for (size_t m = 0; m < first_way(low); m++) {
            for (int l = 0; l < run->lane_count; l++) {
                const struct rig_lane *lane = &run->lanes[l];
                uint32_t last = 0;
                for (size_t n = 0; lane->kind == RECORD_LANE_STREAM && n < lane->node_count &&
                                   lane->nodes[n].end_ns <= low->nodes[m].begin_ns;
                     n++) {
                    const struct record_node *node = &lane->nodes[n];
                    if (strcmp(node->name, "ffn_down") == 0 && node->stage == STAGE_EXPERTS &&
                        node->phase == RECORD_PREFILL && node->layer == low->nodes[m].layer - 1)
                        last = (uint32_t)n + 1;
                }
                cr_expect(lane->kind != RECORD_LANE_STREAM || low->nodes[m].layer == 0 || last > 0);
                cr_expect_geq(run->clocks[o][m][l], last,
                              "%s: rank %d writes over what rank %d uses in layer %d", of->plan,
                              low->rank, lane->rank, low->nodes[m].layer - 1);
            }
        }
    }
}

/* ---- All of it ------------------------------------------------------------------------------- */

static const char *choices_of(const json_t *rows, int row)
{
    char id[16];
    snprintf(id, sizeof id, "%d", row);
    const json_t *body = json_object_get(json_object_get(tools_row(rows, id), "response"), "body");
    return json_dumps(json_object_get(body, "choices"), JSON_SORT_KEYS);
}

static void expect_same_rows(const json_t *rows, const json_t *others, const char *plan)
{
    for (int row = 0; row < 4; row++) {
        const char *a = choices_of(rows, row), *b = choices_of(others, row);
        cr_expect_str_eq(a, b, "%s: row %d", plan, row);
        free((void *)(uintptr_t)a);
        free((void *)(uintptr_t)b);
    }
}

static void check_case(const struct record_case *of)
{
    struct record_run run;
    struct simulation simulation;
    struct error err;
    record_run_open(&run, of);
    json_t *rows = tools_read_rows(tools_path(tools_folder(), "out"));
    cr_expect_eq(recording_check(&run.recording, "the recording", &err), STATUS_OK, "%s: %s",
                 of->plan, err.message);
    cr_expect_eq(
        simulate(&simulation, &(struct simulation_params){.recording = &run.recording}, &err),
        STATUS_OK, "%s: %s", of->plan, err.message);
    cr_expect_gt(simulation.seconds, 0);
    simulation_deinit(&simulation);
    expect_traffic(&run, of->plan);
    expect_operations(&run, of->plan);
    expect_work(&run, of);
    expect_times(&run, of->plan);
    expect_driven(&run, of->plan);
    expect_put(&run, of->plan);
    expect_all_moved(&run, of);
    expect_released(&run, of);
    record_run_close(&run);
    if (of->transition == PHASOR_TRANSITION_AUTO || of->transition == PHASOR_TRANSITION_RESHARD) {
        json_t *plain = record_rows_plain(of);
        expect_same_rows(rows, plain, of->plan);
        json_decref(plain);
    }
    json_decref(rows);
}

Test(record, of_one_rank)
{
    check_case(&cases[0]);
    check_case(&cases[1]);
}

Test(record, of_ranks_under_one_layout)
{
    check_case(&cases[2]);
    check_case(&cases[3]);
    check_case(&cases[11]);
}

Test(record, of_a_change_without_bytes_and_of_messages)
{
    check_case(&cases[4]);
    check_case(&cases[5]);
    check_case(&cases[10]);
}

Test(record, of_what_is_read_again)
{
    check_case(&cases[6]);
    check_case(&cases[8]);
}

Test(record, of_an_upload)
{
    check_case(&cases[7]);
    check_case(&cases[9]);
}

/* ---- Twice the same -------------------------------------------------------------------------- */

/* Nodes of a stream that are no waits, in their order: which there are is a matter of time. */
static const struct record_node *next_of(const struct rig_lane *lane, size_t *n)
{
    while (*n < lane->node_count && lane->nodes[*n].kind == RECORD_NODE_WAIT)
        (*n)++;
    return *n < lane->node_count ? &lane->nodes[(*n)++] : NULL;
}

static void expect_same_node(const struct rig_lane *one, const struct record_node *a,
                             const struct rig_lane *other, const struct record_node *b)
{
    cr_assert(a != NULL && b != NULL);
    cr_expect_str_eq(a->name, b->name);
    cr_expect_eq(a->kind, b->kind);
    cr_expect_eq(a->work, b->work);
    cr_expect_eq(a->bytes, b->bytes, "%s: %llu bytes and %llu", a->name,
                 (unsigned long long)a->bytes, (unsigned long long)b->bytes);
    cr_expect_eq(a->flops, b->flops);
    cr_expect_eq(a->layer, b->layer);
    cr_expect_eq(a->phase, b->phase);
    cr_expect_eq(a->stage, b->stage);
    cr_expect_eq(a->threads, b->threads);
    cr_expect_eq(memcmp(a->dims, b->dims, sizeof a->dims), 0);
    if (a->kind != RECORD_NODE_COLLECTIVE)
        return;
    const int64_t *x = one->values + a->value_first, *y = other->values + b->value_first;
    size_t size = (size_t)x[RECORD_VALUE_SIZE];
    cr_expect_eq(memcmp(x + RECORD_VALUE_OP, y + RECORD_VALUE_OP,
                        (RECORD_VALUES - RECORD_VALUE_OP + 2 * size) * sizeof *x),
                 0);
}

Test(record, of_the_same_run_is_the_same_graph)
{
    static const int same[] = {1, 2, 3, 5};
    for (size_t c = 0; c < sizeof same / sizeof *same; c++) {
        struct record_run one, other;
        record_run_open(&one, &cases[same[c]]);
        record_run_open(&other, &cases[same[c]]);
        cr_assert_eq(one.lane_count, other.lane_count);
        for (int l = 0; l < one.lane_count; l++) {
            const struct rig_lane *a = &one.lanes[l], *b = &other.lanes[l];
            size_t x = 0, y = 0;
            cr_expect_str_eq(a->name, b->name);
            cr_expect_eq(a->rank, b->rank);
            if (a->kind != RECORD_LANE_STREAM)
                continue;
            for (;;) {
                const struct record_node *p = next_of(a, &x), *q = next_of(b, &y);
                if (p == NULL && q == NULL)
                    break;
                expect_same_node(a, p, b, q);
            }
        }
        record_run_close(&one);
        record_run_close(&other);
    }
}

#include "replay/report.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"

struct interval {
    double begin, end;
};

struct survey {
    const struct recording *recording;
    const struct node_time *times;
    uint32_t *lane_of;     /* [node_count] */
    int transition;        /* the stage of that name; -1: none */
    struct interval *room; /* [node_count] for what one rank's lanes did beside */
    struct interval *exposed;
};

/* ---- Lanes ----------------------------------------------------------------------------------- */

/* Whose time is that of the run: of the thread that drives, or else of the first lane. */
static const struct recording_lane *driver(const struct recording *recording)
{
    for (uint32_t i = 0; i < recording->lane_count; i++) {
        const struct recording_lane *lane = &recording->lanes[i];
        if (lane->kind == LANE_HOST && lane->rank < 0)
            return lane;
    }
    return recording->lane_count == 0 ? NULL : &recording->lanes[0];
}

static const struct recording_lane *first_stream(const struct recording *recording, int rank)
{
    for (uint32_t i = 0; i < recording->lane_count; i++) {
        const struct recording_lane *lane = &recording->lanes[i];
        if (lane->kind == LANE_STREAM && lane->rank == rank)
            return lane;
    }
    return NULL;
}

/* Other lanes of a rank bring experts. */
static bool is_beside(const struct recording_lane *lane, const struct recording_lane *stream,
                      int rank)
{
    return lane->rank == rank && lane != stream && lane->kind != LANE_HOST;
}

/* ---- Phases ---------------------------------------------------------------------------------- */

static void add_walls(struct report *out, const struct survey *survey, double seconds)
{
    const struct recording_lane *lane = driver(survey->recording);
    double before = 0;
    for (uint32_t i = 0; lane != NULL && i < lane->count; i++) {
        uint32_t node = lane->first + i;
        out->phases[survey->recording->nodes[node].phase].wall_seconds +=
            survey->times[node].end - before;
        before = survey->times[node].end;
    }
    out->phases[RECORD_BETWEEN].wall_seconds += seconds - before;
}

/* What a member sends, as comm/comm.h counts it. */
static uint64_t sent_bytes(const struct recording *recording,
                           const struct recording_collective *call)
{
    int size = recording->groups[call->group].size;
    const int64_t *counts = recording->counts + call->count_first;
    int64_t sum = 0;
    for (int i = 0; i < size; i++)
        sum += counts[i];
    switch ((enum collective_op)call->op) {
    case COLLECTIVE_OP_ALL_GATHER:
        return (uint64_t)counts[call->member] * (uint64_t)(size - 1);
    case COLLECTIVE_OP_REDUCE_SCATTER:
        return (uint64_t)(sum - counts[call->member]);
    case COLLECTIVE_OP_ALL_REDUCE:
        return (uint64_t)((double)counts[0] * 2 * (size - 1) / size);
    default:
        return (uint64_t)sum;
    }
}

/* When all that a node of its own lane waits for has ended. */
static double ready_at(const struct survey *survey, const struct recording_node *node,
                       double before)
{
    double ready = before;
    for (uint32_t i = 0; i < node->need_count; i++) {
        double end = survey->times[survey->recording->needs[node->need_first + i]].end;
        ready = end > ready ? end : ready;
    }
    return ready;
}

static void add_work(struct report_phase *phase, const struct recording *recording,
                     const struct recording_node *node, double seconds, double share)
{
    if (node->kind == NODE_COLLECTIVE) {
        const struct recording_collective *call = &recording->collectives[node->collective];
        phase->collective_seconds[call->tag] += seconds * share;
        phase->collective_bytes[call->tag] += sent_bytes(recording, call);
    } else if (node->kind == NODE_COPY || node->kind == NODE_READ) {
        phase->copy_seconds += seconds * share;
    } else {
        phase->compute_seconds[node->stage] += seconds * share;
    }
}

/* A rank's stream; returns how many times it waited for experts, in survey->exposed. */
static size_t add_stream(struct report *out, const struct survey *survey,
                         const struct recording_lane *lane)
{
    const struct recording *recording = survey->recording;
    double before = 0, share = 1.0 / recording->rank_count;
    size_t exposed_count = 0;
    for (uint32_t i = 0; i < lane->count; i++) {
        const struct recording_node *node = &recording->nodes[lane->first + i];
        const struct node_time *time = &survey->times[lane->first + i];
        struct report_phase *phase = &out->phases[node->phase];
        double ready = ready_at(survey, node, before);
        if (node->stage == survey->transition) {
            phase->transition_seconds += (ready - before) * share;
            survey->exposed[exposed_count++] = (struct interval){before, ready};
        } else {
            phase->wait_seconds += (ready - before) * share;
        }
        if (node->kind == NODE_COLLECTIVE)
            phase->others_seconds += (time->begin - ready) * share;
        else
            phase->wait_seconds += (time->begin - ready) * share;
        add_work(phase, recording, node, time->end - time->begin, share);
        before = time->end;
    }
    return exposed_count;
}

/* ---- What is hidden -------------------------------------------------------------------------- */

static int compare_begins(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Makes disjoint ones of intervals that may overlap, in order; returns how many. */
static size_t join(struct interval *intervals, size_t count)
{
    size_t joined = 0;
    qsort(intervals, count, sizeof *intervals, compare_begins);
    for (size_t i = 0; i < count; i++) {
        if (joined > 0 && intervals[i].begin <= intervals[joined - 1].end) {
            if (intervals[i].end > intervals[joined - 1].end)
                intervals[joined - 1].end = intervals[i].end;
        } else {
            intervals[joined++] = intervals[i];
        }
    }
    return joined;
}

/* Of disjoint intervals in order. */
static double overlap(const struct interval *a, size_t a_count, const struct interval *b,
                      size_t b_count)
{
    double sum = 0;
    for (size_t i = 0, k = 0; i < a_count && k < b_count;) {
        double begin = a[i].begin > b[k].begin ? a[i].begin : b[k].begin;
        double end = a[i].end < b[k].end ? a[i].end : b[k].end;
        sum += end > begin ? end - begin : 0;
        if (a[i].end < b[k].end)
            i++;
        else
            k++;
    }
    return sum;
}

static size_t gather_beside(struct survey *survey, const struct recording_lane *stream, int rank,
                            int phase)
{
    const struct recording *recording = survey->recording;
    size_t count = 0;
    for (uint32_t l = 0; l < recording->lane_count; l++) {
        const struct recording_lane *lane = &recording->lanes[l];
        for (uint32_t i = lane->first;
             is_beside(lane, stream, rank) && i < lane->first + lane->count; i++) {
            if (recording->nodes[i].phase == phase && recording->nodes[i].kind != NODE_WAIT)
                survey->room[count++] =
                    (struct interval){survey->times[i].begin, survey->times[i].end};
        }
    }
    return count;
}

static void add_hidden(struct report *out, struct survey *survey,
                       const struct recording_lane *stream, int rank, size_t exposed_count)
{
    for (int phase = 0; phase < RECORD_PHASE_COUNT; phase++) {
        size_t count = join(survey->room, gather_beside(survey, stream, rank, phase));
        double sum = -overlap(survey->room, count, survey->exposed, exposed_count);
        for (size_t i = 0; i < count; i++)
            sum += survey->room[i].end - survey->room[i].begin;
        out->phases[phase].hidden_seconds += sum / survey->recording->rank_count;
    }
}

static void add_ranks(struct report *out, struct survey *survey)
{
    for (int rank = 0; rank < survey->recording->rank_count; rank++) {
        const struct recording_lane *stream = first_stream(survey->recording, rank);
        size_t exposed_count = stream == NULL ? 0 : add_stream(out, survey, stream);
        add_hidden(out, survey, stream, rank, exposed_count);
    }
}

/* ---- The critical path ----------------------------------------------------------------------- */

static enum path_kind path_kind_of(const struct recording_node *node,
                                   const struct recording_lane *lane)
{
    if (node->kind == NODE_COLLECTIVE)
        return PATH_COLLECTIVE;
    if (node->kind == NODE_COPY)
        return PATH_COPY;
    if (node->kind == NODE_READ || lane->kind == LANE_READS)
        return PATH_READ;
    if (lane->kind == LANE_HOST)
        return PATH_HOST;
    return lane->kind == LANE_LOW ? PATH_BESIDE : PATH_COMPUTE;
}

static struct path_part *part_of(struct path_part parts[][RECORDING_NAMES_MAX],
                                 const struct survey *survey, uint32_t at)
{
    const struct recording_node *node = &survey->recording->nodes[at];
    enum path_kind kind = path_kind_of(node, &survey->recording->lanes[survey->lane_of[at]]);
    int name = 0;
    if (kind == PATH_COLLECTIVE)
        name = survey->recording->collectives[node->collective].tag;
    else if (kind == PATH_COMPUTE || kind == PATH_BESIDE)
        name = node->stage;
    return &parts[kind][name];
}

/* Keeps the longest, of equal ones the later in the run first. */
static void add_step(struct report *out, const struct survey *survey, uint32_t node, double seconds)
{
    int place = out->step_count;
    while (place > 0 && out->steps[place - 1].seconds < seconds)
        place--;
    if (place >= REPORT_STEPS_MAX)
        return;
    if (out->step_count < REPORT_STEPS_MAX)
        out->step_count++;
    memmove(&out->steps[place + 1], &out->steps[place],
            (size_t)(out->step_count - place - 1) * sizeof *out->steps);
    out->steps[place] = (struct path_step){node, survey->lane_of[node], seconds};
}

static uint32_t last_node(const struct survey *survey)
{
    uint32_t last = UINT32_MAX;
    for (uint32_t i = 0; i < survey->recording->node_count; i++) {
        if (last == UINT32_MAX || survey->times[i].end > survey->times[last].end)
            last = i;
    }
    return last;
}

static void walk_path(struct report *out, struct path_part parts[][RECORDING_NAMES_MAX],
                      const struct survey *survey)
{
    uint32_t left = survey->recording->node_count; /* no path is longer */
    double until = survey->recording->node_count > 0 ? survey->times[last_node(survey)].end : 0;
    for (uint32_t node = last_node(survey); node != UINT32_MAX && left > 0; left--) {
        const struct node_time *time = &survey->times[node];
        struct path_part *part = part_of(parts, survey, node);
        part->seconds += until - time->begin;
        part->count++;
        add_step(out, survey, node, until - time->begin);
        /* A cause may let something begin before it ends itself (struct node_time). */
        until = time->cause == UINT32_MAX ? 0 : survey->times[time->cause].end;
        until = until < time->begin ? until : time->begin;
        out->path_gap_seconds += time->begin - until;
        node = time->cause;
    }
}

static int compare_parts(const void *a, const void *b)
{
    const struct path_part *x = a, *y = b;
    if (x->seconds != y->seconds)
        return x->seconds > y->seconds ? -1 : 1;
    return x->kind != y->kind ? (int)x->kind - (int)y->kind : (int)x->name - (int)y->name;
}

static enum status make_path(struct report *out, const struct survey *survey, struct error *err)
{
    struct path_part(*parts)[RECORDING_NAMES_MAX];
    TRY(memory_get((void **)&parts, PATH_KIND_COUNT, sizeof *parts, "the critical path", err));
    walk_path(out, parts, survey);
    int count = 0;
    struct path_part *flat = parts[0];
    for (int i = 0; i < PATH_KIND_COUNT * RECORDING_NAMES_MAX; i++) {
        struct path_part part = flat[i];
        part.kind = (enum path_kind)(i / RECORDING_NAMES_MAX);
        part.name = (uint8_t)(i % RECORDING_NAMES_MAX);
        if (part.count > 0)
            flat[count++] = part;
    }
    qsort(flat, (size_t)count, sizeof *flat, compare_parts);
    out->path = flat;
    out->path_count = count;
    return STATUS_OK;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static uint64_t count_of(const json_t *about, const char *name)
{
    json_int_t count = json_integer_value(json_object_get(about, name));
    return count > 0 ? (uint64_t)count : 0;
}

static void read_about(struct report *out, const struct recording *recording)
{
    static const char *const names[] = {
        [RECORD_PREFILL] = "prefill_tokens", [RECORD_DECODE] = "decode_tokens"};
    json_t *about;
    if (recording->about == NULL ||
        json_parse_object(&about, recording->about, strlen(recording->about), "about", NULL) !=
            STATUS_OK)
        return;
    for (int phase = RECORD_PREFILL; phase < RECORD_PHASE_COUNT; phase++)
        out->phases[phase].tokens = count_of(about, names[phase]);
    out->rows = count_of(about, "rows");
    out->rows_before = count_of(about, "rows_before");
    json_decref(about);
}

static void find_lanes(struct survey *survey)
{
    for (uint32_t l = 0; l < survey->recording->lane_count; l++) {
        const struct recording_lane *lane = &survey->recording->lanes[l];
        for (uint32_t i = 0; i < lane->count; i++)
            survey->lane_of[lane->first + i] = l;
    }
    survey->transition = -1;
    for (uint32_t s = 0; s < survey->recording->stage_count; s++) {
        if (strcmp(survey->recording->stage_names[s], "transition") == 0)
            survey->transition = (int)s;
    }
}

static enum status work_init(struct survey *survey, struct error *err)
{
    size_t count = survey->recording->node_count;
    TRY(memory_get((void **)&survey->lane_of, count, sizeof *survey->lane_of, "a report", err));
    TRY(memory_get((void **)&survey->room, count, sizeof *survey->room, "a report", err));
    return memory_get((void **)&survey->exposed, count, sizeof *survey->exposed, "a report", err);
}

enum status report_make(struct report *out, const struct recording *recording,
                        const struct simulation *simulation, struct error *err)
{
    struct survey survey = {.recording = recording, .times = simulation->times};
    struct report report = {.seconds = simulation->seconds};
    enum status status;
    TRY_GOTO(work_init(&survey, err), done);
    find_lanes(&survey);
    add_walls(&report, &survey, simulation->seconds);
    add_ranks(&report, &survey);
    read_about(&report, recording);
    TRY_GOTO(make_path(&report, &survey, err), done);
    *out = report;
done:
    memory_free(survey.exposed);
    memory_free(survey.room);
    memory_free(survey.lane_of);
    return status;
}

void report_deinit(struct report *report)
{
    memory_free(report->path);
    *report = (struct report){.path = NULL};
}

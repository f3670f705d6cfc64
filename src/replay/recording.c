#include "replay/recording.h"

#include <string.h>

#include "base/checked.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "replay/graph.h"

static void strings_free(char **strings, uint32_t count)
{
    for (uint32_t i = 0; strings != NULL && i < count; i++)
        memory_free(strings[i]);
    memory_free(strings);
}

void recording_deinit(struct recording *recording)
{
    memory_free(recording->about);
    strings_free(recording->strings, recording->string_count);
    strings_free(recording->stage_names, recording->stage_count);
    strings_free(recording->tag_names, recording->tag_count);
    memory_free(recording->lanes);
    memory_free(recording->nodes);
    memory_free(recording->needs);
    memory_free(recording->collectives);
    memory_free(recording->groups);
    memory_free(recording->counts);
    *recording = (struct recording){0};
}

/* ---- Checks: each array alone ------------------------------------------------------------------
 */

/* What is looked at, for sentences. */
struct check {
    const struct recording *recording;
    const char *path;
    struct error *err;
};

static enum status refuse(const struct check *check, const char *what, uint32_t number,
                          const char *fault)
{
    return error_set(check->err, STATUS_FORMAT, "%s: %s %u %s", check->path, what, number, fault);
}

static enum status check_numbers(const struct check *check)
{
    const struct recording *recording = check->recording;
    if (recording->rank_count < 1 || recording->rank_count > RECORDING_RANKS_MAX)
        return error_set(check->err, STATUS_FORMAT, "%s: expected 1 to %d ranks, found %d",
                         check->path, RECORDING_RANKS_MAX, recording->rank_count);
    if (!(recording->wall_seconds >= 0 && recording->wall_seconds <= 1e12))
        return error_set(check->err, STATUS_FORMAT, "%s: a wall time of %g seconds", check->path,
                         recording->wall_seconds);
    if (recording->string_count > RECORDING_STRINGS_MAX ||
        recording->stage_count > RECORDING_NAMES_MAX || recording->tag_count > RECORDING_NAMES_MAX)
        return error_set(check->err, STATUS_FORMAT,
                         "%s: expected at most %d strings, %d stages and %d tags, found %u, %u and "
                         "%u",
                         check->path, RECORDING_STRINGS_MAX, RECORDING_NAMES_MAX,
                         RECORDING_NAMES_MAX, recording->string_count, recording->stage_count,
                         recording->tag_count);
    if (recording->lane_count > (uint32_t)RECORDING_LANES_MAX(recording->rank_count))
        return error_set(check->err, STATUS_FORMAT,
                         "%s: expected at most %d lanes of %d ranks, found %u", check->path,
                         RECORDING_LANES_MAX(recording->rank_count), recording->rank_count,
                         recording->lane_count);
    if (recording->node_count == UINT32_MAX)
        return error_set(check->err, STATUS_FORMAT, "%s: too many nodes", check->path);
    return STATUS_OK;
}

/* Names go to terminals and into other files. */
static enum status check_strings(const struct check *check, char *const *strings, uint32_t count,
                                 const char *what)
{
    for (uint32_t i = 0; i < count; i++) {
        bool is_clean = utf8_is_valid(strings[i], strlen(strings[i]));
        for (const char *at = strings[i]; *at != '\0' && is_clean; at++)
            is_clean = (unsigned char)*at >= ' ' && *at != 0x7F;
        if (!is_clean)
            return refuse(check, what, i, "is no valid UTF-8 or has control characters");
    }
    return STATUS_OK;
}

static enum status check_about(const struct check *check)
{
    const char *text = check->recording->about;
    size_t length = strlen(text);
    json_t *about;
    if (length > RECORDING_ABOUT_BYTES_MAX)
        return error_set(check->err, STATUS_FORMAT,
                         "%s: what it is about has %zu bytes, at most %zu are allowed", check->path,
                         length, RECORDING_ABOUT_BYTES_MAX);
    TRY(json_parse_object(&about, text, length, check->path, check->err));
    json_decref(about);
    return STATUS_OK;
}

static enum status check_texts(const struct check *check)
{
    const struct recording *recording = check->recording;
    TRY(check_strings(check, recording->strings, recording->string_count, "string"));
    TRY(check_strings(check, recording->stage_names, recording->stage_count, "stage"));
    TRY(check_strings(check, recording->tag_names, recording->tag_count, "tag"));
    return check_about(check);
}

static enum status check_group(const struct check *check, uint32_t number)
{
    const struct recording_group *group = &check->recording->groups[number];
    uint64_t seen = 0;
    if (group->size < 1 || group->size > check->recording->rank_count)
        return refuse(check, "group", number, "has fewer than one member or more than all ranks");
    for (int m = 0; m < group->size; m++) {
        if (group->ranks[m] >= check->recording->rank_count)
            return refuse(check, "group", number, "has a rank that there is not");
        if ((seen >> group->ranks[m] & 1) != 0)
            return refuse(check, "group", number, "has a rank twice");
        seen |= (uint64_t)1 << group->ranks[m];
    }
    return STATUS_OK;
}

static enum status check_lane(const struct check *check, uint32_t number)
{
    const struct recording *recording = check->recording;
    const struct recording_lane *lane = &recording->lanes[number];
    if ((unsigned)lane->kind >= LANE_KIND_COUNT)
        return refuse(check, "lane", number, "is of no known kind");
    if (lane->rank < (lane->kind == LANE_HOST ? -1 : 0) || lane->rank >= recording->rank_count)
        return refuse(check, "lane", number, "is of a rank that there is not");
    if (lane->name >= recording->string_count)
        return refuse(check, "lane", number, "has a name that there is not");
    if (!checked_range(lane->first, lane->count, recording->node_count))
        return refuse(check, "lane", number, "reaches beyond the nodes");
    return STATUS_OK;
}

static enum status check_node(const struct check *check, uint32_t number)
{
    const struct recording *recording = check->recording;
    const struct recording_node *node = &recording->nodes[number];
    if (node->kind >= NODE_KIND_COUNT || node->work >= WORK_KIND_COUNT ||
        node->phase >= RECORD_PHASE_COUNT)
        return refuse(check, "node", number, "has a kind, work or phase that is unknown");
    if (node->name >= recording->string_count)
        return refuse(check, "node", number, "has a name that there is not");
    if (node->stage >= recording->stage_count)
        return refuse(check, "node", number, "has a stage that there is not");
    if (node->to_host > (node->kind == NODE_COPY) || node->reserved != 0)
        return refuse(check, "node", number, "has bytes set that have no meaning");
    if (node->layer < -1)
        return refuse(check, "node", number, "has a layer below -1");
    for (int d = 0; d < WORK_DIMS; d++) {
        if (node->dims[d] < 0)
            return refuse(check, "node", number, "has a dimension below 0");
    }
    if (node->kind == NODE_COLLECTIVE ? node->collective >= recording->collective_count
                                      : node->collective != 0)
        return refuse(check, "node", number,
                      "has a collective that there is not, or should not be");
    if (node->kind == NODE_WAIT && node->duration_ns != 0)
        return refuse(check, "node", number, "is a wait and has a duration");
    if (!checked_range(node->need_first, node->need_count, recording->need_count))
        return refuse(check, "node", number, "has needs that there are not");
    return STATUS_OK;
}

static enum status check_needs(const struct check *check, uint32_t number)
{
    const struct recording *recording = check->recording;
    const struct recording_node *node = &recording->nodes[number];
    for (uint32_t i = 0; i < node->need_count; i++) {
        uint32_t need = recording->needs[node->need_first + i];
        if (need >= recording->node_count)
            return refuse(check, "node", number, "needs one that there is not");
        if (need == number)
            return refuse(check, "node", number, "needs itself");
    }
    return STATUS_OK;
}

/* Adds, while the sum stays below 2^63. */
static bool sum_up(uint64_t *sum, uint64_t value)
{
    return checked_add(sum, *sum, value) && *sum <= INT64_MAX;
}

static enum status check_nodes(const struct check *check)
{
    const struct recording *recording = check->recording;
    uint64_t duration = 0, bytes = 0, flops = 0, needs = 0;
    for (uint32_t number = 0; number < recording->node_count; number++) {
        const struct recording_node *node = &recording->nodes[number];
        TRY(check_node(check, number));
        if (!sum_up(&duration, node->duration_ns) || !sum_up(&bytes, node->bytes) ||
            !sum_up(&flops, node->flops))
            return refuse(check, "node", number,
                          "brings the sum of durations, bytes or flops to 2^63 or more");
        needs += node->need_count;
    }
    if (needs != recording->need_count)
        return error_set(check->err, STATUS_FORMAT,
                         "%s: the nodes have %llu needs together, and the file %u", check->path,
                         (unsigned long long)needs, recording->need_count);
    for (uint32_t number = 0; number < recording->node_count; number++)
        TRY(check_needs(check, number));
    return STATUS_OK;
}

/* ---- Checks: collectives -----------------------------------------------------------------------
 */

static enum status check_counts(const struct check *check, uint32_t number)
{
    const struct recording_collective *call = &check->recording->collectives[number];
    const int64_t *counts = &check->recording->counts[call->count_first];
    int size = check->recording->groups[call->group].size;
    bool is_pairs = call->op == COLLECTIVE_OP_ALL_TO_ALL || call->op == COLLECTIVE_OP_EXCHANGE;
    uint64_t sum = 0;
    for (int m = 0; m < size; m++) {
        if (counts[m] < 0 || !sum_up(&sum, (uint64_t)counts[m]))
            return refuse(check, "collective", number, "has counts below 0 or beyond 2^63");
        if (is_pairs && m == call->member && counts[m] != 0)
            return refuse(check, "collective", number, "sends to its own member");
        if (call->op == COLLECTIVE_OP_ALL_REDUCE && m > 0 && counts[m] != 0)
            return refuse(check, "collective", number, "reduces more than one count");
    }
    return STATUS_OK;
}

static enum status check_collective(const struct check *check, uint32_t number)
{
    const struct recording *recording = check->recording;
    const struct recording_collective *call = &recording->collectives[number];
    if (call->group >= recording->group_count)
        return refuse(check, "collective", number, "is of a group that there is not");
    uint32_t size = (uint32_t)recording->groups[call->group].size;
    if (call->op >= COLLECTIVE_OP_COUNT || call->reserved != 0)
        return refuse(check, "collective", number, "is of no known operation");
    if (call->member >= size)
        return refuse(check, "collective", number, "is of a member that its group has not");
    if (call->tag >= recording->tag_count)
        return refuse(check, "collective", number, "has a tag that there is not");
    if (!checked_range(call->count_first, size, recording->count_count))
        return refuse(check, "collective", number, "has counts that there are not");
    return check_counts(check, number);
}

/* That a call fits the first member's. */
static bool fits(const struct recording *recording, const struct recording_collective *first,
                 const struct recording_collective *call)
{
    const int64_t *a = &recording->counts[first->count_first];
    const int64_t *b = &recording->counts[call->count_first];
    if (call->op != first->op)
        return false;
    if (call->op == COLLECTIVE_OP_ALL_TO_ALL || call->op == COLLECTIVE_OP_EXCHANGE ||
        call->count_first == first->count_first)
        return true;
    for (int m = 0; m < recording->groups[call->group].size; m++) {
        if (a[m] != b[m])
            return false;
    }
    return true;
}

static enum status check_meetings(const struct check *check, const struct graph *graph)
{
    const struct recording *recording = check->recording;
    for (uint32_t meeting = 0; meeting < graph->meeting_count; meeting++) {
        uint32_t first_member = graph->meeting_first[meeting];
        const struct recording_collective *first = NULL;
        for (uint32_t m = first_member; m < graph->meeting_first[meeting + 1]; m++) {
            uint32_t node = graph->members[m];
            const struct recording_collective *call =
                &recording->collectives[recording->nodes[node].collective];
            first = first == NULL ? call : first;
            if (!fits(recording, first, call))
                return error_set(check->err, STATUS_FORMAT,
                                 "%s: nodes %u and %u meet as call %u of group %u, and differ in "
                                 "operation or counts",
                                 check->path, graph->members[first_member], node, call->number,
                                 call->group);
        }
    }
    return STATUS_OK;
}

/* ---- Checks: the graph -------------------------------------------------------------------------
 */

/* Lanes of no rank have nothing that is a rank's. */
static enum status check_ranks(const struct check *check, const struct graph *graph)
{
    const struct recording *recording = check->recording;
    for (uint32_t node = 0; node < recording->node_count; node++) {
        int kind = recording->nodes[node].kind;
        if (kind == NODE_COPY && recording->lanes[graph->lane_of[node]].rank < 0)
            return refuse(check, "node", node, "is a copy on a lane of no rank");
    }
    return STATUS_OK;
}

/* Ends each node as soon as it may; those of a cycle never may. */
static enum status check_cycles(const struct check *check, const struct graph *graph)
{
    const struct recording *recording = check->recording;
    struct walk walk;
    uint32_t node, ended = 0;
    TRY(walk_init(&walk, graph, check->err));
    while (walk_take(&walk, &node)) {
        if (recording->nodes[node].kind != NODE_COLLECTIVE) {
            walk_end(&walk, node);
            ended++;
            continue;
        }
        if (!walk_arrive(&walk, node))
            continue;
        uint32_t meeting = graph->meeting_of[recording->nodes[node].collective];
        for (uint32_t m = graph->meeting_first[meeting]; m < graph->meeting_first[meeting + 1];
             m++, ended++)
            walk_end(&walk, graph->members[m]);
    }
    for (node = 0; ended < recording->node_count && node < recording->node_count; node++) {
        if (walk.pending[node] > 0)
            break;
    }
    walk_deinit(&walk);
    if (ended == recording->node_count)
        return STATUS_OK;
    return error_set(
        check->err, STATUS_FORMAT,
        "%s: %u nodes wait for one another in a circle and can never begin; node %u is "
        "the first that waits",
        check->path, recording->node_count - ended, node);
}

static enum status check_graph(const struct check *check)
{
    struct graph graph;
    TRY(graph_init(&graph, check->recording, check->path, check->err));
    enum status status = check_meetings(check, &graph);
    if (status == STATUS_OK)
        status = check_ranks(check, &graph);
    if (status == STATUS_OK)
        status = check_cycles(check, &graph);
    graph_deinit(&graph);
    return status;
}

enum status recording_check(const struct recording *recording, const char *path, struct error *err)
{
    struct check check = {.recording = recording, .path = path, .err = err};
    TRY(check_numbers(&check));
    TRY(check_texts(&check));
    for (uint32_t group = 0; group < recording->group_count; group++)
        TRY(check_group(&check, group));
    for (uint32_t lane = 0; lane < recording->lane_count; lane++)
        TRY(check_lane(&check, lane));
    TRY(check_nodes(&check));
    for (uint32_t call = 0; call < recording->collective_count; call++)
        TRY(check_collective(&check, call));
    return check_graph(&check);
}

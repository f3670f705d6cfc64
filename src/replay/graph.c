#include "replay/graph.h"

#include <string.h>

#include "base/memory.h"

/* ---- Lanes and needs ------------------------------------------------------------------------- */

static enum status find_lanes(struct graph *graph, const char *path, struct error *err)
{
    const struct recording *recording = graph->recording;
    uint64_t covered = 0;
    memset(graph->lane_of, 0xFF, recording->node_count * sizeof *graph->lane_of);
    for (uint32_t lane = 0; lane < recording->lane_count; lane++) {
        uint32_t first = recording->lanes[lane].first, count = recording->lanes[lane].count;
        /* Stops at the first node that has a lane, so this takes no longer than there are nodes. */
        for (uint32_t node = first; node < first + count; node++, covered++) {
            if (graph->lane_of[node] != GRAPH_NONE)
                return error_set(err, STATUS_FORMAT, "%s: node %u is of lane %u and of lane %u",
                                 path, node, graph->lane_of[node], lane);
            graph->lane_of[node] = lane;
        }
    }
    if (covered != recording->node_count)
        return error_set(err, STATUS_FORMAT, "%s: %llu of %u nodes are of no lane", path,
                         (unsigned long long)(recording->node_count - covered),
                         recording->node_count);
    return STATUS_OK;
}

/* Counts, then places: followers stay in the order of their numbers. */
static void find_followers(struct graph *graph)
{
    const struct recording *recording = graph->recording;
    uint32_t *first = graph->follower_first, node_count = recording->node_count;
    for (uint32_t node = 0; node < node_count; node++) {
        const struct recording_node *about = &recording->nodes[node];
        for (uint32_t i = 0; i < about->need_count; i++)
            first[recording->needs[about->need_first + i] + 1]++;
    }
    for (uint32_t node = 0; node < node_count; node++)
        first[node + 1] += first[node];
    for (uint32_t node = 0; node < node_count; node++) {
        const struct recording_node *about = &recording->nodes[node];
        for (uint32_t i = 0; i < about->need_count; i++)
            graph->followers[first[recording->needs[about->need_first + i]]++] = node;
    }
    /* Each beginning has become the next one's. */
    memmove(first + 1, first, node_count * sizeof *first);
    first[0] = 0;
}

uint32_t graph_before(const struct graph *graph, uint32_t node)
{
    return node > graph->recording->lanes[graph->lane_of[node]].first ? node - 1 : GRAPH_NONE;
}

/* ---- Meetings -------------------------------------------------------------------------------- */

/* Where each group's members begin: room for as many as there are calls. */
struct group_place {
    uint32_t calls, first_member, first_meeting;
};

static enum status place_groups(struct group_place *places, struct graph *graph, const char *path,
                                struct error *err)
{
    const struct recording *recording = graph->recording;
    uint32_t member = 0, meeting = 0;
    for (uint32_t i = 0; i < recording->collective_count; i++)
        places[recording->collectives[i].group].calls++;
    for (uint32_t g = 0; g < recording->group_count; g++) {
        uint32_t size = (uint32_t)recording->groups[g].size;
        if (places[g].calls % size != 0)
            return error_set(err, STATUS_FORMAT,
                             "%s: %u calls of group %u, which has %u members: one did not come",
                             path, places[g].calls, g, size);
        places[g].first_member = member;
        places[g].first_meeting = meeting;
        for (uint32_t n = 0; n < places[g].calls / size; n++, meeting++, member += size)
            graph->meeting_first[meeting] = member;
    }
    graph->meeting_first[meeting] = member;
    graph->meeting_count = meeting;
    return STATUS_OK;
}

static enum status place_node(struct graph *graph, const struct group_place *places, uint32_t node,
                              const char *path, struct error *err)
{
    const struct recording *recording = graph->recording;
    uint32_t index = recording->nodes[node].collective;
    const struct recording_collective *call = &recording->collectives[index];
    const struct recording_group *group = &recording->groups[call->group];
    const struct group_place *place = &places[call->group];
    uint32_t size = (uint32_t)group->size, rounds = place->calls / size;
    int rank = recording->lanes[graph->lane_of[node]].rank;
    if (graph->meeting_of[index] != GRAPH_NONE)
        return error_set(err, STATUS_FORMAT, "%s: collective %u is of more than one node", path,
                         index);
    if (call->number < 1 || call->number > rounds)
        return error_set(err, STATUS_FORMAT,
                         "%s: node %u has call %u of group %u, whose members have %u calls each",
                         path, node, call->number, call->group, rounds);
    if (rank != group->ranks[call->member])
        return error_set(err, STATUS_FORMAT,
                         "%s: node %u of rank %d is member %u of group %u, which is rank %d", path,
                         node, rank, call->member, call->group, group->ranks[call->member]);
    uint32_t meeting = place->first_meeting + call->number - 1;
    uint32_t *member = &graph->members[graph->meeting_first[meeting] + call->member];
    if (*member != GRAPH_NONE)
        return error_set(err, STATUS_FORMAT,
                         "%s: nodes %u and %u are both call %u of member %u of group %u", path,
                         *member, node, call->number, call->member, call->group);
    *member = node;
    graph->meeting_of[index] = meeting;
    return STATUS_OK;
}

static enum status find_meetings(struct graph *graph, struct group_place *places, const char *path,
                                 struct error *err)
{
    const struct recording *recording = graph->recording;
    size_t bytes = recording->collective_count * sizeof *graph->members;
    uint32_t found = 0;
    memset(graph->members, 0xFF, bytes);
    memset(graph->meeting_of, 0xFF, bytes);
    TRY(place_groups(places, graph, path, err));
    for (uint32_t node = 0; node < recording->node_count; node++) {
        if (recording->nodes[node].kind != NODE_COLLECTIVE)
            continue;
        TRY(place_node(graph, places, node, path, err));
        found++;
    }
    if (found != recording->collective_count)
        return error_set(err, STATUS_FORMAT, "%s: %u collectives, of which %u have a node", path,
                         recording->collective_count, found);
    return STATUS_OK;
}

int graph_meeting_size(const struct graph *graph, uint32_t meeting)
{
    return (int)(graph->meeting_first[meeting + 1] - graph->meeting_first[meeting]);
}

/* ---- Making ---------------------------------------------------------------------------------- */

static enum status get(uint32_t **out, size_t count, struct error *err)
{
    return memory_get((void **)out, count, sizeof **out, "the graph of a recording", err);
}

static enum status fill(struct graph *graph, const char *path, struct error *err)
{
    const struct recording *recording = graph->recording;
    struct group_place *places;
    TRY(get(&graph->lane_of, recording->node_count, err));
    TRY(get(&graph->follower_first, (size_t)recording->node_count + 1, err));
    TRY(get(&graph->followers, recording->need_count, err));
    TRY(get(&graph->meeting_first, (size_t)recording->collective_count + 1, err));
    TRY(get(&graph->members, recording->collective_count, err));
    TRY(get(&graph->meeting_of, recording->collective_count, err));
    TRY(find_lanes(graph, path, err));
    find_followers(graph);
    TRY(memory_get((void **)&places, recording->group_count, sizeof *places,
                   "the groups of a recording", err));
    enum status status = find_meetings(graph, places, path, err);
    memory_free(places);
    return status;
}

enum status graph_init(struct graph *out, const struct recording *recording, const char *path,
                       struct error *err)
{
    struct graph graph = {.recording = recording};
    enum status status = fill(&graph, path, err);
    if (status == STATUS_OK)
        *out = graph;
    else
        graph_deinit(&graph);
    return status;
}

void graph_deinit(struct graph *graph)
{
    memory_free(graph->meeting_of);
    memory_free(graph->members);
    memory_free(graph->meeting_first);
    memory_free(graph->followers);
    memory_free(graph->follower_first);
    memory_free(graph->lane_of);
    *graph = (struct graph){0};
}

/* ---- Walking --------------------------------------------------------------------------------- */

enum status walk_init(struct walk *out, const struct graph *graph, struct error *err)
{
    const struct recording *recording = graph->recording;
    struct walk walk = {.graph = graph};
    enum status status;
    TRY_GOTO(get(&walk.pending, recording->node_count, err), failed);
    TRY_GOTO(get(&walk.arrived, graph->meeting_count, err), failed);
    TRY_GOTO(get(&walk.ready, recording->node_count, err), failed);
    for (uint32_t node = 0; node < recording->node_count; node++) {
        walk.pending[node] =
            recording->nodes[node].need_count + (graph_before(graph, node) != GRAPH_NONE);
        if (walk.pending[node] == 0)
            walk.ready[walk.ready_count++] = node;
    }
    *out = walk;
    return STATUS_OK;
failed:
    walk_deinit(&walk);
    return status;
}

void walk_deinit(struct walk *walk)
{
    memory_free(walk->ready);
    memory_free(walk->arrived);
    memory_free(walk->pending);
    *walk = (struct walk){0};
}

bool walk_take(struct walk *walk, uint32_t *node)
{
    if (walk->taken_count == walk->ready_count)
        return false;
    *node = walk->ready[walk->taken_count++];
    return true;
}

bool walk_arrive(struct walk *walk, uint32_t node)
{
    const struct graph *graph = walk->graph;
    uint32_t meeting = graph->meeting_of[graph->recording->nodes[node].collective];
    walk->arrived[meeting]++;
    return walk->arrived[meeting] == (uint32_t)graph_meeting_size(graph, meeting);
}

static void pass(struct walk *walk, uint32_t node)
{
    if (--walk->pending[node] == 0)
        walk->ready[walk->ready_count++] = node;
}

void walk_end(struct walk *walk, uint32_t node)
{
    const struct graph *graph = walk->graph;
    const struct recording_lane *lane = &graph->recording->lanes[graph->lane_of[node]];
    if (node - lane->first + 1 < lane->count)
        pass(walk, node + 1);
    for (uint32_t i = graph->follower_first[node]; i < graph->follower_first[node + 1]; i++)
        pass(walk, graph->followers[i]);
}

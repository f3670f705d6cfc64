#include "replay/as_recorded.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "replay/fluid.h"

/* The one slot, and the lanes that ask for it. */
struct slot {
    uint32_t holder; /* a lane; GRAPH_NONE */
    uint32_t last;   /* the node that was worked at last; GRAPH_NONE */
    bool is_working; /* something of the holder's is under way */
    uint32_t *queue; /* [lane_count] in a ring: who waits; each lane is there once at most */
    uint32_t first, count;
    uint32_t *asking; /* [lane_count]: who asked now, not in the queue yet */
    uint32_t asking_count;
};

struct sim {
    const struct graph *graph;
    struct node_time *times;
    struct walk walk;
    struct fluid *fluid; /* everything at the rate of 1 */
    double now;
    struct slot slot;
    uint32_t *wanted;     /* [lane_count]: the node for which a lane asked */
    uint32_t *parts_left; /* [meeting_count]: members whose own part is not done */
};

static bool takes_slot(const struct sim *sim, uint32_t node)
{
    enum lane_kind kind = sim->graph->recording->lanes[sim->graph->lane_of[node]].kind;
    return kind == LANE_STREAM || kind == LANE_LOW;
}

static void end_node(struct sim *sim, uint32_t node)
{
    sim->times[node].end = sim->now;
    walk_end(&sim->walk, node);
}

/* A node's own time, or its part of a collective, is over. */
static void end_part(struct sim *sim, uint32_t node)
{
    const struct graph *graph = sim->graph;
    const struct recording_node *about = &graph->recording->nodes[node];
    if (about->kind != NODE_COLLECTIVE) {
        end_node(sim, node);
        return;
    }
    uint32_t meeting = graph->meeting_of[about->collective];
    if (--sim->parts_left[meeting] > 0)
        return;
    for (uint32_t m = graph->meeting_first[meeting]; m < graph->meeting_first[meeting + 1]; m++)
        end_node(sim, graph->members[m]);
}

/* Works at a node from now on. */
static enum status run(struct sim *sim, uint32_t node, struct error *err)
{
    const struct recording_node *about = &sim->graph->recording->nodes[node];
    int id;
    if (about->kind != NODE_COLLECTIVE) {
        sim->times[node].begin = sim->now;
        sim->times[node].cause = takes_slot(sim, node) ? sim->slot.last : GRAPH_NONE;
    }
    if (takes_slot(sim, node))
        sim->slot.last = node;
    if (about->duration_ns == 0) {
        end_part(sim, node);
        return STATUS_OK;
    }
    if (takes_slot(sim, node))
        sim->slot.is_working = true;
    return fluid_start(&id, sim->fluid,
                       &(struct fluid_activity){
                           .amount = (double)about->duration_ns * 1e-9, .cap = 1, .tag = node},
                       err);
}

static enum status ask(struct sim *sim, uint32_t node, struct error *err)
{
    if (!takes_slot(sim, node))
        return run(sim, node, err);
    uint32_t lane = sim->graph->lane_of[node];
    sim->wanted[lane] = node;
    if (lane != sim->slot.holder)
        sim->slot.asking[sim->slot.asking_count++] = lane;
    return STATUS_OK;
}

static enum status start(struct sim *sim, uint32_t node, struct error *err)
{
    const struct graph *graph = sim->graph;
    const struct recording_node *about = &graph->recording->nodes[node];
    if (about->kind == NODE_WAIT) {
        sim->times[node].begin = sim->now;
        end_node(sim, node);
        return STATUS_OK;
    }
    if (about->kind != NODE_COLLECTIVE)
        return ask(sim, node, err);
    if (!walk_arrive(&sim->walk, node))
        return STATUS_OK;
    uint32_t meeting = graph->meeting_of[about->collective];
    for (uint32_t m = graph->meeting_first[meeting]; m < graph->meeting_first[meeting + 1]; m++) {
        sim->times[graph->members[m]].begin = sim->now;
        TRY(ask(sim, graph->members[m], err));
    }
    return STATUS_OK;
}

static int compare_lanes(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void queue_up(struct slot *slot, uint32_t lane_count)
{
    qsort(slot->asking, slot->asking_count, sizeof *slot->asking, compare_lanes);
    for (uint32_t i = 0; i < slot->asking_count; i++)
        slot->queue[(slot->first + slot->count++) % lane_count] = slot->asking[i];
    slot->asking_count = 0;
}

/* Gives the slot on, if its holder does nothing with it now. False: nothing came of it. */
static enum status hand_on(bool *has_run, struct sim *sim, struct error *err)
{
    struct slot *slot = &sim->slot;
    uint32_t lane_count = sim->graph->recording->lane_count, node;
    *has_run = false;
    queue_up(slot, lane_count);
    if (slot->is_working)
        return STATUS_OK;
    if (slot->holder == GRAPH_NONE || sim->wanted[slot->holder] == GRAPH_NONE) {
        slot->holder = GRAPH_NONE;
        if (slot->count == 0)
            return STATUS_OK;
        slot->holder = slot->queue[slot->first];
        slot->first = (slot->first + 1) % lane_count;
        slot->count--;
    }
    node = sim->wanted[slot->holder];
    sim->wanted[slot->holder] = GRAPH_NONE;
    *has_run = true;
    return run(sim, node, err);
}

/* Everything that happens now. */
static enum status happen(struct sim *sim, struct error *err)
{
    bool has_run;
    uint32_t node;
    do {
        while (walk_take(&sim->walk, &node))
            TRY(start(sim, node, err));
        TRY(hand_on(&has_run, sim, err));
    } while (has_run);
    return STATUS_OK;
}

static enum status go(struct sim *sim, struct error *err)
{
    uint64_t node;
    for (;;) {
        TRY(happen(sim, err));
        sim->now = fluid_next(sim->fluid);
        if (!isfinite(sim->now))
            return STATUS_OK;
        fluid_advance(sim->fluid, sim->now);
        while (fluid_take(sim->fluid, &node)) {
            if (takes_slot(sim, (uint32_t)node))
                sim->slot.is_working = false;
            end_part(sim, (uint32_t)node);
        }
    }
}

static enum status prepare(struct sim *sim, struct error *err)
{
    const struct graph *graph = sim->graph;
    uint32_t lane_count = graph->recording->lane_count;
    const char *what = "a replay";
    TRY(walk_init(&sim->walk, graph, err));
    TRY(fluid_create(&sim->fluid, NULL, 0, err));
    TRY(memory_get((void **)&sim->slot.queue, lane_count, sizeof *sim->slot.queue, what, err));
    TRY(memory_get((void **)&sim->slot.asking, lane_count, sizeof *sim->slot.asking, what, err));
    TRY(memory_get((void **)&sim->wanted, lane_count, sizeof *sim->wanted, what, err));
    TRY(memory_get((void **)&sim->parts_left, graph->meeting_count, sizeof *sim->parts_left, what,
                   err));
    for (uint32_t lane = 0; lane < lane_count; lane++)
        sim->wanted[lane] = GRAPH_NONE;
    for (uint32_t meeting = 0; meeting < graph->meeting_count; meeting++)
        sim->parts_left[meeting] = (uint32_t)graph_meeting_size(graph, meeting);
    return STATUS_OK;
}

enum status as_recorded(struct node_time *times, const struct graph *graph, struct error *err)
{
    struct sim sim = {
        .graph = graph, .times = times, .slot = {.holder = GRAPH_NONE, .last = GRAPH_NONE}};
    enum status status = prepare(&sim, err);
    if (status == STATUS_OK)
        status = go(&sim, err);
    memory_free(sim.parts_left);
    memory_free(sim.wanted);
    memory_free(sim.slot.asking);
    memory_free(sim.slot.queue);
    fluid_destroy(sim.fluid);
    walk_deinit(&sim.walk);
    return status;
}

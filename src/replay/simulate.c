#include "replay/simulate.h"

#include <math.h>

#include "base/memory.h"
#include "replay/as_recorded.h"
#include "replay/collective_flows.h"
#include "replay/fluid.h"
#include "replay/graph.h"
#include "replay/modelled.h"
#include "replay/network.h"

/* What an activity stands for: in the upper half of its tag; a node or a meeting in the lower. */
enum happening {
    COMPUTED,   /* a node's computation is done */
    READY_COPY, /* the latency of a node's copy or read is over */
    COPIED,     /* its bytes have come */
    READY_MEET, /* the latency of a meeting is over */
    FLOWED,     /* one of its flows has come */
};

/* A lane that computes on a slot. */
struct computation {
    int id;      /* of fluid */
    double full; /* its rate with the whole slot */
};

/* A compute slot, and who is on it: [0]: LANE_STREAM, [1]: LANE_LOW. */
struct slot {
    struct computation *on[2];
    uint32_t *lane[2]; /* of each */
    uint32_t count[2];
    size_t on_capacity[2], lane_capacity[2];
};

struct sim {
    const struct simulation_params *params;
    const struct recording *recording;
    const struct box_model *box;
    struct simulation *out;
    double now;
    struct graph graph;
    struct walk walk;
    struct network *network;
    struct fluid *fluid;
    struct slot slots[RECORDING_RANKS_MAX];
    uint32_t *flows_left;           /* [meeting_count] */
    struct collective_flows *flows; /* of the meeting that is looked at */
    uint32_t link_users[BOX_LINKS_MAX];
    double link_since[BOX_LINKS_MAX]; /* when bytes began to be under way */
};

static uint64_t tag_of(enum happening happening, uint32_t index)
{
    return (uint64_t)happening << 32 | index;
}

static const struct recording_lane *lane_of(const struct sim *sim, uint32_t node)
{
    return &sim->recording->lanes[sim->graph.lane_of[node]];
}

static void end_node(struct sim *sim, uint32_t node)
{
    sim->out->times[node].end = sim->now;
    walk_end(&sim->walk, node);
}

/* `tag` after `seconds`, which are > 0. */
static enum status start_timer(struct sim *sim, double seconds, uint64_t tag, struct error *err)
{
    int id;
    return fluid_start(&id, sim->fluid,
                       &(struct fluid_activity){.amount = seconds, .cap = 1, .tag = tag}, err);
}

/* ---- Computation ----------------------------------------------------------------------------- */

static struct slot *slot_of(struct sim *sim, const struct recording_lane *lane)
{
    return &sim->slots[sim->box->has_one_slot ? 0 : lane->rank];
}

static double seconds_of(const struct sim *sim, uint32_t node)
{
    const struct recording_node *about = &sim->recording->nodes[node];
    enum lane_kind kind = lane_of(sim, node)->kind;
    enum durations durations = sim->params->durations;
    if (durations != DURATIONS_MEASURED && (kind == LANE_STREAM || kind == LANE_LOW))
        return modelled_seconds(&sim->box->device, about);
    if (durations == DURATIONS_DEVICES && kind == LANE_HOST)
        return 0;
    return (double)about->duration_ns * 1e-9;
}

/* After somebody came to the slot or left it: even shares, and for the low what is left. */
static void share_slot(struct sim *sim, const struct slot *slot)
{
    for (int low = 0; low < 2; low++) {
        bool has_some = low == 0 || slot->count[0] == 0;
        for (uint32_t i = 0; i < slot->count[low]; i++)
            fluid_set_cap(sim->fluid, slot->on[low][i].id,
                          has_some ? slot->on[low][i].full / slot->count[low] : 0);
    }
}

static enum status take_slot(struct sim *sim, uint32_t node, double seconds, struct error *err)
{
    const struct recording_node *about = &sim->recording->nodes[node];
    const struct recording_lane *lane = lane_of(sim, node);
    struct slot *slot = slot_of(sim, lane);
    int low = lane->kind == LANE_LOW, memory = network_memory(sim->network, lane->rank);
    uint32_t place = slot->count[low];
    struct fluid_activity activity = {.amount = seconds, .cap = 0, .tag = tag_of(COMPUTED, node)};
    double full = 1;
    if (memory >= 0 && about->bytes > 0) {
        activity.amount = (double)about->bytes;
        activity.use_count = 1;
        activity.uses[0] = (uint16_t)memory;
        full = (double)about->bytes / seconds;
    }
    TRY(memory_reserve(&slot->on[low], &slot->on_capacity[low], (size_t)place + 1,
                       sizeof *slot->on[low], "a compute slot", err));
    TRY(memory_reserve(&slot->lane[low], &slot->lane_capacity[low], (size_t)place + 1,
                       sizeof *slot->lane[low], "a compute slot", err));
    TRY(fluid_start(&slot->on[low][place].id, sim->fluid, &activity, err));
    slot->on[low][place].full = full;
    slot->lane[low][place] = sim->graph.lane_of[node];
    slot->count[low]++;
    share_slot(sim, slot);
    return STATUS_OK;
}

/* The others keep their order. */
static void leave_slot(struct sim *sim, uint32_t node)
{
    uint32_t lane = sim->graph.lane_of[node], i = 0;
    struct slot *slot = slot_of(sim, lane_of(sim, node));
    int low = lane_of(sim, node)->kind == LANE_LOW;
    while (slot->lane[low][i] != lane)
        i++;
    slot->count[low]--;
    for (; i < slot->count[low]; i++) {
        slot->on[low][i] = slot->on[low][i + 1];
        slot->lane[low][i] = slot->lane[low][i + 1];
    }
    share_slot(sim, slot);
}

static bool takes_slot(const struct sim *sim, uint32_t node)
{
    enum lane_kind kind = lane_of(sim, node)->kind;
    return kind == LANE_STREAM || kind == LANE_LOW;
}

static enum status compute(struct sim *sim, uint32_t node, struct error *err)
{
    double seconds = seconds_of(sim, node);
    if (!(seconds > 0)) {
        end_node(sim, node);
        return STATUS_OK;
    }
    if (takes_slot(sim, node))
        return take_slot(sim, node, seconds, err);
    return start_timer(sim, seconds, tag_of(COMPUTED, node), err);
}

/* ---- Links ----------------------------------------------------------------------------------- */

static void use_links(struct sim *sim, const struct network_route *route, double bytes)
{
    for (int i = 0; i < route->count; i++) {
        int link = network_link(route->resource[i]);
        sim->out->links[link].bytes[route->resource[i] % 2] += bytes;
        if (sim->link_users[link]++ == 0)
            sim->link_since[link] = sim->now;
    }
}

static void leave_links(struct sim *sim, const struct network_route *route)
{
    for (int i = 0; i < route->count; i++) {
        int link = network_link(route->resource[i]);
        if (--sim->link_users[link] == 0)
            sim->out->links[link].busy_seconds += sim->now - sim->link_since[link];
    }
}

/* Sends bytes at a share of the links' bandwidth: they then take as much as more bytes would. */
static enum status send(struct sim *sim, const struct network_route *route, double bytes,
                        double efficiency, uint64_t tag, struct error *err)
{
    struct fluid_activity activity = {
        .amount = bytes / efficiency, .cap = INFINITY, .use_count = route->count, .tag = tag};
    int id;
    for (int i = 0; i < route->count; i++)
        activity.uses[i] = route->resource[i];
    TRY(fluid_start(&id, sim->fluid, &activity, err));
    use_links(sim, route, bytes);
    return STATUS_OK;
}

/* ---- Copies and reads ------------------------------------------------------------------------ */

static const struct network_route *copy_route(const struct sim *sim, uint32_t node)
{
    const struct recording_node *about = &sim->recording->nodes[node];
    int rank = lane_of(sim, node)->rank, host = sim->box->host;
    if (about->kind == NODE_READ)
        return network_route(sim->network, sim->box->disk, host);
    return about->to_host ? network_route(sim->network, rank, host)
                          : network_route(sim->network, host, rank);
}

static enum status move(struct sim *sim, uint32_t node, struct error *err)
{
    const struct recording_node *about = &sim->recording->nodes[node];
    if (about->bytes == 0) {
        end_node(sim, node);
        return STATUS_OK;
    }
    return send(sim, copy_route(sim, node), (double)about->bytes, 1, tag_of(COPIED, node), err);
}

static enum status copy(struct sim *sim, uint32_t node, struct error *err)
{
    double latency = copy_route(sim, node)->latency;
    return latency > 0 ? start_timer(sim, latency, tag_of(READY_COPY, node), err)
                       : move(sim, node, err);
}

/* ---- Collectives ----------------------------------------------------------------------------- */

static const struct box_protocol *look_at(double *latency, struct sim *sim, uint32_t meeting)
{
    const struct recording *recording = sim->recording;
    uint32_t first = sim->graph.members[sim->graph.meeting_first[meeting]];
    int op = recording->collectives[recording->nodes[first].collective].op;
    collective_flows_find(sim->flows, &sim->graph, meeting, sim->network);
    return collective_flows_protocol(latency, sim->flows, &sim->box->collectives[op], sim->network);
}

static void end_meeting(struct sim *sim, uint32_t meeting)
{
    const struct graph *graph = &sim->graph;
    for (uint32_t m = graph->meeting_first[meeting]; m < graph->meeting_first[meeting + 1]; m++)
        end_node(sim, graph->members[m]);
}

static enum status flow(struct sim *sim, uint32_t meeting, struct error *err)
{
    double latency;
    const struct box_protocol *protocol = look_at(&latency, sim, meeting);
    sim->flows_left[meeting] = (uint32_t)sim->flows->count;
    for (int f = 0; f < sim->flows->count; f++) {
        const struct collective_flow *one = &sim->flows->flows[f];
        TRY(send(
            sim, network_route(sim->network, one->from, one->to), one->bytes, protocol->efficiency,
            (uint64_t)(one->from * RECORDING_RANKS_MAX + one->to) << 40 | tag_of(FLOWED, meeting),
            err));
    }
    if (sim->flows->count == 0)
        end_meeting(sim, meeting);
    return STATUS_OK;
}

static enum status meet(struct sim *sim, uint32_t meeting, struct error *err)
{
    const struct graph *graph = &sim->graph;
    double latency;
    for (uint32_t m = graph->meeting_first[meeting]; m < graph->meeting_first[meeting + 1]; m++)
        sim->out->times[graph->members[m]].begin = sim->now;
    if (graph_meeting_size(graph, meeting) == 1) {
        end_meeting(sim, meeting);
        return STATUS_OK;
    }
    look_at(&latency, sim, meeting);
    return latency > 0 ? start_timer(sim, latency, tag_of(READY_MEET, meeting), err)
                       : flow(sim, meeting, err);
}

/* ---- What happens when ----------------------------------------------------------------------- */

static enum status start(struct sim *sim, uint32_t node, struct error *err)
{
    const struct recording_node *about = &sim->recording->nodes[node];
    sim->out->times[node].begin = sim->now;
    switch ((enum node_kind)about->kind) {
    case NODE_COMPUTE:
        return compute(sim, node, err);
    case NODE_COLLECTIVE:
        return walk_arrive(&sim->walk, node)
                   ? meet(sim, sim->graph.meeting_of[about->collective], err)
                   : STATUS_OK;
    case NODE_COPY:
    case NODE_READ:
        return copy(sim, node, err);
    default:
        end_node(sim, node);
        return STATUS_OK;
    }
}

static enum status happen(struct sim *sim, uint64_t tag, struct error *err)
{
    uint32_t index = (uint32_t)tag;
    int pair = (int)(tag >> 40);
    switch ((enum happening)(tag >> 32 & 0xFF)) {
    case COMPUTED:
        if (takes_slot(sim, index))
            leave_slot(sim, index);
        end_node(sim, index);
        return STATUS_OK;
    case READY_COPY:
        return move(sim, index, err);
    case COPIED:
        leave_links(sim, copy_route(sim, index));
        end_node(sim, index);
        return STATUS_OK;
    case READY_MEET:
        return flow(sim, index, err);
    case FLOWED:
        leave_links(sim, network_route(sim->network, pair / RECORDING_RANKS_MAX,
                                       pair % RECORDING_RANKS_MAX));
        if (--sim->flows_left[index] == 0)
            end_meeting(sim, index);
        return STATUS_OK;
    }
    return error_set(err, STATUS_INTERNAL, "replay: an activity of no kind");
}

static enum status go(struct sim *sim, struct error *err)
{
    uint32_t node;
    uint64_t tag;
    for (;;) {
        while (walk_take(&sim->walk, &node))
            TRY(start(sim, node, err));
        double next = fluid_next(sim->fluid);
        if (!isfinite(next))
            return STATUS_OK;
        sim->now = next;
        fluid_advance(sim->fluid, next);
        while (fluid_take(sim->fluid, &tag))
            TRY(happen(sim, tag, err));
    }
}

/* ---- Causes ---------------------------------------------------------------------------------- */

/* Of those that end last, the first of its lane's and its needs. */
static uint32_t last_before(const struct graph *graph, const struct node_time *times, uint32_t node)
{
    const struct recording *recording = graph->recording;
    const struct recording_node *about = &recording->nodes[node];
    uint32_t last = graph_before(graph, node);
    for (uint32_t i = 0; i < about->need_count; i++) {
        uint32_t need = recording->needs[about->need_first + i];
        if (last == GRAPH_NONE || times[need].end > times[last].end)
            last = need;
    }
    return last;
}

/* Of the member who came last, of several the first. */
static uint32_t meeting_cause(const struct graph *graph, const struct node_time *times,
                              uint32_t meeting)
{
    uint32_t cause = GRAPH_NONE;
    for (uint32_t m = graph->meeting_first[meeting]; m < graph->meeting_first[meeting + 1]; m++) {
        uint32_t last = last_before(graph, times, graph->members[m]);
        if (last != GRAPH_NONE && (cause == GRAPH_NONE || times[last].end > times[cause].end))
            cause = last;
    }
    return cause;
}

/* What it needed had ended, and it did not begin: then the slot of all ranks was taken. */
static uint32_t node_cause(const struct graph *graph, const struct node_time *times, uint32_t node,
                           bool is_as_recorded)
{
    uint32_t last = last_before(graph, times, node);
    double ready = last == GRAPH_NONE ? 0 : times[last].end;
    return is_as_recorded && times[node].begin > ready ? times[node].cause : last;
}

/* As recorded, a time has the slot's cause before (as_recorded.h). */
static void find_causes(struct node_time *times, const struct graph *graph, bool is_as_recorded)
{
    const struct recording *recording = graph->recording;
    for (uint32_t node = 0; node < recording->node_count; node++) {
        if (recording->nodes[node].kind != NODE_COLLECTIVE)
            times[node].cause = node_cause(graph, times, node, is_as_recorded);
    }
    for (uint32_t meeting = 0; meeting < graph->meeting_count; meeting++) {
        uint32_t cause = meeting_cause(graph, times, meeting);
        for (uint32_t m = graph->meeting_first[meeting]; m < graph->meeting_first[meeting + 1]; m++)
            times[graph->members[m]].cause = cause;
    }
}

/* ---- All of it ------------------------------------------------------------------------------- */

/* Whether the box has the ends that the recording needs. */
static enum status check_ends(const struct recording *recording, const struct box_model *box,
                              struct error *err)
{
    if (box->rank_count != recording->rank_count)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the box %s has %d ranks and the recording %d; take a box of as many, or "
                         "record on as many ranks",
                         box->name, box->rank_count, recording->rank_count);
    for (uint32_t node = 0; node < recording->node_count; node++) {
        int kind = recording->nodes[node].kind;
        if ((kind == NODE_COPY || kind == NODE_READ) && box->host < 0)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "the box %s has no host, and the recording copies or reads",
                             box->name);
        if (kind == NODE_READ && box->disk < 0)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "the box %s has no disk, and the recording reads files", box->name);
    }
    return STATUS_OK;
}

static enum status prepare(struct sim *sim, struct error *err)
{
    double scale = sim->params->link_scale > 0 ? sim->params->link_scale : 1;
    TRY(check_ends(sim->recording, sim->box, err));
    TRY(walk_init(&sim->walk, &sim->graph, err));
    TRY(network_create(&sim->network, sim->box, scale, err));
    TRY(fluid_create(&sim->fluid, sim->network->capacity, sim->network->resource_count, err));
    TRY(memory_get((void **)&sim->flows, 1, sizeof *sim->flows, "the flows of a collective", err));
    TRY(memory_get((void **)&sim->flows_left, sim->graph.meeting_count, sizeof *sim->flows_left,
                   "the collectives of a recording", err));
    return memory_get((void **)&sim->out->links, (size_t)sim->box->link_count,
                      sizeof *sim->out->links, "the use of links", err);
}

static enum status simulate_box(struct sim *sim, struct error *err)
{
    enum status status = prepare(sim, err);
    if (status == STATUS_OK)
        status = go(sim, err);
    for (int rank = 0; rank < RECORDING_RANKS_MAX; rank++) {
        for (int low = 0; low < 2; low++) {
            memory_free(sim->slots[rank].on[low]);
            memory_free(sim->slots[rank].lane[low]);
        }
    }
    memory_free(sim->flows_left);
    memory_free(sim->flows);
    fluid_destroy(sim->fluid);
    network_destroy(sim->network);
    walk_deinit(&sim->walk);
    return status;
}

static enum status simulate_graph(struct sim *sim, struct error *err)
{
    const struct recording *recording = sim->recording;
    struct simulation *out = sim->out;
    TRY(memory_get((void **)&out->times, recording->node_count, sizeof *out->times,
                   "the times of a recording", err));
    TRY(sim->box == NULL ? as_recorded(out->times, &sim->graph, err) : simulate_box(sim, err));
    find_causes(out->times, &sim->graph, sim->box == NULL);
    for (uint32_t node = 0; node < recording->node_count; node++)
        out->seconds = fmax(out->seconds, out->times[node].end);
    return STATUS_OK;
}

enum status simulate(struct simulation *out, const struct simulation_params *params,
                     struct error *err)
{
    struct simulation result = {0};
    struct sim sim = {
        .params = params, .recording = params->recording, .box = params->box, .out = &result};
    if (params->box == NULL && params->durations != DURATIONS_MEASURED)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "modelled durations are those of a box, and none is given");
    TRY(graph_init(&sim.graph, params->recording, "the recording", err));
    enum status status = simulate_graph(&sim, err);
    graph_deinit(&sim.graph);
    if (status == STATUS_OK)
        *out = result;
    else
        simulation_deinit(&result);
    return status;
}

void simulation_deinit(struct simulation *simulation)
{
    memory_free(simulation->links);
    memory_free(simulation->times);
    *simulation = (struct simulation){0};
}

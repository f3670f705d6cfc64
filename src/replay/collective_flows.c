#include "replay/collective_flows.h"

#include <math.h>
#include <stddef.h>

/* A call as all members made it. */
struct call {
    const struct graph *graph;
    const struct recording_group *group;
    const uint32_t *nodes; /* [size], of the members */
    enum collective_op op;
    int size;
    const int64_t *counts; /* of the first member */
    double total;          /* of an all-gather, a reduce-scatter or an all-reduce */
};

static const int64_t *counts_of(const struct graph *graph, uint32_t node)
{
    const struct recording *recording = graph->recording;
    uint32_t index = recording->nodes[node].collective;
    return &recording->counts[recording->collectives[index].count_first];
}

static struct call find_call(const struct graph *graph, uint32_t meeting)
{
    const struct recording *recording = graph->recording;
    const uint32_t *nodes = &graph->members[graph->meeting_first[meeting]];
    const struct recording_collective *first =
        &recording->collectives[recording->nodes[nodes[0]].collective];
    struct call call = {.graph = graph,
                        .group = &recording->groups[first->group],
                        .nodes = nodes,
                        .op = (enum collective_op)first->op,
                        .size = recording->groups[first->group].size,
                        .counts = counts_of(graph, nodes[0])};
    for (int m = 0; m < call.size; m++)
        call.total += (double)call.counts[m];
    return call;
}

/* What member m of a ring sends to the next. */
static double ring_bytes(const struct call *call, int m)
{
    switch (call->op) {
    case COLLECTIVE_OP_ALL_GATHER:
        return call->total - (double)call->counts[(m + 1) % call->size];
    case COLLECTIVE_OP_REDUCE_SCATTER:
        return call->total - (double)call->counts[m];
    default:
        return 2 * call->total * (call->size - 1) / call->size;
    }
}

static double direct_bytes(const struct call *call, int from, int to)
{
    switch (call->op) {
    case COLLECTIVE_OP_ALL_GATHER:
        return (double)call->counts[from];
    case COLLECTIVE_OP_REDUCE_SCATTER:
        return (double)call->counts[to];
    case COLLECTIVE_OP_ALL_REDUCE:
        return 2 * call->total / call->size;
    default:
        return (double)counts_of(call->graph, call->nodes[from])[to];
    }
}

static void add_flow(struct collective_flows *out, const struct call *call,
                     const struct network *network, int from, int to, double bytes)
{
    int sender = call->group->ranks[from], receiver = call->group->ranks[to];
    out->latency = fmax(out->latency, network_route(network, sender, receiver)->latency);
    if (bytes > 0)
        out->flows[out->count++] =
            (struct collective_flow){.from = sender, .to = receiver, .bytes = bytes};
}

/* The most that one member sends, or receives. */
static int most_messages(const struct collective_flows *flows)
{
    int sent[RECORDING_RANKS_MAX] = {0}, received[RECORDING_RANKS_MAX] = {0}, most = 0;
    for (int f = 0; f < flows->count; f++) {
        int out = ++sent[flows->flows[f].from], in = ++received[flows->flows[f].to];
        most = out > most ? out : most;
        most = in > most ? in : most;
    }
    return most;
}

void collective_flows_find(struct collective_flows *out, const struct graph *graph,
                           uint32_t meeting, const struct network *network)
{
    struct call call = find_call(graph, meeting);
    int phases = call.op == COLLECTIVE_OP_ALL_REDUCE ? 2 : 1;
    out->count = out->messages = 0;
    out->latency = 0;
    if (call.size == 1) {
        out->steps = 0;
    } else if (network->box->collectives[call.op].algorithm == ALGORITHM_RING) {
        out->steps = phases * (call.size - 1);
        for (int m = 0; m < call.size; m++)
            add_flow(out, &call, network, m, (m + 1) % call.size, ring_bytes(&call, m));
    } else {
        out->steps = phases;
        for (int from = 0; from < call.size; from++) {
            for (int to = 0; to < call.size; to++) {
                double bytes = to == from ? 0 : direct_bytes(&call, from, to);
                if (bytes > 0)
                    add_flow(out, &call, network, from, to, bytes);
            }
        }
        out->messages = phases * most_messages(out);
    }
}

/* How long the busiest link has to carry, at its full bandwidth. */
static double busiest_seconds(const struct collective_flows *flows, const struct network *network)
{
    double load[NETWORK_RESOURCES_MAX] = {0}, longest = 0;
    for (int f = 0; f < flows->count; f++) {
        const struct collective_flow *flow = &flows->flows[f];
        const struct network_route *route = network_route(network, flow->from, flow->to);
        for (int i = 0; i < route->count; i++) {
            int r = route->resource[i];
            load[r] += flow->bytes;
            longest = fmax(longest, load[r] / network->capacity[r]);
        }
    }
    return longest;
}

const struct box_protocol *collective_flows_protocol(double *latency,
                                                     const struct collective_flows *flows,
                                                     const struct box_collective *collective,
                                                     const struct network *network)
{
    const struct box_protocol *best = NULL;
    double carrying = busiest_seconds(flows, network), soonest = INFINITY;
    for (int p = 0; p < collective->protocol_count; p++) {
        const struct box_protocol *protocol = &collective->protocols[p];
        double wait = protocol->base_latency / network->scale +
                      flows->steps * (protocol->step_latency / network->scale + flows->latency) +
                      flows->messages * (protocol->message_latency / network->scale);
        double done = wait + carrying / protocol->efficiency;
        if (best == NULL || done < soonest) {
            best = protocol;
            soonest = done;
            *latency = wait;
        }
    }
    return best;
}

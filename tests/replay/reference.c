#include "reference.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#define RESOURCES (2 * BOX_LINKS_MAX + RECORDING_RANKS_MAX)
#define DOING_MAX 20000

/* Something under way. */
struct doing {
    enum { TIMER, COMPUTING, MOVING } kind;
    uint32_t node; /* whose it is, or the first member of its call */
    double left, amount, cap, rate;
    int use_count, uses[BOX_ROUTE_MAX];
};

struct reference {
    const struct recording *recording;
    const struct box_model *box;
    struct node_time *times;
    double (*link_bytes)[2];
    enum { WAITS, GOES_ON, HAS_ENDED } * states; /* [node_count] */
    uint32_t *lanes;                             /* [node_count] */
    bool *has_begun;                             /* latency is over: [node_count] */
    struct doing *doing;
    int doing_count;
    double now;
};

static const struct recording_lane *lane_of(const struct reference *it, uint32_t node)
{
    return &it->recording->lanes[it->lanes[node]];
}

static bool may_begin(const struct reference *it, uint32_t node)
{
    const struct recording_node *about = &it->recording->nodes[node];
    bool may = node == lane_of(it, node)->first || it->states[node - 1] == HAS_ENDED;
    for (uint32_t i = 0; i < about->need_count; i++)
        may = may && it->states[it->recording->needs[about->need_first + i]] == HAS_ENDED;
    return may;
}

/* The node of a member of the same call; the recording's own order of members. */
static uint32_t peer(const struct reference *it, uint32_t node, int member)
{
    const struct recording *recording = it->recording;
    const struct recording_collective *call =
        &recording->collectives[recording->nodes[node].collective];
    for (uint32_t other = 0;; other++) {
        const struct recording_collective *its =
            &recording->collectives[recording->nodes[other].collective];
        if (recording->nodes[other].kind == NODE_COLLECTIVE && its->group == call->group &&
            its->number == call->number && its->member == member)
            return other;
    }
}

static struct doing *begin(struct reference *it, uint32_t node, double amount, double cap)
{
    cr_assert(it->doing_count < DOING_MAX);
    it->doing[it->doing_count] =
        (struct doing){.node = node, .left = amount, .amount = amount, .cap = cap};
    return &it->doing[it->doing_count++];
}

/* ---- Links ----------------------------------------------------------------------------------- */

static double latency_of(const struct reference *it, int from, int to)
{
    struct box_route route;
    double latency = 0;
    cr_assert_eq(box_model_route(&route, it->box, from, to, NULL), STATUS_OK);
    for (int i = 0; i < route.count; i++)
        latency += it->box->links[route.link[i]].latency;
    return latency;
}

static int resource_of(const struct reference *it, const struct box_route *route, int i)
{
    return 2 * route->link[i] +
           (it->box->links[route->link[i]].is_half_duplex ? 0 : route->direction[i]);
}

static void move(struct reference *it, uint32_t node, int from, int to, double bytes,
                 double efficiency)
{
    struct box_route route;
    cr_assert_eq(box_model_route(&route, it->box, from, to, NULL), STATUS_OK);
    struct doing *doing = begin(it, node, bytes / efficiency, INFINITY);
    doing->kind = MOVING;
    for (int i = 0; i < route.count; i++) {
        int resource = resource_of(it, &route, i);
        doing->uses[doing->use_count++] = resource;
        it->link_bytes[resource / 2][resource % 2] += bytes;
    }
}

/* ---- Collectives ----------------------------------------------------------------------------- */

/* What every member sends to every other, and what that waits for. */
struct messages {
    int size, ranks[RECORDING_RANKS_MAX];
    double bytes[RECORDING_RANKS_MAX][RECORDING_RANKS_MAX];
    double wait, efficiency;
};

static void fill_ring(struct messages *out, enum collective_op op, const int64_t *counts)
{
    /* Part by part, on its way from member to member. */
    for (int part = 0; part < out->size; part++) {
        for (int step = 0; step < out->size - 1; step++) {
            int gather = (part + step) % out->size, scatter = (part + 1 + step) % out->size;
            double all = (double)counts[0] / out->size;
            if (op != COLLECTIVE_OP_REDUCE_SCATTER)
                out->bytes[gather][(gather + 1) % out->size] +=
                    op == COLLECTIVE_OP_ALL_REDUCE ? all : (double)counts[part];
            if (op != COLLECTIVE_OP_ALL_GATHER)
                out->bytes[scatter][(scatter + 1) % out->size] +=
                    op == COLLECTIVE_OP_ALL_REDUCE ? all : (double)counts[part];
        }
    }
}

static void fill_direct(struct messages *out, const struct reference *it, uint32_t node,
                        enum collective_op op)
{
    for (int m = 0; m < out->size; m++) {
        const struct recording *recording = it->recording;
        const int64_t *counts =
            recording->counts +
            recording->collectives[recording->nodes[peer(it, node, m)].collective].count_first;
        for (int other = 0; other < out->size; other++) {
            if (other == m)
                continue;
            if (op == COLLECTIVE_OP_ALL_GATHER)
                out->bytes[m][other] = (double)counts[m];
            else if (op == COLLECTIVE_OP_ALL_REDUCE)
                out->bytes[m][other] = 2 * (double)counts[0] / out->size;
            else
                out->bytes[m][other] = (double)counts[other];
        }
    }
}

/* Of the member who sends, or is sent, to most. */
static int message_count(const struct messages *messages)
{
    int most = 0;
    for (int m = 0; m < messages->size; m++) {
        int sent = 0, received = 0;
        for (int other = 0; other < messages->size; other++) {
            sent += messages->bytes[m][other] > 0;
            received += messages->bytes[other][m] > 0;
        }
        most = sent > most ? sent : most;
        most = received > most ? received : most;
    }
    return most;
}

static void choose_protocol(struct messages *out, const struct reference *it,
                            const struct box_collective *how, enum collective_op op)
{
    bool is_ring = how->algorithm == ALGORITHM_RING;
    int steps = (is_ring ? out->size - 1 : 1) * (op == COLLECTIVE_OP_ALL_REDUCE ? 2 : 1);
    double latency = 0, load[RESOURCES] = {0}, carrying = 0, soonest = INFINITY;
    int count = is_ring ? 0 : (op == COLLECTIVE_OP_ALL_REDUCE ? 2 : 1) * message_count(out);
    for (int a = 0; a < out->size; a++) {
        for (int b = 0; b < out->size; b++) {
            struct box_route route;
            if (a == b || (out->bytes[a][b] == 0 && !(is_ring && b == (a + 1) % out->size)))
                continue;
            cr_assert_eq(box_model_route(&route, it->box, out->ranks[a], out->ranks[b], NULL),
                         STATUS_OK);
            latency = fmax(latency, latency_of(it, out->ranks[a], out->ranks[b]));
            for (int i = 0; i < route.count; i++) {
                int r = resource_of(it, &route, i);
                load[r] += out->bytes[a][b];
                carrying = fmax(carrying, load[r] / it->box->links[r / 2].bytes_per_second);
            }
        }
    }
    for (int p = 0; p < how->protocol_count; p++) {
        const struct box_protocol *protocol = &how->protocols[p];
        double wait = protocol->base_latency + steps * (protocol->step_latency + latency) +
                      count * protocol->message_latency;
        if (wait + carrying / protocol->efficiency < soonest) {
            soonest = wait + carrying / protocol->efficiency;
            out->wait = wait;
            out->efficiency = protocol->efficiency;
        }
    }
}

static void find_messages(struct messages *out, const struct reference *it, uint32_t node)
{
    const struct recording *recording = it->recording;
    const struct recording_collective *call =
        &recording->collectives[recording->nodes[node].collective];
    const struct box_collective *how = &it->box->collectives[call->op];
    const struct recording_group *group = &recording->groups[call->group];
    bool is_ring = how->algorithm == ALGORITHM_RING;
    *out = (struct messages){.size = group->size};
    for (int m = 0; m < group->size; m++)
        out->ranks[m] = group->ranks[m];
    if (is_ring)
        fill_ring(out, (enum collective_op)call->op, &recording->counts[call->count_first]);
    else
        fill_direct(out, it, node, (enum collective_op)call->op);
    choose_protocol(out, it, how, (enum collective_op)call->op);
}

static void end_call(struct reference *it, uint32_t node)
{
    const struct recording *recording = it->recording;
    const struct recording_collective *call =
        &recording->collectives[recording->nodes[node].collective];
    for (int m = 0; m < recording->groups[call->group].size; m++) {
        it->states[peer(it, node, m)] = HAS_ENDED;
        it->times[peer(it, node, m)].end = it->now;
    }
}

static void flow(struct reference *it, uint32_t node)
{
    static struct messages messages;
    int count = it->doing_count;
    find_messages(&messages, it, node);
    for (int a = 0; a < messages.size; a++) {
        for (int b = 0; b < messages.size; b++) {
            if (messages.bytes[a][b] > 0)
                move(it, node, messages.ranks[a], messages.ranks[b], messages.bytes[a][b],
                     messages.efficiency);
        }
    }
    if (it->doing_count == count)
        end_call(it, node);
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

static void copy(struct reference *it, uint32_t node)
{
    const struct recording_node *about = &it->recording->nodes[node];
    int host = it->box->host, rank = lane_of(it, node)->rank;
    int from = about->kind == NODE_READ ? it->box->disk : about->to_host ? rank : host;
    int to = about->kind == NODE_READ || about->to_host ? host : rank;
    double latency = latency_of(it, from, to);
    if (!it->has_begun[node] && latency > 0) {
        begin(it, node, latency, 1)->kind = TIMER;
        it->has_begun[node] = true;
    } else if (about->bytes > 0) {
        move(it, node, from, to, (double)about->bytes, 1);
    } else {
        it->states[node] = HAS_ENDED;
        it->times[node].end = it->now;
    }
}

static void start(struct reference *it, uint32_t node)
{
    const struct recording *recording = it->recording;
    const struct recording_node *about = &recording->nodes[node];
    static struct messages messages;
    it->states[node] = GOES_ON;
    it->times[node].begin = it->now;
    if (about->kind == NODE_COMPUTE && about->duration_ns > 0) {
        int rank = lane_of(it, node)->rank;
        double seconds = (double)about->duration_ns * 1e-9;
        bool is_host = lane_of(it, node)->kind > LANE_LOW;
        bool shares = !is_host && it->box->memory_of[rank] >= 0 && about->bytes > 0;
        struct doing *doing = begin(it, node, shares ? (double)about->bytes : seconds, 0);
        doing->kind = is_host ? TIMER : COMPUTING;
        doing->cap = is_host ? 1 : 0;
        if (shares)
            doing->uses[doing->use_count++] = 2 * it->box->link_count + it->box->memory_of[rank];
    } else if (about->kind == NODE_COPY || about->kind == NODE_READ) {
        copy(it, node);
    } else if (about->kind == NODE_COLLECTIVE) {
        const struct recording_collective *call = &recording->collectives[about->collective];
        int size = recording->groups[call->group].size;
        for (int m = 0; m < size; m++) {
            if (it->states[peer(it, node, m)] == WAITS)
                return;
        }
        for (int m = 0; m < size; m++)
            it->times[peer(it, node, m)].begin = it->now;
        find_messages(&messages, it, node);
        if (size == 1)
            end_call(it, node);
        else if (messages.wait > 0)
            begin(it, node, messages.wait, 1)->kind = TIMER;
        else
            flow(it, node);
    } else {
        it->states[node] = HAS_ENDED;
        it->times[node].end = it->now;
    }
}

static bool start_some(struct reference *it)
{
    bool has_started = false;
    for (uint32_t node = 0; node < it->recording->node_count; node++) {
        if (it->states[node] == WAITS && may_begin(it, node)) {
            start(it, node);
            has_started = true;
        }
    }
    return has_started;
}

/* ---- Rates ----------------------------------------------------------------------------------- */

static void find_caps(struct reference *it)
{
    for (int i = 0; i < it->doing_count; i++) {
        struct doing *doing = &it->doing[i];
        const struct recording_node *about = &it->recording->nodes[doing->node];
        int alike = 0, before = 0;
        if (doing->kind != COMPUTING)
            continue;
        for (int j = 0; j < it->doing_count; j++) {
            const struct recording_lane *own = lane_of(it, doing->node);
            const struct recording_lane *other = lane_of(it, it->doing[j].node);
            if (it->doing[j].kind != COMPUTING ||
                (own->rank != other->rank && !it->box->has_one_slot))
                continue;
            alike += own->kind == other->kind;
            before += own->kind == LANE_LOW && other->kind == LANE_STREAM;
        }
        double full =
            doing->use_count > 0 ? (double)about->bytes / ((double)about->duration_ns * 1e-9) : 1;
        doing->cap = before > 0 ? 0 : full / alike;
    }
}

/* All rates grow by the most that all who still can bear. */
static void find_rates(struct reference *it)
{
    double left[RESOURCES];
    bool is_full[DOING_MAX];
    int open = it->doing_count;
    for (int r = 0; r < 2 * it->box->link_count; r++)
        left[r] = it->box->links[r / 2].bytes_per_second;
    for (int m = 0; m < it->box->memory_count; m++)
        left[2 * it->box->link_count + m] = it->box->memory_bytes_per_second[m];
    for (int i = 0; i < it->doing_count; i++) {
        it->doing[i].rate = 0;
        is_full[i] = false;
    }
    while (open > 0) {
        int users[RESOURCES] = {0};
        double growth = INFINITY;
        for (int i = 0; i < it->doing_count; i++) {
            for (int u = 0; u < it->doing[i].use_count && !is_full[i]; u++)
                users[it->doing[i].uses[u]]++;
        }
        for (int i = 0; i < it->doing_count; i++) {
            if (is_full[i])
                continue;
            growth = fmin(growth, it->doing[i].cap - it->doing[i].rate);
            for (int u = 0; u < it->doing[i].use_count; u++)
                growth = fmin(growth, left[it->doing[i].uses[u]] / users[it->doing[i].uses[u]]);
        }
        for (int i = 0; i < it->doing_count; i++) {
            if (is_full[i])
                continue;
            it->doing[i].rate += growth;
            for (int u = 0; u < it->doing[i].use_count; u++)
                left[it->doing[i].uses[u]] -= growth;
        }
        for (int i = 0; i < it->doing_count; i++) {
            if (is_full[i])
                continue;
            is_full[i] = it->doing[i].rate >= it->doing[i].cap * (1 - 1e-13);
            for (int u = 0; u < it->doing[i].use_count; u++) {
                int r = it->doing[i].uses[u];
                double capacity =
                    r < 2 * it->box->link_count
                        ? it->box->links[r / 2].bytes_per_second
                        : it->box->memory_bytes_per_second[r - 2 * it->box->link_count];
                is_full[i] = is_full[i] || left[r] <= 1e-12 * capacity;
            }
            open -= is_full[i];
        }
    }
}

/* ---- All of it ------------------------------------------------------------------------------- */

static void end_one(struct reference *it, const struct doing *doing)
{
    const struct recording_node *about = &it->recording->nodes[doing->node];
    if (about->kind == NODE_COLLECTIVE) {
        if (doing->kind == TIMER) {
            flow(it, doing->node);
            return;
        }
        for (int i = 0; i < it->doing_count; i++) {
            if (it->doing[i].node == doing->node)
                return;
        }
        end_call(it, doing->node);
    } else if (doing->kind == TIMER && about->kind != NODE_COMPUTE) {
        copy(it, doing->node);
    } else {
        it->states[doing->node] = HAS_ENDED;
        it->times[doing->node].end = it->now;
    }
}

static void step(struct reference *it)
{
    double next = INFINITY;
    find_caps(it);
    find_rates(it);
    for (int i = 0; i < it->doing_count; i++) {
        if (it->doing[i].rate > 0)
            next = fmin(next, it->doing[i].left / it->doing[i].rate);
    }
    cr_assert(isfinite(next));
    it->now += next;
    for (int i = 0; i < it->doing_count; i++)
        it->doing[i].left -= it->doing[i].rate * next;
    for (int i = 0; i < it->doing_count; i++) {
        struct doing doing = it->doing[i];
        if (doing.left > 1e-12 * doing.amount)
            continue;
        it->doing[i--] = it->doing[--it->doing_count];
        end_one(it, &doing);
    }
}

void reference_simulate(struct node_time *times, double (*link_bytes)[2],
                        const struct recording *recording, const struct box_model *box)
{
    struct reference it = {.recording = recording,
                           .box = box,
                           .times = times,
                           .link_bytes = link_bytes,
                           .states = calloc(recording->node_count, sizeof *it.states),
                           .lanes = calloc(recording->node_count, sizeof *it.lanes),
                           .has_begun = calloc(recording->node_count, sizeof *it.has_begun),
                           .doing = calloc(DOING_MAX, sizeof *it.doing)};
    for (uint32_t lane = 0; lane < recording->lane_count; lane++) {
        for (uint32_t n = 0; n < recording->lanes[lane].count; n++)
            it.lanes[recording->lanes[lane].first + n] = lane;
    }
    do {
        while (start_some(&it))
            continue;
        if (it.doing_count > 0)
            step(&it);
    } while (it.doing_count > 0 || start_some(&it));
    for (uint32_t node = 0; node < recording->node_count; node++)
        cr_assert_eq(it.states[node], HAS_ENDED);
    free(it.doing);
    free(it.has_begun);
    free(it.lanes);
    free(it.states);
}

#include "comm/links.h"

#include <math.h>
#include <pthread.h>

#include "base/memory.h"

/* One direction between two ranks. All that flow have got the same since they flow together: what
 * one gets more than another it got alone. */
struct link {
    struct flow *flows;
    double at;     /* the time up to which all is known */
    double served; /* bytes that each got by then who flowed all along */
};

struct links {
    pthread_mutex_t lock; /* of all */
    struct comm_links speed;
    int rank_count;
    struct link pairs[]; /* [from][to] */
};

enum status links_create(struct links **out, int rank_count, const struct comm_links *speed,
                         struct error *err)
{
    struct links *links;
    size_t pair_count = (size_t)rank_count * (size_t)rank_count;
    TRY(memory_get((void **)&links, 1, sizeof *links + pair_count * sizeof links->pairs[0],
                   "the links", err));
    links->speed = *speed;
    links->rank_count = rank_count;
    pthread_mutex_init(&links->lock, NULL);
    *out = links;
    return STATUS_OK;
}

void links_destroy(struct links *links)
{
    if (links == NULL)
        return;
    pthread_mutex_destroy(&links->lock);
    memory_free(links);
}

enum status links_transfer_init(struct transfer *out, int flow_max, struct error *err)
{
    *out = (struct transfer){.flow_max = flow_max};
    return memory_get((void **)&out->flows, (size_t)flow_max, sizeof *out->flows, "a transfer",
                      err);
}

static struct link *link_of(struct links *links, const struct flow *flow)
{
    return &links->pairs[flow->from * links->rank_count + flow->to];
}

static void flow_remove(struct link *link, struct flow *flow)
{
    struct flow **place = &link->flows;
    while (*place != NULL && *place != flow)
        place = &(*place)->next;
    if (*place == flow)
        *place = flow->next;
}

static void transfer_stop(struct links *links, const struct transfer *transfer)
{
    for (int f = 0; f < transfer->flow_count; f++)
        flow_remove(link_of(links, &transfer->flows[f]), &transfer->flows[f]);
}

void links_transfer_deinit(struct links *links, struct transfer *transfer)
{
    if (transfer->flows == NULL)
        return;
    pthread_mutex_lock(&links->lock);
    transfer_stop(links, transfer);
    pthread_mutex_unlock(&links->lock);
    memory_free(transfer->flows);
    *transfer = (struct transfer){0};
}

/* ---- What happens on a link ------------------------------------------------------------------ */

/* The next thing: the first flow that comes, or begins, and when. */
struct next {
    struct flow *flow; /* NULL: nothing */
    double at;
};

static int flowing_count(const struct link *link)
{
    int count = 0;
    for (const struct flow *flow = link->flows; flow != NULL; flow = flow->next)
        count += flow->is_flowing;
    return count;
}

static struct next next_of(const struct link *link, double bytes_per_second)
{
    struct next next = {.at = INFINITY};
    double share = bytes_per_second / flowing_count(link);
    for (struct flow *flow = link->flows; flow != NULL; flow = flow->next) {
        double at = flow->is_flowing ? link->at + (flow->mark - link->served) / share : flow->begin;
        if (at < next.at)
            next = (struct next){flow, at};
    }
    return next;
}

static void serve(struct link *link, double bytes_per_second, double until)
{
    int count = flowing_count(link);
    if (count > 0)
        link->served += (until - link->at) * bytes_per_second / count;
    link->at = until;
}

static void flow_begin(struct link *link, struct flow *flow)
{
    flow->is_flowing = true;
    flow->mark = link->served + flow->bytes;
}

static void flow_end(struct link *link, struct flow *flow)
{
    link->served = flow->mark;
    flow->is_flowing = false;
    flow_remove(link, flow);
    flow->transfer->end = fmax(flow->transfer->end, link->at);
    flow->transfer->flows_left--;
}

/* Up to `now`. */
static void link_advance(struct link *link, double bytes_per_second, double now)
{
    for (;;) {
        struct next next = next_of(link, bytes_per_second);
        if (next.flow == NULL || next.at > now)
            break;
        serve(link, bytes_per_second, fmax(next.at, link->at));
        if (next.flow->is_flowing)
            flow_end(link, next.flow);
        else
            flow_begin(link, next.flow);
    }
    serve(link, bytes_per_second, fmax(now, link->at));
}

/* When one that has not come will have, if nothing begins meanwhile: until then no other gets more
 * than it does. One that has not begun does not come sooner than alone. */
static double flow_expected(const struct link *link, const struct flow *flow,
                            double bytes_per_second)
{
    double left = 0, own = flow->mark - link->served;
    if (!flow->is_flowing)
        return flow->begin + flow->bytes / bytes_per_second;
    for (const struct flow *other = link->flows; other != NULL; other = other->next) {
        if (other->is_flowing)
            left += fmin(own, other->mark - link->served);
    }
    return link->at + left / bytes_per_second;
}

/* ---- Transfers ------------------------------------------------------------------------------- */

void links_send(struct links *links, struct transfer *transfer, double at, int steps,
                const struct link_bytes *bytes, int count)
{
    ASSERT(count <= transfer->flow_max);
    double begin = count > 0 ? at + steps * links->speed.latency_seconds : at;
    pthread_mutex_lock(&links->lock);
    transfer_stop(links, transfer);
    transfer->begin = transfer->end = begin;
    transfer->flow_count = transfer->flows_left = count;
    for (int f = 0; f < count; f++) {
        struct flow *flow = &transfer->flows[f];
        ASSERT(bytes[f].from != bytes[f].to && bytes[f].bytes > 0);
        *flow = (struct flow){.transfer = transfer,
                              .from = bytes[f].from,
                              .to = bytes[f].to,
                              .begin = begin,
                              .bytes = bytes[f].bytes};
        struct link *link = link_of(links, flow);
        flow->next = link->flows;
        link->flows = flow;
    }
    pthread_mutex_unlock(&links->lock);
}

static bool is_on(const struct link *link, const struct flow *flow)
{
    const struct flow *other = link->flows;
    while (other != NULL && other != flow)
        other = other->next;
    return other == flow;
}

bool links_have_brought(double *when, struct links *links, struct transfer *transfer, double now)
{
    pthread_mutex_lock(&links->lock);
    double rate = links->speed.bytes_per_second, last = transfer->begin;
    for (int f = 0; f < transfer->flow_count; f++) {
        struct flow *flow = &transfer->flows[f];
        struct link *link = link_of(links, flow);
        link_advance(link, rate, now);
        if (is_on(link, flow))
            last = fmax(last, flow_expected(link, flow, rate));
    }
    bool has_come = transfer->flows_left == 0 && now >= transfer->begin;
    *when = fmax(last, transfer->end);
    pthread_mutex_unlock(&links->lock);
    return has_come;
}

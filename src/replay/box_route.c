#include "replay/box_model.h"

#define FAR 1000000

/* Whether bytes may pass through: neither ranks nor disks forward. */
static bool is_passable(const struct box_model *box, int end)
{
    return end >= box->rank_count && end != box->disk;
}

/* The links' other end; -1 where the link is not of `end`. */
static int other_end(const struct box_link *link, int end)
{
    return link->ends[0] == end ? link->ends[1] : link->ends[1] == end ? link->ends[0] : -1;
}

/* How many links each end is away from `to`, without passing through what does not forward. */
static void measure(int distance[BOX_ENDS_MAX], const struct box_model *box, int to)
{
    int queue[BOX_ENDS_MAX], count = 0;
    for (int end = 0; end < box->end_count; end++)
        distance[end] = FAR;
    distance[to] = 0;
    queue[count++] = to;
    for (int i = 0; i < count; i++) {
        if (queue[i] != to && !is_passable(box, queue[i]))
            continue;
        for (int l = 0; l < box->link_count; l++) {
            int end = other_end(&box->links[l], queue[i]);
            if (end >= 0 && distance[end] == FAR) {
                distance[end] = distance[queue[i]] + 1;
                queue[count++] = end;
            }
        }
    }
}

/* The first link that leads from `end` to one that is nearer. */
static int step(const struct box_model *box, const int distance[BOX_ENDS_MAX], int end)
{
    for (int l = 0; l < box->link_count; l++) {
        int next = other_end(&box->links[l], end);
        if (next >= 0 && distance[next] == distance[end] - 1 &&
            (distance[next] == 0 || is_passable(box, next)))
            return l;
    }
    return -1;
}

enum status box_model_route(struct box_route *out, const struct box_model *box, int from, int to,
                            struct error *err)
{
    struct box_route route = {.count = 0};
    int distance[BOX_ENDS_MAX];
    measure(distance, box, to);
    if (distance[from] > BOX_ROUTE_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the box %s: no route of at most %d links joins %s and %s", box->name,
                         BOX_ROUTE_MAX, box->end_names[from], box->end_names[to]);
    for (int end = from; end != to; route.count++) {
        int link = step(box, distance, end);
        route.link[route.count] = (uint8_t)link;
        route.direction[route.count] = box->links[link].ends[0] != end;
        end = other_end(&box->links[link], end);
    }
    *out = route;
    return STATUS_OK;
}

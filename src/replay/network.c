#include "replay/network.h"

#include "base/memory.h"

/* Ranks, host, disk. */
static int place_count(const struct box_model *box)
{
    return box->rank_count + 2;
}

static int place_of(const struct box_model *box, int end)
{
    return end < box->rank_count ? end : box->rank_count + (end == box->disk);
}

/* -1: the box has no such end. */
static int end_of(const struct box_model *box, int place)
{
    if (place < box->rank_count)
        return place;
    return place == box->rank_count ? box->host : box->disk;
}

static void find_route(struct network_route *out, const struct network *network, int from, int to)
{
    const struct box_model *box = network->box;
    struct box_route route;
    *out = (struct network_route){.count = -1};
    if (from < 0 || to < 0 || from == to ||
        box_model_route(&route, box, from, to, NULL) != STATUS_OK)
        return;
    out->count = route.count;
    for (int i = 0; i < route.count; i++) {
        const struct box_link *link = &box->links[route.link[i]];
        out->latency += link->latency / network->scale;
        out->resource[i] =
            (uint16_t)(2 * route.link[i] + (link->is_half_duplex ? 0 : route.direction[i]));
    }
}

enum status network_create(struct network **out, const struct box_model *box, double scale,
                           struct error *err)
{
    struct network *network;
    int places = place_count(box);
    TRY(memory_get((void **)&network, 1, sizeof *network, "the links of a box", err));
    network->box = box;
    network->scale = scale;
    network->resource_count = 2 * box->link_count + box->memory_count;
    for (int r = 0; r < 2 * box->link_count; r++)
        network->capacity[r] = box->links[r / 2].bytes_per_second * scale;
    for (int m = 0; m < box->memory_count; m++)
        network->capacity[2 * box->link_count + m] = box->memory_bytes_per_second[m];
    enum status status = memory_get((void **)&network->routes, (size_t)places * (size_t)places,
                                    sizeof *network->routes, "the routes of a box", err);
    if (status != STATUS_OK) {
        network_destroy(network);
        return status;
    }
    for (int from = 0; from < places; from++) {
        for (int to = 0; to < places; to++)
            find_route(&network->routes[from * places + to], network, end_of(box, from),
                       end_of(box, to));
    }
    *out = network;
    return STATUS_OK;
}

void network_destroy(struct network *network)
{
    if (network == NULL)
        return;
    memory_free(network->routes);
    memory_free(network);
}

const struct network_route *network_route(const struct network *network, int from, int to)
{
    const struct box_model *box = network->box;
    return &network->routes[place_of(box, from) * place_count(box) + place_of(box, to)];
}

int network_memory(const struct network *network, int rank)
{
    const struct box_model *box = network->box;
    return box->memory_of[rank] < 0 ? -1 : 2 * box->link_count + box->memory_of[rank];
}

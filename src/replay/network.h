/* A box's links as resources, and the routes between its ends, worked out once. */
#ifndef PHASOR_REPLAY_NETWORK_H
#define PHASOR_REPLAY_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "replay/box_model.h"

/* Resources: a link's two directions, 2 x link and 2 x link + 1 (half duplex: both are the first),
 * then the shared memories. */
#define NETWORK_RESOURCES_MAX (2 * BOX_LINKS_MAX + RECORDING_RANKS_MAX)

struct network_route {
    int count; /* -1: nothing joins the two */
    double latency;
    uint16_t resource[BOX_ROUTE_MAX];
};

struct network {
    const struct box_model *box; /* borrowed */
    int resource_count;
    double capacity[NETWORK_RESOURCES_MAX]; /* bytes per second */
    double scale;
    struct network_route *routes; /* [from][to] of ranks, host and disk */
};

/* `scale` multiplies the bandwidth of links and divides latencies. */
enum status network_create(struct network **out, const struct box_model *box, double scale,
                           struct error *err) MUST_CHECK;
void network_destroy(struct network *network); /* NULL is allowed */

/* Ends are ranks, the host or the disk, and not the same. */
const struct network_route *network_route(const struct network *network, int from, int to);

/* The resource of the memory that a rank shares; -1: it has its own. */
int network_memory(const struct network *network, int rank);

static inline int network_link(int resource)
{
    return resource / 2;
}

#endif

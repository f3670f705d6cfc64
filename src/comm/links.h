/* Links that are as slow as they are told: when bytes that begin to flow at one time have come at
 * another. Each rank has a link to each other one, for each direction of its own; transfers that
 * use one at the same time share it evenly. That is what replay takes a box's links for, where
 * every pair of ranks has its own and collectives are `direct` (docs/box-format.md).
 *
 * Nothing here waits or looks at a clock: whoever asks says what time it is, by system_seconds or
 * any other clock. Any thread.
 */
#ifndef PHASOR_COMM_LINKS_H
#define PHASOR_COMM_LINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"

struct links;

struct transfer;

/* What of a transfer goes over one link. */
struct flow {
    struct flow *next; /* on its link */
    struct transfer *transfer;
    int from, to;
    double begin;
    double bytes;
    double mark; /* of what each transfer on the link has got: here it has come */
    bool is_flowing;
};

/* All flows that begin together. */
struct transfer {
    struct flow *flows; /* [flow_max] */
    int flow_max, flow_count;
    double begin, end; /* end: of the flows that have come */
    int flows_left;
};

enum status links_create(struct links **out, int rank_count, const struct comm_links *speed,
                         struct error *err) MUST_CHECK;
void links_destroy(struct links *links); /* behind its transfers; NULL is allowed */

enum status links_transfer_init(struct transfer *out, int flow_max, struct error *err) MUST_CHECK;
void links_transfer_deinit(struct links *links, struct transfer *transfer); /* {0} is allowed */

/* Bytes > 0 from one rank to another. */
struct link_bytes {
    int from, to; /* ranks */
    double bytes;
};
/* Sends them together, behind the latency of so many steps from `at` on, or from now on, where
 * somebody has asked about a later time already. What the transfer sent before and nobody waited
 * for is gone. Where there is nothing to send there is no latency. */
void links_send(struct links *links, struct transfer *transfer, double at, int steps,
                const struct link_bytes *bytes, int count);

/* Whether all has come by `now`: then `*when` is the time at which it had. Else it has not before
 * `*when`, and at that time if nothing else is sent. */
bool links_have_brought(double *when, struct links *links, struct transfer *transfer, double now);

#endif

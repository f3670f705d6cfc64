/* What a collective moves between which of its members, and how a box would do it.
 *
 *   ring    member m sends to m + 1, the last to the first. All-gather: all parts but that of
 *           m + 1; reduce-scatter: all but that which ends at m; all-reduce: both, of parts of
 *           total / n. n - 1 steps, an all-reduce 2 (n - 1).
 *   direct  each pair's bytes on their own route, all at once: of an all-gather the sender's part,
 *           of a reduce-scatter the receiver's, of an all-reduce 2 total / n. 1 step, an all-reduce
 *           2.
 *
 * Messages are counted directly: those of bytes that one member sends, or receives, of all members
 * the most. A ring's are its steps.
 *
 * A communicator of one member moves nothing and takes no time. */
#ifndef PHASOR_REPLAY_COLLECTIVE_FLOWS_H
#define PHASOR_REPLAY_COLLECTIVE_FLOWS_H

#include "replay/graph.h"
#include "replay/network.h"

#define COLLECTIVE_FLOWS_MAX (RECORDING_RANKS_MAX * (RECORDING_RANKS_MAX - 1))

struct collective_flow {
    int from, to; /* ranks */
    double bytes; /* > 0 */
};

struct collective_flows {
    int count, steps, messages;
    double latency; /* of the longest route between those who send and receive */
    struct collective_flow flows[COLLECTIVE_FLOWS_MAX];
};

void collective_flows_find(struct collective_flows *out, const struct graph *graph,
                           uint32_t meeting, const struct network *network);

/* The protocol that is soonest done on an idle box, of equals the first: `latency` of its steps and
 * messages, then the bytes of the busiest link. */
const struct box_protocol *collective_flows_protocol(double *latency,
                                                     const struct collective_flows *flows,
                                                     const struct box_collective *collective,
                                                     const struct network *network);

#endif

/* Replay: when everything in a recording would have happened on a box with other links.
 *
 * A pure discrete-event simulation; the same input gives the same result, bit for bit. Whatever is
 * under way at a time shares what it uses (a compute slot, a memory, links) max-min fairly: no
 * one's rate can be raised without lowering that of one who has no more. Times are of double
 * seconds.
 *
 * - NODE_COMPUTE takes its rank's compute slot: those of LANE_STREAM share it evenly, those of
 *   LANE_LOW have what these leave, which is nothing while one of them computes; other lanes take
 *   none. Where a box has shared memories, a computation with `bytes` that takes d seconds alone
 *   asks for bytes / d of its rank's, times its share of the slot, and is as much slower as it gets
 *   less. The slot's share that it then does not use is nobody's: a core that waits for memory is
 *   busy.
 * - NODE_COLLECTIVE begins when the last member has come; it waits for the latency of its steps,
 *   then moves bytes over the links of its members' routes, by the box's algorithm for its kind
 *   (collective_flows.h). It ends for all members when the last byte has come. What a member copied
 *   and added itself (`duration_ns`) is not counted besides.
 * - NODE_COPY moves bytes between the rank and the host, NODE_READ from disk to host: the latency
 * of the route, then the bytes.
 *
 * As recorded, without a box, one compute slot of all ranks is taken by one lane at a time, for
 * what lanes of streams compute, copy and do in collectives, each as long as it took. A lane keeps
 * it until it has to wait: for a need, or for the others of a collective, which meet, then do their
 * own parts, then leave together. Who asked first gets it next; of those who asked together, the
 * lowest lane. Lanes of hosts and reads take none.
 *
 * Where no two activities share a slot, a memory or a link, every node begins when the last of what
 * it waits for has ended, so nothing is ever later with a faster link; nor where those of one call
 * share links, and all links become faster alike. In general it may be: what comes sooner may take
 * its share from what all others wait for (tests/replay holds an example).
 */
#ifndef PHASOR_REPLAY_SIMULATE_H
#define PHASOR_REPLAY_SIMULATE_H

#include <stdint.h>

#include "base/status.h"
#include "replay/box_model.h"
#include "replay/recording.h"

enum durations {
    DURATIONS_MEASURED, /* label "replay" */
    DURATIONS_MODELLED, /* of the box's roofline, for lanes of streams; label "modelled" */
    DURATIONS_DEVICES   /* the same, and lanes of the host take no time */
};

struct simulation_params {
    const struct recording *recording; /* checked */
    const struct box_model *box;       /* of the recording's rank count; NULL: as recorded: one
                                        * compute slot for all ranks, collectives, copies and reads
                                        * as long as they took */
    enum durations durations;
    double link_scale; /* > 0: bandwidths of links are multiplied by it, their latencies and those
                        * of protocols divided; 0: 1 */
};

struct node_time {
    double begin, end;
    uint32_t cause; /* the node whose end let it begin: of its lane and its needs (of those that
                     * ended last, the first in this order), of a collective those of the last
                     * member to come; as recorded, of a node that then had to wait for the slot,
                     * the node that was worked at on it until then. UINT32_MAX: none. A node begins
                     * when its cause ends, but where that is a collective that had the slot: when
                     * a member's part in it was done, which may be before it ends */
};

struct link_use {
    double busy_seconds; /* in which any byte was under way */
    double bytes[2]; /* each direction of the link; a half-duplex one counts both in the first */
};

struct simulation {
    double seconds;          /* to the end of the last node */
    struct node_time *times; /* [node_count] */
    struct link_use *links;  /* [box->link_count] */
};

/* STATUS_INVALID_ARGUMENT where the box does not have the recording's ranks, or no host or disk for
 * what was copied or read, or there is no box to model durations of. `*out` is then untouched. */
enum status simulate(struct simulation *out, const struct simulation_params *params,
                     struct error *err) MUST_CHECK;
void simulation_deinit(struct simulation *simulation);

#endif

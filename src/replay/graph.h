/* A recording's nodes with what follows each, the collectives that meet, and a walk through them in
 * an order that is allowed. */
#ifndef PHASOR_REPLAY_GRAPH_H
#define PHASOR_REPLAY_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "replay/recording.h"

#define GRAPH_NONE UINT32_MAX

/* A meeting is one collective of all its members. */
struct graph {
    const struct recording *recording; /* borrowed */
    uint32_t *lane_of;                 /* [node_count] */
    uint32_t *follower_first;          /* [node_count + 1] */
    uint32_t *followers;               /* [need_count]: nodes that need this one */
    uint32_t meeting_count;
    uint32_t *meeting_first; /* [meeting_count + 1] */
    uint32_t *members;       /* [collective_count]: nodes, in the order of the group's members */
    uint32_t *meeting_of;    /* [collective_count], by the recording's index */
};

/* Of a recording whose indices are within their arrays. STATUS_FORMAT where the lanes do not
 * partition the nodes, or the members of a collective are not all there, once each. `path` is for
 * sentences. */
enum status graph_init(struct graph *out, const struct recording *recording, const char *path,
                       struct error *err) MUST_CHECK;
void graph_deinit(struct graph *graph); /* a zero one is allowed */

/* The node before this one on its lane; GRAPH_NONE. */
uint32_t graph_before(const struct graph *graph, uint32_t node);

int graph_meeting_size(const struct graph *graph, uint32_t meeting);

/* `ready` has, in the order in which they became so, all nodes whose lane has come to them and
 * whose needs have ended. Who walks takes them from there. */
struct walk {
    const struct graph *graph;
    uint32_t *pending; /* [node_count] */
    uint32_t *arrived; /* [meeting_count] */
    uint32_t *ready;   /* [node_count] */
    uint32_t ready_count, taken_count;
};

/* `ready` has what waits for nothing. */
enum status walk_init(struct walk *out, const struct graph *graph, struct error *err) MUST_CHECK;
void walk_deinit(struct walk *walk); /* a zero one is allowed */

/* False: none is ready that was not taken. */
bool walk_take(struct walk *walk, uint32_t *node);

/* A collective's node was taken. Whether all members have now come. */
bool walk_arrive(struct walk *walk, uint32_t node);

/* A node that was taken has ended. */
void walk_end(struct walk *walk, uint32_t node);

#endif

/* Recordings and times by hand, for what looks at them: lanes and nodes in the order in which they
 * are added, with the times that a simulation would find. */
#ifndef TESTS_REPLAY_REPORT_TOOLS_H
#define TESTS_REPLAY_REPORT_TOOLS_H

#include "replay/recording.h"
#include "replay/simulate.h"

#define RIG_NODES 64
#define RIG_LANES 16
#define RIG_CALLS 16

/* Stages "between", "attention", "experts", "transition" are 0 .. 3, tags "dispatch", "combine" 0
 * and 1. */
enum { RIG_BETWEEN, RIG_ATTENTION, RIG_EXPERTS, RIG_TRANSITION };

struct rig {
    struct recording recording;
    struct simulation simulation;
    struct recording_lane lanes[RIG_LANES];
    struct recording_node nodes[RIG_NODES];
    struct node_time times[RIG_NODES];
    struct recording_collective calls[RIG_CALLS];
    struct recording_group group; /* of all ranks */
    int64_t counts[RIG_CALLS * 8];
    uint32_t needs[RIG_NODES];
};

void rig_init(struct rig *rig, int rank_count);

/* Nodes come onto this lane from here on. */
void rig_lane(struct rig *rig, enum lane_kind kind, int rank);

/* A computation (a wait, where it takes no time) of `stage`; returns its index. The cause is the
 * node before it on its lane; none of the first. */
uint32_t rig_node(struct rig *rig, enum record_phase phase, int stage, double begin, double end);

/* A member's call; its counts are each `bytes`, its own 0 where it is an all-to-all. */
uint32_t rig_call(struct rig *rig, enum collective_op op, int tag, int64_t bytes,
                  enum record_phase phase, double begin, double end);

/* The last node needs `node`, which let it begin. */
void rig_need(struct rig *rig, uint32_t node);

#endif

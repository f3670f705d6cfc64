/* What a lane keeps of a recording: nodes, what they need, and what collectives were of.
 *
 * All of it is under the lane's lock, and grows only while the recording goes on that the caller
 * means. So behind a round of the locks that follows its end nothing changes, whatever the threads
 * of the lanes are at, and what they tell of an earlier recording is in no later one. Any thread.
 *
 * What does not fit into the bytes of record_start, or into memory, ends the recording. */
#ifndef PHASOR_BASE_RECORD_LANE_H
#define PHASOR_BASE_RECORD_LANE_H

#include "base/trace_lane.h"

/* With the needs that wait for it. */
void record_lane_add(struct trace_lane *lane, uint16_t recording, const struct record_node *node);

/* Of the next node; not where the lane is behind it anyway, or has needed it before. */
void record_lane_need(struct trace_lane *lane, uint16_t recording, struct record_mark mark);
bool record_lane_has_needs(struct trace_lane *lane);

/* Makes `node` the call's, and keeps what it was of. */
void record_lane_collective(struct trace_lane *lane, uint16_t recording, struct record_node *node,
                            const struct record_collective *call);

/* Where it stands. */
struct record_mark record_lane_mark(struct trace_lane *lane);

/* Gives its memory back. */
void record_lane_forget(struct trace_lane *lane);

#endif

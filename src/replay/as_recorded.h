/* simulate() without a box: on one compute slot, as the run was recorded. */
#ifndef PHASOR_REPLAY_AS_RECORDED_H
#define PHASOR_REPLAY_AS_RECORDED_H

#include "replay/graph.h"
#include "replay/simulate.h"

/* Fills times[node_count]. A cause is that of the slot alone: the node that was worked at before on
 * it; UINT32_MAX: none. */
enum status as_recorded(struct node_time *times, const struct graph *graph,
                        struct error *err) MUST_CHECK;

#endif

/* How many sequences decode at a time where another comes for each that has ended.
 *
 * A batch of which all fit has each of them from its first step. Of a larger one some wait, and
 * who waits gets the place that is free first, the longest answers before others, as a run starts
 * them (engine/auto_plan.c). So all places are taken until the last sequence has begun; from then
 * on they empty: those of equal answers at once, so that a rest of them is a wave by itself. */
#ifndef PHASOR_PLANNER_TURNS_H
#define PHASOR_PLANNER_TURNS_H

#include "planner/planner.h"

#define TURNS_LOADS_MAX 16

/* Some steps of the same sequences. */
struct stretch {
    int64_t running;        /* sequences */
    int64_t steps;          /* > 0 */
    int64_t context_tokens; /* of each before the first of them, on the mean, rounded up */
};

struct turns {
    int64_t full_steps; /* with all places taken, before the last sequence begins */
    struct stretch tail[TURNS_LOADS_MAX + 2];
    int tail_count;
};

/* `loads` [count] are of rising output_tokens, 1 <= count <= TURNS_LOADS_MAX; `places` >= 1. The
 * first token of an answer is prefill's, and no step. */
void turns_take(struct turns *out, const struct plan_load *loads, int count, int64_t places);

/* How many come together, on the mean, of those who wait for a place: where answers are of one
 * length, all for whom places are; where they differ, as many as end at a step. 0: nobody waits. */
double turns_together(const struct plan_load *loads, int count, int64_t places);

#endif

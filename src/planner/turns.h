/* How many sequences decode at a time where others come for those that have ended.
 *
 * A batch of which all fit has each of them from its first step. Of a larger one some wait, and
 * who waits gets the place that is free first, the longest answers before others, as a run starts
 * them (engine/auto_plan.c). So all places are taken until the last sequence has begun, but for
 * those that are kept for some to come together (struct entry); from then on they empty: those of
 * equal answers at once, so that a rest of them is a wave by itself. */
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
    int64_t full_steps; /* before the last sequence begins, if all places were taken */
    struct stretch tail[TURNS_LOADS_MAX + 2];
    int tail_count;
};

/* `loads` [count] are of rising output_tokens, 1 <= count <= TURNS_LOADS_MAX; `places` >= 1. The
 * first token of an answer is prefill's, and no step. */
void turns_take(struct turns *out, const struct plan_load *loads, int count, int64_t places);

/* How many come together, on the mean, of those who wait for a place and take the first that is
 * free: where answers are of one length, all for whom places are; where they differ, as many as end
 * at a step. 0: nobody waits. */
double turns_together(const struct plan_load *loads, int count, int64_t places);

/* How those come who wait. They wait for one another where they would come by ones and twos, with
 * fewer than pass_tokens (PLAN_ENTRY_SHARE), and some of the places are free meanwhile. */
struct entry {
    int64_t together; /* >= 1 */
    int64_t running;  /* of the places, on the mean, as long as anybody waits; >= 1 */
};
struct entry turns_entry(const struct plan_load *loads, int count, int64_t places,
                         int64_t pass_tokens);

#endif

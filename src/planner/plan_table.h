/* What planner.c and plan_table.c share; what others call is in planner.h. */
#ifndef PHASOR_PLANNER_PLAN_TABLE_H
#define PHASOR_PLANNER_PLAN_TABLE_H

#include "planner/planner.h"

/* Without candidates. */
extern const struct plan_table plan_table_none;

/* What a candidate takes on the fullest rank, with one spare where it has any. */
struct plan_memory plan_candidate_memory(const struct plan_problem *problem,
                                         const struct plan_candidate *candidate,
                                         int64_t pass_tokens, int64_t sequences);

/* Sets static_tp and static_ep: where they are possible. */
void plan_table_find_statics(struct plan_table *table, const struct plan_problem *problem);

#endif

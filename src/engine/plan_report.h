/* A table of plans as a JSON object, with one paragraph why the best is the best. */
#ifndef PHASOR_ENGINE_PLAN_REPORT_H
#define PHASOR_ENGINE_PLAN_REPORT_H

#include "engine/description.h"
#include "planner/planner.h"

/* Puts "plans", "best", "best_runnable", "fastest", "static_tp", "static_ep", "best_static", "why"
 * and "would_fit" into the root; the keys are in phasor(1). `runnable` is the candidate that a run
 * here would have, -1: none; without a backup at hand no run has a plan that decodes on one. */
void plan_report_put(struct description *to, const struct plan_problem *problem,
                     const struct plan_table *table, int runnable, bool has_backup);

#endif

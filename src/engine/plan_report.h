/* A table of plans as a JSON object, with one paragraph why the best is the best. */
#ifndef PHASOR_ENGINE_PLAN_REPORT_H
#define PHASOR_ENGINE_PLAN_REPORT_H

#include "engine/description.h"
#include "planner/planner.h"

/* Puts "plans", "best", "fastest", "static_tp", "static_ep", "best_static", "why" and "would_fit"
 * into the root; the keys are in phasor(1). */
void plan_report_put(struct description *to, const struct plan_problem *problem,
                     const struct plan_table *table);

#endif

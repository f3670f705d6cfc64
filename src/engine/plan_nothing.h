/* Where no plan is possible: why, and what would do. Words for `phasor plan` and for runs. */
#ifndef PHASOR_ENGINE_PLAN_NOTHING_H
#define PHASOR_ENGINE_PLAN_NOTHING_H

#include "base/text.h"
#include "planner/plan_remedy.h"

/* Appends a clause without a full stop: bytes by part and the least change that would do, or what
 * the profile has no times for. `would` is of the table, of which nothing can be taken. */
void plan_nothing_append(struct text *out, const struct plan_problem *problem,
                         const struct plan_table *table, const struct plan_remedies *would);

/* Appends what the profile has no times for that `candidate` needs ("float32 weights"), or, for
 * NULL, every plan; false: that is not known. */
bool plan_untimed_append(struct text *out, const struct plan_problem *problem,
                         const struct plan_candidate *candidate);

#endif

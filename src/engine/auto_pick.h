/* Which of the planner's candidates a run may have. */
#ifndef PHASOR_ENGINE_AUTO_PICK_H
#define PHASOR_ENGINE_AUTO_PICK_H

#include "engine/engine.h"
#include "planner/planner.h"

struct auto_limits {
    const struct engine_params *engine; /* what was asked for */
    bool has_backup;                    /* of INT4, at hand */
};

/* Whether it can be run here, where it is possible. `context` is an auto_limits. */
bool auto_can_run(const void *context, const struct plan_candidate *candidate);

/* Of those that can be run here the one to take (plan_table_pick); -1: none can. `context` is an
 * auto_limits. */
int auto_pick(const void *context, const struct plan_table *table);

bool auto_takes_int4(const struct plan_candidate *candidate);

/* Its sequences run in waves. */
bool auto_moves_weights(const struct plan_candidate *candidate);

enum way auto_way(enum plan_way way); /* not of PLAN_NONE */

#endif

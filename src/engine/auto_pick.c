#include "engine/auto_pick.h"

static const enum way ways_of_plans[PLAN_WAY_COUNT] = {
    [PLAN_KEEP] = WAY_KEEP,
    [PLAN_RESHARD] = WAY_RESHARD,
    [PLAN_UPLOAD] = WAY_UPLOAD,
    [PLAN_RELOAD] = WAY_RELOAD,
};

enum way auto_way(enum plan_way way)
{
    return ways_of_plans[way];
}

bool auto_takes_int4(const struct plan_candidate *candidate)
{
    return candidate->layouts.decode_is_packed || candidate->way == PLAN_UPLOAD;
}

bool auto_moves_weights(const struct plan_candidate *candidate)
{
    return plan_way_moves(candidate->way);
}

/* Mixed is as good as reshard at least. */
static bool is_by_way(const struct plan_candidate *candidate, const struct engine_params *params)
{
    enum way asked = params->transition == WAY_MIXED ? WAY_RESHARD : params->transition;
    return params->transition_is_auto || candidate->way == PLAN_NONE ||
           ways_of_plans[candidate->way] == asked;
}

bool auto_can_run(const void *context, const struct plan_candidate *candidate)
{
    const struct auto_limits *limits = context;
    return (limits->has_backup || !auto_takes_int4(candidate)) &&
           is_by_way(candidate, limits->engine);
}

int auto_pick(const void *context, const struct plan_table *table)
{
    return plan_table_pick(table, auto_can_run, context);
}

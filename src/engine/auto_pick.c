#include "engine/auto_pick.h"

#include <math.h>

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
    return candidate->way != PLAN_NONE && candidate->way != PLAN_KEEP;
}

/* Mixed is as good as reshard at least. */
static bool is_by_way(const struct plan_candidate *candidate, const struct engine_params *params)
{
    enum way asked = params->transition == WAY_MIXED ? WAY_RESHARD : params->transition;
    return params->transition_is_auto || candidate->way == PLAN_NONE ||
           ways_of_plans[candidate->way] == asked;
}

int auto_pick(const void *context, const struct plan_table *table)
{
    const struct auto_limits *limits = context;
    int best = -1;
    double least = INFINITY;
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        if (candidate->verdict != PLAN_POSSIBLE ||
            (auto_takes_int4(candidate) && !limits->has_backup) ||
            !is_by_way(candidate, limits->engine) || plan_candidate_total(candidate) >= least)
            continue;
        best = i;
        least = plan_candidate_total(candidate);
    }
    return best;
}

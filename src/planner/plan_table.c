/* Which of a table's candidates is to be taken, and tables of parts of a batch added up. */
#include "planner/plan_table.h"

#include <math.h>

#include "base/memory.h"

const struct plan_table plan_table_none = {
    .fastest = -1, .best = -1, .static_tp = -1, .static_ep = -1, .best_static = -1};

bool plan_is_same_attention(const struct layout *a, const struct layout *b)
{
    return a->attention.tp == b->attention.tp &&
           a->attention.replicate_ffn == b->attention.replicate_ffn;
}

static bool is_static(const struct plan_candidate *candidate)
{
    return candidate->verdict == PLAN_POSSIBLE && candidate->way == PLAN_NONE;
}

static int find_static(const struct plan_table *table, const struct layout *layout)
{
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        const struct layout *own = &candidate->layouts.of[PHASE_PREFILL];
        if (is_static(candidate) && plan_is_same_attention(own, layout) &&
            own->experts.tp == layout->experts.tp)
            return i;
    }
    return -1;
}

static double seconds_of(const struct plan_table *table, int index)
{
    return index < 0 ? INFINITY : plan_candidate_total(&table->candidates[index]);
}

/* Of equal ones the first of the two. */
static int faster_of(const struct plan_table *table, int one, int other)
{
    return seconds_of(table, other) < seconds_of(table, one) ? other : one;
}

static bool is_in_layout(const struct plan_candidate *candidate, const struct layout *layout)
{
    const struct layout *own = candidate->layouts.of;
    return plan_is_same_attention(&own[PHASE_PREFILL], layout) &&
           own[PHASE_PREFILL].experts.tp == layout->experts.tp &&
           own[PHASE_DECODE].experts.tp == layout->experts.tp;
}

int plan_table_pick(const struct plan_table *table,
                    bool (*may)(const void *context, const struct plan_candidate *candidate),
                    const void *context)
{
    const struct plan_candidate *tp =
        table->static_tp < 0 ? NULL : &table->candidates[table->static_tp];
    int fastest = -1, native = -1, in_layout = -1;
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        if (candidate->verdict != PLAN_POSSIBLE || (may != NULL && !may(context, candidate)))
            continue;
        fastest = faster_of(table, fastest, i);
        if (tp != NULL && is_in_layout(candidate, &tp->layouts.of[PHASE_PREFILL]))
            in_layout = faster_of(table, in_layout, i);
        if (i == table->static_tp)
            native = i;
    }
    double enough = seconds_of(table, fastest) * PLAN_GAIN_WORTH_A_LAYOUT;
    if (native >= 0 && seconds_of(table, native) < enough)
        return native;
    return in_layout >= 0 && seconds_of(table, in_layout) < enough ? in_layout : fastest;
}

void plan_table_choose(struct plan_table *table)
{
    table->fastest = table->best_static = -1;
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        if (candidate->verdict != PLAN_POSSIBLE)
            continue;
        table->fastest = faster_of(table, table->fastest, i);
        if (is_static(candidate))
            table->best_static = faster_of(table, table->best_static, i);
    }
    table->best = plan_table_pick(table, NULL, NULL);
}

void plan_table_find_statics(struct plan_table *table, const struct plan_problem *problem)
{
    struct layout layout;
    struct error ignored;
    table->static_tp = table->static_ep = -1;
    if (layout_static_tp(&layout, problem->shape, problem->rank_count, &ignored) == STATUS_OK)
        table->static_tp = find_static(table, &layout);
    if (layout_static_ep(&layout, problem->shape, problem->rank_count, &ignored) == STATUS_OK)
        table->static_ep = find_static(table, &layout);
}

void plan_table_deinit(struct plan_table *table)
{
    memory_free(table->candidates);
    *table = plan_table_none;
}

static void candidate_join(struct plan_candidate *to, const struct plan_candidate *more, int part)
{
    ASSERT(to->way == more->way);
    bool is_larger = plan_memory_total(&more->memory) > plan_memory_total(&to->memory);
    if (to->verdict == PLAN_POSSIBLE)
        to->verdict = more->verdict;
    to->has_times &= more->has_times;
    if (is_larger) {
        to->memory = more->memory;
        to->pass_tokens = more->pass_tokens;
        to->wave = more->wave;
        to->spares = more->spares;
    }
    to->stays |= more->stays << part;
    to->prefill += more->prefill;
    to->transition += more->transition;
    to->decode += more->decode;
    to->way_back += more->way_back;
    pass_cost_add(&to->prefill_cost, &more->prefill_cost, 1);
    pass_cost_add(&to->decode_cost, &more->decode_cost, 1);
}

static int still_possible(const struct plan_table *table, int index)
{
    return index >= 0 && is_static(&table->candidates[index]) ? index : -1;
}

void plan_table_add(struct plan_table *table, const struct plan_table *more, int part)
{
    ASSERT(table->count == more->count);
    for (int i = 0; i < table->count; i++)
        candidate_join(&table->candidates[i], &more->candidates[i], part);
    table->static_tp = still_possible(table, table->static_tp);
    table->static_ep = still_possible(table, table->static_ep);
    plan_table_choose(table);
}

/* Which of a table's candidates is to be taken, and tables of parts of a batch added up. */
#include "planner/plan_table.h"

#include <math.h>
#include <string.h>

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

static bool changes_layout(const struct plan_candidate *candidate)
{
    const struct layout *own = candidate->layouts.of;
    return own[PHASE_PREFILL].experts.tp != own[PHASE_DECODE].experts.tp;
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
    int fastest = -1, native = -1, in_layout = -1, without_change = -1;
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        if (candidate->verdict != PLAN_POSSIBLE || (may != NULL && !may(context, candidate)))
            continue;
        fastest = faster_of(table, fastest, i);
        if (!changes_layout(candidate))
            without_change = faster_of(table, without_change, i);
        if (tp != NULL && is_in_layout(candidate, &tp->layouts.of[PHASE_PREFILL]))
            in_layout = faster_of(table, in_layout, i);
        if (i == table->static_tp)
            native = i;
    }
    double enough = seconds_of(table, fastest) * PLAN_GAIN_WORTH_A_LAYOUT;
    if (native >= 0 && seconds_of(table, native) < enough)
        return native;
    if (in_layout >= 0 && seconds_of(table, in_layout) < enough)
        return in_layout;
    return seconds_of(table, without_change) < enough ? without_change : fastest;
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

struct plan_memory plan_candidate_memory(const struct plan_problem *problem,
                                         const struct plan_candidate *candidate,
                                         int64_t pass_tokens, int64_t sequences)
{
    struct plan_memory memory =
        problem->memory(problem->memory_context, &candidate->layouts, plan_way_room(candidate->way),
                        pass_tokens, sequences);
    if (candidate->way == PLAN_UPLOAD)
        memory.buffers = candidate->layouts.decode_is_packed ? problem->upload_packed_bytes
                                                             : problem->upload_bytes;
    return memory;
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

enum status plan_table_copy(struct plan_table *out, const struct plan_table *table,
                            struct error *err)
{
    size_t count = (size_t)table->count;
    struct plan_candidate *candidates;
    TRY(memory_get_raw((void **)&candidates, count, sizeof *candidates, "the plans", err));
    memcpy(candidates, table->candidates, count * sizeof *candidates);
    *out = *table;
    out->candidates = candidates;
    return STATUS_OK;
}

void plan_table_deinit(struct plan_table *table)
{
    memory_free(table->candidates);
    *table = plan_table_none;
}

static uint64_t larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* With `spares` of the slots that it has. */
static struct plan_memory memory_with(const struct plan_candidate *candidate, int64_t spares)
{
    struct plan_memory memory = candidate->memory;
    memory.experts -= (uint64_t)(candidate->spares - spares) * memory.spare;
    return memory;
}

/* One cache, and one place for what a pass computes, are there for all parts, so each has what the
 * part that needs most of it takes. Slots to write ahead are what memory is left for, and a part
 * with a small cache has more of them: all have as many as the part with the fewest. */
static void memory_join(struct plan_candidate *to, const struct plan_candidate *more)
{
    int64_t spares = to->spares < more->spares ? to->spares : more->spares;
    struct plan_memory one = memory_with(to, spares), other = memory_with(more, spares);
    to->spares = spares;
    to->memory = (struct plan_memory){
        .weights = larger(one.weights, other.weights),
        .experts = larger(one.experts, other.experts),
        .cache = larger(one.cache, other.cache),
        .activations = larger(one.activations, other.activations),
        .buffers = larger(one.buffers, other.buffers),
        .spare = larger(one.spare, other.spare),
    };
}

/* What fits in each part may be too much together. */
static void verdict_join(struct plan_candidate *to, const struct plan_candidate *more,
                         uint64_t memory_bytes)
{
    bool fits = plan_memory_total(&to->memory) <= memory_bytes;
    if (to->verdict == PLAN_POSSIBLE)
        to->verdict = more->verdict;
    if (to->verdict == PLAN_POSSIBLE && !fits)
        to->verdict = PLAN_TOO_LARGE;
    to->has_times &= more->has_times && fits;
}

static void candidate_join(struct plan_candidate *to, const struct plan_candidate *more, int part,
                           uint64_t memory_bytes)
{
    ASSERT(to->way == more->way);
    memory_join(to, more);
    verdict_join(to, more, memory_bytes);
    to->pass_tokens = to->pass_tokens > more->pass_tokens ? to->pass_tokens : more->pass_tokens;
    to->wave = to->wave > more->wave ? to->wave : more->wave;
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

void plan_table_add(struct plan_table *table, const struct plan_table *more, int part,
                    uint64_t memory_bytes)
{
    ASSERT(table->count == more->count);
    for (int i = 0; i < table->count; i++)
        candidate_join(&table->candidates[i], &more->candidates[i], part, memory_bytes);
    table->static_tp = still_possible(table, table->static_tp);
    table->static_ep = still_possible(table, table->static_ep);
    plan_table_choose(table);
}

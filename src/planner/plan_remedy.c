#include "planner/plan_remedy.h"

#include "planner/plan_table.h"

/* The least that may be chosen. */
struct least {
    int64_t sequences, pass_tokens;
};

static int64_t least_of(const int64_t *sizes, int count)
{
    int64_t least = sizes[0];
    for (int i = 1; i < count; i++)
        least = sizes[i] < least ? sizes[i] : least;
    return least;
}

static struct least least_sizes(const struct plan_problem *problem)
{
    int64_t sequences = least_of(problem->waves, problem->wave_count),
            all = problem->load.sequences;
    return (struct least){sequences < all ? sequences : all,
                          least_of(problem->passes, problem->pass_count)};
}

static bool fits(const struct plan_problem *problem, const struct plan_candidate *candidate,
                 int64_t pass_tokens, int64_t sequences)
{
    struct plan_memory memory = plan_candidate_memory(problem, candidate, pass_tokens, sequences);
    return plan_memory_total(&memory) <= problem->memory_bytes;
}

/* ---- The most of each ------------------------------------------------------------------------ */

/* More sequences, and longer passes, take more: so these halve. Between what is known to do
 * (`most`; 0: nothing yet) and what is not (`below`). */
static int64_t sequences_most(const struct plan_problem *problem,
                              const struct plan_candidate *candidate, int64_t most, int64_t below,
                              int64_t pass_tokens)
{
    if (most + 1 >= below || !fits(problem, candidate, pass_tokens, most + 1))
        return most;
    for (most++; most + 1 < below;) {
        int64_t middle = most + (below - most) / 2;
        if (fits(problem, candidate, pass_tokens, middle))
            most = middle;
        else
            below = middle;
    }
    return most;
}

static int64_t pass_most(const struct plan_problem *problem, const struct plan_candidate *candidate,
                         int64_t most, int64_t below, int64_t sequences)
{
    int64_t least = most >= sequences ? most + 1 : sequences;
    least = least > problem->pass_least ? least : problem->pass_least;
    if (least >= below || !fits(problem, candidate, least, sequences))
        return most;
    for (most = least; most + 1 < below;) {
        int64_t middle = most + (below - most) / 2;
        if (fits(problem, candidate, middle, sequences))
            most = middle;
        else
            below = middle;
    }
    return most;
}

/* ---- INT4 ------------------------------------------------------------------------------------ */

/* Experts in INT4 do not change their numbers between the phases. */
static void int4_try(struct plan_remedies *out, const struct plan_problem *problem,
                     const struct plan_candidate *candidate, const struct least *least)
{
    if (problem->int4_memory == NULL || candidate->layouts.decode_is_packed ||
        candidate->way == PLAN_UPLOAD)
        return;
    struct plan_memory memory =
        problem->int4_memory(problem->memory_context, &candidate->layouts,
                             plan_way_room(candidate->way), least->pass_tokens, least->sequences);
    if (plan_memory_total(&memory) > problem->memory_bytes ||
        (out->int4_fits && plan_memory_total(&memory) >= plan_memory_total(&out->int4)))
        return;
    out->int4_fits = true;
    out->int4 = memory;
    out->int4_of = candidate->layouts;
}

/* ---- All ------------------------------------------------------------------------------------- */

void plan_remedies_find(struct plan_remedies *out, const struct plan_problem *problem,
                        const struct plan_table *table)
{
    struct least least = least_sizes(problem);
    *out = (struct plan_remedies){.smallest = NULL};
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        if (candidate->verdict != PLAN_TOO_LARGE)
            continue;
        uint64_t bytes = plan_memory_total(&candidate->memory);
        if (out->smallest == NULL || bytes < out->memory_bytes) {
            out->smallest = candidate;
            out->memory_bytes = bytes;
        }
        int64_t sequences =
            sequences_most(problem, candidate, out->sequences, least.sequences, least.pass_tokens);
        if (sequences > out->sequences)
            out->sequences_of = candidate->layouts;
        out->sequences = sequences;
        int64_t pass_tokens =
            pass_most(problem, candidate, out->pass_tokens, least.pass_tokens, least.sequences);
        if (pass_tokens > out->pass_tokens)
            out->pass_of = candidate->layouts;
        out->pass_tokens = pass_tokens;
        int4_try(out, problem, candidate, &least);
    }
}

#include "engine/plan_report.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "base/seconds_text.h"
#include "base/size_text.h"
#include "engine/auto_pick.h"
#include "engine/plan_nothing.h"

/* ---- One candidate --------------------------------------------------------------------------- */

/* Parts of a phase, as they are told of. */
static const struct {
    const char *key, *name;
    int first, last;
} groups[] = {
    {"attention_s", "attention", COST_PROJECTION, COST_ATTENTION},
    {"experts_s", "the experts' products", COST_EXPERTS, COST_EXPERTS},
    {"shared_s", "shared experts and dense layers", COST_SHARED, COST_SHARED},
    {"head_s", "the head", COST_HEAD, COST_HEAD},
    {"rows_s", "norms, sums and routing", COST_ROWS, COST_ROWS},
    {"attention_exchange_s", "the attention's collectives",
     COST_EXCHANGE + (int)TRAFFIC_ATTENTION_GATHER, COST_EXCHANGE + (int)TRAFFIC_ATTENTION_REDUCE},
    {"expert_exchange_s", "the experts' collectives", COST_EXCHANGE + (int)TRAFFIC_COUNTS,
     COST_EXCHANGE + (int)TRAFFIC_COMBINE},
    {"shared_exchange_s", "the shared experts' collectives",
     COST_EXCHANGE + (int)TRAFFIC_FFN_GATHER, COST_EXCHANGE + (int)TRAFFIC_FFN_REDUCE},
};
#define GROUP_COUNT ((int)(sizeof groups / sizeof *groups))

static double group_seconds(const struct pass_cost *cost, int group)
{
    double sum = 0;
    for (int part = groups[group].first; part <= groups[group].last; part++)
        sum += cost->seconds[part];
    return sum;
}

static void put_cost(struct description *to, json_t *row, const char *key,
                     const struct pass_cost *cost)
{
    json_t *object = description_put_object(to, row, key);
    double rest = pass_cost_total(cost);
    for (int group = 0; group < GROUP_COUNT; group++) {
        double seconds = group_seconds(cost, group);
        rest -= seconds;
        description_put(to, object, groups[group].key, json_real(seconds));
    }
    description_put(to, object, "other_s", json_real(rest));
}

static void put_memory(struct description *to, json_t *row, const struct plan_memory *memory)
{
    json_t *object = description_put_object(to, row, "memory");
    description_put_int(to, object, "weights", memory->weights);
    description_put_int(to, object, "experts", memory->experts);
    description_put_int(to, object, "kv_cache", memory->cache);
    description_put_int(to, object, "activations", memory->activations);
    if (memory->buffers > 0)
        description_put_int(to, object, "buffers", memory->buffers);
    description_put_int(to, object, "total", plan_memory_total(memory));
    if (memory->spare > 0)
        description_put_int(to, object, "spare", memory->spare);
}

static void forbidden(struct text *out, const struct plan_problem *problem)
{
    const char *end =
        problem->native.dtype == DTYPE_INT4 ? "experts of --expert-dtype int4 have no backup"
        : !problem->can_have_backup
            ? "of the model there is none: its hidden size and its experts' width would have to "
              "be multiples of 16"
            : "--policy exact forbids it";
    text_append_format(out, "decode would run on INT4 weights of a backup, and %s", end);
}

static void too_large(struct text *out, const struct plan_problem *problem,
                      const struct plan_candidate *candidate)
{
    text_append_format(out, "needs %s of a device with %s",
                       SIZE_TEXT(plan_memory_total(&candidate->memory)),
                       SIZE_TEXT(problem->memory_bytes));
}

static void reason_of(struct text *out, const struct plan_problem *problem,
                      const struct plan_candidate *candidate)
{
    struct error reason;
    switch (candidate->verdict) {
    case PLAN_ILLEGAL:
        plan_illegal_reason(&reason, problem, candidate);
        text_append_string(out, reason.message);
        break;
    case PLAN_TOO_LARGE:
        too_large(out, problem, candidate);
        break;
    case PLAN_NOT_ALLOWED:
        forbidden(out, problem);
        if (plan_memory_total(&candidate->memory) > problem->memory_bytes) {
            text_append_string(out, "; it ");
            too_large(out, problem, candidate);
        }
        break;
    case PLAN_UNKNOWN:
        text_append_string(out, "the box's profile has no times for ");
        if (!plan_untimed_append(out, problem, candidate))
            text_append_string(out, "it");
        break;
    case PLAN_POSSIBLE:
        break;
    }
}

/* How many times as fast as a baseline; null where that is none of the possible plans. */
static json_t *against(const struct plan_table *table, int baseline,
                       const struct plan_candidate *candidate)
{
    if (baseline < 0)
        return json_null();
    double gain =
        plan_candidate_total(&table->candidates[baseline]) / plan_candidate_total(candidate);
    return isfinite(gain) ? json_real(gain) : json_null();
}

static void put_times(struct description *to, json_t *row, const struct plan_table *table,
                      const struct plan_candidate *candidate)
{
    description_put_int(to, row, "wave", (uint64_t)candidate->wave);
    if (candidate->spares > 0)
        description_put_int(to, row, "spares", (uint64_t)candidate->spares);
    description_put_int(to, row, "pass_tokens", (uint64_t)candidate->pass_tokens);
    description_put(to, row, "prefill_s", json_real(candidate->prefill));
    description_put(to, row, "transition_s", json_real(candidate->transition));
    description_put(to, row, "decode_s", json_real(candidate->decode));
    description_put(to, row, "way_back_s", json_real(candidate->way_back));
    description_put(to, row, "total_s", json_real(plan_candidate_total(candidate)));
    description_put(to, row, "against_static_tp", against(table, table->static_tp, candidate));
    description_put(to, row, "against_static_ep", against(table, table->static_ep, candidate));
    put_cost(to, row, "prefill", &candidate->prefill_cost);
    put_cost(to, row, "decode", &candidate->decode_cost);
}

#define NEEDS_A_BACKUP "needs an INT4 backup: phasor quantize makes it"

/* `reason` is of what is not possible; NULL where there was no memory for it. */
static void put_runnable(struct description *to, json_t *row,
                         const struct plan_candidate *candidate, const char *reason,
                         bool has_backup)
{
    bool is_possible = candidate->verdict == PLAN_POSSIBLE;
    const char *because = !is_possible                                ? reason
                          : !has_backup && auto_takes_int4(candidate) ? NEEDS_A_BACKUP
                                                                      : NULL;
    description_put(to, row, "runnable", json_boolean(is_possible && because == NULL));
    description_put(to, row, "because", because == NULL ? json_null() : description_text(because));
}

static void put_candidate(struct description *to, json_t *list, const struct plan_problem *problem,
                          const struct plan_table *table, int index, bool has_backup)
{
    const struct plan_candidate *candidate = &table->candidates[index];
    static const char *const verdicts[] = {[PLAN_POSSIBLE] = "possible",
                                           [PLAN_ILLEGAL] = "illegal",
                                           [PLAN_TOO_LARGE] = "too large",
                                           [PLAN_NOT_ALLOWED] = "not allowed",
                                           [PLAN_UNKNOWN] = "unknown"};
    char text[LAYOUT_TEXT_BYTES];
    struct text reason = {0};
    json_t *row = description_append_object(to, list);
    plan_layouts_format(text, &candidate->layouts);
    description_put(to, row, "plan", json_string(text));
    description_put(to, row, "way", json_string(plan_way_names[candidate->way]));
    description_put(to, row, "verdict", json_string(verdicts[candidate->verdict]));
    if (candidate->has_times)
        put_times(to, row, table, candidate);
    if (plan_memory_total(&candidate->memory) > 0)
        put_memory(to, row, &candidate->memory);
    reason_of(&reason, problem, candidate);
    to->has_failed |= reason.failed;
    description_put(to, row, "reason",
                    reason.length > 0 ? description_text(reason.bytes) : json_null());
    put_runnable(to, row, candidate, reason.bytes, has_backup);
    text_deinit(&reason);
}

/* ---- Why ------------------------------------------------------------------------------------- */

/* "attention 1.2 s less, the experts' collectives 0.3 s more": what differs by more than a
 * twentieth of the phase, the largest first. */
static void differences(struct text *out, const struct pass_cost *best,
                        const struct pass_cost *other)
{
    double least = 0.05 * pass_cost_total(other);
    bool is_told[GROUP_COUNT] = {false};
    const char *before = ": ";
    for (int told = 0; told < GROUP_COUNT; told++) {
        int largest = -1;
        double most = least;
        for (int group = 0; group < GROUP_COUNT; group++) {
            double by = group_seconds(best, group) - group_seconds(other, group);
            if (!is_told[group] && fabs(by) > most) {
                largest = group;
                most = fabs(by);
            }
        }
        if (largest < 0)
            return;
        is_told[largest] = true;
        double by = group_seconds(best, largest) - group_seconds(other, largest);
        text_append_format(out, "%s%s %s %s", before, groups[largest].name, SECONDS_TEXT(fabs(by)),
                           by < 0 ? "less" : "more");
        before = ", ";
    }
}

static void tell_phase(struct text *out, const char *phase, double best, double other)
{
    text_append_format(out, " %s takes %s instead of %s", phase, SECONDS_TEXT(best),
                       SECONDS_TEXT(other));
}

static void tell_transition(struct text *out, const struct plan_candidate *best)
{
    if (best->way == PLAN_NONE)
        text_append_string(out, " Both phases have one layout.");
    else if (best->way == PLAN_KEEP)
        text_append_string(out,
                           " Both layouts stay in memory, so a change of phase costs nothing.");
    else
        text_append_format(out,
                           " The change between them, by %s, costs %s beyond what passes hide, "
                           "and %s on the way back.",
                           plan_way_names[best->way], SECONDS_TEXT(best->transition),
                           SECONDS_TEXT(best->way_back));
}

static bool is_in_layout_of(const struct plan_candidate *candidate,
                            const struct plan_candidate *other)
{
    const struct layout *a = candidate->layouts.of, *b = other->layouts.of;
    return plan_is_same_attention(a, b) && a->experts.tp == b->experts.tp;
}

/* Of static TP, NULL: it does not fit. */
static void tell_fastest(struct text *out, const struct plan_candidate *best,
                         const struct plan_candidate *fastest, const struct plan_candidate *tp)
{
    char text[LAYOUT_TEXT_BYTES];
    double gain = plan_candidate_total(best) / plan_candidate_total(fastest) - 1;
    if (!(gain > 0)) {
        text_append_string(out, " Nothing that fits is faster.");
        return;
    }
    plan_layouts_format(text, &fastest->layouts);
    text_append_format(out, " %s would be %.2g %% faster: too little %s.", text, 100 * gain,
                       tp != NULL && is_in_layout_of(best, tp)
                           ? "to leave static TP for"
                           : "for the experts to have another layout in decode");
}

/* What is run in its stead until there is a backup. */
static void tell_runnable(struct text *out, const struct plan_table *table, int runnable)
{
    char text[LAYOUT_TEXT_BYTES];
    text_append_string(out, " It needs an INT4 backup, which phasor quantize makes; ");
    if (runnable < 0) {
        text_append_string(out, "without one nothing fits.");
        return;
    }
    const struct plan_candidate *candidate = &table->candidates[runnable];
    plan_layouts_format(text, &candidate->layouts);
    text_append_format(out, "without one the best is %s%s%s, in %s.", text,
                       candidate->way == PLAN_NONE ? "" : " by ",
                       candidate->way == PLAN_NONE ? "" : plan_way_names[candidate->way],
                       SECONDS_TEXT(plan_candidate_total(candidate)));
}

static void tell_best(struct text *out, const struct plan_candidate *best,
                      const struct plan_candidate *other, const char *other_name)
{
    char text[LAYOUT_TEXT_BYTES];
    double total = plan_candidate_total(best), less = plan_candidate_total(other);
    plan_layouts_format(text, &best->layouts);
    if (best == other) {
        text_append_format(out, "%s is %s itself, in %s.", text, other_name, SECONDS_TEXT(total));
        return;
    }
    text_append_format(out, "%s takes %s, %.2f times as fast as %s (%s).", text,
                       SECONDS_TEXT(total), less / total, other_name, SECONDS_TEXT(less));
    tell_phase(out, "Prefill", best->prefill, other->prefill);
    differences(out, &best->prefill_cost, &other->prefill_cost);
    text_append_string(out, ".");
    tell_phase(out, "Decode", best->decode, other->decode);
    differences(out, &best->decode_cost, &other->decode_cost);
    text_append_string(out, ".");
    tell_transition(out, best);
    if (less / total < 1.05)
        text_append_string(out,
                           " Differences under 5 % are within what such predictions can tell.");
}

/* ---- Where nothing fits ---------------------------------------------------------------------- */

static json_t *size_or_null(int64_t size)
{
    return size > 0 ? json_integer(size) : json_null();
}

static void put_would_fit(struct description *to, const struct plan_remedies *would)
{
    if (would->smallest == NULL) {
        description_put(to, to->root, "would_fit", json_null());
        return;
    }
    json_t *object = description_put_object(to, to->root, "would_fit");
    description_put_int(to, object, "memory", would->memory_bytes);
    description_put(to, object, "max_num_seqs", size_or_null(would->sequences));
    description_put(to, object, "max_num_batched_tokens", size_or_null(would->pass_tokens));
    description_put(to, object, "expert_dtype",
                    would->int4_fits ? json_string("int4") : json_null());
}

/* ---- The whole ------------------------------------------------------------------------------- */

static void tell_nothing(struct text *out, const struct plan_problem *problem,
                         const struct plan_table *table, const struct plan_remedies *would)
{
    plan_nothing_append(out, problem, table, would);
    text_append_string(out, ".");
    if (!out->failed)
        out->bytes[0] = (char)toupper(out->bytes[0]); /* of a clause a sentence */
}

static void put_why(struct description *to, const struct plan_problem *problem,
                    const struct plan_table *table, int runnable)
{
    struct text why = {0};
    struct plan_remedies would = {.smallest = NULL};
    bool has_tp = table->static_tp >= 0;
    int other = has_tp ? table->static_tp : table->best_static;
    if (table->best < 0)
        plan_remedies_find(&would, problem, table);
    if (table->best < 0)
        tell_nothing(&why, problem, table, &would);
    else if (other < 0)
        text_append_string(&why, "No plan with one layout for both phases fits.");
    else
        tell_best(&why, &table->candidates[table->best], &table->candidates[other],
                  has_tp ? "static TP" : "the best plan with one layout");
    if (table->best >= 0 && other >= 0)
        tell_fastest(&why, &table->candidates[table->best], &table->candidates[table->fastest],
                     has_tp ? &table->candidates[other] : NULL);
    if (table->best >= 0 && runnable != table->best)
        tell_runnable(&why, table, runnable);
    to->has_failed |= why.failed;
    description_put(to, to->root, "why", description_text(why.failed ? "" : why.bytes));
    text_deinit(&why);
    put_would_fit(to, &would);
}

static void put_index(struct description *to, const char *key, int index)
{
    description_put(to, to->root, key, index < 0 ? json_null() : json_integer(index));
}

void plan_report_put(struct description *to, const struct plan_problem *problem,
                     const struct plan_table *table, int runnable, bool has_backup)
{
    json_t *list = description_put_array(to, to->root, "plans");
    for (int i = 0; i < table->count; i++)
        put_candidate(to, list, problem, table, i, has_backup);
    put_index(to, "best", table->best);
    put_index(to, "best_runnable", runnable);
    put_index(to, "fastest", table->fastest);
    put_index(to, "static_tp", table->static_tp);
    put_index(to, "static_ep", table->static_ep);
    put_index(to, "best_static", table->best_static);
    put_why(to, problem, table, runnable);
}

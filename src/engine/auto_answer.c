#include "engine/auto_answer.h"

#include <math.h>

/* Rows leave the order of the file where that saves more than this. */
#define GAIN_WORTH_AN_ORDER 1.01

/* ---- Candidates ------------------------------------------------------------------------------ */

static const enum way ways_of_plans[PLAN_WAY_COUNT] = {
    [PLAN_KEEP] = WAY_KEEP,
    [PLAN_RESHARD] = WAY_RESHARD,
    [PLAN_UPLOAD] = WAY_UPLOAD,
    [PLAN_RELOAD] = WAY_RELOAD,
};

bool auto_takes_int4(const struct plan_candidate *candidate)
{
    return candidate->layouts.decode_is_packed || candidate->way == PLAN_UPLOAD;
}

bool auto_moves_weights(const struct plan_candidate *candidate)
{
    return candidate->way != PLAN_NONE && candidate->way != PLAN_KEEP;
}

enum way auto_way(enum plan_way way)
{
    return ways_of_plans[way];
}

/* Mixed is as good as reshard at least. */
static bool is_by_way(const struct plan_candidate *candidate, const struct engine_params *params)
{
    enum way asked = params->transition == WAY_MIXED ? WAY_RESHARD : params->transition;
    return params->transition_is_auto || candidate->way == PLAN_NONE ||
           ways_of_plans[candidate->way] == asked;
}

int auto_pick(const struct plan_table *table, const struct engine_params *params, bool has_backup)
{
    int best = -1;
    double least = INFINITY;
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        if (candidate->verdict != PLAN_POSSIBLE || (auto_takes_int4(candidate) && !has_backup) ||
            !is_by_way(candidate, params) || plan_candidate_total(candidate) >= least)
            continue;
        best = i;
        least = plan_candidate_total(candidate);
    }
    return best;
}

/* ---- Classes --------------------------------------------------------------------------------- */

static enum status class_price(struct plan_table *out, const struct auto_question *question,
                               const struct plan_classes *classes, int class_index,
                               struct error *err)
{
    struct plan_load bins[PLAN_BINS_MAX];
    struct plan_subject subject;
    struct plan_subject_params params = *question->subject;
    params.mix = bins;
    params.mix_count = plan_class_bins(bins, &question->lengths->mix, classes, class_index);
    if (classes->count > 1)
        params.load = plan_loads_mean(bins, params.mix_count, question->context_max);
    TRY(plan_subject_init(&subject, &params, err));
    return plan_find(out, &subject.problem, err);
}

/* One class after another under the same plan. */
static enum status classes_price(struct plan_table *out, const struct auto_question *question,
                                 const struct plan_classes *classes, struct error *err)
{
    TRY(class_price(out, question, classes, 0, err));
    for (int class = 1; class < classes->count; class ++) {
        struct plan_table table;
        enum status status = class_price(&table, question, classes, class, err);
        if (status != STATUS_OK) {
            plan_table_deinit(out);
            return status;
        }
        plan_table_add(out, &table);
        plan_table_deinit(&table);
    }
    return STATUS_OK;
}

/* ---- The answer ------------------------------------------------------------------------------ */

static double seconds_of(const struct plan_table *table, int chosen)
{
    return chosen < 0 ? INFINITY : plan_candidate_total(&table->candidates[chosen]);
}

/* Of one class first. The table is the answer's, or gone. */
static void answer_take(struct auto_answer *answer, const struct plan_classes *classes,
                        struct plan_table *table)
{
    int chosen = auto_pick(table, answer->question->engine, answer->question->has_backup);
    double now = seconds_of(table, chosen), before = seconds_of(&answer->table, answer->chosen);
    bool is_first = classes->count == 1;
    if (is_first)
        answer->in_file_order = now;
    if (!is_first && (now >= before || now * GAIN_WORTH_AN_ORDER >= answer->in_file_order)) {
        plan_table_deinit(table);
        return;
    }
    plan_table_deinit(&answer->table);
    answer->table = *table;
    answer->classes = *classes;
    answer->chosen = chosen;
}

enum status auto_answer_find(struct auto_answer *out, const struct auto_question *question,
                             struct error *err)
{
    const struct plan_mix *mix = &question->lengths->mix;
    *out = (struct auto_answer){.question = question, .chosen = -1};
    for (int count = 1; count == 1 || count <= mix->bin_count; count++) {
        struct plan_classes classes = {.count = 1};
        struct plan_table table;
        if (mix->bin_count > 0)
            plan_classes_make(&classes, mix, count);
        enum status status = classes_price(&table, question, &classes, err);
        if (status != STATUS_OK) {
            auto_answer_deinit(out);
            return status;
        }
        answer_take(out, &classes, &table);
    }
    return STATUS_OK;
}

void auto_answer_deinit(struct auto_answer *answer)
{
    plan_table_deinit(&answer->table);
}

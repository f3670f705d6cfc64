#include "engine/plan_answer.h"

#include <math.h>

/* Sequences leave the order in which they came where that saves more than this. */
#define GAIN_WORTH_AN_ORDER 1.01

static int pick(const struct plan_question *question, const struct plan_table *table)
{
    return question->pick == NULL ? table->best : question->pick(question->pick_context, table);
}

static double seconds_of(const struct plan_table *table, int chosen)
{
    return chosen < 0 ? INFINITY : plan_candidate_total(&table->candidates[chosen]);
}

/* ---- Classes --------------------------------------------------------------------------------- */

static enum status class_price(struct plan_table *table, struct plan_class *out,
                               const struct plan_question *question,
                               const struct plan_classes *classes, int class_index,
                               struct error *err)
{
    struct plan_load bins[PLAN_BINS_MAX];
    struct plan_subject subject;
    struct plan_subject_params params = *question->subject;
    params.mix = bins;
    params.mix_count = plan_class_bins(bins, question->mix, classes, class_index);
    params.may_stay = question->may_stay && classes->count > 1;
    params.is_queue |= class_index + 1 < classes->count; /* another class follows */
    if (classes->count > 1)
        params.load = plan_loads_mean(bins, params.mix_count, question->context_max);
    TRY(plan_subject_init(&subject, &params, err));
    TRY(plan_find(table, &subject.problem, err));
    int best = pick(question, table);
    *out = (struct plan_class){params.load, best, seconds_of(table, best)};
    return STATUS_OK;
}

/* One class after another under the same plan. */
static enum status classes_price(struct plan_answer *out, const struct plan_question *question,
                                 struct error *err)
{
    const struct plan_classes *classes = &out->classes;
    TRY(class_price(&out->table, &out->of_class[0], question, classes, 0, err));
    for (int class = 1; class < classes->count; class ++) {
        struct plan_table table;
        enum status status =
            class_price(&table, &out->of_class[class], question, classes, class, err);
        if (status != STATUS_OK) {
            plan_table_deinit(&out->table);
            return status;
        }
        plan_table_add(&out->table, &table, class);
        plan_table_deinit(&table);
    }
    out->chosen = pick(question, &out->table);
    return STATUS_OK;
}

/* ---- The answer ------------------------------------------------------------------------------ */

/* With `tried`, or that is gone. */
static void answer_take(struct plan_answer *answer, struct plan_answer *tried)
{
    double now = seconds_of(&tried->table, tried->chosen);
    double before = seconds_of(&answer->table, answer->chosen);
    if (now >= before || now * GAIN_WORTH_AN_ORDER >= answer->in_file_order) {
        plan_answer_deinit(tried);
        return;
    }
    tried->in_file_order = answer->in_file_order;
    plan_answer_deinit(answer);
    *answer = *tried;
}

enum status plan_answer_find(struct plan_answer *out, const struct plan_question *question,
                             struct error *err)
{
    *out = (struct plan_answer){.classes = {.count = 1}};
    TRY(classes_price(out, question, err));
    out->in_file_order = seconds_of(&out->table, out->chosen);
    for (int count = 2; count <= question->mix->bin_count; count++) {
        struct plan_answer tried = {.chosen = -1};
        plan_classes_make(&tried.classes, question->mix, count);
        enum status status = classes_price(&tried, question, err);
        if (status != STATUS_OK) {
            plan_answer_deinit(out);
            return status;
        }
        answer_take(out, &tried);
    }
    return STATUS_OK;
}

bool plan_answer_stays(const struct plan_answer *answer, int class_index)
{
    return answer->chosen >= 0 &&
           (answer->table.candidates[answer->chosen].stays >> class_index & 1) != 0;
}

void plan_answer_deinit(struct plan_answer *answer)
{
    plan_table_deinit(&answer->table);
}

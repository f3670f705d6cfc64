#include "engine/plan_answer.h"

#include <math.h>

/* Sequences leave the order in which they came where that saves more than this. */
#define GAIN_WORTH_AN_ORDER 1.01

static int pick(const struct plan_question *question, const struct plan_table *table)
{
    return plan_table_pick(table, question->may, question->may_context);
}

static double seconds_of(const struct plan_table *table, int chosen)
{
    return chosen < 0 ? INFINITY : plan_candidate_total(&table->candidates[chosen]);
}

/* ---- Classes --------------------------------------------------------------------------------- */

struct plan_load plan_bins_load(const struct plan_question *question, unsigned bins)
{
    struct plan_load loads[PLAN_BINS_MAX];
    if (bins == (1u << question->mix->bin_count) - 1)
        return question->subject->load;
    return plan_loads_mean(loads, plan_mix_take(loads, question->mix, bins), question->context_max);
}

enum status plan_bins_price(struct plan_table *out, const struct plan_question *question,
                            unsigned bins, bool is_queue, struct error *err)
{
    struct plan_load loads[PLAN_BINS_MAX];
    struct plan_subject_params params = *question->subject;
    params.mix = loads;
    params.mix_count = plan_mix_take(loads, question->mix, bins);
    params.is_queue = is_queue;
    params.load = plan_bins_load(question, bins);
    return plan_prices_find(out, question->prices, bins, &params, err);
}

/* One class after another under the same plan. */
static enum status classes_price(struct plan_table *out, const struct plan_question *question,
                                 const struct plan_classes *classes, struct error *err)
{
    for (int class = 0; class < classes->count; class ++) {
        struct plan_table table;
        bool is_queue = question->subject->is_queue || class + 1 < classes->count;
        unsigned bins = plan_class_bins(classes, question->mix, class);
        enum status status = plan_bins_price(&table, question, bins, is_queue, err);
        if (status == STATUS_OK && class == 0)
            status = plan_table_copy(out, &table, err);
        if (status != STATUS_OK) {
            if (class > 0)
                plan_table_deinit(out);
            return status;
        }
        if (class > 0)
            plan_table_add(out, &table, class, question->subject->memory_bytes);
    }
    return STATUS_OK;
}

/* What some classes gain by staying. One of which all stay would change nothing at all: that is
 * what the plan with one layout is for. */
static enum status stays_price(struct plan_answer *out, const struct plan_question *question,
                               struct error *err)
{
    struct plan_table table;
    struct plan_subject_params subject = *question->subject;
    struct plan_question of_stays = *question;
    unsigned all = (1u << out->classes.count) - 1;
    subject.may_stay = true;
    of_stays.subject = &subject;
    TRY(classes_price(&table, &of_stays, &out->classes, err));
    for (int i = 0; i < table.count; i++) {
        const struct plan_candidate *candidate = &table.candidates[i];
        if (candidate->stays != 0 && candidate->stays != all)
            out->table.candidates[i] = *candidate;
    }
    plan_table_choose(&out->table);
    plan_table_deinit(&table);
    return STATUS_OK;
}

/* Where nothing moves, others come for those that end, of whatever class they are: such plans take
 * what they take with all in one class, and their drain is the last one's alone. */
static void unmoved_take(struct plan_table *table, const struct plan_table *of_one)
{
    ASSERT(table->count == of_one->count);
    for (int i = 0; i < table->count; i++) {
        if (!plan_way_moves(table->candidates[i].way))
            table->candidates[i] = of_one->candidates[i];
    }
    table->static_tp = of_one->static_tp;
    table->static_ep = of_one->static_ep;
    plan_table_choose(table);
}

/* `of_one` has the plans that move nothing with all in one class; NULL: this is that. */
static enum status answer_price(struct plan_answer *out, const struct plan_question *question,
                                const struct plan_table *of_one, struct error *err)
{
    TRY(classes_price(&out->table, question, &out->classes, err));
    enum status status = STATUS_OK;
    if (question->may_stay && out->classes.count > 1)
        status = stays_price(out, question, err);
    if (status != STATUS_OK) {
        plan_table_deinit(&out->table);
        return status;
    }
    if (of_one != NULL)
        unmoved_take(&out->table, of_one);
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
    tried->longest_tokens = answer->longest_tokens;
    plan_answer_deinit(answer);
    *answer = *tried;
}

/* The fastest that may be taken of the plans that move weights, -1: none. */
static int best_mover(const struct plan_question *question, const struct plan_table *table)
{
    int best = -1;
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        bool may = question->may == NULL || question->may(question->may_context, candidate);
        if (candidate->verdict == PLAN_POSSIBLE && plan_way_moves(candidate->way) && may &&
            (best < 0 || seconds_of(table, i) < seconds_of(table, best)))
            best = i;
    }
    return best;
}

/* A run's passes are of one size. With all rows together the best plan may have one that is no good
 * for plans that move weights, of which alone classes make anything: so theirs is tried, too. */
static int passes_to_try(int64_t out[2], const struct plan_question *question,
                         const struct plan_answer *of_one)
{
    const struct plan_candidate *candidates = of_one->table.candidates;
    int mover = best_mover(question, &of_one->table), count = 0;
    out[count++] = candidates[of_one->chosen].pass_tokens;
    if (mover >= 0 && candidates[mover].pass_tokens != out[0])
        out[count++] = candidates[mover].pass_tokens;
    return count;
}

/* In two classes and more, with passes of one size for all. */
static enum status classes_try(struct plan_answer *answer, const struct plan_question *question,
                               int64_t pass_tokens, struct error *err)
{
    struct plan_subject_params subject = *question->subject;
    struct plan_question of_classes = *question;
    subject.max_num_batched_tokens = pass_tokens;
    subject.moves_only = true;
    of_classes.subject = &subject;
    for (int count = 2; count <= question->mix->bin_count; count++) {
        struct plan_answer tried = {.chosen = -1};
        plan_classes_make(&tried.classes, question->mix, count);
        TRY(answer_price(&tried, &of_classes, &answer->table, err));
        answer_take(answer, &tried);
    }
    return STATUS_OK;
}

static enum status answer_find(struct plan_answer *out, const struct plan_question *question,
                               struct error *err)
{
    int64_t passes[2];
    int pass_count = 0;
    *out = (struct plan_answer){.classes = {.count = 1},
                                .longest_tokens = question->subject->longest_tokens};
    TRY(answer_price(out, question, NULL, err));
    out->in_file_order = seconds_of(&out->table, out->chosen);
    if (plan_question_has_classes(question) && out->chosen >= 0)
        pass_count = passes_to_try(passes, question, out);
    enum status status = STATUS_OK;
    for (int p = 0; p < pass_count && status == STATUS_OK; p++)
        status = classes_try(out, question, passes[p], err);
    if (status != STATUS_OK)
        plan_answer_deinit(out);
    return status;
}

enum status plan_answer_find(struct plan_answer *out, const struct plan_question *question,
                             struct error *err)
{
    TRY(answer_find(out, question, err));
    if (out->chosen >= 0 || question->subject->longest_tokens == 0)
        return STATUS_OK;
    struct plan_subject_params subject = *question->subject;
    struct plan_question of_others = *question;
    subject.longest_tokens = 0;
    of_others.subject = &subject;
    plan_answer_deinit(out);
    return answer_find(out, &of_others, err);
}

enum status plan_answer_alone(struct plan_class out[PLAN_BINS_MAX],
                              const struct plan_answer *answer,
                              const struct plan_question *question, struct error *err)
{
    bool is_queue = question->subject->is_queue;
    for (int class = 0; class < answer->classes.count; class ++) {
        struct plan_table table;
        unsigned bins = plan_class_bins(&answer->classes, question->mix, class);
        TRY(plan_bins_price(&table, question, bins, is_queue, err));
        int best = pick(question, &table);
        out[class] = (struct plan_class){.load = plan_bins_load(question, bins),
                                         .best = best,
                                         .seconds = seconds_of(&table, best)};
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

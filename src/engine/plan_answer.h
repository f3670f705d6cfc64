/* The planner asked about sequences that may differ in length: which plan they are to have, and
 * which of them run together (planner/plan_mix.h). */
#ifndef PHASOR_ENGINE_PLAN_ANSWER_H
#define PHASOR_ENGINE_PLAN_ANSWER_H

#include "engine/batch_lengths.h"
#include "engine/plan_prices.h"

/* Borrowed, all of it. */
struct plan_question {
    const struct plan_subject_params *subject; /* of all sequences, with their means */
    const struct plan_mix *mix;                /* of no bins: all are of one length */
    struct plan_prices *prices;                /* of this subject and mix; finding adds to them */
    int64_t context_max;
    bool is_one_class;
    bool may_stay; /* some classes may decode as prefill has the experts, but not all */
    /* Which of the possible candidates may be taken; NULL: all. */
    bool (*may)(const void *context, const struct plan_candidate *candidate);
    const void *may_context;
};

/* Whether there is more than one class to try, so that the answer depends on what may be taken by
 * more than which of its candidates is the best. */
static inline bool plan_question_has_classes(const struct plan_question *question)
{
    return !question->is_one_class && question->mix->bin_count > 1;
}

/* Bins of the question's mix, each a bit of `bins`, as a load of their own: what it has on the
 * mean, and its table of plan_find, borrowed from the question's prices. */
struct plan_load plan_bins_load(const struct plan_question *question, unsigned bins);
enum status plan_bins_price(struct plan_table *out, const struct plan_question *question,
                            unsigned bins, bool is_queue, struct error *err) MUST_CHECK;

struct plan_answer {
    struct plan_table table; /* of all classes, one after another under the same plan */
    int chosen;              /* of its candidates; -1: none can be run */
    struct plan_classes classes;
    double in_file_order;   /* seconds of the best with all in one class */
    int64_t longest_tokens; /* as of the question, or 0: no plan holds such a sequence */
};

/* Whether a class of the chosen candidate decodes as prefill has the experts. */
bool plan_answer_stays(const struct plan_answer *answer, int class_index);

/* Prices every plan for one class, two and more; sequences leave the order in which they came where
 * that is done sooner by more than a hundredth. Where no plan holds the longest sequence, which is
 * then its row's failure, the others have theirs. To be deinitialised after success. */
enum status plan_answer_find(struct plan_answer *out, const struct plan_question *question,
                             struct error *err) MUST_CHECK;
void plan_answer_deinit(struct plan_answer *answer);

/* A class as a load of its own, with no other before it or behind. */
struct plan_class {
    struct plan_load load; /* means */
    int best;              /* of the answer's candidates; -1: none */
    double seconds;        /* of that; infinite: none */
};

/* What would be best for each of the answer's classes alone; `question` is what was answered,
 * with the answer's longest sequence. */
enum status plan_answer_alone(struct plan_class out[PLAN_BINS_MAX],
                              const struct plan_answer *answer,
                              const struct plan_question *question, struct error *err) MUST_CHECK;

#endif

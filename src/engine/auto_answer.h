/* Which plan a run is to have, and which of its rows run together: the planner, asked for the
 * classes that they may be dealt to (planner/plan_mix.h). */
#ifndef PHASOR_ENGINE_AUTO_ANSWER_H
#define PHASOR_ENGINE_AUTO_ANSWER_H

#include "engine/batch_lengths.h"
#include "engine/engine.h"
#include "engine/plan_problem.h"

/* Borrowed, all of it. */
struct auto_question {
    const struct plan_subject_params *subject; /* of all sequences, with their means */
    const struct batch_lengths *lengths;
    int64_t context_max;
    const struct engine_params *engine; /* what was asked for */
    bool has_backup;
};

struct auto_answer {
    const struct auto_question *question;
    struct plan_table table; /* of the classes, one after another */
    int chosen;              /* of its candidates; -1: none can be run */
    struct plan_classes classes;
    double in_file_order; /* seconds of the best for all in one class */
};

/* Prices every plan for one class, two and more; rows leave the order of the file where that is
 * done sooner by more than a hundredth. To be deinitialised after success. */
enum status auto_answer_find(struct auto_answer *out, const struct auto_question *question,
                             struct error *err) MUST_CHECK;
void auto_answer_deinit(struct auto_answer *answer);

/* The soonest done of those that can be run here, -1: none can. Equal ones go to the first. */
int auto_pick(const struct plan_table *table, const struct engine_params *params, bool has_backup);

/* ---- Candidates ------------------------------------------------------------------------------ */

bool auto_takes_int4(const struct plan_candidate *candidate);

/* Its sequences run in waves. */
bool auto_moves_weights(const struct plan_candidate *candidate);

enum way auto_way(enum plan_way way); /* not of PLAN_NONE */

#endif

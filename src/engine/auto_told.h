/* What a run is told of the plan that was chosen for it. */
#ifndef PHASOR_ENGINE_AUTO_TOLD_H
#define PHASOR_ENGINE_AUTO_TOLD_H

#include "base/log.h"
#include "engine/auto_pick.h"
#include "engine/plan_parts.h"

/* What was asked, for --verbose. */
void auto_tell_question(const struct plan_subject_params *subject, const struct log_sink *log);

/* The candidate of that index, against static tensor parallelism. */
void auto_tell_choice(const struct plan_table *table, int chosen, const struct log_sink *log);

/* The parts, against `one` plan for all. */
void auto_tell_parts(const struct plan_parts *parts, const struct plan_candidate *one,
                     const struct log_sink *log);

/* Whether decode is on a backup's weights, or would be worth one. `parts` has none where all rows
 * have the answer's plan. */
enum status auto_tell_backup(const struct plan_answer *answer, const struct plan_parts *parts,
                             const struct plan_question *question, const struct auto_limits *limits,
                             struct error *err) MUST_CHECK;

/* Classes of rows; `gain` over the file's order, 0 where it is not predicted. */
void auto_tell_order(int class_count, bool some_stay, double gain, const struct log_sink *log);

/* Of a question whose plans may none be taken; `table` is its answer. */
enum status auto_tell_none(const struct plan_subject_params *params, const struct plan_table *table,
                           const struct log_sink *log, struct error *err) MUST_CHECK;

#endif

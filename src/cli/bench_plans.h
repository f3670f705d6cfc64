/* Which plan each mode of phasor bench has for a cell, out of the planner's table. */
#ifndef PHASOR_CLI_BENCH_PLANS_H
#define PHASOR_CLI_BENCH_PLANS_H

#include "bench_results.h"

/* Where times are modelled all sequences of a batch are one wave, and a pass of prefill has so many
 * tokens: what is composed of passes is composed of these. */
#define BENCH_PASS_TOKENS_MAX 16384
int64_t bench_pass_tokens(const struct bench_question *question, const struct bench_cell *cell);

/* What the planner is asked of a cell. */
struct phasor_plan_params bench_plan_params(const struct bench_question *question,
                                            const struct bench_cell *cell);

/* Of the "box" of phasor_plan: its name, what it is, and the hash of its file. */
void bench_box_words(struct bench_cell *cell, const json_t *box);

/* Of one model at a time; a zero one has none yet. */
struct bench_planner {
    struct phasor_planner *planner;
    int model;
};
void bench_planner_close(struct bench_planner *planner);

/* Asks the planner, which has read box and model before: in its time is the answer alone. `cell`
 * has model and load. A load that no plan can have leaves modes without one; false, and told on
 * standard error, where model, box or counts cannot be read, or the box's numbers not be drawn. */
bool bench_plans_find(struct bench_planner *planner, struct bench_cell *cell,
                      const struct bench_question *question);

#endif

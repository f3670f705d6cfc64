/* What the planner predicts of plans that are chosen, where the box is not quite what was assumed:
 * for phasor bench. */
#ifndef PHASOR_CLI_BENCH_PREDICT_H
#define PHASOR_CLI_BENCH_PREDICT_H

#include "bench_results.h"

struct bench_predictor {
    const struct bench_results *results; /* borrowed: question and cells */
    json_t *root;                        /* of phasor_plan, for the cell and round; NULL: none */
    int cell, round;
};

/* `out` has cell, plan and round: the plan's seconds with the box's numbers drawn for this round,
 * the same numbers for all plans and cells of the round. */
enum phasor_status bench_predictor_run(struct bench_predictor *predictor, struct bench_run *out,
                                       struct phasor_error *err);

void bench_predictor_deinit(struct bench_predictor *predictor); /* a zero one is allowed */

#endif

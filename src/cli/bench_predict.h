/* What the planner predicts of plans that are chosen, where the box is not quite what was assumed:
 * for phasor bench. */
#ifndef PHASOR_CLI_BENCH_PREDICT_H
#define PHASOR_CLI_BENCH_PREDICT_H

#include "bench_results.h"

struct bench_predictor {
    const struct bench_results *results; /* borrowed: question and cells */
    json_t *root;                        /* of phasor_plan, for what follows; NULL: none */
    int cell, round;
    int64_t wave, pass_tokens;
};

/* `out` has cell, plan and round: the plan's seconds, in the waves and passes that were chosen with
 * it, with the box's numbers drawn for this round: the same numbers for all plans and cells. */
enum phasor_status bench_predictor_run(struct bench_predictor *predictor, struct bench_run *out,
                                       struct phasor_error *err);

/* Whether the first of the runs that are there comes out as it did, by the same file of the box:
 * else that, or phasor, is not what it was. */
bool bench_predictor_agrees(struct bench_predictor *predictor);

void bench_predictor_deinit(struct bench_predictor *predictor); /* a zero one is allowed */

#endif

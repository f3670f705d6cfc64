/* Running a plan for phasor bench: models that are open, rows at random, and what the clock says.
 */
#ifndef PHASOR_CLI_BENCH_RUN_H
#define PHASOR_CLI_BENCH_RUN_H

#include "bench_models.h"

struct bench_runner {
    const struct bench_results *results; /* borrowed: question and cells */
    char folder[768];                    /* of rows and answers; removed at the end */
    struct bench_models models;
    /* As of phasor_batch_params: asked while a run is under way. */
    int (*progress)(void *context, const struct phasor_batch_progress *progress);
    void *context;
};

/* Makes the folder in $TMPDIR, or /tmp; false: told on standard error. The callbacks are the
 * caller's to set. */
bool bench_runner_init(struct bench_runner *out, const struct bench_results *results);

/* One batch of the cell under one of its plans: all its sequences at random token ids, the same in
 * each run, all answers of their full length. A model that is not open is loaded first, by whose
 * first use everything is warmed up. `out` has cell, plan and round. */
enum phasor_status bench_runner_run(struct bench_runner *runner, struct bench_run *out,
                                    struct phasor_error *err);

void bench_runner_deinit(struct bench_runner *runner);

#endif

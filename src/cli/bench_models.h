/* Models that phasor bench has open under their plans: as many as memory allows, so that plans
 * which are compared run close to one another. */
#ifndef PHASOR_CLI_BENCH_MODELS_H
#define PHASOR_CLI_BENCH_MODELS_H

#include "bench_results.h"
#include "phasor.h"

#define BENCH_OPEN_MAX 8

struct bench_open {
    int model;
    struct bench_plan plan; /* that it was opened for */
    struct phasor_model *of;
    uint64_t bytes;
    uint64_t used_at; /* the number of the call that asked for it last */
};

/* Zero, but for what is the caller's to set. */
struct bench_models {
    const struct bench_question *question; /* borrowed */
    bool records;                          /* as of phasor_model_params */
    phasor_log_fn *log;
    void *context;
    /* The rest is its own. */
    struct bench_open open[BENCH_OPEN_MAX];
    int open_count;
    uint64_t bytes_max; /* that all of them may count on together; 0: not known yet */
    uint64_t call_count;
};

/* The model under the plan, with the room that the plan was priced with; `*is_new` where it was
 * not open. `bytes` is what it may take, all
 * devices together: others that were not asked for since longest are closed where it would be too
 * much. */
enum phasor_status bench_models_get(struct phasor_model **out, bool *is_new,
                                    struct bench_models *models, const struct bench_cell *cell,
                                    const struct bench_plan *plan, uint64_t bytes,
                                    struct phasor_error *err);

void bench_models_close(struct bench_models *models);

#endif

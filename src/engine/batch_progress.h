/* How far a run of a batch is: what its caller is told, and what the caller answers. */
#ifndef PHASOR_ENGINE_BATCH_PROGRESS_H
#define PHASOR_ENGINE_BATCH_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/batch_row.h"
#include "phasor.h"

/* The pointers are borrowed; all else begins as 0. */
struct batch_progress {
    const struct phasor_batch_params *params;
    const struct phasor_batch_result *result; /* rows that are in the files */
    const struct batch_world *world;          /* its generator is NULL while the input is read */
    double started_at;                        /* of the first row; 0: none is started yet */
    double told_at;
    bool can_resume;
    bool is_stopped;  /* was to end at once; who asked may not have been free to end it */
    bool is_draining; /* no more rows are started, and those in flight have until */
    double drain_until;
};

/* Rows that are in the files, an earlier run's included. */
uint64_t batch_progress_done(const struct batch_progress *progress);

/* Tells the caller, if it is time or `is_last`. STATUS_CANCELLED when it wants the run to end at
 * once, or when the time of those in flight is over. */
enum status batch_progress_tell(struct batch_progress *progress, bool is_last,
                                struct error *err) MUST_CHECK;

/* The same while the input is read, when there is nothing to drain; `context` is the progress. */
enum status batch_progress_reading(void *context, struct error *err) MUST_CHECK;

/* STATUS_CANCELLED with the sentence of a run that was stopped. */
enum status batch_progress_stopped(const struct batch_progress *progress,
                                   struct error *err) MUST_CHECK;

#endif

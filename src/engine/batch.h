/* phasor_batch_run: a file of requests in, a file of responses out. */
#ifndef PHASOR_ENGINE_BATCH_H
#define PHASOR_ENGINE_BATCH_H

#include "base/log.h"
#include "base/status.h"
#include "engine/auto_plan.h"
#include "engine/engine.h"
#include "phasor.h"

/* The contract is phasor_batch_run's; `params` is complete (its size is the library's). */
enum status batch_run(struct engine *engine, const struct phasor_batch_params *params,
                      const struct log_sink *log, struct phasor_batch_result *result,
                      struct error *err) MUST_CHECK;

/* The same by an engine whose plan was chosen; `plan` may be NULL. */
enum status batch_run_planned(struct engine *engine, const struct phasor_batch_params *params,
                              struct auto_plan *plan, const struct log_sink *log,
                              struct phasor_batch_result *result, struct error *err) MUST_CHECK;

#endif

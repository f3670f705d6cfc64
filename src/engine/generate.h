/* phasor_generate: one prompt, its text given out while it comes. */
#ifndef PHASOR_ENGINE_GENERATE_H
#define PHASOR_ENGINE_GENERATE_H

#include "base/log.h"
#include "base/status.h"
#include "engine/engine.h"
#include "phasor.h"

/* The contract is phasor_generate's; `params` is complete and `result` not NULL. */
enum status generate_run(struct engine *engine, const struct phasor_generate_params *params,
                         const struct log_sink *log, struct phasor_generate_result *result,
                         struct error *err) MUST_CHECK;

#endif

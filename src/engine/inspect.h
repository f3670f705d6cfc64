/* phasor_inspect: a checkpoint described without loading its weights. */
#ifndef PHASOR_ENGINE_INSPECT_H
#define PHASOR_ENGINE_INSPECT_H

#include "base/status.h"
#include "engine/inspect_plans.h"

struct inspect_params {
    const char *model;
    const char *revision; /* or NULL */
    struct inspect_plans_params plans;
};

/* The contract is phasor_inspect's; the keys are in phasor(1). `*out` is freed by memory_free. */
enum status inspect_json(char **out, const struct inspect_params *params,
                         struct error *err) MUST_CHECK;

#endif

/* How a model's weights would lie over the ranks under a plan, and what each rank would hold: from
 * the config alone. */
#ifndef PHASOR_ENGINE_INSPECT_PLANS_H
#define PHASOR_ENGINE_INSPECT_PLANS_H

#include "base/numeric.h"
#include "engine/description.h"
#include "model/config.h"

struct inspect_plans_params {
    const char *devices; /* "cpu:N"; NULL: as many ranks as the plan has */
    const char *plan;    /* see layout_parse; "list": all pairs of degrees; NULL: the plan that a
                          * run takes on `devices` */
    bool dtype_is_auto;  /* as engine_params has it */
    enum dtype dtype;
    int64_t max_num_seqs, max_num_batched_tokens; /* of a run: activations follow from them */
};

/* Puts "plans" into the root; the keys are in phasor(1). `dtype` is the checkpoint's.
 * STATUS_INVALID_ARGUMENT when a parameter is wrong, or the plan not legal for this model. */
enum status inspect_plans_put(struct description *to, const struct model_config *config,
                              enum dtype dtype, const struct inspect_plans_params *params,
                              struct error *err) MUST_CHECK;

#endif

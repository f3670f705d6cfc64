/* The plan of a run that is resumed. */
#ifndef PHASOR_ENGINE_AUTO_PAST_H
#define PHASOR_ENGINE_AUTO_PAST_H

#include "engine/batch_order.h"
#include "engine/batch_parts.h"
#include "engine/engine.h"
#include "phasor.h"

struct auto_past {
    struct engine_choice choice;  /* the plan, with the way by which its experts changed; of the
                                   * first part, where there are parts; or it is not made */
    struct batch_staying staying; /* rows that decode as prefill has the experts, or none */
    struct batch_parts parts;     /* rows with plans of their own, or none */
};

/* What the record beside the batch's output has, where the batch is to be resumed, there is
 * something to resume, and the plan is one of these ranks and this model; else nothing is made.
 * `batch` may be NULL. A record that cannot be read is a failure. */
enum status auto_past_find(struct auto_past *out, const struct phasor_batch_params *batch,
                           const struct engine_basis *basis, struct error *err) MUST_CHECK;

#endif

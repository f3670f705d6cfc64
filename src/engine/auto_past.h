/* The plan of a run that is resumed. */
#ifndef PHASOR_ENGINE_AUTO_PAST_H
#define PHASOR_ENGINE_AUTO_PAST_H

#include "engine/batch_order.h"
#include "engine/engine.h"
#include "phasor.h"

/* That of the record beside the batch's output, with the way by which its experts changed, where
 * the batch is to be resumed, there is something to resume, and the plan is one of these ranks and
 * this model; else `out` stays as it is. `staying` is of the rows that decode as prefill has the
 * experts, or of none. `batch` may be NULL. A record that cannot be read is a
 * failure.
 */
enum status auto_past_choose(struct engine_choice *out, struct batch_staying *staying,
                             const struct phasor_batch_params *batch,
                             const struct engine_basis *basis, struct error *err) MUST_CHECK;

#endif

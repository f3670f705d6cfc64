/* Links as slow as the device that was recorded: where it computes a tenth as fast as a box's,
 * links of a tenth of the bandwidth keep computation and communication in proportion. Holds for
 * prefill, which is bound by arithmetic; decode is bound by memory, which does not scale so.
 */
#ifndef PHASOR_REPLAY_LINK_SCALE_H
#define PHASOR_REPLAY_LINK_SCALE_H

#include "base/status.h"
#include "replay/box_model.h"
#include "replay/recording.h"

/* For struct simulation_params: the rate at which products and attention of prefill ran on the
 * device that was recorded, over the rate at which the box's device is taken to do the same (its
 * peak, times the efficiency of each kind). STATUS_INVALID_ARGUMENT where there is nothing of the
 * kind in the recording. */
enum status link_scale_get(double *out, const struct recording *recording,
                           const struct box_model *box, struct error *err) MUST_CHECK;

#endif

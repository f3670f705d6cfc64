/* How long an operation would take on a box's devices, by their roofline. */
#ifndef PHASOR_REPLAY_MODELLED_H
#define PHASOR_REPLAY_MODELLED_H

#include "replay/box_model.h"
#include "replay/recording.h"

/* Seconds alone: the longer of flops over peak and bytes over bandwidth, each times the kind's
 * efficiency, and the launch. */
double modelled_seconds(const struct box_device *device, const struct recording_node *node);

#endif

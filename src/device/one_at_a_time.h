/* Ranks that run one at a time, so that no one's time contains another's: all streams of all of
 * them, those of low priority too, take turns in the order in which they ask. A stream keeps its
 * turn until it has nothing to do or waits for others. */
#ifndef PHASOR_DEVICE_ONE_AT_A_TIME_H
#define PHASOR_DEVICE_ONE_AT_A_TIME_H

#include "base/status.h"
#include "device/device.h"

/* For box_params; outlives the box. */
enum status one_at_a_time_create(struct turn **out, struct error *err) MUST_CHECK;
int one_at_a_time_asking(struct turn *turn);   /* streams that wait for their turn now */
void one_at_a_time_destroy(struct turn *turn); /* NULL is allowed */

#endif

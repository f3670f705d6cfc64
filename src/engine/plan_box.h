/* A box file as the planner's profile: collectives as replay would time them one at a time on an
 * idle box, operations by the device's roofline. What nobody has measured is as assumed as the
 * file says. */
#ifndef PHASOR_ENGINE_PLAN_BOX_H
#define PHASOR_ENGINE_PLAN_BOX_H

#include "planner/profile.h"
#include "replay/box_model.h"

/* The profile's memory is one block, which plan_box_deinit frees. */
struct plan_box {
    struct profile profile;
    void *memory;
};

enum status plan_box_init(struct plan_box *out, const struct box_model *box,
                          struct error *err) MUST_CHECK;
void plan_box_deinit(struct plan_box *box); /* a zero one is allowed */

#endif

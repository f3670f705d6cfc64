/* What a change of layout costs: the time for which passes wait, because no prefill hides it. Pure.
 * Source: HAP, equation 6, by layers instead of in sum. */
#ifndef PHASOR_TRANSITION_EXPOSED_H
#define PHASOR_TRANSITION_EXPOSED_H

#include "transition/transition.h"

/* What a wave has to hide it. */
struct exposure {
    int64_t layer_count;      /* that move */
    int64_t spare_count;      /* layers that are written before the first is let go; >= 1 */
    double prefill_seconds;   /* from when writing begins to the end of the last pass */
    double last_pass_seconds; /* of them: a pass that lets go of layer after layer, evenly */
};

/* Seconds from the end of prefill until the last layer is there, of which each takes
 * `layer_seconds`. Layers are written one after the other: as many as there are spares at once,
 * each further one when the layer that frees its slot has been let go. */
double exposed_seconds(const struct exposure *exposure, double layer_seconds);

/* For which a wave waits by each way, to decode and back; of `seconds` of a layer. Negative: not
 * possible. Going back is the next wave's loss as a whole: how much the tail of decode hides of it
 * nobody knows yet. */
void ways_exposed(double out[WAY_COUNT], const double seconds[WAY_COUNT],
                  const struct exposure *exposure);

/* The way with the least of what is possible, the first of equals; reshard where none is. */
enum way way_least(const double exposed[WAY_COUNT]);

/* To prefill, of the way to decode: the backup gives prefill nothing. */
static inline enum way way_back(enum way way)
{
    return way == WAY_UPLOAD ? WAY_RELOAD : way;
}

#endif

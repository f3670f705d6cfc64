/* A box whose uncertain numbers are drawn anew, for what a prediction is worth. */
#ifndef PHASOR_REPLAY_BOX_DRAW_H
#define PHASOR_REPLAY_BOX_DRAW_H

#include <jansson.h>
#include <stdint.h>

/* Gives every number of a box file that has a "range" a value of it, uniform in its logarithm: each
 * number once, however often it is used, and by itself; the same for the same file and seed. What
 * has no range stays. Returns how many were drawn; -1: memory was short. */
int box_draw(json_t *file, uint64_t seed);

#endif

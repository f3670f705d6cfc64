/* The two halves of synth.c's work: what to write, and the numbers. */
#ifndef PHASOR_MODEL_SYNTH_PARTS_H
#define PHASOR_MODEL_SYNTH_PARTS_H

#include <jansson.h>

#include "model/config.h"
#include "model/synth.h"

/* config.json of the preset with the changes that params asks for, and what it means. `*out` is
 * the caller's (json_decref). */
enum status synth_config(json_t **out, struct model_config *config,
                         const struct synth_params *params, struct error *err) MUST_CHECK;

/* Values [first, first + count) of the tensor with that seed: mean + deviation x noise, where the
 * noise is the sum of four uniform numbers, scaled to variance 1 (near normal, at most 3.46). One
 * hash per value, so that any part of a tensor can be made alone. */
struct synth_values {
    uint64_t seed;
    float mean;
    float deviation;
};
void synth_fill(void *out, enum dtype dtype, const struct synth_values *values, uint64_t first,
                int64_t count);

/* How the values of a weight are drawn: linear weights with deviation 1 / sqrt(inputs) (0.022 at
 * 2,048 inputs, near the 0.02 that models are initialised with, and sane at any scale), norms
 * near 1, biases near 0. */
struct synth_values synth_values_of(enum weight weight, const int64_t *shape, int rank,
                                    const char *name, uint64_t seed);

#endif

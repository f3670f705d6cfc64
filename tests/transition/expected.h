/* What passes compute in each layout on weights that nothing has moved: what they are to compute
 * behind any chain of transitions, to the bit. */
#ifndef PHASOR_TESTS_TRANSITION_EXPECTED_H
#define PHASOR_TESTS_TRANSITION_EXPECTED_H

#include "rig.h"

/* By phase, and in decode by whose weights. */
struct expected {
    struct scenario_result of[PHASE_COUNT], int4;
};

/* Of cold starts: the checkpoint's weights; and those of the rig's backup, where it has one, packed
 * or dequantized by the reference. */
void expected_open(struct expected *out, struct cold *cold, const struct rig_params *params,
                   const struct rig *rig, const struct scenario *scenario);
void expected_close(struct expected *expected);

const struct scenario_result *expected_of(const struct expected *expected, enum phase phase,
                                          bool is_int4);

/* Of all logits. */
bool expected_same_bits(const struct scenario_result *a, const struct scenario_result *b);

#endif

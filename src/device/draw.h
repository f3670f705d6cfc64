/* A random choice among logits as a race that needs no sum over them: Gumbel-max. The token with
 * the highest logit / temperature + noise wins, with the probability that softmax gives it; the
 * noise depends on (seed, position, token) alone, so that neither the batch nor who has which part
 * of the vocabulary changes it. Source: Gumbel, "Statistical theory of extreme values", 1954; as a
 * sampler Maddison, Tarlow, Minka, "A* sampling", 2014. Pure functions, any thread. */
#ifndef PHASOR_DEVICE_DRAW_H
#define PHASOR_DEVICE_DRAW_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/random.h"
#include "device/ops.h"

/* Of a token: in (0, 1). */
static inline double draw_noise(const struct draw *draw, int64_t token)
{
    return random_unit(random_mix(draw->key ^ (uint64_t)token));
}

/* In f64. `logit` is a number or -infinity, the temperature is above 0. */
static inline double draw_score(const struct draw *draw, float logit, int64_t token)
{
    return (double)logit / draw->temperature - log(-log(draw_noise(draw, token)));
}

/* false: the score is not above `best`, as -log(u) >= 1 - u tells without its logarithms. */
static inline bool draw_may_pass(const struct draw *draw, float logit, int64_t token, double best)
{
    return 1 - draw_noise(draw, token) < exp((double)logit / draw->temperature - best);
}

#endif

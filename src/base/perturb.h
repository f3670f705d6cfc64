/* Where threads meet, chance decides how they interleave; under the thread sanitizer it is helped
 * along. perturb() stands at such places: it costs nothing in ordinary builds, and where
 * PHASOR_PERTURB is defined (cmake/sanitize.cmake) it lets the thread wait for a random short time,
 * or not at all. */
#ifndef PHASOR_BASE_PERTURB_H
#define PHASOR_BASE_PERTURB_H

#include <stdint.h>

#if defined(PHASOR_PERTURB)

void perturb(void);

/* What the waits of all threads are drawn from, from now on: from this seed and the order in which
 * the threads draw for the first time. */
void perturb_seed(uint64_t seed);

#else

static inline void perturb(void)
{
}

static inline void perturb_seed(uint64_t seed)
{
    (void)seed;
}

#endif

#endif

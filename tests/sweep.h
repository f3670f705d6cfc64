/* Fault sweeps: n = 1, 2, 3 ... in the full tier; in the quick tier every step-th from a start that
 * the printed seed chooses, so that many quick runs together visit every n. With a sanitizer, whose
 * runs take several times as long, half as many. */
#ifndef TESTS_SWEEP_H
#define TESTS_SWEEP_H

#include <stdint.h>
#include <stdlib.h>

/* PHASOR_TEST_FULL is set by the tests of the full tier (tests/CMakeLists.txt). */
static inline uint64_t sweep_step(uint64_t quick_step)
{
#if defined(__SANITIZE_ADDRESS__)
    quick_step *= 2;
#endif
    return getenv("PHASOR_TEST_FULL") != NULL || quick_step < 1 ? 1 : quick_step;
}

/* 1 .. step, by PHASOR_TEST_SEED (scripts/test prints it; 0 without). */
static inline uint64_t sweep_first(uint64_t step)
{
    const char *seed = getenv("PHASOR_TEST_SEED");
    return 1 + (seed == NULL ? 0 : strtoull(seed, NULL, 10)) % step;
}

#endif

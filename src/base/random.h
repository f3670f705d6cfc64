/* Seeded random numbers: the same on every machine and for every number of ranks.
 *
 * random_at is counter-based: the value depends on (seed, position, index) alone, so that a draw
 * needs no state and no order. `struct random` is a stream of such draws. */
#ifndef PHASOR_BASE_RANDOM_H
#define PHASOR_BASE_RANDOM_H

#include <stdint.h>

/* 64 well-mixed bits of three numbers. Source: the finalizer of splitmix64 (Steele, Lea, Flood,
 * "Fast splittable pseudorandom number generators", 2014), applied once per number. */
static inline uint64_t random_mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* What all draws of a seed and a position have in common: each is random_mix(key ^ index). */
static inline uint64_t random_key(uint64_t seed, uint64_t position)
{
    return random_mix(random_mix(seed) ^ position);
}

static inline uint64_t random_at(uint64_t seed, uint64_t position, uint64_t index)
{
    return random_mix(random_key(seed, position) ^ index);
}

/* Uniform in (0, 1), never 0 or 1: 52 bits and half a step. */
static inline double random_unit(uint64_t bits)
{
    return ((double)(bits >> 12) + 0.5) * 0x1p-52;
}

struct random {
    uint64_t seed;
    uint64_t position;
};

static inline uint64_t random_next(struct random *random)
{
    return random_at(random->seed, random->position++, 0);
}

/* Uniform in [0, bound); bound > 0. The bias is under bound / 2^64. */
static inline uint64_t random_below(struct random *random, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)random_next(random) * bound) >> 64);
}

/* Standard normal, by Box and Muller (one of the pair is used). */
double random_normal(struct random *random);

/* A seed that is another each time, for hash tables whose keys are foreign: so no file can hold
 * keys that all meet in one place. No result may depend on it. */
uint64_t random_seed_make(void);

#endif

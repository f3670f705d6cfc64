#include "base/perturb.h"

#if defined(PHASOR_PERTURB)

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "base/random.h"

/* Half of the places are passed at once, so that pairs of threads drift apart. */
#define YIELD_OF_16           4
#define SLEEP_OF_16           4
#define SLEEP_NANOSECONDS_MAX 50000

static atomic_uint_fast64_t seed_now;
static atomic_uint_fast64_t seed_count;   /* how often it was set: threads draw anew */
static atomic_uint_fast64_t thread_count; /* since the seed was set */

static _Thread_local struct random draws;
static _Thread_local uint64_t draws_of; /* the seed_count for which they hold, plus one */

void perturb_seed(uint64_t seed)
{
    atomic_store(&seed_now, seed);
    atomic_store(&thread_count, 0);
    atomic_fetch_add(&seed_count, 1);
}

void perturb(void)
{
    uint64_t count = atomic_load(&seed_count) + 1;
    if (draws_of != count) {
        uint64_t thread = atomic_fetch_add(&thread_count, 1);
        draws = (struct random){.seed = random_at(atomic_load(&seed_now), thread, count)};
        draws_of = count;
    }
    uint64_t choice = random_below(&draws, 16);
    if (choice < YIELD_OF_16)
        sched_yield();
    else if (choice < YIELD_OF_16 + SLEEP_OF_16)
        nanosleep(&(struct timespec){.tv_nsec = (long)random_below(&draws, SLEEP_NANOSECONDS_MAX)},
                  NULL);
}

#endif

#include "base/random.h"

#include <math.h>
#include <sys/random.h>

#include "base/system.h"

double random_normal(struct random *random)
{
    double radius = sqrt(-2.0 * log(random_unit(random_next(random))));
    return radius * cos(6.283185307179586 * random_unit(random_next(random)));
}

/* Without a source of randomness the clock must do: what is at stake is only time. */
uint64_t random_seed_make(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)(system_seconds() * 1e9);
    return seed;
}

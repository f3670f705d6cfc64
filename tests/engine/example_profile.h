/* A profile of this machine that nobody measured: one roofline for all operations and one rate for
 * all collectives, so that who writes it says which plan is the fastest. */
#ifndef EXAMPLE_PROFILE_H
#define EXAMPLE_PROFILE_H

#include "engine/profile_file.h"

struct example_profile {
    struct profile_identity identity;
    double flops_per_second, bytes_per_second; /* of each rank */
    double call_seconds;                       /* of each collective, whatever it sends */
    double gather_rate, exchange_rate;         /* bytes a second: all but all-to-all, and that */
    double disk_rate;                          /* and that of the page cache */
    double check_rate;                         /* of each rank's checksums */
};

/* Of this machine with so many ranks, one thread for each core; the links are fast. */
void example_profile_init(struct example_profile *out, int ranks);

/* The same where each collective takes long, and loading weights does not: on two ranks long
 * prompts of the small models of tests/data want data-parallel attention, and long answers a part
 * of its weights on each. */
void example_profile_torn(struct example_profile *out, int ranks);

/* False where it cannot be written. */
bool example_profile_write(const struct example_profile *profile, const char *path,
                           struct error *err);

#endif

/* Activities that use resources at the same time, and when each is done.
 *
 * An activity has an amount to do, at a rate that is at most its cap, and that each of its
 * resources gives it. Rates are max-min fair: everyone's grows alike until its cap or one of its
 * resources is reached. They change only when an activity begins, ends or has another cap, and only
 * of those that are joined to it by resources. Equal input, equal rates and times, bit for bit.
 *
 * Not thread-safe. */
#ifndef PHASOR_REPLAY_FLUID_H
#define PHASOR_REPLAY_FLUID_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define FLUID_USES_MAX 8

struct fluid;

struct fluid_activity {
    double amount; /* > 0 */
    double cap;    /* >= 0, of the rate; INFINITY: the resources' alone, of which it has some */
    int use_count; /* <= FLUID_USES_MAX */
    uint16_t uses[FLUID_USES_MAX]; /* resources, each once */
    uint64_t tag;                  /* given back when it ends */
};

/* `capacities`: [resource_count], each > 0. */
enum status fluid_create(struct fluid **out, const double *capacities, int resource_count,
                         struct error *err) MUST_CHECK;
void fluid_destroy(struct fluid *fluid); /* NULL is allowed */

/* Begins now; `*id` is its until it ends. */
enum status fluid_start(int *id, struct fluid *fluid, const struct fluid_activity *activity,
                        struct error *err) MUST_CHECK;

void fluid_set_cap(struct fluid *fluid, int id, double cap);

/* When the next activity ends, if nothing else begins; INFINITY: none ever does. */
double fluid_next(struct fluid *fluid);

/* The clock, which begins at 0, goes on to fluid_next's time. */
void fluid_advance(struct fluid *fluid, double now);

/* Takes away one that ends now, in the order in which they began; false: none. */
bool fluid_take(struct fluid *fluid, uint64_t *tag);

/* For tests: the rate of one that goes on. */
double fluid_rate(struct fluid *fluid, int id);

#endif

/* Which CPUs are neighbours. A user defines _GNU_SOURCE. */
#ifndef PHASOR_DEVICE_CPU_PLACES_H
#define PHASOR_DEVICE_CPU_PLACES_H

#include <sched.h>

/* The index-th CPU of a set, counted from 0 in the order of their places: those of a core stand
 * together, so do the cores that share a cache, and those of a NUMA node. A rank has CPUs that are
 * neighbours in this order: its threads touch its memory first, and so have it on their own node.
 * CPUs whose place is not known come last, in the order of the system's numbers; that is all of
 * them where the build has no hwloc. -1: the set has fewer. What hwloc says is read once.
 * Thread-safe. */
int cpu_of_set(const cpu_set_t *set, int index);

#endif

/* Threads that sleep until something has become true, and are woken by who made it true. */
#ifndef PHASOR_DEVICE_SLEEPERS_H
#define PHASOR_DEVICE_SLEEPERS_H

#include <stdatomic.h>
#include <stdbool.h>

/* Zero is ready for use. */
struct sleepers {
    atomic_uint count; /* threads that sleep or are about to */
    atomic_uint wakes; /* what they sleep on: grows with each wake */
};

/* Returns once ready(context) is true; what it reads is atomic. `spin`: look for some microseconds
 * before sleeping in the kernel: for threads that have a CPU of their own; where threads share
 * CPUs it only takes time from who is waited for. Any number of threads may wait. */
void sleepers_wait(struct sleepers *sleepers, bool spin, bool (*ready)(const void *context),
                   const void *context);

/* To be called after each change that may make a `ready` true. Costs one atomic operation when
 * nobody sleeps. */
void sleepers_wake(struct sleepers *sleepers);

#endif

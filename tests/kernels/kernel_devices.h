/* Devices whose workers come and go. */
#ifndef PHASOR_TESTS_KERNELS_KERNEL_DEVICES_H
#define PHASOR_TESTS_KERNELS_KERNEL_DEVICES_H

#include <stdint.h>

#include "device/device.h"

/* A device with kernels of a set that the machine has. Of one with two threads the worker finds
 * that its turn on its CPU is over as soon as it has taken a piece or two: it leaves each operation
 * between two pieces and comes again (thread_team_should_leave). A test's threads have such a clock
 * from then on that this is so; those of other devices do not look at it. */
struct device *kernel_device_open(const char *set, int thread_count);

/* How often workers have been told to leave. */
int64_t kernel_device_leaves(void);

#endif

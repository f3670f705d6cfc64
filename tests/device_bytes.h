/* What tests look at in a device's memory and put there, where nothing on a stream uses it: itself
 * where the host reaches it, else by copies. */
#ifndef PHASOR_TESTS_DEVICE_BYTES_H
#define PHASOR_TESTS_DEVICE_BYTES_H

#include <stddef.h>

#include "device/device.h"

/* Both fail the test where a copy fails; that of a stream of the device does not matter. */
void device_read(struct device *device, void *out, const void *in, size_t bytes);
void device_write(struct device *device, void *out, const void *in, size_t bytes);

/* The same in new memory, which memory_free takes. */
void *device_copy(struct device *device, const void *in, size_t bytes);

#endif

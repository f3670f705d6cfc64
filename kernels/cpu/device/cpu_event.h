/* The events of the CPU device: see device_ops in device/device.h. */
#ifndef PHASOR_KERNELS_CPU_DEVICE_CPU_EVENT_H
#define PHASOR_KERNELS_CPU_DEVICE_CPU_EVENT_H

#include "device/device.h"

enum status cpu_event_create(struct device *device, struct event **out,
                             struct error *err) MUST_CHECK;
void cpu_event_destroy(struct device *device, struct event *event); /* NULL is allowed */
void cpu_event_record(struct stream *stream, struct event *event);
void cpu_event_wait(struct stream *stream, struct event *event);
void cpu_event_synchronize(struct event *event);

#endif

/* Devices and calls for the tests of streams. */
#ifndef PHASOR_TESTS_DEVICE_DEVICE_TOOLS_H
#define PHASOR_TESTS_DEVICE_DEVICE_TOOLS_H

#include <stdatomic.h>

#include "device/device.h"

/* Longer than the ring of a stream, so that the host has to wait for it. */
#define MANY_CALLS 2000

/* open_cpu.c: of so many threads, not pinned, without a turn; tests/cuda has another, which runs
 * the tests of streams and events, too. */
struct device *device_open(int thread_count);
struct stream *stream_open(struct device *device, enum stream_priority priority);
struct event *event_open(struct device *device);
void synchronize_ok(struct device *device, struct stream *stream);
void event_synchronize_ok(struct device *device, struct event *event);

void sleep_ms(long ms);

/* Returns when *flag has become `value`. */
void flag_wait(atomic_int *flag, int value);

/* ---- Calls ----------------------------------------------------------------------------------- */

/* Adds one to *flag. */
void put_count(struct device *device, struct stream *stream, atomic_int *flag);

/* Sets *entered (may be NULL) to 1, then waits for *opened to be 1. */
void put_gate(struct device *device, struct stream *stream, atomic_int *entered,
              atomic_int *opened);

/* Fails with STATUS_IO and the sentence. */
void put_failure(struct device *device, struct stream *stream, const char *sentence);

#endif

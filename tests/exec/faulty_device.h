/* One rank's device with a fault in it, between what is tested and the real one: its n-th operation
 * fails, or its host thread does, or a stream hangs. One device at a time. */
#ifndef PHASOR_TESTS_EXEC_FAULTY_DEVICE_H
#define PHASOR_TESTS_EXEC_FAULTY_DEVICE_H

#include "device/device.h"

struct comm_domain;

enum fault_kind {
    FAULT_STREAM, /* an operation fails on the stream */
    FAULT_HOST,   /* a synchronize fails: the host returns without what it should have done next,
                     while what it has put on the stream, FAULT_LATE_MS late, goes on */
    FAULT_HANG    /* an operation hangs until the run has ended */
};

#define FAULT_SENTENCE "a fault that the test put in"
#define FAULT_LATE_MS  20

/* Before anything takes the device's table of operations; nothing fails yet. */
void faulty_device_install(struct device *device, enum fault_kind kind);
void faulty_device_remove(struct device *device);

/* Of FAULT_HANG, under a clock that stands (clock.h): time passes once do_all_wait(context) says
 * that no other rank moves any more. */
void faulty_device_hang(struct comm_domain *domain, bool (*do_all_wait)(void *context),
                        void *context);

/* Calls with an argument of so many bytes count for none, nor do fills. */
void faulty_device_spare(size_t bytes);

/* The n-th operation from now on, once. */
void faulty_device_arm(int64_t n);

/* Whether it has come. */
bool faulty_device_has_failed(void);

/* Whether something goes on behind a synchronize that failed. */
bool faulty_device_is_busy(void);

#endif

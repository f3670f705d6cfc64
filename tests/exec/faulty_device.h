/* One rank's device with a fault in it, between what is tested and the real one: its n-th operation
 * fails, or its host thread does, or a stream hangs. One device at a time. */
#ifndef PHASOR_TESTS_EXEC_FAULTY_DEVICE_H
#define PHASOR_TESTS_EXEC_FAULTY_DEVICE_H

#include "device/device.h"

enum fault_kind {
    FAULT_STREAM, /* an operation fails on the stream */
    FAULT_HOST,   /* a synchronize fails: the host returns without what it should have done next,
                     while what it has put on the stream, FAULT_LATE_MS late, goes on */
    FAULT_HANG    /* an operation takes FAULT_HANG_SECONDS */
};

#define FAULT_SENTENCE     "a fault that the test put in"
#define FAULT_HANG_SECONDS 2
#define FAULT_LATE_MS      20

/* Before anything takes the device's table of operations; nothing fails yet. */
void faulty_device_install(struct device *device, enum fault_kind kind);
void faulty_device_remove(struct device *device);

/* Calls with an argument of so many bytes count for none. */
void faulty_device_spare(size_t bytes);

/* The n-th operation from now on, once. */
void faulty_device_arm(int64_t n);

/* Whether it has come. */
bool faulty_device_has_failed(void);

/* Whether something goes on behind a synchronize that failed. */
bool faulty_device_is_busy(void);

#endif

/* What a calibration has measured so far: taken up again when it was interrupted. One file,
 * replaced whole, beside the profile; its content is private to this version of phasor. */
#ifndef PHASOR_ENGINE_CALIBRATE_STORE_H
#define PHASOR_ENGINE_CALIBRATE_STORE_H

#include "engine/profile_file.h"
#include "measure/calm.h"

#define CALIBRATE_POINTS_MAX 65536

enum calibrate_rate {
    RATE_MEMORY,
    RATE_HOST_TO_DEVICE,
    RATE_DISK,
    RATE_PAGE_CACHE,
    RATE_CHECK,
    RATE_REPACK,
    RATE_HOST_STEP, /* seconds */
    RATE_HOST_TO_DEVICE_BUSY,
    RATE_COUNT
};

/* What was measured: numbers that tell it from all else. */
#define CALIBRATE_KEY_VALUES 9
struct calibrate_key {
    int64_t values[CALIBRATE_KEY_VALUES];
};
struct calibrate_key calibrate_key_of_work(const struct work_shape *work);
struct calibrate_key calibrate_key_of_collective(const struct collective_shape *shape);
struct calibrate_key calibrate_key_of_rate(enum calibrate_rate rate);

/* The same shape or message, looked at for the second time. */
struct calibrate_key calibrate_key_again(const struct calibrate_key *key);

/* Of a rate: `seconds` is the rate. */
struct calibrate_entry {
    struct calibrate_key key;
    struct profile_point point;
    enum calm_probe probe; /* behind it */
    double probe_seconds;  /* 0: nothing was probed */
};

struct calibrate_store {
    struct profile_identity identity;
    struct calibrate_entry *entries; /* of any order */
    size_t count, capacity;
};

/* NULL: it was not measured. Valid until the next is added. */
const struct calibrate_entry *calibrate_store_find(const struct calibrate_store *store,
                                                   const struct calibrate_key *key);
enum status calibrate_store_add(struct calibrate_store *store, const struct calibrate_entry *entry,
                                struct error *err) MUST_CHECK;
void calibrate_store_deinit(struct calibrate_store *store); /* a zero one is allowed */

/* As profile_file_read and profile_file_write. */
enum status calibrate_store_read(struct calibrate_store *out, const char *path,
                                 struct error *err) MUST_CHECK;
enum status calibrate_store_parse(struct calibrate_store *out, const char *bytes, size_t length,
                                  const char *name, struct error *err) MUST_CHECK;
enum status calibrate_store_write(const struct calibrate_store *store, const char *path,
                                  struct error *err) MUST_CHECK;

#endif

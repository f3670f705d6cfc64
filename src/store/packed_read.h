/* From a checkpoint's file into the packing: a block of a weight, read in pieces that stay in a
 * core's cache, converted and packed into its place. What loads a model and what reloads a slice.
 */
#ifndef PHASOR_STORE_PACKED_READ_H
#define PHASOR_STORE_PACKED_READ_H

#include <stdatomic.h>

#include "device/device.h"
#include "layout/packing.h"
#include "model/checkpoint.h"

/* A block and where it goes. A range of 16-blocks of a larger packed matrix is a block like any
 * other: its place is where the first of them begins. */
struct packed_block {
    enum weight weight;
    int64_t layer, expert; /* 0 where the weight has none */
    struct block block;    /* of the weight as it lies on disk; a vector is one row */
    bool is_vector;        /* f32, not packed, padded with zeros to a multiple of 16 */
    enum packing packing;
    enum dtype dtype; /* in memory: DTYPE_F32, DTYPE_BF16 or DTYPE_INT4 */
    void *place;      /* packed_bytes of the block, or of a vector; the device's memory */
    uint16_t *scales; /* int4: in groups of INT4_GROUP */
};

/* What the largest pieces of some blocks need. */
struct packed_room {
    int64_t read_bytes;   /* as on disk, and again in the target type (int4: f32) */
    int64_t packed_bytes; /* as they are in the block's place */
};
void packed_room_add(struct packed_room *room, const struct packed_block *block);

/* What a thread reads through: half a MiB for each of the above, or what is packed together. Where
 * the host does not reach the device's memory a piece is packed into memory for copies, and
 * uploaded before the next is read: so there is no second copy of more than a piece. */
struct packed_staging {
    struct device *device;
    struct packed_room room;
    char *read;         /* [2][read_bytes] */
    char *packed;       /* [packed_bytes]; NULL: blocks are packed where they go */
    bool device_failed; /* the last packed_read, and it was the upload */
};

/* Of the host that it takes on the device. */
uint64_t packed_staging_bytes(const struct packed_room *room, const struct device *device);

/* Zeros; what a failure leaves, deinit frees. */
enum status packed_staging_init(struct packed_staging *staging, struct device *device,
                                const struct packed_room *room, struct error *err) MUST_CHECK;
void packed_staging_deinit(struct packed_staging *staging); /* zeros are allowed */

/* Who is told of bytes that have been read from the files, and may end the reading by a failure;
 * `report` may be NULL. The nanoseconds that reads took are added to `read_ns`; NULL: nobody wants
 * to know. */
struct packed_read_progress {
    enum status (*report)(void *context, uint64_t bytes, struct error *err);
    void *context;
    atomic_uint_fast64_t *read_ns;
};

/* Reads the block and packs it, padding included, through staging that has room for it.
 * STATUS_FORMAT for a number that int4 cannot hold; else as checkpoint_read_block, `report` or an
 * upload fails. After a failure the place holds anything. Thread-safe for blocks that do not
 * overlap, each through staging of its own. */
enum status packed_read(const struct checkpoint *checkpoint, const struct packed_block *block,
                        struct packed_staging *staging, const struct packed_read_progress *progress,
                        struct error *err) MUST_CHECK;

#endif

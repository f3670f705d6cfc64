/* From a checkpoint's file into the packing: a block of a weight, read in pieces that stay in a
 * core's cache, converted and packed into its place. What loads a model and what reloads a slice.
 */
#ifndef PHASOR_STORE_PACKED_READ_H
#define PHASOR_STORE_PACKED_READ_H

#include <stdatomic.h>

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
    void *place;      /* packed_bytes of the block, or of a vector */
    uint16_t *scales; /* int4: in groups of INT4_GROUP */
};

/* Bytes of staging, twice, that packed_read needs for a block. */
int64_t packed_read_staging(const struct packed_block *block);

/* Who is told of bytes that have been read from the files, and may end the reading by a failure;
 * `report` may be NULL. The nanoseconds that reads took are added to `read_ns`; NULL: nobody wants
 * to know. */
struct packed_read_progress {
    enum status (*report)(void *context, uint64_t bytes, struct error *err);
    void *context;
    atomic_uint_fast64_t *read_ns;
};

/* Reads the block and packs it, padding included. `staging` is [2][staging_bytes], at least what
 * packed_read_staging says. STATUS_FORMAT for a number that int4 cannot hold; else as
 * checkpoint_read_block or `report` fails. After a failure the place holds anything. Thread-safe
 * for blocks that do not overlap. */
enum status packed_read(const struct checkpoint *checkpoint, const struct packed_block *block,
                        char *staging, int64_t staging_bytes,
                        const struct packed_read_progress *progress, struct error *err) MUST_CHECK;

#endif

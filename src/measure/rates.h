/* What reading a file, checking and repacking it reach, where all ranks of a box do it at once. */
#ifndef PHASOR_MEASURE_RATES_H
#define PHASOR_MEASURE_RATES_H

#include "comm/box.h"

/* Bytes a second. */
struct read_rates {
    double disk;       /* all ranks together, past the page cache */
    double page_cache; /* likewise, of what is in it */
};

/* Writes a file `path` of `bytes` (a multiple of 4 MiB), reads it, and takes it away; there must be
 * none of that name. The disk's rate is that of the page cache where the file system is in memory,
 * or has no reads past the cache. */
enum status rates_read(struct read_rates *out, struct box *box, const char *path, int64_t bytes,
                       struct error *err) MUST_CHECK;

/* Of a rank with all its threads, all ranks at once: XXH3, as granules of a backup are checked. */
enum status rates_check(double *out, struct box *box, struct error *err) MUST_CHECK;

/* Likewise, of bf16 weights as a checkpoint has them into the packing, from a core's cache. */
enum status rates_repack(double *out, struct box *box, struct error *err) MUST_CHECK;

#endif

/* A backup that is being written: FILE.phasor-part beside FILE, which it becomes when it is whole.
 *
 * Granules may be written by several threads and in any order (with zstd they are placed in order).
 * A process that is killed leaves the part file: the next one goes on behind the granules that are
 * whole, which it tells by their checksums. One process at a time: the file is locked. */
#ifndef PHASOR_QUANT_BACKUP_PART_H
#define PHASOR_QUANT_BACKUP_PART_H

#include "quant/backup_file.h"

#define BACKUP_PART_SUFFIX ".phasor-part"

struct backup_part {
    const struct backup_form *form; /* borrowed */
    char *path, *name;              /* of the backup; of the part file */
    int fd;
    uint64_t left_bytes;        /* of the file, when it was opened */
    struct backup_entry *index; /* with zstd [granule_count] */
    uint64_t end;               /* with zstd: behind the last granule that has a place */
};

/* Opens or makes the part file of `path`. What is there and is not the beginning of this backup is
 * begun anew; what is no part of a backup at all is refused and left alone. */
enum status backup_part_open(struct backup_part *out, const char *path,
                             const struct backup_form *form, struct error *err) MUST_CHECK;

/* Leaves the part file where it is. */
void backup_part_close(struct backup_part *part);

/* How many granules an earlier run may have left, from the first on, as far as sizes and index
 * tell.
 */
int64_t backup_part_left(const struct backup_part *part);

/* Whether one of those is whole; then its trailer. `bytes` and `scratch` as in backup_granule_read.
 * Thread-safe. */
bool backup_part_has(const struct backup_part *part, int64_t number, void *bytes, void *scratch,
                     struct backup_trailer *trailer);

/* Goes on behind the first `count` of them. */
void backup_part_keep(struct backup_part *part, int64_t count);

/* The place of a granule. With zstd they are placed one after the other, from the first that is
 * not kept. */
uint64_t backup_part_place(struct backup_part *part, int64_t number, int64_t stored_bytes);

/* Writes a granule to its place, padding included. Thread-safe for different granules. */
enum status backup_part_put(struct backup_part *part, int64_t number, uint64_t offset,
                            const void *bytes, int64_t stored_bytes, struct error *err) MUST_CHECK;

/* All granules are there: brings them to the disk and renames the file. On failure it stays a part
 * file, to be gone on with. */
enum status backup_part_finish(struct backup_part *part, struct error *err) MUST_CHECK;

#endif

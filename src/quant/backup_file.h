/* Reading a backup: its numbers are checked when it is opened, each granule before it is used. */
#ifndef PHASOR_QUANT_BACKUP_FILE_H
#define PHASOR_QUANT_BACKUP_FILE_H

#include "quant/backup_format.h"

struct backup;

/* Opens a complete backup and checks its header, size and index. Memory: the index of one with zstd
 * (16 bytes a granule, and no more than the file has), nothing else. */
enum status backup_open(struct backup **out, const char *path, struct error *err) MUST_CHECK;
void backup_close(struct backup *backup); /* NULL is allowed */

/* Whether it was made of this checkpoint: STATUS_INVALID_ARGUMENT, and what differs, if not. */
enum status backup_match(const struct backup *backup, const struct model_config *config,
                         const struct fingerprint *fingerprint, struct error *err) MUST_CHECK;

const struct backup_form *backup_form(const struct backup *backup);
uint64_t backup_file_bytes(const struct backup *backup);

/* What backup_granule counts layers by: how many before `layer` have experts; `layer` has. */
int64_t backup_moe_layer(const struct model_config *config, int64_t layer);

/* Where a granule lies: so many bytes (a multiple of BACKUP_PAGE) at `offset` (the same). */
uint64_t backup_granule_offset(const struct backup *backup, int64_t number);
int64_t backup_granule_bytes(const struct backup *backup, int64_t number);
int64_t backup_granule_bytes_max(const struct backup *backup);

/* Of them, what stands before the trailer: the content, or what zstd made of it. */
int64_t backup_granule_stored(const struct backup *backup, int64_t number);

/* For reads of the caller's own (see backup_fd): checks the bytes of a granule and gives its
 * content, in `bytes` themselves or, with zstd, in `scratch` [content_bytes] (which may be NULL
 * without); both are aligned to 8. STATUS_FORMAT when it is damaged, STATUS_NO_MEMORY when
 * zstd has none. Thread-safe. */
enum status backup_granule_check(const void **content, const struct backup *backup, int64_t number,
                                 const void *bytes, void *scratch, struct error *err) MUST_CHECK;

/* The same, with the read before it: `bytes` [backup_granule_bytes_max]. */
enum status backup_granule_read(const void **content, const struct backup *backup, int64_t number,
                                void *bytes, void *scratch, struct error *err) MUST_CHECK;

/* Of a granule that was checked. */
struct backup_trailer backup_granule_trailer(const struct backup *backup, int64_t number,
                                             const void *bytes);

int backup_fd(const struct backup *backup);
const char *backup_path(const struct backup *backup);

/* A part of a file that is being written, too: without the demand that it be complete, and with
 * `form` and `index` (NULL without zstd) given. Its `fd` is the caller's. */
struct backup_source {
    const struct backup_form *form;
    const struct backup_entry *index;
    int fd;
    const char *path;
    uint64_t file_bytes;
};
bool backup_source_has(const struct backup_source *source, int64_t number, void *bytes,
                       void *scratch, struct backup_trailer *trailer);

#endif

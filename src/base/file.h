/* Reading files that may shrink, lie or vanish. */
#ifndef PHASOR_BASE_FILE_H
#define PHASOR_BASE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Reads a regular file of at most `bytes_max` into fresh memory (memory_free; a NUL stands behind
 * the last byte and is not counted). Larger files give STATUS_LIMIT before anything is read. */
enum status file_read_whole(char **out, size_t *length, const char *path, size_t bytes_max,
                            struct error *err) MUST_CHECK;

/* The sentence for a read that got nothing at `offset`, where `left` bytes were expected; the file
 * may have ended before that. */
enum status file_ended_early(int fd, const char *path, uint64_t offset, size_t left,
                             struct error *err);

/* Reads exactly `bytes` at `offset` of an open file into `out`. EINTR and short reads go on; a file
 * that ends early is STATUS_FORMAT naming `path` and the offset where it ended. Thread-safe. */
enum status file_read_at(int fd, const char *path, uint64_t offset, void *out, size_t bytes,
                         struct error *err) MUST_CHECK;

/* Has the system read these bytes ahead, for a file_read_at that comes soon. A hint: it never
 * fails, and of more bytes than the disk's own read-ahead (mostly 128 KiB) the system takes only so
 * many. Thread-safe. */
void file_read_ahead(int fd, uint64_t offset, uint64_t bytes);

/* Whether the byte at `offset` is in the page cache; false where the file's system cannot tell. If
 * not, the system may begin to read it. Thread-safe. */
bool file_is_cached(int fd, uint64_t offset);

/* The name of the file behind all links, which is to be replaced where `path` is: `path` itself
 * where nothing is there. False with errno, also for a link to a file that is not there. */
bool file_resolve(char out[PATH_MAX], const char *path);

/* Whether `path` is a link to a file that is not there. */
bool file_is_dangling(const char *path);

#endif

/* A part of a file, held in memory that the system may not page out: where it fits, reads cost
 * nothing any more. One for all ranks of a process. */
#ifndef PHASOR_IO_LOCKED_FILE_H
#define PHASOR_IO_LOCKED_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/numa.h"
#include "base/status.h"

struct locked_file;

struct locked_file_params {
    int fd;
    const char *path;
    uint64_t offset, bytes;  /* of the file; bytes >= 1 */
    struct numa_nodes nodes; /* on which it lies, by turns; none: anywhere */
};

/* Takes and locks memory; nothing is read yet. STATUS_UNSUPPORTED: the process may not lock so
 * much; the sentence names the limit. STATUS_NO_MEMORY: there is not so much. `fd` and `path` are
 * borrowed for locked_file_load. */
enum status locked_file_create(struct locked_file **out, const struct locked_file_params *params,
                               struct error *err) MUST_CHECK;
void locked_file_destroy(struct locked_file *locked); /* NULL is allowed */

/* Reads the share of one of `share_count` loaders (0 <= share < share_count): all shares together
 * are all that is held. Each by a thread of its own, at the same time. What was read is dropped
 * from the page cache. Fails as file_read_at does; the other shares then end early, with STATUS_OK,
 * as all of it is of no use. */
enum status locked_file_load(struct locked_file *locked, int share, int share_count,
                             struct error *err) MUST_CHECK;

/* All of it, for who pins it for a device: until it is destroyed. */
void *locked_file_memory(const struct locked_file *locked);
uint64_t locked_file_bytes(const struct locked_file *locked);

/* Whether it holds so many bytes at an offset of the file, and where; they were loaded. */
bool locked_file_has(const struct locked_file *locked, uint64_t offset, uint64_t bytes);
const char *locked_file_at(const struct locked_file *locked, uint64_t offset);

#endif

#define _GNU_SOURCE
#include "io/locked_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/system.h"

/* What one read takes; shares begin at multiples of it. */
#define PIECE_BYTES ((uint64_t)4 << 20)

struct locked_file {
    int fd;
    const char *path;
    uint64_t offset, bytes;
    char *memory;           /* [bytes] */
    atomic_bool has_failed; /* a share of it */
};

static enum status not_locked(int failure, uint64_t bytes, struct error *err)
{
    uint64_t limit = system_memory_lockable();
    if (limit < bytes)
        return error_set(err, STATUS_UNSUPPORTED,
                         "cannot lock %llu MiB in memory: the limit allows %llu MiB more (ulimit "
                         "-l, LimitMEMLOCK=)",
                         (unsigned long long)bytes >> 20, (unsigned long long)limit >> 20);
    return error_set(err, STATUS_UNSUPPORTED, "cannot lock %llu MiB in memory: %s",
                     (unsigned long long)bytes >> 20, strerror(failure));
}

enum status locked_file_create(struct locked_file **out, const struct locked_file_params *params,
                               struct error *err)
{
    struct locked_file *locked;
    enum status status;
    uint64_t bytes = params->bytes;
    ASSERT(bytes >= 1);
    TRY(memory_get((void **)&locked, 1, sizeof *locked, "a file in memory", err));
    *locked = (struct locked_file){
        .fd = params->fd, .path = params->path, .offset = params->offset, .bytes = bytes};
    TRY_GOTO(memory_pages_get((void **)&locked->memory, (size_t)bytes, "a file in memory", err),
             free_locked);
    numa_interleave(locked->memory, memory_pages_bytes((size_t)bytes), &params->nodes);
    if (mlock2(locked->memory, (size_t)bytes, 0) != 0) { /* mlock does nothing under sanitizers */
        status = not_locked(errno, bytes, err);
        goto free_memory;
    }
    *out = locked;
    return STATUS_OK;

free_memory:
    memory_pages_free(locked->memory, (size_t)bytes);
free_locked:
    memory_free(locked);
    return status;
}

/* Unmapping unlocks. */
void locked_file_destroy(struct locked_file *locked)
{
    if (locked == NULL)
        return;
    memory_pages_free(locked->memory, (size_t)locked->bytes);
    memory_free(locked);
}

enum status locked_file_load(struct locked_file *locked, int share, int share_count,
                             struct error *err)
{
    uint64_t pieces = (locked->bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    uint64_t first = pieces * (uint64_t)share / (uint64_t)share_count;
    uint64_t end = pieces * ((uint64_t)share + 1) / (uint64_t)share_count;
    ASSERT(share >= 0 && share < share_count);
    for (uint64_t at = first * PIECE_BYTES; at < end * PIECE_BYTES; at += PIECE_BYTES) {
        uint64_t left = locked->bytes - at, bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        if (atomic_load(&locked->has_failed))
            return STATUS_OK;
        enum status status = file_read_at(locked->fd, locked->path, locked->offset + at,
                                          locked->memory + at, (size_t)bytes, err);
        if (status != STATUS_OK) {
            atomic_store(&locked->has_failed, true);
            return status;
        }
        posix_fadvise(locked->fd, (off_t)(locked->offset + at), (off_t)bytes, POSIX_FADV_DONTNEED);
    }
    return STATUS_OK;
}

void *locked_file_memory(const struct locked_file *locked)
{
    return locked->memory;
}

uint64_t locked_file_bytes(const struct locked_file *locked)
{
    return locked->bytes;
}

bool locked_file_has(const struct locked_file *locked, uint64_t offset, uint64_t bytes)
{
    return offset >= locked->offset && checked_range(offset - locked->offset, bytes, locked->bytes);
}

const char *locked_file_at(const struct locked_file *locked, uint64_t offset)
{
    ASSERT(locked_file_has(locked, offset, 0));
    return locked->memory + (offset - locked->offset);
}

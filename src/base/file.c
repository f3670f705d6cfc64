#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/memory.h"

enum status file_ended_early(int fd, const char *path, uint64_t offset, size_t left,
                             struct error *err)
{
    struct stat stat;
    uint64_t end = offset;
    if (fstat(fd, &stat) == 0 && (uint64_t)stat.st_size < offset)
        end = (uint64_t)stat.st_size;
    return error_set(err, STATUS_FORMAT,
                     "%s ends at byte %llu, where %llu more bytes were expected; it was cut or is "
                     "still being written",
                     path, (unsigned long long)end, (unsigned long long)(offset - end + left));
}

enum status file_read_at(int fd, const char *path, uint64_t offset, void *out, size_t bytes,
                         struct error *err)
{
    char *at = out;
    size_t left = bytes;
    while (left > 0) {
        ssize_t got = disk_read_at(fd, at, left, (off_t)offset);
        if (got < 0 && errno == EAGAIN)
            continue;
        if (got < 0)
            return error_set_errno(err, errno, "cannot read %s at byte %llu", path,
                                   (unsigned long long)offset);
        if (got == 0)
            return file_ended_early(fd, path, offset, left, err);
        at += got;
        left -= (size_t)got;
        offset += (uint64_t)got;
    }
    return STATUS_OK;
}

void file_read_ahead(int fd, uint64_t offset, uint64_t bytes)
{
    if (bytes == 0)
        return; /* 0 would be all to the end */
    (void)posix_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
}

/* RWF_NOWAIT reads what is in the page cache; where it finds nothing, kernels of late begin to read
 * ahead, too. */
bool file_is_cached(int fd, uint64_t offset)
{
    char byte;
    struct iovec one = {&byte, sizeof byte};
    return preadv2(fd, &one, 1, (off_t)offset, RWF_NOWAIT) == 1;
}

enum status file_read_whole(char **out, size_t *length, const char *path, size_t bytes_max,
                            struct error *err)
{
    char *bytes = NULL;
    /* O_NONBLOCK: opening a FIFO without a writer must not hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot open %s", path);
    enum status status = STATUS_OK;
    struct stat stat;
    if (fstat(fd, &stat) != 0) {
        status = error_set_errno(err, errno, "cannot stat %s", path);
        goto close_file;
    }
    if (!S_ISREG(stat.st_mode)) {
        status = error_set(err, STATUS_FORMAT, "%s is not a regular file", path);
        goto close_file;
    }
    if ((uint64_t)stat.st_size > bytes_max) {
        status = error_set(err, STATUS_LIMIT, "%s has %lld bytes; at most %zu are accepted", path,
                           (long long)stat.st_size, bytes_max);
        goto close_file;
    }
    size_t size = (size_t)stat.st_size;
    TRY_GOTO(memory_get_raw((void **)&bytes, size + 1, 1, path, err), close_file);
    TRY_GOTO(file_read_at(fd, path, 0, bytes, size, err), free_bytes);
    bytes[size] = 0;
    *out = bytes;
    *length = size;
    close(fd);
    return STATUS_OK;

free_bytes:
    memory_free(bytes);
close_file:
    close(fd);
    return status;
}

bool file_is_dangling(const char *path)
{
    struct stat about;
    return stat(path, &about) != 0 && lstat(path, &about) == 0 && S_ISLNK(about.st_mode);
}

bool file_resolve(char out[PATH_MAX], const char *path)
{
    if (realpath(path, out) != NULL)
        return true;
    if (errno != ENOENT || file_is_dangling(path))
        return false;
    if (snprintf(out, PATH_MAX, "%s", path) < PATH_MAX)
        return true;
    errno = ENAMETOOLONG;
    return false;
}

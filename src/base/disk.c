#include "base/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static const struct disk_hooks *hooks;
static bool sees_reads;
/* With hooks, operations of several threads come one after the other, so that they have numbers. */
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;

void disk_hooks_set(const struct disk_hooks *new_hooks)
{
    hooks = new_hooks;
}

void disk_hooks_see_reads(bool do_see)
{
    sees_reads = do_see;
}

static bool is_seen(enum disk_op op)
{
    return hooks != NULL && (op != DISK_READ || sees_reads);
}

/* -1 with errno when the operation is to fail. */
static int before(enum disk_op op, size_t *length)
{
    if (!is_seen(op))
        return 0;
    pthread_mutex_lock(&order);
    int failure = hooks->before(hooks->context, op, length);
    if (failure == 0)
        return 0;
    pthread_mutex_unlock(&order);
    errno = failure;
    return -1;
}

static void after(enum disk_op op)
{
    if (!is_seen(op))
        return;
    int failure = errno;
    hooks->after(hooks->context, op);
    pthread_mutex_unlock(&order);
    errno = failure;
}

ssize_t disk_write(int fd, const void *bytes, size_t length)
{
    ssize_t put;
    if (before(DISK_WRITE, &length) != 0)
        return -1;
    do
        put = write(fd, bytes, length);
    while (put < 0 && errno == EINTR);
    after(DISK_WRITE);
    return put;
}

ssize_t disk_write_at(int fd, const void *bytes, size_t length, off_t offset)
{
    ssize_t put;
    if (before(DISK_WRITE, &length) != 0)
        return -1;
    do
        put = pwrite(fd, bytes, length, offset);
    while (put < 0 && errno == EINTR);
    after(DISK_WRITE);
    return put;
}

ssize_t disk_read_at(int fd, void *bytes, size_t length, off_t offset)
{
    ssize_t got;
    if (before(DISK_READ, &length) != 0)
        return -1;
    do
        got = pread(fd, bytes, length, offset);
    while (got < 0 && errno == EINTR);
    after(DISK_READ);
    return got;
}

int disk_sync(int fd)
{
    int result;
    if (before(DISK_SYNC, NULL) != 0)
        return -1;
    do
        result = fdatasync(fd);
    while (result != 0 && errno == EINTR);
    after(DISK_SYNC);
    return result;
}

int disk_rename(const char *from, const char *to)
{
    if (before(DISK_RENAME, NULL) != 0)
        return -1;
    int result = rename(from, to);
    after(DISK_RENAME);
    return result;
}

int disk_truncate(int fd, off_t length)
{
    int result;
    if (before(DISK_TRUNCATE, NULL) != 0)
        return -1;
    do
        result = ftruncate(fd, length);
    while (result != 0 && errno == EINTR);
    after(DISK_TRUNCATE);
    return result;
}

int disk_sync_folder_of(const char *path)
{
    char copy[PATH_MAX];
    if (snprintf(copy, sizeof copy, "%s", path) >= (int)sizeof copy) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ? 0 : -1; /* one may write into a folder that one may not read */
    int result = disk_sync(fd);
    int failure = errno;
    close(fd);
    errno = failure;
    /* Some file systems cannot sync a folder: then there is nothing more to be done. */
    return result != 0 && failure == EINVAL ? 0 : result;
}

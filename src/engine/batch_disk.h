/* Every operation by which a run of a batch changes files. Tests count them, let one fail, or end
 * the process before or after one; the program has no way to. */
#ifndef PHASOR_ENGINE_BATCH_DISK_H
#define PHASOR_ENGINE_BATCH_DISK_H

#include <stddef.h>
#include <sys/types.h>

enum disk_op { DISK_WRITE, DISK_SYNC, DISK_RENAME, DISK_TRUNCATE };

/* As write, fdatasync, rename and ftruncate: -1 and errno on failure. EINTR is not given.
 */
ssize_t disk_write(int fd, const void *bytes, size_t length);
int disk_sync(int fd);
int disk_rename(const char *from, const char *to);
int disk_truncate(int fd, off_t length);

/* Brings the names in the folder of `path` to the disk: what was created or renamed. */
int disk_sync_folder_of(const char *path);

/* Tests only. Called from any thread that writes, but never from two at once. */
struct disk_hooks {
    /* 0, or the errno with which the operation fails instead. A write may be made shorter. */
    int (*before)(void *context, enum disk_op op, size_t *length);
    void (*after)(void *context, enum disk_op op);
    void *context;
};
void disk_hooks_set(const struct disk_hooks *hooks); /* borrowed; NULL: none; between runs */

#endif

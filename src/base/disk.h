/* Every operation by which a run of a batch or a quantizer changes files, and reads at a place.
 * Tests count them, let one fail, or end the process before or after one; the program has no way
 * to. */
#ifndef PHASOR_BASE_DISK_H
#define PHASOR_BASE_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum disk_op { DISK_WRITE, DISK_SYNC, DISK_RENAME, DISK_TRUNCATE, DISK_READ };

/* As write, pwrite, pread, fdatasync, rename and ftruncate: -1 and errno on failure. EINTR is not
 * given. */
ssize_t disk_write(int fd, const void *bytes, size_t length);
ssize_t disk_write_at(int fd, const void *bytes, size_t length, off_t offset);
ssize_t disk_read_at(int fd, void *bytes, size_t length, off_t offset);
int disk_sync(int fd);
int disk_rename(const char *from, const char *to);
int disk_truncate(int fd, off_t length);

/* Brings the names in the folder of `path` to the disk: what was created or renamed. */
int disk_sync_folder_of(const char *path);

/* Tests only. Called from any thread that writes, but never from two at once. */
struct disk_hooks {
    /* 0, or the errno with which the operation fails instead. A write or read may be made shorter.
     */
    int (*before)(void *context, enum disk_op op, size_t *length);
    void (*after)(void *context, enum disk_op op);
    void *context;
};
void disk_hooks_set(const struct disk_hooks *hooks); /* borrowed; NULL: none; between runs */
void disk_hooks_see_reads(bool do_see);              /* DISK_READ, too; not at first */

#endif

#include "quant/backup_part.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include "base/disk.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"

#define ATTEMPTS_MAX 10

/* ---- Writing ------------------------------------------------------------------------------- */

static enum status write_all(const struct backup_part *part, const void *bytes, uint64_t count,
                             uint64_t offset, struct error *err)
{
    const char *at = bytes;
    while (count > 0) {
        ssize_t put = disk_write_at(part->fd, at, count, (off_t)offset);
        if (put <= 0)
            return error_set_errno(err, put == 0 ? ENOSPC : errno,
                                   "cannot write %s at byte %llu (what was written stays, and the "
                                   "same command goes on from there)",
                                   part->name, (unsigned long long)offset);
        at += put;
        count -= (uint64_t)put;
        offset += (uint64_t)put;
    }
    return STATUS_OK;
}

static enum status begin_anew(struct backup_part *part, struct error *err)
{
    struct backup_header header;
    if (disk_truncate(part->fd, 0) != 0)
        return error_set_errno(err, errno, "cannot empty %s", part->name);
    backup_header_write(&header, part->form, false, 0, 0);
    return write_all(part, &header, sizeof header, 0, err);
}

/* ---- Opening ------------------------------------------------------------------------------- */

/* 1 when it is open and locked, 0 when it has gone meanwhile (its owner has finished), -1 with
 * errno on failure. */
static int open_locked(struct backup_part *part)
{
    struct stat here, there;
    part->fd = open(part->name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (part->fd < 0)
        return -1;
    if (flock(part->fd, LOCK_EX | LOCK_NB) != 0 || fstat(part->fd, &here) != 0)
        return -1;
    if (stat(part->name, &there) == 0 && here.st_ino == there.st_ino && here.st_dev == there.st_dev)
        return 1;
    close(part->fd);
    part->fd = -1;
    return 0;
}

static enum status open_file(struct backup_part *part, struct error *err)
{
    int answer = 0;
    for (int i = 0; i < ATTEMPTS_MAX && answer == 0; i++)
        answer = open_locked(part);
    if (answer > 0)
        return STATUS_OK;
    if (answer < 0 && errno == EWOULDBLOCK)
        return error_set(
            err, STATUS_IO,
            "another phasor is writing %s; wait until it has finished, then the backup "
            "is there",
            part->name);
    return error_set_errno(err, answer == 0 ? EBUSY : errno, "cannot create %s", part->name);
}

/* Whether the file begins as this backup does. */
static enum status look(bool *is_same, struct backup_part *part, struct error *err)
{
    struct stat stat;
    struct backup_header header;
    struct backup_form form;
    struct error ignored;
    *is_same = false;
    if (fstat(part->fd, &stat) != 0)
        return error_set_errno(err, errno, "cannot stat %s", part->name);
    if (!S_ISREG(stat.st_mode))
        return error_set(err, STATUS_IO, "%s is not a regular file", part->name);
    if (stat.st_size == 0)
        return STATUS_OK;
    size_t length = stat.st_size < (off_t)sizeof header ? (size_t)stat.st_size : sizeof header;
    TRY(file_read_at(part->fd, part->name, 0, &header, length, err));
    size_t magic = length < sizeof header.magic ? length : sizeof header.magic;
    if (memcmp(&header, BACKUP_MAGIC, magic) != 0)
        return error_set(err, STATUS_IO,
                         "%s is in the way: it is no part of a backup; remove it, or write "
                         "somewhere else",
                         part->name);
    *is_same = length == sizeof header &&
               backup_header_read(&form, &header, part->name, &ignored) == STATUS_OK &&
               backup_form_is_same(&form, part->form);
    if (*is_same)
        part->left_bytes = (uint64_t)stat.st_size;
    return STATUS_OK;
}

/* As far as it was written; the rest is zeros. */
static enum status read_index(struct backup_part *part, struct error *err)
{
    int64_t there = (int64_t)part->left_bytes - BACKUP_PAGE;
    int64_t wanted = part->form->granule_count * (int64_t)sizeof *part->index;
    there = there < wanted ? there : wanted;
    if (there <= 0)
        return STATUS_OK;
    return file_read_at(part->fd, part->name, BACKUP_PAGE, part->index, (size_t)there, err);
}

static enum status prepare(struct backup_part *part, struct error *err)
{
    bool is_same;
    TRY(open_file(part, err));
    TRY(look(&is_same, part, err));
    if (part->form->settings.has_zstd)
        TRY(memory_get((void **)&part->index, (size_t)part->form->index_bytes, 1,
                       "the index of a backup", err));
    if (!is_same)
        return begin_anew(part, err);
    return part->index == NULL ? STATUS_OK : read_index(part, err);
}

enum status backup_part_open(struct backup_part *out, const char *path,
                             const struct backup_form *form, struct error *err)
{
    struct text name = {0};
    struct backup_part part = {.form = form, .fd = -1, .end = (uint64_t)form->data_offset};
    enum status status;
    text_append_string(&name, path);
    text_append_string(&name, BACKUP_PART_SUFFIX);
    part.path = memory_copy_text(path, strlen(path));
    part.name = name.bytes;
    status = text_check(&name, "the name of a file", err);
    if (status == STATUS_OK && part.path == NULL)
        status = error_set(err, STATUS_NO_MEMORY, "cannot allocate a path for %s", path);
    if (status == STATUS_OK)
        status = prepare(&part, err);
    if (status == STATUS_OK)
        *out = part;
    else
        backup_part_close(&part);
    return status;
}

void backup_part_close(struct backup_part *part)
{
    if (part->fd >= 0)
        close(part->fd); /* and unlocks */
    memory_free(part->index);
    memory_free(part->path);
    memory_free(part->name);
    *part = (struct backup_part){.fd = -1};
}

/* ---- Granules ------------------------------------------------------------------------------ */

int64_t backup_part_left(const struct backup_part *part)
{
    uint64_t end = (uint64_t)part->form->data_offset;
    int64_t count = 0;
    for (; count < part->form->granule_count && end < part->left_bytes; count++) {
        int64_t stored = part->form->content_bytes;
        if (part->index != NULL) {
            const struct backup_entry *entry = &part->index[count];
            if (entry->offset != end || entry->stored_bytes > part->left_bytes)
                break;
            stored = (int64_t)entry->stored_bytes;
        }
        end += (uint64_t)backup_granule_span(stored);
    }
    return count;
}

bool backup_part_has(const struct backup_part *part, int64_t number, void *bytes, void *scratch,
                     struct backup_trailer *trailer)
{
    const struct backup_source source = {.form = part->form,
                                         .index = part->index,
                                         .fd = part->fd,
                                         .path = part->name,
                                         .file_bytes = part->left_bytes};
    return backup_source_has(&source, number, bytes, scratch, trailer);
}

void backup_part_keep(struct backup_part *part, int64_t count)
{
    part->end = (uint64_t)part->form->data_offset;
    for (int64_t i = 0; part->index != NULL && i < count; i++)
        part->end += (uint64_t)backup_granule_span((int64_t)part->index[i].stored_bytes);
}

uint64_t backup_part_place(struct backup_part *part, int64_t number, int64_t stored_bytes)
{
    int64_t span = backup_granule_span(stored_bytes);
    if (part->index == NULL)
        return (uint64_t)(part->form->data_offset + number * span);
    uint64_t offset = part->end;
    part->index[number] = (struct backup_entry){offset, (uint64_t)stored_bytes};
    part->end += (uint64_t)span;
    return offset;
}

/* The index comes after the granule: an entry tells that it was written. */
enum status backup_part_put(struct backup_part *part, int64_t number, uint64_t offset,
                            const void *bytes, int64_t stored_bytes, struct error *err)
{
    uint64_t span = (uint64_t)backup_granule_span(stored_bytes);
    TRY(write_all(part, bytes, span, offset, err));
    if (part->index == NULL)
        return STATUS_OK;
    return write_all(part, &part->index[number], sizeof *part->index,
                     BACKUP_PAGE + (uint64_t)number * sizeof *part->index, err);
}

/* What the file has behind its last granule, of an earlier try. */
static enum status cut(struct backup_part *part, uint64_t file_bytes, struct error *err)
{
    if (disk_truncate(part->fd, (off_t)file_bytes) == 0)
        return STATUS_OK;
    return error_set_errno(err, errno, "cannot cut %s", part->name);
}

enum status backup_part_finish(struct backup_part *part, struct error *err)
{
    const struct backup_form *form = part->form;
    struct backup_header header;
    uint64_t checksum = 0, file_bytes = part->end;
    if (part->index == NULL) /* granules of one size */
        file_bytes = (uint64_t)(form->data_offset +
                                form->granule_count * backup_granule_span(form->content_bytes));
    if (part->index != NULL) {
        checksum = XXH3_64bits(part->index, (size_t)form->index_bytes);
        TRY(write_all(part, part->index, (uint64_t)form->index_bytes, BACKUP_PAGE, err));
    }
    TRY(cut(part, file_bytes, err));
    backup_header_write(&header, form, true, file_bytes, checksum);
    TRY(write_all(part, &header, sizeof header, 0, err));
    if (disk_sync(part->fd) != 0)
        return error_set_errno(err, errno, "cannot bring %s to the disk", part->name);
    if (disk_rename(part->name, part->path) != 0)
        return error_set_errno(err, errno, "cannot rename %s to %s", part->name, part->path);
    if (disk_sync_folder_of(part->path) != 0)
        return error_set_errno(err, errno, "cannot bring the name %s to the disk", part->path);
    return STATUS_OK;
}

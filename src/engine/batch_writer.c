#include "engine/batch_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/system.h"

#define SYNC_SECONDS 1.0

struct target {
    int fd; /* -1: not open */
    const char *name;
    bool is_regular; /* can be synced, locked and cut */
    bool was_created;
    bool is_dirty;
};

struct batch_writer {
    struct target targets[2]; /* by enum batch_file; errors may be not open */
    double synced_at;
};

static enum status check_regular(const struct target *target, const struct stat *about,
                                 bool overwrite, int input_fd, struct error *err)
{
    struct stat input;
    if (input_fd >= 0 && fstat(input_fd, &input) == 0 && input.st_dev == about->st_dev &&
        input.st_ino == about->st_ino)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the output file %s is the input file; choose another", target->name);
    if (about->st_size > 0 && !overwrite)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the output file %s exists and is not empty; remove it, choose another, "
                         "or allow it to be replaced with --overwrite",
                         target->name);
    if (flock(target->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "another run is writing the output file %s; choose another", target->name);
    return STATUS_OK;
}

static enum status open_target(struct target *target, const char *path, bool overwrite,
                               int input_fd, struct error *err)
{
    bool is_stdout = strcmp(path, "-") == 0;
    target->name = is_stdout ? "standard output" : path;
    if (is_stdout) {
        target->fd = dup(STDOUT_FILENO);
    } else {
        target->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        target->was_created = target->fd >= 0;
        if (target->fd < 0 && errno == EEXIST)
            target->fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    }
    if (target->fd < 0)
        return error_set_errno(err, errno, "cannot open the output file %s", target->name);
    struct stat about;
    if (fstat(target->fd, &about) != 0)
        return error_set_errno(err, errno, "cannot look at the output file %s", target->name);
    target->is_regular = S_ISREG(about.st_mode) && !is_stdout;
    return target->is_regular ? check_regular(target, &about, overwrite, input_fd, err) : STATUS_OK;
}

static void close_targets(struct batch_writer *writer, bool remove_created)
{
    for (int i = 0; i < 2; i++) {
        struct target *target = &writer->targets[i];
        if (remove_created && target->was_created)
            unlink(target->name);
        if (target->fd >= 0)
            close(target->fd);
    }
    memory_free(writer);
}

static enum status empty_targets(struct batch_writer *writer, struct error *err)
{
    for (int i = 0; i < 2; i++) {
        struct target *target = &writer->targets[i];
        if (target->is_regular && ftruncate(target->fd, 0) != 0)
            return error_set_errno(err, errno, "cannot empty the output file %s", target->name);
    }
    return STATUS_OK;
}

enum status batch_writer_open(struct batch_writer **out, const char *output_path,
                              const char *error_path, bool overwrite, int input_fd,
                              struct error *err)
{
    void *memory;
    TRY(memory_get(&memory, 1, sizeof(struct batch_writer), "the batch writer", err));
    struct batch_writer *writer = memory;
    writer->targets[BATCH_OUTPUT].fd = -1;
    writer->targets[BATCH_ERRORS].fd = -1;
    writer->synced_at = system_seconds();
    bool has_own_errors = error_path != NULL && strcmp(error_path, output_path) != 0;
    enum status status =
        open_target(&writer->targets[BATCH_OUTPUT], output_path, overwrite, input_fd, err);
    if (status == STATUS_OK && has_own_errors)
        status = open_target(&writer->targets[BATCH_ERRORS], error_path, overwrite, input_fd, err);
    if (status == STATUS_OK)
        status = empty_targets(writer, err);
    if (status == STATUS_OK)
        *out = writer;
    else
        close_targets(writer, true);
    return status;
}

/* Appends all bytes; `*done` tells how many were written. Returns 0 or the error's number. */
static int append(int fd, const char *bytes, size_t length, size_t *done)
{
    *done = 0;
    while (*done < length) {
        ssize_t put = write(fd, bytes + *done, length - *done);
        if (put < 0 && errno != EINTR)
            return errno;
        *done += put > 0 ? (size_t)put : 0;
    }
    return 0;
}

enum status batch_writer_line(struct batch_writer *writer, enum batch_file file, const char *line,
                              size_t length, struct error *err)
{
    struct target *target = &writer->targets[file];
    if (target->fd < 0)
        target = &writer->targets[BATCH_OUTPUT];
    size_t done;
    int failure = append(target->fd, line, length, &done);
    target->is_dirty = true;
    if (failure == 0)
        return STATUS_OK;
    off_t end = target->is_regular && done > 0 ? lseek(target->fd, 0, SEEK_END) : -1;
    bool is_torn = done > 0 && (end < 0 || ftruncate(target->fd, end - (off_t)done) != 0);
    return error_set_errno(err, failure, "cannot write to %s%s", target->name,
                           is_torn ? " (its last line is not whole)" : "");
}

static enum status sync_targets(struct batch_writer *writer, struct error *err)
{
    for (int i = 0; i < 2; i++) {
        struct target *target = &writer->targets[i];
        if (!target->is_dirty || !target->is_regular)
            continue;
        if (fdatasync(target->fd) != 0)
            return error_set_errno(err, errno, "cannot bring %s to the disk", target->name);
        target->is_dirty = false;
    }
    return STATUS_OK;
}

enum status batch_writer_tick(struct batch_writer *writer, struct error *err)
{
    double now = system_seconds();
    if (now - writer->synced_at < SYNC_SECONDS)
        return STATUS_OK;
    enum status status = sync_targets(writer, err);
    writer->synced_at = system_seconds();
    return status;
}

enum status batch_writer_finish(struct batch_writer *writer, struct error *err)
{
    enum status status = sync_targets(writer, err);
    close_targets(writer, false);
    return status;
}

void batch_writer_abandon(struct batch_writer *writer)
{
    if (writer == NULL)
        return;
    enum status status = sync_targets(writer, NULL);
    (void)status; /* the first failure is the one that is told */
    close_targets(writer, false);
}

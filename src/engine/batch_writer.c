#include "engine/batch_writer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/memory.h"
#include "engine/batch_sync.h"

#define SYNC_SECONDS 1.0

struct batch_writer {
    struct batch_writer_file files[BATCH_FILE_COUNT];
    struct batch_sync *sync; /* NULL: pipes and terminals only */
};

static_assert(BATCH_FILE_COUNT == BATCH_SYNC_FILES, "a batch_sync is told all files");

/* ---- Opening ------------------------------------------------------------------------------- */

static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Only one run writes a file. The lock goes with the process, however it ends. */
static enum status lock(const struct batch_writer_file *file, const struct stat *about,
                        struct error *err)
{
    struct stat now;
    if (flock(file->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "another run is writing the output file %s; choose another", file->name);
    /* A run that failed to begin may have removed it between our opening and our lock. */
    if (stat(file->name, &now) != 0 || !is_same_file(&now, about))
        return error_set(err, STATUS_IO,
                         "the output file %s was replaced while it was opened; try again",
                         file->name);
    return STATUS_OK;
}

static enum status check_regular(struct batch_writer_file *file, enum batch_files_mode mode,
                                 int input_fd, struct error *err)
{
    struct stat about, input;
    if (fstat(file->fd, &about) != 0)
        return error_set_errno(err, errno, "cannot look at the output file %s", file->name);
    if (input_fd >= 0 && fstat(input_fd, &input) == 0 && is_same_file(&input, &about))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the output file %s is the input file; choose another", file->name);
    TRY(lock(file, &about, err));
    if (fstat(file->fd, &about) != 0) /* again: what another run wrote before the lock counts */
        return error_set_errno(err, errno, "cannot look at the output file %s", file->name);
    file->bytes = about.st_size;
    if (file->bytes > 0 && mode == BATCH_FILES_NEW)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the output file %s exists and is not empty; finish the run that wrote "
                         "it with --resume, replace it with --overwrite, or choose another",
                         file->name);
    return STATUS_OK;
}

static enum status open_one(struct batch_writer_file *file, const char *path,
                            enum batch_files_mode mode, struct error *err)
{
    bool is_stdout = strcmp(path, "-") == 0;
    int access = mode == BATCH_FILES_RESUME ? O_RDWR : O_WRONLY;
    file->name = is_stdout ? "standard output" : path;
    if (is_stdout) {
        file->fd = dup(STDOUT_FILENO);
    } else {
        file->fd = open(path, access | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        file->was_created = file->fd >= 0;
        if (file->fd < 0 && errno == EEXIST)
            file->fd = open(path, access | O_APPEND | O_CLOEXEC);
    }
    struct stat about;
    if (file->fd < 0 || fstat(file->fd, &about) != 0)
        return error_set_errno(err, errno, "cannot open the output file %s", file->name);
    file->is_regular = S_ISREG(about.st_mode) && !is_stdout;
    return STATUS_OK;
}

/* Another name of the output file (./o for o, a link): one file, and one lock. */
static void join_files(struct batch_writer *writer)
{
    struct batch_writer_file *errors = &writer->files[BATCH_ERRORS];
    struct stat a, b;
    if (!errors->is_regular || fstat(writer->files[BATCH_OUTPUT].fd, &a) != 0 ||
        fstat(errors->fd, &b) != 0 || !is_same_file(&a, &b))
        return;
    close(errors->fd);
    *errors = (struct batch_writer_file){.fd = -1};
}

static enum status open_files(struct batch_writer *writer, const struct batch_writer_params *params,
                              struct error *err)
{
    struct batch_writer_file *files = writer->files;
    TRY(open_one(&files[BATCH_OUTPUT], params->output_path, params->mode, err));
    if (params->error_path != NULL && strcmp(params->error_path, params->output_path) != 0) {
        TRY(open_one(&files[BATCH_ERRORS], params->error_path, params->mode, err));
        join_files(writer);
    }
    for (int i = 0; i < BATCH_FILE_COUNT; i++) {
        if (files[i].is_regular)
            TRY(check_regular(&files[i], params->mode, params->input_fd, err));
    }
    return STATUS_OK;
}

static enum status start_sync(struct batch_writer *writer, double seconds, struct error *err)
{
    int fds[BATCH_FILE_COUNT];
    bool has_regular = false;
    for (int i = 0; i < BATCH_FILE_COUNT; i++) {
        fds[i] = writer->files[i].is_regular ? writer->files[i].fd : -1;
        has_regular = has_regular || fds[i] >= 0;
    }
    return has_regular
               ? batch_sync_start(&writer->sync, fds, seconds > 0 ? seconds : SYNC_SECONDS, err)
               : STATUS_OK;
}

enum status batch_writer_open(struct batch_writer **out, const struct batch_writer_params *params,
                              struct error *err)
{
    void *memory;
    TRY(memory_get(&memory, 1, sizeof(struct batch_writer), "the batch writer", err));
    struct batch_writer *writer = memory;
    for (int i = 0; i < BATCH_FILE_COUNT; i++)
        writer->files[i].fd = -1;
    enum status status = open_files(writer, params, err);
    if (status == STATUS_OK)
        status = start_sync(writer, params->sync_seconds, err);
    if (status == STATUS_OK)
        *out = writer;
    else
        batch_writer_discard(writer);
    return status;
}

const struct batch_writer_file *batch_writer_file(const struct batch_writer *writer,
                                                  enum batch_file file)
{
    return &writer->files[file];
}

/* ---- Writing ------------------------------------------------------------------------------- */

enum status batch_writer_cut(struct batch_writer *writer, enum batch_file file, int64_t bytes,
                             struct error *err)
{
    const struct batch_writer_file *target = &writer->files[file];
    if (disk_truncate(target->fd, bytes) != 0 || disk_sync(target->fd) != 0)
        return error_set_errno(err, errno, "cannot cut %s to %lld bytes", target->name,
                               (long long)bytes);
    return STATUS_OK;
}

/* Appends all bytes; `*done` tells how many were written. Returns 0 or the error's number. */
static int append(int fd, const char *bytes, size_t length, size_t *done)
{
    *done = 0;
    while (*done < length) {
        ssize_t put = disk_write(fd, bytes + *done, length - *done);
        if (put < 0)
            return errno;
        *done += (size_t)put;
    }
    return 0;
}

static const char *cure(const struct batch_writer_file *file)
{
    return file->is_regular ? " (--resume finishes the run when it can be written again)" : "";
}

static enum status tell_sync(const struct batch_writer *writer, int failure, int file,
                             struct error *err)
{
    const struct batch_writer_file *target = &writer->files[file];
    if (failure == 0)
        return STATUS_OK;
    return error_set_errno(err, failure, "cannot bring %s to the disk%s", target->name,
                           cure(target));
}

enum status batch_writer_check(struct batch_writer *writer, struct error *err)
{
    int file = 0, failure = batch_sync_failure(writer->sync, &file);
    return tell_sync(writer, failure, file, err);
}

enum status batch_writer_line(struct batch_writer *writer, enum batch_file file, const char *line,
                              size_t length, struct error *err)
{
    TRY(batch_writer_check(writer, err));
    enum batch_file place = writer->files[file].fd < 0 ? BATCH_OUTPUT : file;
    const struct batch_writer_file *target = &writer->files[place];
    size_t done;
    int failure = append(target->fd, line, length, &done);
    batch_sync_note(writer->sync, (int)place);
    if (failure == 0)
        return STATUS_OK;
    off_t end = target->is_regular && done > 0 ? lseek(target->fd, 0, SEEK_END) : -1;
    bool is_torn = done > 0 && (end < 0 || disk_truncate(target->fd, end - (off_t)done) != 0);
    return error_set_errno(err, failure, "cannot write to %s%s%s", target->name,
                           is_torn ? " (its last line is not whole)" : "", cure(target));
}

/* ---- Closing ------------------------------------------------------------------------------- */

static enum status stop_sync(struct batch_writer *writer, struct error *err)
{
    int file = 0, failure = batch_sync_stop(writer->sync, &file);
    writer->sync = NULL;
    return tell_sync(writer, failure, file, err);
}

static void close_files(struct batch_writer *writer, bool remove_created)
{
    for (int i = 0; i < BATCH_FILE_COUNT; i++) {
        const struct batch_writer_file *file = &writer->files[i];
        if (remove_created && file->was_created)
            unlink(file->name); /* while it is locked: it is nobody else's */
        if (file->fd >= 0)
            close(file->fd);
    }
    memory_free(writer);
}

enum status batch_writer_finish(struct batch_writer *writer, struct error *err)
{
    enum status status = stop_sync(writer, err);
    close_files(writer, false);
    return status;
}

void batch_writer_abandon(struct batch_writer *writer)
{
    if (writer == NULL)
        return;
    enum status status = stop_sync(writer, NULL);
    (void)status; /* the first failure is the one that is told */
    close_files(writer, false);
}

void batch_writer_discard(struct batch_writer *writer)
{
    enum status status = stop_sync(writer, NULL);
    (void)status; /* no line was written */
    close_files(writer, true);
}

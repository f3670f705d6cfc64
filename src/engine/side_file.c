#include "engine/side_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/file.h"
#include "base/new_file.h"

/* ---- Names --------------------------------------------------------------------------------- */

static bool is_one_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Two names that may not be there yet: equal ones in one folder. */
static bool is_one_name(const char *a, const char *b)
{
    char folders[2][PATH_MAX], names[2][PATH_MAX];
    struct stat abouts[2];
    const char *const paths[2] = {a, b}, *bases[2];
    for (int i = 0; i < 2; i++) {
        snprintf(folders[i], sizeof folders[i], "%s", paths[i]);
        snprintf(names[i], sizeof names[i], "%s", paths[i]);
        bases[i] = basename(names[i]);
        if (stat(dirname(folders[i]), &abouts[i]) != 0)
            return false;
    }
    return is_one_file(&abouts[0], &abouts[1]) && strcmp(bases[0], bases[1]) == 0;
}

bool side_file_is_same(const char *a, const char *b)
{
    struct stat about_a, about_b;
    bool has_a = stat(a, &about_a) == 0, has_b = stat(b, &about_b) == 0;
    if (has_a && has_b) /* two may write to one device */
        return is_one_file(&about_a, &about_b) && S_ISREG(about_a.st_mode);
    return !has_a && !has_b && is_one_name(a, b);
}

/* A device would become a file if it were replaced. */
static bool is_written_in_place(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && !S_ISREG(about.st_mode);
}

static int open_in_place(const char *path)
{
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

/* ---- What is there ------------------------------------------------------------------------- */

bool side_file_has_content(const struct side_file *file)
{
    struct stat about;
    return file->path != NULL && stat(file->path, &about) == 0 && S_ISREG(about.st_mode) &&
           about.st_size > 0;
}

/* Of what is not empty. */
static bool is_own(const struct side_file *file)
{
    char begin[64] = {0};
    size_t length = file->head == NULL ? 0 : strlen(file->head);
    int fd = open(file->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, begin, length < sizeof begin ? length : sizeof begin);
    close(fd);
    return got == (ssize_t)length && (length == 0 || memcmp(begin, file->head, length) == 0);
}

/* ---- Checking ------------------------------------------------------------------------------ */

static enum status check_others(const struct side_file *file, const char *const *others,
                                int other_count, struct error *err)
{
    for (int i = 0; i < other_count; i++) {
        if (others[i] != NULL && strcmp(others[i], "-") != 0 &&
            side_file_is_same(file->path, others[i]))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: %s is %s, another file of this run; choose another name",
                             file->flag, file->path, others[i]);
    }
    return STATUS_OK;
}

/* Whoever writes to a stream goes on in the file that was there before it was replaced. */
static enum status check_streams(const struct side_file *file, const struct stat *about,
                                 struct error *err)
{
    static const char *const names[] = {"input", "output", "error"};
    for (int fd = 0; fd < 3; fd++) {
        struct stat stream;
        if (fstat(fd, &stream) == 0 && is_one_file(&stream, about))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: %s is the file of standard %s; choose another name", file->flag,
                             file->path, names[fd]);
    }
    return STATUS_OK;
}

static enum status check_content(const struct side_file *file, struct error *err)
{
    struct stat about;
    if (stat(file->path, &about) != 0 || S_ISCHR(about.st_mode) || S_ISDIR(about.st_mode))
        return STATUS_OK; /* what cannot be opened says so itself */
    if (!S_ISREG(about.st_mode))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: %s is a pipe, a socket or a disk, and a file is needed, which is "
                         "replaced whole; choose another name",
                         file->flag, file->path);
    TRY(check_streams(file, &about, err));
    if (about.st_size > 0 && !is_own(file))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: %s holds something that phasor did not write there; move it away, or "
                         "choose another name",
                         file->flag, file->path);
    return STATUS_OK;
}

static bool can_be_written(const char *path)
{
    char target[PATH_MAX], name[PATH_MAX];
    bool in_place = is_written_in_place(path);
    if (!in_place && !file_resolve(target, path))
        return false;
    int fd = in_place ? open_in_place(path) : new_file_open(name, target);
    if (fd < 0)
        return false;
    close(fd);
    if (!in_place)
        unlink(name);
    return true;
}

enum status side_file_check(const struct side_file *file, const char *const *others,
                            int other_count, struct error *err)
{
    if (file->path == NULL)
        return STATUS_OK;
    if (*file->path == 0 || strcmp(file->path, "-") == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: expected the name of a file, found \"%s\"", file->flag, file->path);
    TRY(check_others(file, others, other_count, err));
    TRY(check_content(file, err));
    if (file_is_dangling(file->path))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: %s is a link to a file that is not there; remove it, or choose "
                         "another name",
                         file->flag, file->path);
    if (!can_be_written(file->path))
        return error_set_errno(err, errno, "%s: cannot write %s, or a new file beside it",
                               file->flag, file->path);
    return STATUS_OK;
}

/* ---- Writing ------------------------------------------------------------------------------- */

/* Writes and closes; 0 or the error's number. */
static int put_all(int fd, const struct text *content)
{
    int failure = 0;
    for (size_t done = 0; done < content->length && failure == 0;) {
        ssize_t put = disk_write(fd, content->bytes + done, content->length - done);
        if (put < 0)
            failure = errno;
        else
            done += (size_t)put;
    }
    if (close(fd) != 0 && failure == 0)
        failure = errno;
    return failure;
}

static int replace(const char *path, const struct text *content)
{
    char target[PATH_MAX], name[PATH_MAX];
    bool in_place = is_written_in_place(path);
    if (!in_place && !file_resolve(target, path))
        return errno;
    int fd = in_place ? open_in_place(path) : new_file_open(name, target);
    if (fd < 0)
        return errno;
    int failure = put_all(fd, content);
    if (in_place)
        return failure;
    if (failure == 0 && disk_rename(name, target) != 0)
        failure = errno;
    if (failure != 0)
        unlink(name);
    return failure;
}

void side_file_clear(const struct side_file *file)
{
    struct stat about;
    if (!side_file_has_content(file) || !is_own(file) || lstat(file->path, &about) != 0)
        return;
    if (S_ISLNK(about.st_mode))
        (void)replace(file->path, &(struct text){0});
    else
        unlink(file->path);
}

void side_file_write(struct side_file *file, const struct text *content, const struct log_sink *log)
{
    if (file->path == NULL)
        return;
    int failure = content->failed ? ENOMEM : replace(file->path, content);
    if (failure == 0 || file->has_failed)
        return;
    file->has_failed = true;
    log_write(log, LOG_WARNING, "%s: cannot write %s: %s; the run goes on without it", file->flag,
              file->path, strerror(failure));
}

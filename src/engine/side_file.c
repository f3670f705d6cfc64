#include "engine/side_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/batch_disk.h"

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

static bool is_same(const char *a, const char *b)
{
    struct stat about_a, about_b;
    bool has_a = stat(a, &about_a) == 0, has_b = stat(b, &about_b) == 0;
    if (has_a && has_b) /* two may write to one device */
        return is_one_file(&about_a, &about_b) && S_ISREG(about_a.st_mode);
    return !has_a && !has_b && is_one_name(a, b);
}

/* The name of the new content, or false with errno. */
static bool new_name(char out[PATH_MAX], const char *path)
{
    bool fits = snprintf(out, PATH_MAX, "%s" SIDE_FILE_SUFFIX, path) < PATH_MAX;
    if (!fits)
        errno = ENAMETOOLONG;
    return fits;
}

/* What is there and is no file cannot be replaced: a device would become a file. */
static bool is_written_in_place(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && !S_ISREG(about.st_mode);
}

/* ---- Checking ------------------------------------------------------------------------------ */

static int open_new(const char *name)
{
    return open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

/* A pipe that nobody reads would hold the run. */
static int open_in_place(const char *path)
{
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

static bool can_be_written(const char *path)
{
    char name[PATH_MAX];
    bool in_place = is_written_in_place(path);
    if (!in_place && !new_name(name, path))
        return false;
    int fd = in_place ? open_in_place(path) : open_new(name);
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
    for (int i = 0; i < other_count; i++) {
        if (others[i] != NULL && strcmp(others[i], "-") != 0 && is_same(file->path, others[i]))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: %s is %s, another file of this run; choose another name",
                             file->flag, file->path, others[i]);
    }
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
    char name[PATH_MAX];
    bool in_place = is_written_in_place(path);
    if (!in_place && !new_name(name, path))
        return errno;
    int fd = in_place ? open_in_place(path) : open_new(name);
    if (fd < 0)
        return errno;
    int failure = put_all(fd, content);
    if (in_place)
        return failure;
    if (failure == 0 && disk_rename(name, path) != 0)
        failure = errno;
    if (failure != 0)
        unlink(name);
    return failure;
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

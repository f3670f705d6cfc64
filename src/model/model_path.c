#include "model/model_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"

enum status model_path_join(char **out, const char *dir, const char *name, struct error *err)
{
    size_t length = strlen(dir);
    const char *between = length > 0 && dir[length - 1] == '/' ? "" : "/";
    struct text path = {0};
    text_append_format(&path, "%s%s%s", dir, between, name);
    enum status status = text_check(&path, "a path", err);
    if (status != STATUS_OK) {
        text_deinit(&path);
        return status;
    }
    *out = path.bytes;
    return STATUS_OK;
}

bool model_path_exists(const char *dir, const char *name)
{
    struct stat stat;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool exists = fstatat(fd, name, &stat, AT_SYMLINK_NOFOLLOW) == 0;
    close(fd);
    return exists;
}

/* realpath in phasor's own memory. */
static enum status real_path(char **out, const char *path, struct error *err)
{
    char *real = realpath(path, NULL);
    if (real == NULL) {
        struct stat stat;
        if (errno == ENOENT && lstat(path, &stat) == 0)
            return error_set(err, STATUS_NOT_FOUND,
                             "%s is a link to a file that does not exist; the download may be "
                             "incomplete",
                             path);
        return error_set_errno(err, errno, "cannot find %s", path);
    }
    size_t length = strlen(real);
    char *copy = memory_copy_text(real, length);
    free(real);
    if (copy == NULL)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate %zu bytes for a path", length);
    *out = copy;
    return STATUS_OK;
}

static bool is_beneath(const char *path, const char *dir, size_t dir_length)
{
    if (dir_length == 1) /* the root */
        return true;
    return strncmp(path, dir, dir_length) == 0 && path[dir_length] == '/';
}

/* For .../models--ORG--NAME/snapshots/COMMIT: whether `path` lies in .../models--ORG--NAME/blobs.
 */
static bool is_blob_of_snapshot(const char *path, const char *dir)
{
    const char *commit = strrchr(dir, '/');
    static const char parent[] = "/snapshots", blobs[] = "/blobs/";
    if (commit == NULL || (size_t)(commit - dir) < sizeof parent)
        return false;
    size_t entry_length = (size_t)(commit - dir) - (sizeof parent - 1);
    return memcmp(dir + entry_length, parent, sizeof parent - 1) == 0 &&
           strncmp(path, dir, entry_length) == 0 &&
           strncmp(path + entry_length, blobs, sizeof blobs - 1) == 0;
}

static enum status check_name(const char *dir, const char *name, struct error *err)
{
    if (name[0] == 0 || strlen(name) > 255 || strchr(name, '/') != NULL || strcmp(name, ".") == 0 ||
        strcmp(name, "..") == 0)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"%s\" is no plain file name; the files of a checkpoint must lie in "
                         "its directory",
                         dir, name);
    return STATUS_OK;
}

enum status model_path_resolve(char **out, const char *dir, const char *name, struct error *err)
{
    char *path = NULL, *real_dir = NULL, *real = NULL;
    enum status status;
    TRY(check_name(dir, name, err));
    TRY_GOTO(model_path_join(&path, dir, name, err), done);
    TRY_GOTO(real_path(&real_dir, dir, err), done);
    TRY_GOTO(real_path(&real, path, err), done);
    if (!is_beneath(real, real_dir, strlen(real_dir)) && !is_blob_of_snapshot(real, real_dir)) {
        status = error_set(err, STATUS_FORMAT,
                           "%s is a link that leads out of the checkpoint's directory (to %s); "
                           "put the file itself there",
                           path, real);
        goto done;
    }
    *out = real;
    real = NULL;
done:
    memory_free(real);
    memory_free(real_dir);
    memory_free(path);
    return status;
}

enum status model_path_open(int *out, const char *path, struct error *err)
{
    /* O_NONBLOCK: opening a FIFO must not hang; it means nothing for regular files. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot open %s", path);
    struct stat stat;
    if (fstat(fd, &stat) != 0 || !S_ISREG(stat.st_mode)) {
        close(fd);
        return error_set(err, STATUS_FORMAT, "%s is not a regular file", path);
    }
    *out = fd;
    return STATUS_OK;
}

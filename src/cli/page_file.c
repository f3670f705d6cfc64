#include "page_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HEAD_MAX     256
#define ATTEMPTS_MAX 100

/* A page may be made anew; what else is there, a model's config.json say, is not lost to a slip,
 * and neither is what cannot be read: nobody knows what that is. */
static bool can_be_replaced(const char *path, const char *head)
{
    char begin[HEAD_MAX];
    struct stat about;
    size_t length = strlen(head);
    if (stat(path, &about) != 0 || !S_ISREG(about.st_mode))
        return true; /* what cannot be opened says so when it is written */
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    size_t got = fread(begin, 1, length < sizeof begin ? length : sizeof begin, file);
    bool has_failed = ferror(file) != 0;
    fclose(file);
    return !has_failed && (got == 0 || (got == length && memcmp(begin, head, got) == 0));
}

bool page_file_check(const char *path, const char *head, const char *flag)
{
    if (can_be_replaced(path, head))
        return true;
    fprintf(stderr,
            "phasor: %s: %s holds something that phasor did not write there; move it away, "
            "or choose another name\n",
            flag, path);
    return false;
}

static bool cannot_write(const char *path)
{
    fprintf(stderr, "phasor: %s: it, or a new file beside it, cannot be written: %s\n", path,
            strerror(errno));
    return false;
}

/* A new file beside the target, under a name that nobody has; -1 and errno on failure. */
static int new_open(struct page_file *page)
{
    for (int i = 0; i < ATTEMPTS_MAX; i++) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        if (snprintf(page->name, sizeof page->name, "%s.phasor-new-%09ld%02d", page->target,
                     now.tv_nsec, i) >= (int)sizeof page->name) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(page->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

/* Where a page is there already: it may be written, and the new one has its rights. */
static int replacement_open(struct page_file *page, const struct stat *about)
{
    if (access(page->target, W_OK) != 0)
        return -1;
    int fd = new_open(page);
    if (fd >= 0)
        (void)fchmod(fd, about->st_mode & 0777); /* else it has those of new files */
    return fd;
}

/* Whether it is where the program says what it has to say: that would be lost with the old file. */
static bool is_standard(const struct stat *about)
{
    struct stat of;
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fstat(fd, &of) == 0 && of.st_dev == about->st_dev && of.st_ino == about->st_ino)
            return true;
    }
    return false;
}

static int target_open(struct page_file *page)
{
    struct stat about;
    if (stat(page->path, &about) == 0 && (!S_ISREG(about.st_mode) || is_standard(&about)))
        return open(page->path, O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC);
    if (realpath(page->path, page->target) == NULL) {
        if (errno != ENOENT || lstat(page->path, &about) == 0) /* a link to nothing */
            return -1;
        if (snprintf(page->target, sizeof page->target, "%s", page->path) >=
            (int)sizeof page->target) {
            errno = ENAMETOOLONG;
            return -1;
        }
        return new_open(page);
    }
    return stat(page->target, &about) == 0 ? replacement_open(page, &about) : -1;
}

bool page_file_open(struct page_file *out, const char *path)
{
    *out = (struct page_file){.path = path};
    int fd = target_open(out);
    if (fd < 0)
        return cannot_write(path);
    out->file = fdopen(fd, "w");
    if (out->file != NULL)
        return true;
    cannot_write(path);
    close(fd);
    if (*out->name != 0)
        unlink(out->name);
    return false;
}

bool page_file_close(struct page_file *page, bool is_whole)
{
    bool has_failed = fflush(page->file) != 0 || ferror(page->file) != 0;
    has_failed |= fclose(page->file) != 0;
    if (!has_failed && is_whole)
        has_failed = *page->name != 0 && rename(page->name, page->target) != 0;
    if (has_failed)
        cannot_write(page->path);
    if ((has_failed || !is_whole) && *page->name != 0)
        unlink(page->name);
    return is_whole && !has_failed;
}

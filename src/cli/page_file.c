#include "page_file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define HEAD_MAX 256

/* A page may be made anew; what else is there, a model's config.json say, is not lost to a slip. */
static bool can_be_replaced(const char *path, const char *head)
{
    char begin[HEAD_MAX];
    struct stat about;
    size_t length = strlen(head);
    FILE *file = stat(path, &about) == 0 && S_ISREG(about.st_mode) ? fopen(path, "r") : NULL;
    if (file == NULL)
        return true; /* what cannot be opened says so when it is written */
    size_t got = fread(begin, 1, length < sizeof begin ? length : sizeof begin, file);
    fclose(file);
    return got == 0 || (got == length && memcmp(begin, head, got) == 0);
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

static void cannot_write(const char *path)
{
    fprintf(stderr, "phasor: %s: cannot be written: %s\n", path, strerror(errno));
}

FILE *page_file_open(const char *path)
{
    FILE *file = fopen(path, "w");
    if (file == NULL)
        cannot_write(path);
    return file;
}

bool page_file_close(FILE *file, const char *path)
{
    bool has_failed = ferror(file) != 0;
    if (fclose(file) == 0 && !has_failed)
        return true;
    cannot_write(path);
    return false;
}

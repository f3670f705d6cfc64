#include "json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file that grows meanwhile is read as far as this goes. */
struct reader {
    int file;
    size_t left;
};

static size_t some(void *buffer, size_t capacity, void *context)
{
    struct reader *reader = context;
    size_t wanted = capacity < reader->left ? capacity : reader->left;
    ssize_t got = read(reader->file, buffer, wanted);
    if (got < 0)
        return (size_t)-1;
    reader->left -= (size_t)got;
    return (size_t)got;
}

json_t *json_file_read(const char *option, const char *path, const char *what, int mib_max)
{
    struct stat about;
    json_error_t error;
    json_t *root = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is not waited for */
    if (file < 0 || fstat(file, &about) != 0) {
        fprintf(stderr, "phasor: %s: %s: %s\n", option, path, strerror(errno));
    } else if (!S_ISREG(about.st_mode) || about.st_size > (off_t)mib_max << 20) {
        fprintf(stderr, "phasor: %s: %s: not a file of at most %d MiB; it is to be %s\n", option,
                path, mib_max, what);
    } else {
        struct reader reader = {file, (size_t)mib_max << 20};
        root = json_load_callback(some, &reader, 0, &error);
        if (root == NULL)
            fprintf(stderr, "phasor: %s: %s: line %d: %s; it is to be %s\n", option, path,
                    error.line, error.text, what);
    }
    if (file >= 0)
        close(file);
    return root;
}

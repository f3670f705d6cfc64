#include "json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of the tree of a file: a small file may have millions of empty objects. Each opening takes no
 * more than an object does with its first places, each name and each value no more than those. Such
 * signs count in texts, too, which have few. */
#define TREE_MIB_MAX 1024
#define OPEN_BYTES   256
#define NAME_BYTES   96
#define VALUE_BYTES  64

/* A file that grows meanwhile is read as far as this goes. */
struct reader {
    int file;
    size_t left;
    size_t tree_bytes; /* of what has been read, at most */
};

static size_t tree_bytes(const char *text, size_t length)
{
    size_t bytes = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '{' || text[i] == '[')
            bytes += OPEN_BYTES;
        else if (text[i] == ':')
            bytes += NAME_BYTES;
        else if (text[i] == ',')
            bytes += VALUE_BYTES;
    }
    return bytes;
}

static bool tree_is_too_large(const struct reader *reader)
{
    return reader->tree_bytes > (size_t)TREE_MIB_MAX << 20;
}

static size_t some(void *buffer, size_t capacity, void *context)
{
    struct reader *reader = context;
    size_t wanted = capacity < reader->left ? capacity : reader->left;
    ssize_t got = read(reader->file, buffer, wanted);
    if (got < 0)
        return (size_t)-1;
    reader->left -= (size_t)got;
    reader->tree_bytes += tree_bytes(buffer, (size_t)got);
    return tree_is_too_large(reader) ? (size_t)-1 : (size_t)got;
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
        struct reader reader = {.file = file, .left = (size_t)mib_max << 20};
        root = json_load_callback(some, &reader, 0, &error);
        if (root == NULL && tree_is_too_large(&reader))
            fprintf(stderr,
                    "phasor: %s: %s: has so many values that they would take more than %d MiB of "
                    "memory; it is to be %s\n",
                    option, path, TREE_MIB_MAX, what);
        else if (root == NULL)
            fprintf(stderr, "phasor: %s: %s: line %d: %s; it is to be %s\n", option, path,
                    error.line, error.text, what);
    }
    if (file >= 0)
        close(file);
    return root;
}

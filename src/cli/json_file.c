#include "json_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

json_t *json_file_read(const char *option, const char *path, const char *what, int mib_max)
{
    struct stat about;
    json_error_t error;
    if (stat(path, &about) != 0) {
        fprintf(stderr, "phasor: %s: %s: %s\n", option, path, strerror(errno));
        return NULL;
    }
    if (!S_ISREG(about.st_mode) || about.st_size > (off_t)mib_max << 20) {
        fprintf(stderr, "phasor: %s: %s: not a file of at most %d MiB; it is to be %s\n", option,
                path, mib_max, what);
        return NULL;
    }
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL)
        fprintf(stderr, "phasor: %s: %s: line %d: %s; it is to be %s\n", option, path, error.line,
                error.text, what);
    return root;
}

#include "base/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>

#define ATTEMPTS_MAX 100

int new_file_open(char name[PATH_MAX], const char *path)
{
    for (int i = 0; i < ATTEMPTS_MAX; i++) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        if (snprintf(name, PATH_MAX, "%s" NEW_FILE_SUFFIX "%09ld%02d", path, now.tv_nsec, i) >=
            PATH_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

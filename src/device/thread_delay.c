#define _GNU_SOURCE
#include "device/thread_delay.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* The file is "run delay slices", the first two in nanoseconds. Without a FILE: nothing is
 * allocated in a pass. */
double thread_delay(void)
{
    char text[96];
    uint64_t ran, delayed;
    int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return -1;
    text[length] = 0;
    return sscanf(text, "%" SCNu64 " %" SCNu64, &ran, &delayed) == 2 ? (double)delayed / 1e9 : -1;
}

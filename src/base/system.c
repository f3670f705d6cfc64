#include "base/system.h"

#include <stdio.h>
#include <time.h>

/* The first unsigned number behind `format` in a file of lines; UINT64_MAX when there is none. */
static uint64_t number_in_file(const char *path, const char *format)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return UINT64_MAX;
    char line[256];
    unsigned long long number = UINT64_MAX;
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, format, &number) != 1)
        ;
    fclose(file);
    return number;
}

uint64_t system_memory_available(void)
{
    uint64_t available = number_in_file("/proc/meminfo", "MemAvailable: %llu kB");
    if (available != UINT64_MAX)
        available *= 1024;
    /* Inside a container the root of the cgroup tree is the container's own. */
    uint64_t limit = number_in_file("/sys/fs/cgroup/memory.max", "%llu");
    uint64_t used = number_in_file("/sys/fs/cgroup/memory.current", "%llu");
    if (limit != UINT64_MAX && used != UINT64_MAX) {
        uint64_t left = limit > used ? limit - used : 0;
        available = left < available ? left : available;
    }
    return available;
}

double system_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

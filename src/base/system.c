#include "base/system.h"

#include <math.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

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

#define CGROUP_STAT  "/sys/fs/cgroup/memory.stat"
#define CGROUP_LIMIT "/sys/fs/cgroup/memory.max"

/* What is used and cannot be had back; UINT64_MAX stands for a number that is not told. */
static uint64_t cgroup_taken(uint64_t used, uint64_t inactive_file, uint64_t active_file)
{
    uint64_t cached = (inactive_file == UINT64_MAX ? 0 : inactive_file) +
                      (active_file == UINT64_MAX ? 0 : active_file);
    return used > cached ? used - cached : 0;
}

uint64_t system_memory_available(void)
{
    uint64_t available = number_in_file("/proc/meminfo", "MemAvailable: %llu kB");
    if (available != UINT64_MAX)
        available *= 1024;
    /* Inside a container the root of the cgroup tree is the container's own. Cached file pages
     * count as used there, but are given back when memory is asked for. */
    uint64_t limit = number_in_file(CGROUP_LIMIT, "%llu");
    uint64_t used = number_in_file("/sys/fs/cgroup/memory.current", "%llu");
    if (limit != UINT64_MAX && used != UINT64_MAX) {
        uint64_t taken = cgroup_taken(used, number_in_file(CGROUP_STAT, "inactive_file %llu"),
                                      number_in_file(CGROUP_STAT, "active_file %llu"));
        uint64_t left = limit > taken ? limit - taken : 0;
        available = left < available ? left : available;
    }
    return available;
}

uint64_t system_memory_total(void)
{
    uint64_t total = number_in_file("/proc/meminfo", "MemTotal: %llu kB");
    uint64_t limit = number_in_file(CGROUP_LIMIT, "%llu");
    if (total != UINT64_MAX)
        total *= 1024;
    return limit < total ? limit : total;
}

#define PROCESS_STATUS "/proc/self/status"

uint64_t system_memory_lockable(void)
{
    const int cap_ipc_lock = 14; /* linux/capability.h */
    struct rlimit limit;
    uint64_t capabilities = number_in_file(PROCESS_STATUS, "CapEff: %llx");
    uint64_t locked_kib = number_in_file(PROCESS_STATUS, "VmLck: %llu kB");
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        (capabilities != UINT64_MAX && (capabilities >> cap_ipc_lock & 1) != 0))
        return UINT64_MAX;
    uint64_t locked = locked_kib == UINT64_MAX ? 0 : locked_kib * 1024;
    return locked < limit.rlim_cur ? limit.rlim_cur - locked : 0;
}

uint64_t system_cache_bytes(void)
{
    long bytes = -1;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes <= 0)
        bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return bytes > 0 ? (uint64_t)bytes : 0;
}

double system_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void system_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &clock);
    pthread_condattr_destroy(&clock);
}

#define MOMENT_SECONDS_MAX 1e9 /* thirty years: who waits without an end has no moment beyond */

struct timespec system_moment(double seconds)
{
    struct timespec moment;
    double ahead = fmin(fmax(seconds, 0), MOMENT_SECONDS_MAX);
    clock_gettime(CLOCK_MONOTONIC, &moment);
    int64_t nanoseconds = moment.tv_nsec + (int64_t)((ahead - floor(ahead)) * 1e9);
    moment.tv_sec += (time_t)floor(ahead) + (time_t)(nanoseconds / 1000000000);
    moment.tv_nsec = (long)(nanoseconds % 1000000000);
    return moment;
}

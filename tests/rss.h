/* The memory of this process as the system counts it. */
#ifndef TESTS_RSS_H
#define TESTS_RSS_H

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* VmHWM, in bytes: the most that was resident. */
static inline uint64_t rss_peak(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    cr_assert_not_null(file);
    while (kib == 0 && fgets(line, sizeof line, file) != NULL)
        sscanf(line, "VmHWM: %llu", &kib);
    fclose(file);
    return kib << 10;
}

/* Bytes of the whole pages within these that the system has given memory. */
static inline size_t memory_given(const void *memory, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), end = (uintptr_t)memory + bytes;
    size_t given = 0;
    unsigned char resident[512];
    uintptr_t at = ((uintptr_t)memory + page - 1) / page * page;
    while (at + page <= end) {
        size_t count = (end - at) / page;
        count = count < sizeof resident ? count : sizeof resident;
        cr_assert_eq(mincore((void *)at, count * page, resident), 0);
        for (size_t p = 0; p < count; p++)
            given += resident[p] & 1 ? page : 0;
        at += count * page;
    }
    return given;
}

/* Sanitizers hold freed memory back, and more beside it. */
static inline bool rss_is_ours(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#else
    return true;
#endif
}

#endif

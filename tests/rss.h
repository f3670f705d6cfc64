/* The memory of this process as the system counts it. */
#ifndef TESTS_RSS_H
#define TESTS_RSS_H

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

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

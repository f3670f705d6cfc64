#include "io/read_tier.h"

#include <stdio.h>

const char *const read_tier_names[TIER_COUNT] = {
    [TIER_LOCKED] = "locked memory", [TIER_CACHED] = "page cache", [TIER_DISK] = "disk"};

static unsigned long long mib(uint64_t bytes)
{
    return (unsigned long long)(bytes >> 20);
}

enum read_tier read_tier_choose(const struct read_tier_facts *facts, char *reason, size_t size)
{
    uint64_t room = facts->memory_available - facts->memory_available / 8;
    if (facts->bytes > room) {
        snprintf(reason, size, "%llu MiB are more than seven eighths of %llu MiB of free memory",
                 mib(facts->bytes), mib(facts->memory_available));
        return TIER_DISK;
    }
    if (facts->bytes > facts->memory_lockable) {
        snprintf(
            reason, size,
            "%llu MiB are more than the %llu MiB that may be locked (ulimit -l, LimitMEMLOCK=)",
            mib(facts->bytes), mib(facts->memory_lockable));
        return TIER_CACHED;
    }
    snprintf(reason, size, "%s", "");
    return TIER_LOCKED;
}

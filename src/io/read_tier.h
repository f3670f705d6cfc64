/* Where the bytes of a file that is read again and again are to come from: by what fits. Pure. */
#ifndef PHASOR_IO_READ_TIER_H
#define PHASOR_IO_READ_TIER_H

#include <stddef.h>
#include <stdint.h>

/* Best first. */
enum read_tier {
    TIER_LOCKED, /* memory that is not paged out (locked_file.h, READ_LOCKED) */
    TIER_CACHED, /* the system's page cache, which other files may push out */
    TIER_DISK,   /* the disk itself, past the page cache (avoids_cache) */
    TIER_COUNT
};

/* "locked memory", "page cache", "disk". */
extern const char *const read_tier_names[TIER_COUNT];

struct read_tier_facts {
    uint64_t bytes;            /* of the file that are read, by all ranks of the machine together */
    uint64_t memory_available; /* beside all that the run itself takes (system_memory_available) */
    uint64_t memory_lockable;  /* by this process (system_memory_lockable) */
};

/* The best tier that fits and leaves an eighth of the available memory to others; `reason` (half a
 * sentence, to be shown) says why not a better one, and is "" for the best. */
enum read_tier read_tier_choose(const struct read_tier_facts *facts, char *reason, size_t size);

#endif

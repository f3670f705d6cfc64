/* Many small objects with one lifetime: allocated one after another, freed together. */
#ifndef PHASOR_BASE_ARENA_H
#define PHASOR_BASE_ARENA_H

#include <stddef.h>

struct arena_block;
struct arena {
    struct arena_block *newest; /* start with {0} */
};

/* Zeroed memory aligned to 16, owned by the arena; NULL when it cannot be had. Not thread-safe. */
void *arena_alloc(struct arena *arena, size_t count, size_t size);

/* A copy of `length` bytes with a NUL behind. */
char *arena_copy_text(struct arena *arena, const char *text, size_t length);

void arena_deinit(struct arena *arena);

#endif

#include "base/arena.h"

#include <stdint.h>
#include <string.h>

#include "base/memory.h"

#define ARENA_BLOCK_BYTES (64 * 1024)
#define ARENA_ALIGNMENT   16

struct arena_block {
    struct arena_block *older;
    size_t used;
    size_t capacity;
    size_t padding;
    char bytes[];
};

_Static_assert(sizeof(struct arena_block) % ARENA_ALIGNMENT == 0, "objects start aligned");

void *arena_alloc(struct arena *arena, size_t count, size_t size)
{
    size_t bytes, rounded;
    if (__builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(bytes, ARENA_ALIGNMENT - 1, &rounded))
        return NULL;
    rounded -= rounded % ARENA_ALIGNMENT;
    struct arena_block *block = arena->newest;
    if (block == NULL || rounded > block->capacity - block->used) {
        size_t capacity = rounded > ARENA_BLOCK_BYTES / 4 ? rounded : ARENA_BLOCK_BYTES;
        if (capacity > SIZE_MAX - sizeof *block)
            return NULL;
        struct arena_block *fresh = memory_alloc(1, sizeof *fresh + capacity);
        if (fresh == NULL)
            return NULL;
        fresh->capacity = capacity;
        fresh->older = block;
        arena->newest = fresh;
        block = fresh;
    }
    void *memory = block->bytes + block->used;
    block->used += rounded;
    return memory;
}

char *arena_copy_text(struct arena *arena, const char *text, size_t length)
{
    char *copy = length == SIZE_MAX ? NULL : arena_alloc(arena, length + 1, 1);
    if (copy != NULL && length > 0)
        memcpy(copy, text, length);
    return copy;
}

void arena_deinit(struct arena *arena)
{
    for (struct arena_block *block = arena->newest; block != NULL;) {
        struct arena_block *older = block->older;
        memory_free(block);
        block = older;
    }
    arena->newest = NULL;
}

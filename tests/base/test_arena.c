#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "base/arena.h"
#include "base/memory.h"
#include "base/random.h"

/* Objects of many sizes: aligned, zeroed, and none over another. */
Test(arena, objects_do_not_overlap)
{
    struct arena arena = {0};
    struct random random = {.seed = 1};
    static struct {
        unsigned char *at;
        size_t bytes;
    } objects[2000];
    uint64_t live = memory_counters_get().live_count;
    for (size_t i = 0; i < 2000; i++) {
        size_t bytes = (size_t)random_below(&random, i % 50 == 0 ? 100000 : 200);
        objects[i].at = arena_alloc(&arena, bytes, 1);
        objects[i].bytes = bytes;
        cr_assert_not_null(objects[i].at);
        cr_assert_eq((uintptr_t)objects[i].at % 16, 0);
        for (size_t k = 0; k < bytes; k++)
            cr_assert_eq(objects[i].at[k], 0);
        memset(objects[i].at, (int)(i % 255) + 1, bytes);
    }
    for (size_t i = 0; i < 2000; i++) {
        for (size_t k = 0; k < objects[i].bytes; k++)
            cr_assert_eq(objects[i].at[k], i % 255 + 1, "object %zu was written over", i);
    }
    cr_assert(memory_counters_get().live_count - live < 200, "a block for each object");
    arena_deinit(&arena);
    cr_assert_eq(memory_counters_get().live_count, live);
    cr_assert_null(arena.newest);
    arena_deinit(&arena);
}

Test(arena, text_ends_in_nul)
{
    struct arena arena = {0};
    char *first = arena_copy_text(&arena, "one and more", 3);
    char *second = arena_copy_text(&arena, "a text of 16 byt", 16);
    char *empty = arena_copy_text(&arena, NULL, 0);
    cr_assert_str_eq(first, "one");
    cr_assert_str_eq(second, "a text of 16 byt");
    cr_assert_str_eq(empty, "");
    arena_deinit(&arena);
}

Test(arena, refuses_what_cannot_be)
{
    static const size_t sizes[][2] = {
        {SIZE_MAX, 1}, {SIZE_MAX, 2}, {SIZE_MAX - 20, 1}, {1ull << 40, 1ull << 40}};
    struct arena arena = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        cr_assert_null(arena_alloc(&arena, sizes[i][0], sizes[i][1]));
    cr_assert_null(arena_copy_text(&arena, "x", SIZE_MAX));
    char *kept = arena_copy_text(&arena, "kept", 4);
    memory_fail_at(1, 0);
    cr_assert_null(arena_alloc(&arena, 1, 1 << 20));
    cr_assert_str_eq(kept, "kept");
    cr_assert_not_null(arena_alloc(&arena, 1, 1 << 20));
    arena_deinit(&arena);
}

/* Objects of one size until a second block comes: all of the first lie within the memory that it
 * has. A block begins at a multiple of 64, as all memory, with a header of less than that. */
Test(arena, a_block_is_not_overrun)
{
    for (size_t size = 16; size <= 2048; size += 16) {
        struct arena arena = {0};
        struct memory_counters before = memory_counters_get(), now = before;
        char *first = arena_alloc(&arena, 1, size), *last = first;
        uint64_t bytes = memory_counters_get().live_bytes - before.live_bytes;
        for (char *next = first; now.live_count < before.live_count + 2;) {
            last = next;
            next = arena_alloc(&arena, 1, size);
            now = memory_counters_get();
        }
        char *begin = first - (uintptr_t)first % 64;
        cr_assert(last + size <= begin + bytes, "objects of %zu bytes", size);
        cr_assert(last + 2 * size > begin + bytes, "room for %zu bytes was left", size);
        arena_deinit(&arena);
    }
}

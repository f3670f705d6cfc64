#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"

Test(memory, counts_and_fails_at_the_nth)
{
    uint64_t live = memory_counters_get().live_bytes;
    memory_fail_at(2, 0);
    void *first = memory_alloc(3, 5);
    cr_assert_not_null(first);
    cr_assert_eq(memory_counters_get().live_bytes, live + 15);
    cr_assert_null(memory_alloc(1, 1));
    void *third = memory_alloc(0, 8);
    cr_assert_not_null(third);
    memory_free(first);
    memory_free(third);
    cr_assert_eq(memory_counters_get().live_bytes, live);
}

Test(memory, sticky_failures_stay_until_switched_off)
{
    memory_fail_at(2, 1);
    void *first = memory_alloc(1, 1);
    cr_assert_not_null(first);
    for (int i = 0; i < 5; i++)
        cr_assert_null(memory_alloc_raw(1, 1));
    cr_assert_null(memory_resize(first, 2, 1));
    memory_fail_at(0, 0);
    void *second = memory_alloc(1, 1);
    cr_assert_not_null(second);
    memory_free(first);
    memory_free(second);
}

Test(memory, is_aligned_zeroed_and_unique)
{
    static const size_t sizes[] = {0, 1, 15, 63, 64, 65, 100000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        /* A block of the same size, dirty, so that zeros are no accident. */
        char *dirty = memory_alloc_raw(sizes[i], 1);
        memset(dirty, 0xA5, sizes[i]);
        memory_free(dirty);
        char *a = memory_alloc(sizes[i], 1), *b = memory_alloc(sizes[i], 1);
        cr_assert(a != NULL && b != NULL && a != b);
        cr_assert((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0);
        for (size_t k = 0; k < sizes[i]; k++)
            cr_assert(a[k] == 0 && b[k] == 0);
        memory_free(a);
        memory_free(b);
    }
}

Test(memory, overflow_is_refused)
{
    static const size_t sizes[][2] = {{SIZE_MAX, 1},
                                      {SIZE_MAX, 2},
                                      {SIZE_MAX / 2 + 1, 2},
                                      {1, SIZE_MAX - 64},
                                      {1ull << 33, 1ull << 33}};
    uint64_t live = memory_counters_get().live_count;
    char *block = memory_alloc(10, 1);
    memcpy(block, "unchanged", 10);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cr_assert_null(memory_alloc(sizes[i][0], sizes[i][1]));
        cr_assert_null(memory_alloc_raw(sizes[i][0], sizes[i][1]));
        cr_assert_null(memory_resize(block, sizes[i][0], sizes[i][1]));
        cr_assert_str_eq(block, "unchanged");
    }
    cr_assert_null(memory_copy_text("x", SIZE_MAX));
    memory_free(block);
    memory_free(NULL);
    cr_assert_eq(memory_counters_get().live_count, live);
}

Test(memory, resize_keeps_the_bytes)
{
    uint64_t live = memory_counters_get().live_bytes;
    char *block = memory_resize(NULL, 3, 1);
    memcpy(block, "abc", 3);
    block = memory_resize(block, 1000, 1);
    cr_assert_eq(memcmp(block, "abc", 3), 0);
    cr_assert_eq(memory_counters_get().live_bytes, live + 1000);
    memory_fail_at(1, 0);
    cr_assert_null(memory_resize(block, 2000, 1));
    cr_assert_eq(memcmp(block, "abc", 3), 0);
    block = memory_resize(block, 2, 1);
    cr_assert_eq(memcmp(block, "ab", 2), 0);
    cr_assert_eq(memory_counters_get().live_bytes, live + 2);
    memory_free(block);
    cr_assert_eq(memory_counters_get().live_bytes, live);
}

Test(memory, peak_stays)
{
    uint64_t live = memory_counters_get().live_bytes;
    void *large = memory_alloc_raw(1 << 20, 1);
    memory_free(large);
    cr_assert(memory_counters_get().peak_bytes >= live + (1 << 20));
    cr_assert_eq(memory_counters_get().live_bytes, live);
}

Test(memory, copied_text_ends_in_nul)
{
    char *copy = memory_copy_text("hello", 4);
    cr_assert_str_eq(copy, "hell");
    char *empty = memory_copy_text(NULL, 0);
    cr_assert_str_eq(empty, "");
    memory_free(copy);
    memory_free(empty);
    memory_fail_at(1, 0);
    cr_assert_null(memory_copy_text("x", 1));
}

Test(memory, reserve_doubles_and_keeps)
{
    int *array = NULL;
    size_t capacity = 0, grown = 0;
    struct error err;
    for (size_t i = 0; i < 1000; i++) {
        size_t before = capacity;
        cr_assert_eq(memory_reserve(&array, &capacity, i + 1, sizeof *array, "a list", &err),
                     STATUS_OK);
        cr_assert(capacity >= i + 1);
        grown += capacity != before;
        array[i] = (int)i;
    }
    cr_assert(grown <= 8, "grown %zu times", grown); /* 8, 16, ... 1024 */
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(array[i], i);

    int *old = array;
    size_t old_capacity = capacity;
    memory_fail_at(1, 0);
    cr_assert_eq(memory_reserve(&array, &capacity, 5000, sizeof *array, "a list", &err),
                 STATUS_NO_MEMORY);
    cr_assert(array == old && capacity == old_capacity);
    cr_assert_str_eq(err.message, "cannot allocate 32768 bytes for a list");
    cr_assert_eq(memory_reserve(&array, &capacity, SIZE_MAX, sizeof *array, "a list", &err),
                 STATUS_NO_MEMORY);
    cr_assert_eq(memory_reserve(&array, &capacity, SIZE_MAX / 2 + 2, 1, "a list", &err),
                 STATUS_NO_MEMORY);
    cr_assert(array == old && capacity == old_capacity);
    memory_free(array);
}

Test(memory, sentences_name_size_and_purpose)
{
    static const struct {
        size_t count, size;
        const char *message;
    } cases[] = {
        {100, 10, "cannot allocate 1000 bytes for the test"},
        {3 << 20, 2, "cannot allocate 6 MiB for the test"},
        {SIZE_MAX, 16, "cannot allocate 18446744073709551615 x 16 bytes for the test"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err;
        void *out = &err;
        memory_fail_at(1, 1);
        cr_assert_eq(memory_get(&out, cases[i].count, cases[i].size, "the test", &err),
                     STATUS_NO_MEMORY);
        cr_assert_str_eq(err.message, cases[i].message);
        cr_assert_eq(memory_get_raw(&out, cases[i].count, cases[i].size, "the test", &err),
                     STATUS_NO_MEMORY);
        cr_assert_str_eq(err.message, cases[i].message);
        cr_assert_eq(out, &err, "a failed call changed its output");
    }
}

Test(memory, pages_are_whole_and_their_own)
{
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 1000000};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct memory_counters before = memory_counters_get();
    struct error err;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t bytes = sizes[i], mapped = memory_pages_bytes(bytes);
        void *a, *b;
        cr_assert(mapped >= bytes && mapped > 0 && mapped % page == 0 && mapped <= bytes + page);
        cr_assert_eq(memory_pages_get(&a, bytes, "a test", &err), STATUS_OK);
        cr_assert_eq(memory_pages_get(&b, bytes, "a test", &err), STATUS_OK);
        cr_assert(a != b && (uintptr_t)a % page == 0 && (uintptr_t)b % page == 0);
        for (size_t k = 0; k < bytes; k++)
            cr_assert(((char *)a)[k] == 0);
        memset(a, 1, bytes);
        cr_assert_eq(mprotect(a, mapped, PROT_NONE), 0);
        memset(b, 2, bytes); /* not closed with the other */
        cr_assert_eq(memory_counters_get().live_bytes, before.live_bytes + 2 * bytes);
        cr_assert_eq(memory_counters_get().live_count, before.live_count + 2);
        memory_pages_free(a, bytes);
        memory_pages_free(b, bytes);
    }
    memory_pages_free(NULL, 0);
    cr_assert_eq(memory_counters_get().live_bytes, before.live_bytes);
    cr_assert_eq(memory_counters_get().live_count, before.live_count);
    cr_assert(memory_counters_get().peak_bytes >= before.live_bytes + 2000000);
}

/* Large ones begin where a huge page may, whatever lies around them. */
Test(memory, large_pages_are_aligned_to_huge_ones)
{
    static const size_t sizes[] = {(2 << 20) - 4096, 2 << 20, (2 << 20) + 1, 5 << 20, 64 << 20};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    void *all[4][COUNT];
    struct error err;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < COUNT; i++) {
            cr_assert_eq(memory_pages_get(&all[round][i], sizes[i], "a test", &err), STATUS_OK);
            cr_assert(sizes[i] < 2 << 20 || (uintptr_t)all[round][i] % (2 << 20) == 0);
            memset(all[round][i], round * COUNT + i + 1, sizes[i]);
        }
    }
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < COUNT; i++) {
            const char *bytes = all[round][i];
            for (size_t at = 0; at < sizes[i]; at += 4096)
                cr_assert_eq(bytes[at], round * COUNT + i + 1);
            cr_assert_eq(bytes[sizes[i] - 1], round * COUNT + i + 1);
            memory_pages_free(all[round][i], sizes[i]);
        }
    }
}

Test(memory, pages_become_those_of_a_file_and_again_zeros)
{
    static char bytes[3 * 65536];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *memory;
    struct error err;
    FILE *file = tmpfile();
    memset(bytes, 7, sizeof bytes);
    cr_assert(file != NULL && fwrite(bytes, 1, sizeof bytes, file) == sizeof bytes);
    cr_assert_eq(fflush(file), 0);
    cr_assert_eq(memory_pages_get(&memory, 3 * page, "a test", &err), STATUS_OK);
    memset(memory, 1, 3 * page);
    cr_assert_eq(memory_pages_map(memory, page + 1, fileno(file), page, &err), STATUS_OK);
    cr_assert(memory_pages_fetch(memory, page + 1));
    cr_assert_eq(((char *)memory)[0], 7);
    cr_assert_eq(((char *)memory)[2 * page - 1], 7);
    cr_assert_eq(((char *)memory)[2 * page], 1); /* behind what was mapped */
    ((char *)memory)[0] = 3;
    cr_assert_eq(pread(fileno(file), bytes, 1, (off_t)page), 1);
    cr_assert_eq(bytes[0], 7); /* the file stays */
    cr_assert_eq(memory_pages_map(memory, page + 1, -1, 0, &err), STATUS_OK);
    cr_assert_eq(((char *)memory)[0], 0);
    cr_assert_eq(((char *)memory)[2 * page - 1], 0);
    cr_assert_eq(memory_pages_map(memory, page, 1 << 20, 0, &err), STATUS_IO); /* no such file */
    memory_pages_free(memory, 3 * page);
    fclose(file);
}

Test(memory, pages_that_cannot_be_had)
{
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 4096, SIZE_MAX / 2};
    uint64_t live = memory_counters_get().live_count;
    struct error err;
    void *out = &err;
    memory_fail_at(1, 0);
    cr_assert_eq(memory_pages_get(&out, 100, "a test", &err), STATUS_NO_MEMORY);
    cr_assert_str_eq(err.message, "cannot allocate 100 bytes for a test");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        cr_assert_eq(memory_pages_get(&out, sizes[i], "a test", &err), STATUS_NO_MEMORY);
    cr_assert_eq(out, &err, "a failed call changed its output");
    cr_assert_eq(memory_counters_get().live_count, live);
}

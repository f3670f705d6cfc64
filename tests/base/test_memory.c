#include <criterion/criterion.h>

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

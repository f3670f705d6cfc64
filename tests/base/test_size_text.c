#include "base/size_text.h"

#include <criterion/criterion.h>

Test(size_text, the_largest_unit_of_which_there_are_ten)
{
    const uint64_t kib = 1024, mib = 1024 * kib;
    cr_expect_str_eq(SIZE_TEXT(0), "0 B");
    cr_expect_str_eq(SIZE_TEXT(1), "1 B");
    cr_expect_str_eq(SIZE_TEXT(10 * kib - 1), "10239 B");
    cr_expect_str_eq(SIZE_TEXT(10 * kib), "10 KiB");
    cr_expect_str_eq(SIZE_TEXT(10 * mib - 1), "10239 KiB");
    cr_expect_str_eq(SIZE_TEXT(10 * mib), "10 MiB");
    cr_expect_str_eq(SIZE_TEXT(24 * 1024 * mib), "24576 MiB");
    cr_expect_str_eq(SIZE_TEXT(UINT64_MAX), "17592186044415 MiB");
}

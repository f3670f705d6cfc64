#include "base/seconds_text.h"

#include <criterion/criterion.h>
#include <math.h>

Test(seconds_text, three_digits_and_no_exponent_of_what_is_long)
{
    cr_expect_str_eq(SECONDS_TEXT(0), "0 s");
    cr_expect_str_eq(SECONDS_TEXT(0.00214), "0.00214 s");
    cr_expect_str_eq(SECONDS_TEXT(1.299), "1.3 s");
    cr_expect_str_eq(SECONDS_TEXT(999.49), "999 s");
    cr_expect_str_eq(SECONDS_TEXT(999.5), "1000 s");
    cr_expect_str_eq(SECONDS_TEXT(1674.2), "1674 s");
    cr_expect_str_eq(SECONDS_TEXT(-86400), "-86400 s");
    cr_expect_str_eq(SECONDS_TEXT(1e20), "1e+20 s");
    cr_expect_str_eq(SECONDS_TEXT(INFINITY), "inf s");
}

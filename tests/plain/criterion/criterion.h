/* Stands in for Criterion where its runner cannot start (the thread sanitizer): what our tests use
 * of it, by the same names. plain_main.c runs the tests one after another, each in a process of its
 * own, as Criterion does. */
#ifndef TESTS_PLAIN_CRITERION_H
#define TESTS_PLAIN_CRITERION_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Tests ------------------------------------------------------------------------------------
 */

struct plain_options {
    void (*init)(void);
    void (*fini)(void);
    int signal;    /* that must end the process; 0: none */
    int exit_code; /* with which the process must end */
    double timeout;
    bool disabled;
    const char *description;
};

struct criterion_test_params {
    size_t size;
    void *params;
    size_t length;
    void (*cleanup)(struct criterion_test_params *params);
};

struct plain_test {
    const char *suite, *name;
    void (*body)(void);
    void (*body_with)(void *param); /* instead of body, with each of params() */
    struct criterion_test_params (*params)(void);
    struct plain_options options;
    struct plain_test *next;
};

void plain_add_test(struct plain_test *test);
void plain_add_suite(struct plain_test *suite); /* `name` NULL */

#define PLAIN_ADD(add, id, ...)                                                                    \
    static struct plain_test id##_entry = {__VA_ARGS__};                                           \
    __attribute__((constructor)) static void id##_add(void)                                        \
    {                                                                                              \
        add(&id##_entry);                                                                          \
    }

#define Test(suite_, name_, ...)                                                                   \
    static void suite_##_##name_##_test(void);                                                     \
    PLAIN_ADD(plain_add_test, suite_##_##name_, .suite = #suite_, .name = #name_,                  \
              .body = suite_##_##name_##_test, .options = {.description = NULL, __VA_ARGS__})      \
    static void suite_##_##name_##_test(void)

#define TestSuite(suite_, ...)                                                                     \
    PLAIN_ADD(plain_add_suite, suite_##_suite, .suite = #suite_,                                   \
              .options = {.description = NULL, __VA_ARGS__})                                       \
    struct plain_test

#define ParameterizedTestParameters(suite_, name_)                                                 \
    static struct criterion_test_params suite_##_##name_##_params(void)

#define ParameterizedTest(param, suite_, name_, ...)                                               \
    static struct criterion_test_params suite_##_##name_##_params(void);                           \
    static void suite_##_##name_##_test(param);                                                    \
    static void suite_##_##name_##_with(void *one)                                                 \
    {                                                                                              \
        suite_##_##name_##_test(one);                                                              \
    }                                                                                              \
    PLAIN_ADD(plain_add_test, suite_##_##name_, .suite = #suite_, .name = #name_,                  \
              .body_with = suite_##_##name_##_with, .params = suite_##_##name_##_params,           \
              .options = {.description = NULL, __VA_ARGS__})                                       \
    static void suite_##_##name_##_test(param)

#define cr_make_param_array(type, array, count, ...)                                               \
    ((struct criterion_test_params){                                                               \
        .size = sizeof(type), .params = (void *)(array), .length = (count), __VA_ARGS__})

/* ---- Checks: behind the arguments may stand a format, as a literal, and its values ----------- */

/* Any thread. With `end` the test ends. */
void plain_fail(bool end, const char *file, int line, const char *what, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void plain_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void plain_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The blank makes a format of nothing. */
#define PLAIN_CHECK(end, holds, what, ...)                                                         \
    do {                                                                                           \
        if (!(holds))                                                                              \
            plain_fail(end, __FILE__, __LINE__, what, " " __VA_ARGS__);                            \
    } while (0)

#define PLAIN_COMPARE(end, a, op, b, ...) PLAIN_CHECK(end, (a)op(b), #a " " #op " " #b, __VA_ARGS__)
#define PLAIN_STRINGS(end, a, op, b, ...)                                                          \
    PLAIN_CHECK(end, strcmp((a), (b)) op 0, #a " " #op " " #b, __VA_ARGS__)
#define PLAIN_ARRAYS(end, a, b, bytes, ...)                                                        \
    PLAIN_CHECK(end, memcmp((a), (b), (bytes)) == 0, #a " equals " #b, __VA_ARGS__)
#define PLAIN_FLOATS(end, a, b, bound, ...)                                                        \
    PLAIN_CHECK(end, (a) - (b) <= (bound) && (b) - (a) <= (bound), #a " is close to " #b,          \
                __VA_ARGS__)

#define cr_assert(condition, ...) PLAIN_CHECK(true, condition, #condition, __VA_ARGS__)
#define cr_assert_not(condition, ...)                                                              \
    PLAIN_CHECK(true, !(condition), "not " #condition, __VA_ARGS__)
#define cr_assert_fail(...)              PLAIN_CHECK(true, false, "", __VA_ARGS__)
#define cr_assert_null(pointer, ...)     PLAIN_COMPARE(true, pointer, ==, NULL, __VA_ARGS__)
#define cr_assert_not_null(pointer, ...) PLAIN_COMPARE(true, pointer, !=, NULL, __VA_ARGS__)
#define cr_assert_eq(a, b, ...)          PLAIN_COMPARE(true, a, ==, b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...)         PLAIN_COMPARE(true, a, !=, b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...)          PLAIN_COMPARE(true, a, <, b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...)         PLAIN_COMPARE(true, a, <=, b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...)          PLAIN_COMPARE(true, a, >, b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...)         PLAIN_COMPARE(true, a, >=, b, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...)      PLAIN_STRINGS(true, a, ==, b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...)     PLAIN_STRINGS(true, a, !=, b, __VA_ARGS__)
#define cr_assert_str_empty(a, ...)      PLAIN_CHECK(true, *(a) == 0, #a " is empty", __VA_ARGS__)
#define cr_assert_str_not_empty(a, ...)                                                            \
    PLAIN_CHECK(true, *(a) != 0, #a " is not empty", __VA_ARGS__)
#define cr_assert_arr_eq(a, b, bytes, ...)   PLAIN_ARRAYS(true, a, b, bytes, __VA_ARGS__)
#define cr_assert_float_eq(a, b, bound, ...) PLAIN_FLOATS(true, a, b, bound, __VA_ARGS__)

#define cr_expect(condition, ...) PLAIN_CHECK(false, condition, #condition, __VA_ARGS__)
#define cr_expect_not(condition, ...)                                                              \
    PLAIN_CHECK(false, !(condition), "not " #condition, __VA_ARGS__)
#define cr_expect_fail(...)              PLAIN_CHECK(false, false, "", __VA_ARGS__)
#define cr_expect_null(pointer, ...)     PLAIN_COMPARE(false, pointer, ==, NULL, __VA_ARGS__)
#define cr_expect_not_null(pointer, ...) PLAIN_COMPARE(false, pointer, !=, NULL, __VA_ARGS__)
#define cr_expect_eq(a, b, ...)          PLAIN_COMPARE(false, a, ==, b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...)         PLAIN_COMPARE(false, a, !=, b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...)          PLAIN_COMPARE(false, a, <, b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...)         PLAIN_COMPARE(false, a, <=, b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...)          PLAIN_COMPARE(false, a, >, b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...)         PLAIN_COMPARE(false, a, >=, b, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...)      PLAIN_STRINGS(false, a, ==, b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...)     PLAIN_STRINGS(false, a, !=, b, __VA_ARGS__)
#define cr_expect_str_empty(a, ...)      PLAIN_CHECK(false, *(a) == 0, #a " is empty", __VA_ARGS__)
#define cr_expect_str_not_empty(a, ...)                                                            \
    PLAIN_CHECK(false, *(a) != 0, #a " is not empty", __VA_ARGS__)
#define cr_expect_arr_eq(a, b, bytes, ...)   PLAIN_ARRAYS(false, a, b, bytes, __VA_ARGS__)
#define cr_expect_float_eq(a, b, bound, ...) PLAIN_FLOATS(false, a, b, bound, __VA_ARGS__)

#define cr_skip_test(...) plain_skip(" " __VA_ARGS__)
#define cr_log_info(...)  plain_log(__VA_ARGS__)
#define cr_log_warn(...)  plain_log(__VA_ARGS__)

#endif

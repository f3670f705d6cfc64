/* Tests of which some must fail: the runner tells them apart (the count is in
 * tests/CMakeLists.txt). */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static int prepared;

static void prepare(void)
{
    prepared++;
}

TestSuite(passing, .init = prepare);

Test(passing, is_prepared_once)
{
    cr_assert_eq(prepared, 1);
    cr_assert_str_eq("a", "a", "%d", 1);
    cr_expect_float_eq(0.5, 0.25, 0.25);
    prepared = 7; /* nobody else sees it */
}

Test(passing, is_prepared_anew, .init = prepare)
{
    cr_assert_eq(prepared, 2);
}

Test(passing, by_signal, .signal = SIGABRT)
{
    abort();
}

Test(passing, by_exit_code, .exit_code = 3)
{
    exit(3);
}

ParameterizedTestParameters(passing, each_parameter)
{
    static int numbers[] = {4, 5};
    return cr_make_param_array(int, numbers, 2);
}

ParameterizedTest(int *number, passing, each_parameter)
{
    cr_assert(*number == 4 || *number == 5);
}

Test(passing, not_at_all, .disabled = true)
{
    cr_assert_fail("disabled");
}

Test(skipping, always)
{
    cr_skip_test("for %d reason", 1);
}

Test(failing, by_assertion)
{
    cr_assert_lt(2, 1, "%s", "of course");
    exit(0);
}

Test(failing, by_expectation)
{
    cr_expect_null("");
    cr_expect(true);
}

static void *assert_elsewhere(void *argument)
{
    cr_assert_not_null(argument);
    return NULL;
}

Test(failing, on_another_thread)
{
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, assert_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    _exit(0);
}

Test(failing, by_crash)
{
    raise(SIGKILL);
}

Test(failing, by_hanging, .timeout = 1)
{
    for (;;)
        pause();
}

Test(failing, for_want_of_a_signal, .signal = SIGABRT)
{
    cr_log_info("ends well");
}

/* Runs the tests of a program one after another, each in a process of its own: a test that fails,
 * crashes, hangs or changes its environment leaves the others as they were.
 *
 * usage: test_NAME [--filter SUITE/NAME] [--timeout SECONDS] [--verbose]
 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <errno.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_PASSED = 0, EXIT_FAILED = 1, EXIT_SKIPPED = 77 };

static struct plain_test *tests, **tests_end = &tests;
static struct plain_test *suites;
static atomic_bool failed; /* an expectation, in this test's process */

static const char *filter = "*/*";
static double timeout_seconds = 300;
static bool verbose;
static int tested, passed, skipped;

void plain_add_test(struct plain_test *test)
{
    *tests_end = test;
    tests_end = &test->next;
}

void plain_add_suite(struct plain_test *suite)
{
    suite->next = suites;
    suites = suite;
}

/* ---- In the test's process --------------------------------------------------------------------
 */

/* One write for a whole line, which threads and processes then cannot tear. */
static void say(const char *prefix, const char *format, va_list args)
{
    char text[4096];
    vsnprintf(text, sizeof text, format, args);
    const char *rest = text + (*text == ' '); /* of what PLAIN_CHECK puts before a format */
    fprintf(stderr, "%s%s%s\n", prefix, *rest == 0 ? "" : " ", rest);
}

void plain_fail(bool end, const char *file, int line, const char *what, const char *format, ...)
{
    char prefix[2048];
    va_list args;
    snprintf(prefix, sizeof prefix, "%s:%d: does not hold: %s%s", file, line, what,
             strcmp(format, " ") == 0 ? "" : "\n   ");
    va_start(args, format);
    say(prefix, format, args);
    va_end(args);
    if (end)
        exit(EXIT_FAILED);
    atomic_store(&failed, true);
}

void plain_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say("skipped:", format, args);
    va_end(args);
    exit(EXIT_SKIPPED);
}

void plain_log(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say("note:", format, args);
    va_end(args);
}

static const struct plain_options *suite_options(const struct plain_test *test)
{
    static const struct plain_options none;
    for (const struct plain_test *suite = suites; suite != NULL; suite = suite->next) {
        if (strcmp(suite->suite, test->suite) == 0)
            return &suite->options;
    }
    return &none;
}

static double timeout_of(const struct plain_test *test)
{
    double suite = suite_options(test)->timeout;
    return test->options.timeout > 0 ? test->options.timeout : suite > 0 ? suite : timeout_seconds;
}

static void call(void (*function)(void))
{
    if (function != NULL)
        function();
}

/* The alarm ends the process by its signal, whatever its threads do. */
static void child_run(const struct plain_test *test, void *param)
{
    const struct plain_options *suite = suite_options(test);
    alarm((unsigned)ceil(timeout_of(test)));
    call(suite->init);
    call(test->options.init);
    if (test->body != NULL)
        test->body();
    else
        test->body_with(param);
    call(test->options.fini);
    call(suite->fini);
    exit(atomic_load(&failed) ? EXIT_FAILED : EXIT_PASSED);
}

/* ---- In the runner ----------------------------------------------------------------------------
 */

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* NULL: as it should. */
static const char *complaint(const struct plain_test *test, int state, char *text, size_t bytes)
{
    int wanted = test->options.signal;
    if (WIFSIGNALED(state) && WTERMSIG(state) == wanted)
        return NULL;
    if (WIFSIGNALED(state) && WTERMSIG(state) == SIGALRM)
        snprintf(text, bytes, "not done after %g seconds", timeout_of(test));
    else if (WIFSIGNALED(state))
        snprintf(text, bytes, "ended by signal %d (%s)", WTERMSIG(state),
                 strsignal(WTERMSIG(state)));
    else if (wanted != 0)
        snprintf(text, bytes, "ended without signal %d", wanted);
    else if (WEXITSTATUS(state) == test->options.exit_code)
        return NULL;
    else
        snprintf(text, bytes, "ended with exit code %d", WEXITSTATUS(state));
    return text;
}

static int wait_for(pid_t child)
{
    int state;
    while (waitpid(child, &state, 0) < 0) {
        if (errno != EINTR) {
            perror("waitpid");
            exit(2);
        }
    }
    return state;
}

/* `which` < 0: a test without parameters. */
static void test_run(const struct plain_test *test, void *param, long which)
{
    char name[256], text[128];
    snprintf(name, sizeof name, which < 0 ? "%s/%s" : "%s/%s, parameter %ld", test->suite,
             test->name, which);
    fflush(NULL); /* or the child would write it again */
    double start = seconds_now();
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(2);
    }
    if (child == 0)
        child_run(test, param);
    int state = wait_for(child);
    const char *wrong = complaint(test, state, text, sizeof text);
    bool skip = WIFEXITED(state) && WEXITSTATUS(state) == EXIT_SKIPPED;
    tested++;
    passed += wrong == NULL;
    skipped += wrong != NULL && skip;
    if (wrong != NULL)
        fprintf(stderr, "[%s] %s: %s\n", skip ? "SKIP" : "FAIL", name, skip ? "see above" : wrong);
    else if (verbose)
        fprintf(stderr, "[PASS] %s (%.2f s)\n", name, seconds_now() - start);
}

static bool is_chosen(const struct plain_test *test)
{
    char name[256];
    snprintf(name, sizeof name, "%s/%s", test->suite, test->name);
    return !test->options.disabled && fnmatch(filter, name, FNM_EXTMATCH) == 0;
}

static void test_run_all(const struct plain_test *test)
{
    if (test->params == NULL) {
        test_run(test, NULL, -1);
        return;
    }
    struct criterion_test_params params = test->params();
    for (size_t i = 0; i < params.length; i++)
        test_run(test, (char *)params.params + i * params.size, (long)i);
    if (params.cleanup != NULL)
        params.cleanup(&params);
}

/* What Criterion takes and we pass; -jN is taken and means nothing here. */
static void options_read(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        const char *option = arguments[i];
        if (strcmp(option, "--filter") == 0 && i + 1 < count) {
            filter = arguments[++i];
        } else if (strcmp(option, "--timeout") == 0 && i + 1 < count) {
            timeout_seconds = atof(arguments[++i]);
        } else if (strcmp(option, "--verbose") == 0) {
            verbose = true;
        } else if (strncmp(option, "-j", 2) != 0) {
            fprintf(stderr, "usage: %s [--filter SUITE/NAME] [--timeout SECONDS] [--verbose]\n",
                    arguments[0]);
            exit(2);
        }
    }
}

int main(int count, char **arguments)
{
    options_read(count, arguments);
    for (const struct plain_test *test = tests; test != NULL; test = test->next) {
        if (is_chosen(test))
            test_run_all(test);
    }
    int failing = tested - passed - skipped;
    fprintf(stderr, "[====] Tested: %d | Passing: %d | Failing: %d | Skipped: %d\n", tested, passed,
            failing, skipped);
    if (tested == 0)
        fprintf(stderr, "no test is named %s\n", filter);
    return failing > 0 || tested == 0;
}

#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/system.h"

Test(system, memory_is_less_than_the_machine_has)
{
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t available = system_memory_available();
    if (available == UINT64_MAX)
        cr_skip_test("this system does not tell its memory");
    cr_assert(available <= machine);
    cr_assert(system_memory_total() <= machine);
    cr_assert_gt(system_memory_total(), 1 << 20, "in bytes, not in kB");
    cr_assert_gt(available, 1 << 20, "in bytes, not in kB: %llu", (unsigned long long)available);
}

/* The limit holds for users without CAP_IPC_LOCK: root becomes one of them. */
Test(system, memory_that_may_be_locked)
{
    const size_t bytes = 64 * 1024;
    struct rlimit limit = {1024 * 1024, 1024 * 1024};
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    if (geteuid() == 0) {
        cr_assert_eq(system_memory_lockable(), UINT64_MAX);
        cr_assert_eq(setresuid(65534, 65534, 65534), 0);
    }
    cr_assert_eq(system_memory_lockable(), limit.rlim_cur);
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_eq(mlock2(pages, bytes, 0), 0); /* mlock does nothing under sanitizers */
    cr_assert_eq(system_memory_lockable(), limit.rlim_cur - bytes);
    munmap(pages, bytes);
}

Test(system, seconds_pass)
{
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    double before = system_seconds();
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    double passed = system_seconds() - before;
    clock_gettime(CLOCK_MONOTONIC, &to);
    double most = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    cr_assert(passed >= 0.02 && passed <= most + 1e-6, "%g of %g", passed, most);
}

/* Who waits for nobody until a moment has waited for so long; one that is past is no wait. */
Test(system, moments_come)
{
    static const double seconds[] = {-1, 0, 0.02, 0.999, 1.001};
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition;
    system_condition_init(&condition);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
        double before = system_seconds();
        struct timespec moment = system_moment(seconds[i]);
        cr_assert(moment.tv_nsec >= 0 && moment.tv_nsec < 1000000000);
        int result = pthread_cond_timedwait(&condition, &lock, &moment);
        cr_assert_eq(result, ETIMEDOUT);
        cr_expect_geq(system_seconds() - before, seconds[i] - 1e-6);
    }
    cr_expect_geq(system_moment(INFINITY).tv_sec, 1000000000);
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&condition);
}

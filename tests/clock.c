#define _GNU_SOURCE
#include "clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_llong held_at;  /* nanoseconds; 0: it goes */
static atomic_llong advanced; /* nanoseconds */
static void (*_Atomic on_wait)(void);
static atomic_llong hurry; /* the same, with each look */

static long long ns_of(const struct timespec *time)
{
    return (long long)time->tv_sec * 1000000000 + time->tv_nsec;
}

static struct timespec time_of(long long ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

static long long real_now(void)
{
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return ns_of(&now);
}

static long long now(void)
{
    long long held = atomic_load(&held_at);
    return (held != 0 ? held : real_now()) + atomic_load(&advanced);
}

void clock_hold(void)
{
    long long none = 0;
    atomic_compare_exchange_strong(&held_at, &none, real_now());
}

void clock_hurry(double seconds)
{
    clock_hold();
    atomic_store(&hurry, (long long)(seconds * 1e9));
}

void clock_on_wait(void (*call)(void))
{
    atomic_store(&on_wait, call);
}

void clock_advance(double seconds)
{
    atomic_fetch_add(&advanced, (long long)(seconds * 1e9));
}

/* In place of the C library's. */
int clock_gettime(clockid_t clock, struct timespec *out)
{
    if (clock != CLOCK_MONOTONIC)
        return (int)syscall(SYS_clock_gettime, clock, out);
    atomic_fetch_add(&advanced, atomic_load(&hurry));
    *out = time_of(now());
    return 0;
}

/* In place of the C library's; by CLOCK_MONOTONIC, as all conditions of the program are. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                           const struct timespec *until)
{
    void (*call)(void) = atomic_load(&on_wait);
    if (call != NULL)
        call();
    long long left = ns_of(until) - now();
    if (left <= 0)
        return ETIMEDOUT;
    bool stands = atomic_load(&held_at) != 0;
    struct timespec end = time_of(real_now() + (stands && left > 1000000 ? 1000000 : left));
    int result = pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &end);
    return result == ETIMEDOUT && stands && ns_of(until) > now() ? 0 : result;
}

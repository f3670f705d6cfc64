#include "kernel_devices.h"

#include <criterion/criterion.h>
#include <stdatomic.h>

#include "base/system.h"
#include "device/thread_delay.h"
#include "device/thread_team.h"
#include "kernel_sets.h"

/* A worker's turn is some milliseconds, of which two microseconds are more than a thousandth. */
#define SECONDS_PER_SECOND 1000

static atomic_bool is_fast;
static atomic_int_fast64_t leaves;

/* The linker gives these to who calls for the functions without the prefix. */
double __real_system_seconds(void);
double __real_thread_delay(void);
bool __real_thread_team_should_leave(void);
double __wrap_system_seconds(void);
double __wrap_thread_delay(void);
bool __wrap_thread_team_should_leave(void);

double __wrap_system_seconds(void)
{
    return __real_system_seconds() * (is_fast ? SECONDS_PER_SECOND : 1);
}

/* All of the time others had the CPU. */
double __wrap_thread_delay(void)
{
    return is_fast ? __wrap_system_seconds() : __real_thread_delay();
}

bool __wrap_thread_team_should_leave(void)
{
    bool should_leave = __real_thread_team_should_leave();
    if (should_leave) /* relaxed: no thread is to see another in order by this */
        atomic_fetch_add_explicit(&leaves, 1, memory_order_relaxed);
    return should_leave;
}

struct device *kernel_device_open(const char *set, int thread_count)
{
    struct device *device;
    struct error err;
    /* Workers look at their CPU where they have one of their own. */
    if (thread_count == 2)
        is_fast = true;
    struct cpu_share share = {.thread_count = thread_count,
                              .first_cpu = thread_count == 2 ? 0 : -1};
    cr_assert_eq(device_cpu_create_with(&device, &share, set_find(set), &err), STATUS_OK, "%s",
                 err.message);
    return device;
}

int64_t kernel_device_leaves(void)
{
    return leaves;
}

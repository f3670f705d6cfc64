#define _GNU_SOURCE
#include "device/sleepers.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/perturb.h"

/* 5 to 50 us where there is a pause instruction, which is longest on Intel's processors: longer than
 * the gap between two stages of a layer, far shorter than a time slice. */
#define SPIN_COUNT 1000

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void sleepers_wait(struct sleepers *sleepers, bool spin, bool (*ready)(const void *context),
                   const void *context)
{
    for (int i = 0; i < (spin ? SPIN_COUNT : 1); i++) {
        if (ready(context))
            return;
        pause_briefly();
    }
    perturb();
    atomic_fetch_add(&sleepers->count, 1);
    for (;;) {
        unsigned wakes = atomic_load(&sleepers->wakes);
        if (ready(context))
            break;
        perturb();
        syscall(SYS_futex, &sleepers->wakes, FUTEX_WAIT_PRIVATE, wakes, NULL, NULL, 0);
    }
    atomic_fetch_sub(&sleepers->count, 1);
}

/* The count is read by an addition, so that this and the waiter's addition have an order. Either
 * the waiter's is first: then this sees it, and its wake ends the sleep or changes `wakes` before
 * the sleep begins. Or it is second: then the waiter sees the change that came before this. */
void sleepers_wake(struct sleepers *sleepers)
{
    perturb();
    if (atomic_fetch_add(&sleepers->count, 0) == 0)
        return;
    atomic_fetch_add(&sleepers->wakes, 1);
    syscall(SYS_futex, &sleepers->wakes, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

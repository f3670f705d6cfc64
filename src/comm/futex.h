/* Sleeping on a word of memory until another thread of this process changes it. */
#ifndef PHASOR_COMM_FUTEX_H
#define PHASOR_COMM_FUTEX_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Returns when the word differs from `old`, was woken, `seconds` have passed, or for no reason. */
static inline void futex_wait(atomic_uint *word, unsigned old, double seconds)
{
    struct timespec limit = {.tv_sec = (time_t)seconds};
    limit.tv_nsec = (long)((seconds - (double)limit.tv_sec) * 1e9);
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, &limit, NULL, 0);
}

static inline void futex_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

static inline void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

#endif

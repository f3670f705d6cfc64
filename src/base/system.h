/* What the machine has to give. */
#ifndef PHASOR_BASE_SYSTEM_H
#define PHASOR_BASE_SYSTEM_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* Bytes of memory that can be taken without swapping: MemAvailable, or less where the cgroup
 * (version 2) at the root of the tree that this process sees, as in a container, allows less.
 * UINT64_MAX when nothing tells. */
uint64_t system_memory_available(void);

/* Bytes of memory that the machine has, used or not; less where that cgroup allows less. UINT64_MAX
 * when nothing tells. */
uint64_t system_memory_total(void);

/* Bytes that this process may still lock in memory (mlock): UINT64_MAX where nothing limits it. */
uint64_t system_memory_lockable(void);

/* Bytes of the last cache before memory, which all cores share; 0 when nothing tells. */
uint64_t system_cache_bytes(void);

/* Seconds on a clock that is never set back; only differences mean something. */
double system_seconds(void);

/* A condition that is waited for until moments of that clock. */
void system_condition_init(pthread_cond_t *condition);

/* So many seconds from now, for pthread_cond_timedwait on such a condition; below 0: now. */
struct timespec system_moment(double seconds);

#endif

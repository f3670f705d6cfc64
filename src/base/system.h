/* What the machine has to give. */
#ifndef PHASOR_BASE_SYSTEM_H
#define PHASOR_BASE_SYSTEM_H

#include <stdint.h>

/* Bytes of memory that can be taken without swapping: MemAvailable, or less where a cgroup of this
 * process allows less. UINT64_MAX when nothing tells. */
uint64_t system_memory_available(void);

/* Seconds on a clock that is never set back; only differences mean something. */
double system_seconds(void);

#endif

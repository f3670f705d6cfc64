/* Memory of a workload: the host's, which the device under test reads and writes, too. On a CPU and
 * on an emulated GPU any memory is (workload_memory.c); for a real one it is managed
 * (tests/gpu/gpu_real.c). */
#ifndef PHASOR_TESTS_KERNELS_WORKLOAD_MEMORY_H
#define PHASOR_TESTS_KERNELS_WORKLOAD_MEMORY_H

#include <stddef.h>

/* Zeros, aligned for any operation. Aborts when it cannot be had. */
void *workload_memory_get(size_t bytes);
void workload_memory_free(void *memory);

/* Brings all of it near the device that was touched by the host since, where that matters to who
 * measures time. */
void workload_memory_settle(void);

#endif

/* The memory of a CPU device: whole pages for each piece, so that all of it can be closed. */
#ifndef PHASOR_KERNELS_CPU_DEVICE_CPU_POOL_H
#define PHASOR_KERNELS_CPU_DEVICE_CPU_POOL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "device/device.h"
#include "device/memory_list.h"

struct cpu_pool {
    pthread_mutex_t lock; /* of all below: a turn closes from other threads than those that get */
    struct memory_list list;
    bool closed;
};

void cpu_pool_init(struct cpu_pool *pool);
void cpu_pool_deinit(struct cpu_pool *pool); /* everything was freed before */

enum status cpu_pool_get(struct cpu_pool *pool, void **out, size_t bytes, const char *what,
                         struct error *err) MUST_CHECK;
void cpu_pool_free(struct cpu_pool *pool, void *memory); /* NULL is allowed */
/* See memory_map of struct device_ops. */
enum status cpu_pool_map(struct cpu_pool *pool, void *memory, size_t bytes, int fd, uint64_t offset,
                         struct error *err) MUST_CHECK;
struct device_memory cpu_pool_use(struct cpu_pool *pool);

/* Whether it is in a piece of the pool's. */
bool cpu_pool_has(struct cpu_pool *pool, const void *memory);

/* What is got while the pool is closed is closed, too. */
void cpu_pool_protect(struct cpu_pool *pool, bool closed);

#endif

/* The memory of a GPU. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_POOL_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_POOL_H

#include <pthread.h>

#include "device/memory_list.h"

struct cuda_pool {
    int ordinal;
    size_t limit_bytes;   /* that it may take of the GPU */
    pthread_mutex_t lock; /* of the list */
    struct memory_list list;
};

void cuda_pool_init(struct cuda_pool *pool, int ordinal, size_t limit_bytes);
void cuda_pool_deinit(struct cuda_pool *pool); /* everything was freed before */

/* As memory_get of device_ops; what is freed first waits for the GPU. */
enum status cuda_pool_get(struct cuda_pool *pool, void **out, size_t bytes, const char *what,
                          struct error *err) MUST_CHECK;
void cuda_pool_free(struct cuda_pool *pool, void *memory); /* NULL is allowed */
struct device_memory cuda_pool_use(struct cuda_pool *pool);

#endif

#include "kernels/cuda/device/cuda_pool.h"

#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_reach.h"

void cuda_pool_init(struct cuda_pool *pool, int ordinal, size_t limit_bytes)
{
    *pool = (struct cuda_pool){
        .ordinal = ordinal, .limit_bytes = limit_bytes, .lock = PTHREAD_MUTEX_INITIALIZER};
}

void cuda_pool_deinit(struct cuda_pool *pool)
{
    memory_list_deinit(&pool->list);
    pthread_mutex_destroy(&pool->lock);
}

static enum status piece_get(struct cuda_pool *pool, void **out, size_t bytes, const char *what,
                             struct error *err)
{
    if (bytes > pool->limit_bytes - pool->list.use.bytes)
        return error_set(err, STATUS_NO_MEMORY,
                         "cannot allocate %zu bytes for %s: of cuda:%d this rank has %zu bytes, of "
                         "which %zu are in use",
                         bytes, what, pool->ordinal, pool->limit_bytes,
                         (size_t)pool->list.use.bytes);
    TRY(memory_list_reserve(&pool->list, err));
    CUDA_TRY(pool->ordinal, cudaSetDevice(pool->ordinal), err);
    /* No bytes are a piece of their own, too. */
    cudaError_t error = cudaMalloc(out, bytes > 0 ? bytes : 1);
    if (error != cudaSuccess)
        return error_prefix(err, cuda_error_set(err, pool->ordinal, "cudaMalloc", error),
                            "cannot allocate %zu bytes for %s", bytes, what);
    memory_list_add(&pool->list, *out, bytes);
    return STATUS_OK;
}

enum status cuda_pool_get(struct cuda_pool *pool, void **out, size_t bytes, const char *what,
                          struct error *err)
{
    void *memory;
    pthread_mutex_lock(&pool->lock);
    enum status status = piece_get(pool, &memory, bytes, what, err);
    pthread_mutex_unlock(&pool->lock);
    if (status == STATUS_OK)
        *out = memory;
    return status;
}

/* A GPU that is broken has told so on its streams; its memory is gone with it. */
void cuda_pool_free(struct cuda_pool *pool, void *memory)
{
    if (memory == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    memory_list_remove(&pool->list, memory);
    pthread_mutex_unlock(&pool->lock);
    if (cuda_is_stuck())
        return;
    (void)cudaSetDevice(pool->ordinal);
    (void)cudaFree(memory);
    (void)cudaGetLastError();
}

struct device_memory cuda_pool_use(struct cuda_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct device_memory use = pool->list.use;
    pthread_mutex_unlock(&pool->lock);
    return use;
}

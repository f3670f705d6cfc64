#include "kernels/cpu/device/cpu_pool.h"

#include <sys/mman.h>

#include "base/memory.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

struct cpu_region {
    void *memory;
    size_t bytes;
};

void cpu_pool_init(struct cpu_pool *pool)
{
    *pool = (struct cpu_pool){.lock = PTHREAD_MUTEX_INITIALIZER};
}

void cpu_pool_deinit(struct cpu_pool *pool)
{
    ASSERT(pool->region_count == 0);
    memory_free(pool->regions);
    pthread_mutex_destroy(&pool->lock);
}

static void region_protect(const struct cpu_region *region, bool closed)
{
    int failure = mprotect(region->memory, memory_pages_bytes(region->bytes),
                           closed ? PROT_NONE : PROT_READ | PROT_WRITE);
    ASSERT(failure == 0);
}

/* Large pieces in huge pages: fewer faults while weights load, and fewer misses of address
 * translation while they are read. A kernel that has none refuses, and nothing is lost. */
static void region_advise(const struct cpu_region *region)
{
#ifdef MADV_HUGEPAGE
    if (region->bytes >= HUGE_PAGE_BYTES)
        (void)madvise(region->memory, memory_pages_bytes(region->bytes), MADV_HUGEPAGE);
#else
    (void)region;
#endif
}

static enum status region_add(struct cpu_pool *pool, size_t bytes, const char *what,
                              struct error *err)
{
    TRY(memory_reserve(&pool->regions, &pool->region_capacity, pool->region_count + 1,
                       sizeof *pool->regions, "the list of device memory", err));
    struct cpu_region *region = &pool->regions[pool->region_count];
    TRY(memory_pages_get(&region->memory, bytes, what, err));
    region->bytes = bytes;
    region_advise(region);
    pool->region_count++;
    pool->use.bytes += bytes;
    if (pool->use.bytes > pool->use.peak_bytes)
        pool->use.peak_bytes = pool->use.bytes;
    if (pool->closed)
        region_protect(region, true);
    return STATUS_OK;
}

enum status cpu_pool_get(struct cpu_pool *pool, void **out, size_t bytes, const char *what,
                         struct error *err)
{
    pthread_mutex_lock(&pool->lock);
    enum status status = region_add(pool, bytes, what, err);
    if (status == STATUS_OK)
        *out = pool->regions[pool->region_count - 1].memory;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void cpu_pool_free(struct cpu_pool *pool, void *memory)
{
    if (memory == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    size_t i = pool->region_count; /* what was got last is mostly freed first */
    while (i > 0 && pool->regions[i - 1].memory != memory)
        i--;
    ASSERT(i > 0);
    struct cpu_region region = pool->regions[i - 1];
    pool->regions[i - 1] = pool->regions[--pool->region_count];
    pool->use.bytes -= region.bytes;
    pthread_mutex_unlock(&pool->lock);
    memory_pages_free(region.memory, region.bytes);
}

struct device_memory cpu_pool_use(struct cpu_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct device_memory use = pool->use;
    pthread_mutex_unlock(&pool->lock);
    return use;
}

void cpu_pool_protect(struct cpu_pool *pool, bool closed)
{
    pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < pool->region_count; i++)
        region_protect(&pool->regions[i], closed);
    pool->closed = closed;
    pthread_mutex_unlock(&pool->lock);
}

#include "kernels/cpu/device/cpu_pool.h"

#include <stdint.h>
#include <sys/mman.h>

#include "base/memory.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

void cpu_pool_init(struct cpu_pool *pool)
{
    *pool = (struct cpu_pool){.lock = PTHREAD_MUTEX_INITIALIZER};
}

void cpu_pool_deinit(struct cpu_pool *pool)
{
    memory_list_deinit(&pool->list);
    pthread_mutex_destroy(&pool->lock);
}

static void piece_protect(const struct memory_piece *piece, bool closed)
{
    int failure = mprotect(piece->memory, memory_pages_bytes(piece->bytes),
                           closed ? PROT_NONE : PROT_READ | PROT_WRITE);
    ASSERT(failure == 0);
}

/* Large pieces in huge pages: fewer faults while weights load, and fewer misses of address
 * translation while they are read. A kernel that has none refuses, and nothing is lost. */
static void piece_advise(const struct memory_piece *piece)
{
#ifdef MADV_HUGEPAGE
    if (piece->bytes >= HUGE_PAGE_BYTES)
        (void)madvise(piece->memory, memory_pages_bytes(piece->bytes), MADV_HUGEPAGE);
#else
    (void)piece;
#endif
}

static enum status piece_get(struct cpu_pool *pool, struct memory_piece *piece, const char *what,
                             struct error *err)
{
    TRY(memory_list_reserve(&pool->list, err));
    TRY(memory_pages_get(&piece->memory, piece->bytes, what, err));
    memory_list_add(&pool->list, piece->memory, piece->bytes);
    piece_advise(piece);
    if (pool->closed)
        piece_protect(piece, true);
    return STATUS_OK;
}

enum status cpu_pool_get(struct cpu_pool *pool, void **out, size_t bytes, const char *what,
                         struct error *err)
{
    struct memory_piece piece = {.bytes = bytes};
    pthread_mutex_lock(&pool->lock);
    enum status status = piece_get(pool, &piece, what, err);
    pthread_mutex_unlock(&pool->lock);
    if (status == STATUS_OK)
        *out = piece.memory;
    return status;
}

static void piece_set_mapped(struct memory_piece *piece, size_t bytes)
{
    memory_count_mapped((int64_t)bytes - (int64_t)piece->mapped);
    piece->mapped = bytes;
}

enum status cpu_pool_map(struct cpu_pool *pool, void *memory, size_t bytes, int fd, uint64_t offset,
                         struct error *err)
{
    struct memory_piece pages = {.memory = memory, .bytes = bytes};
    pthread_mutex_lock(&pool->lock);
    struct memory_piece *piece = memory_list_find(&pool->list, memory);
    ASSERT(bytes <= piece->bytes);
    enum status status = memory_pages_map(memory, bytes, fd, offset, err);
    if (status == STATUS_OK) {
        piece_set_mapped(piece, fd < 0 ? 0 : bytes);
        piece_advise(&pages);
        if (pool->closed)
            piece_protect(&pages, true);
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void cpu_pool_free(struct cpu_pool *pool, void *memory)
{
    if (memory == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    piece_set_mapped(memory_list_find(&pool->list, memory), 0);
    size_t bytes = memory_list_remove(&pool->list, memory);
    pthread_mutex_unlock(&pool->lock);
    memory_pages_free(memory, bytes);
}

struct device_memory cpu_pool_use(struct cpu_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct device_memory use = pool->list.use;
    pthread_mutex_unlock(&pool->lock);
    return use;
}

bool cpu_pool_has(struct cpu_pool *pool, const void *memory)
{
    bool has = false;
    pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < pool->list.count && !has; i++) {
        uintptr_t first = (uintptr_t)pool->list.pieces[i].memory;
        has = (uintptr_t)memory >= first && (uintptr_t)memory - first < pool->list.pieces[i].bytes;
    }
    pthread_mutex_unlock(&pool->lock);
    return has;
}

void cpu_pool_protect(struct cpu_pool *pool, bool closed)
{
    pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < pool->list.count; i++)
        piece_protect(&pool->list.pieces[i], closed);
    pool->closed = closed;
    pthread_mutex_unlock(&pool->lock);
}

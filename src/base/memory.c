#include "base/memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(WITH_ASAN)
#include <sanitizer/asan_interface.h>
#define TAIL_BYTES 1 /* at least, behind the pages' bytes: an access there is found */
#else
#define ASAN_POISON_MEMORY_REGION(memory, bytes)   ((void)(memory), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes) ((void)(memory), (void)(bytes))
#define TAIL_BYTES                                 0
#endif

#define ALIGNMENT       64
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

/* Stands before each block, padded to ALIGNMENT so that the block stays aligned. */
struct block_header {
    size_t bytes;
};

static atomic_uint_fast64_t alloc_count, live_count, live_bytes, peak_bytes, mapped_bytes;
static atomic_uint_fast64_t fail_countdown;
static atomic_int fail_sticky;

static int should_fail(void)
{
    uint64_t left = atomic_load(&fail_countdown);
    while (left != 0) {
        if (left == 1 && atomic_load(&fail_sticky))
            return 1;
        if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1))
            return left == 1;
    }
    return 0;
}

static void account(size_t bytes)
{
    atomic_fetch_add(&alloc_count, 1);
    atomic_fetch_add(&live_count, 1);
    uint64_t live = atomic_fetch_add(&live_bytes, bytes) + bytes;
    uint64_t peak = atomic_load(&peak_bytes);
    while (live > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, live))
        ;
}

static void unaccount(size_t bytes)
{
    atomic_fetch_sub(&live_count, 1);
    atomic_fetch_sub(&live_bytes, bytes);
}

void *memory_alloc_raw(size_t count, size_t size)
{
    size_t bytes, total;
    if (__builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(bytes, 2 * ALIGNMENT, &total) || should_fail())
        return NULL;
    total = total / ALIGNMENT * ALIGNMENT;
    char *block = aligned_alloc(ALIGNMENT, total);
    if (block == NULL)
        return NULL;
    ((struct block_header *)block)->bytes = bytes;
    account(bytes);
    return block + ALIGNMENT;
}

void *memory_alloc(size_t count, size_t size)
{
    void *memory = memory_alloc_raw(count, size);
    if (memory != NULL)
        memset(memory, 0, count * size);
    return memory;
}

static struct block_header *header_of(void *memory)
{
    return (struct block_header *)((char *)memory - ALIGNMENT);
}

void *memory_resize(void *memory, size_t count, size_t size)
{
    void *grown = memory_alloc_raw(count, size);
    if (grown == NULL || memory == NULL)
        return grown;
    size_t old_bytes = header_of(memory)->bytes;
    size_t new_bytes = count * size;
    memcpy(grown, memory, old_bytes < new_bytes ? old_bytes : new_bytes);
    memory_free(memory);
    return grown;
}

void memory_free(void *memory)
{
    if (memory == NULL)
        return;
    struct block_header *header = header_of(memory);
    unaccount(header->bytes);
    free(header);
}

char *memory_copy_text(const char *text, size_t length)
{
    char *copy = length == SIZE_MAX ? NULL : memory_alloc_raw(length + 1, 1);
    if (copy == NULL)
        return NULL;
    if (length > 0)
        memcpy(copy, text, length);
    copy[length] = 0;
    return copy;
}

static enum status no_memory(size_t count, size_t size, const char *what, struct error *err)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate %zu x %zu bytes for %s", count,
                         size, what);
    if (bytes < 1 << 20)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate %zu bytes for %s", bytes, what);
    return error_set(err, STATUS_NO_MEMORY, "cannot allocate %zu MiB for %s", bytes >> 20, what);
}

enum status memory_get(void **out, size_t count, size_t size, const char *what, struct error *err)
{
    void *memory = memory_alloc(count, size);
    if (memory == NULL)
        return no_memory(count, size, what, err);
    *out = memory;
    return STATUS_OK;
}

enum status memory_get_raw(void **out, size_t count, size_t size, const char *what,
                           struct error *err)
{
    void *memory = memory_alloc_raw(count, size);
    if (memory == NULL)
        return no_memory(count, size, what, err);
    *out = memory;
    return STATUS_OK;
}

/* At least one page; where there is no room for the rounding, more than any map can be. */
size_t memory_pages_bytes(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t total;
    if (__builtin_add_overflow(bytes, TAIL_BYTES + page - 1, &total))
        return SIZE_MAX / page * page;
    return total < page ? page : total / page * page;
}

/* From a multiple of a huge page on where there is room for one: else the first and the last part
 * of the memory are small pages. */
static void *pages_map(size_t total)
{
    size_t more = total >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0, mapped;
    if (__builtin_add_overflow(total, more, &mapped))
        return NULL;
    char *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    if (more == 0)
        return memory;
    size_t before = (HUGE_PAGE_BYTES - (uintptr_t)memory % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (before > 0 && munmap(memory, before) != 0)
        goto no_maps_left;
    if (munmap(memory + before + total, more - before) == 0)
        return memory + before;

no_maps_left: /* unmapping all takes none */
    munmap(memory, mapped);
    return NULL;
}

enum status memory_pages_get(void **out, size_t bytes, const char *what, struct error *err)
{
    size_t total = memory_pages_bytes(bytes);
    if (should_fail())
        return no_memory(bytes, 1, what, err);
    void *memory = pages_map(total);
    if (memory == NULL)
        return no_memory(bytes, 1, what, err);
    ASAN_POISON_MEMORY_REGION((char *)memory + bytes, total - bytes);
    account(bytes);
    *out = memory;
    return STATUS_OK;
}

enum status memory_pages_map(void *memory, size_t bytes, int fd, uint64_t offset, struct error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    int kind = MAP_PRIVATE | MAP_FIXED | (fd < 0 ? MAP_ANONYMOUS : 0);
    if (mmap(memory, whole, PROT_READ | PROT_WRITE, kind, fd, (off_t)offset) == MAP_FAILED)
        return error_set_errno(err, errno, "cannot map %zu MiB of a file", bytes >> 20);
    return STATUS_OK;
}

void memory_count_mapped(int64_t bytes)
{
    atomic_fetch_add(&mapped_bytes, (uint64_t)bytes);
}

bool memory_pages_fetch(void *memory, size_t bytes)
{
#ifdef MADV_POPULATE_READ
    int failure;
    do
        failure = madvise(memory, bytes, MADV_POPULATE_READ);
    while (failure != 0 && errno == EINTR);
    return failure == 0 || errno == EINVAL || errno == ENOSYS;
#else
    (void)memory;
    (void)bytes;
    return true;
#endif
}

void memory_pages_free(void *memory, size_t bytes)
{
    if (memory == NULL)
        return;
    size_t total = memory_pages_bytes(bytes);
    ASAN_UNPOISON_MEMORY_REGION(memory, total);
    unaccount(bytes);
    int failure = munmap(memory, total);
    ASSERT(failure == 0);
}

enum status memory_reserve(void *array, size_t *capacity, size_t needed, size_t size,
                           const char *what, struct error *err)
{
    if (needed <= *capacity)
        return STATUS_OK;
    size_t wanted = *capacity < 8 ? 8 : *capacity;
    while (wanted < needed) {
        if (wanted > SIZE_MAX / 2)
            return no_memory(needed, size, what, err);
        wanted *= 2;
    }
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = memory_resize(old, wanted, size);
    if (grown == NULL)
        return no_memory(wanted, size, what, err);
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return STATUS_OK;
}

struct memory_counters memory_counters_get(void)
{
    return (struct memory_counters){
        .alloc_count = atomic_load(&alloc_count),
        .live_count = atomic_load(&live_count),
        .live_bytes = atomic_load(&live_bytes),
        .peak_bytes = atomic_load(&peak_bytes),
        .mapped_bytes = atomic_load(&mapped_bytes),
    };
}

void memory_fail_at(uint64_t n, int sticky)
{
    atomic_store(&fail_sticky, sticky);
    atomic_store(&fail_countdown, n);
}

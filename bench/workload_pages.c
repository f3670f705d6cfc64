/* Memory of workloads as that of a CPU's device has it: one piece behind another in huge pages,
 * where the system has them (kernels/cpu/device/cpu_pool.c), so that weights are read as in a
 * model. One thread. */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>

#include "base/status.h"
#include "workload_memory.h"

#define RESERVED_BYTES ((size_t)16 << 30) /* of addresses */
#define ALIGNMENT      64

static char *pages;
static size_t used, live; /* bytes, pieces */

void *workload_memory_get(size_t bytes)
{
    if (pages == NULL) {
        pages = mmap(NULL, RESERVED_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        ASSERT(pages != MAP_FAILED);
        (void)madvise(pages, RESERVED_BYTES, MADV_HUGEPAGE);
    }
    ASSERT(bytes <= RESERVED_BYTES - used);
    char *memory = pages + used;
    used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    live++;
    return memory;
}

/* All of it goes with the last piece, and is zeros again. */
void workload_memory_free(void *memory)
{
    if (memory == NULL || --live > 0)
        return;
    (void)madvise(pages, used, MADV_DONTNEED);
    used = 0;
}

void workload_memory_settle(void)
{
}

#include "workload_memory.h"

#include "base/memory.h"

void *workload_memory_get(size_t bytes)
{
    void *memory = memory_alloc(bytes, 1);
    ASSERT(memory != NULL);
    return memory;
}

void workload_memory_free(void *memory)
{
    memory_free(memory);
}

void workload_memory_settle(void)
{
}

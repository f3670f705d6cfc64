#include <cuda_runtime_api.h>
#include <string.h>

#include "base/status.h"
#include "workload_memory.h"

#define PIECES_MAX 8192 /* hundreds of experts, several each */

/* Of the first GPU. */
static struct {
    void *memory; /* NULL: free */
    size_t bytes;
} pieces[PIECES_MAX];

void *workload_memory_get(size_t bytes)
{
    void *memory = NULL;
    size_t asked = bytes > 0 ? bytes : 1;
    int i = 0;
    while (i < PIECES_MAX && pieces[i].memory != NULL)
        i++;
    ASSERT(i < PIECES_MAX);
    ASSERT(cudaMallocManaged(&memory, asked, cudaMemAttachGlobal) == cudaSuccess);
    pieces[i].memory = memory;
    pieces[i].bytes = asked;
    return memset(memory, 0, bytes);
}

void workload_memory_free(void *memory)
{
    for (int i = 0; memory != NULL && i < PIECES_MAX; i++) {
        if (pieces[i].memory == memory)
            pieces[i].memory = NULL;
    }
    (void)cudaFree(memory);
}

void workload_memory_settle(void)
{
    for (int i = 0; i < PIECES_MAX; i++) {
        if (pieces[i].memory == NULL)
            continue;
#if CUDART_VERSION >= 13000
        struct cudaMemLocation gpu = {.type = cudaMemLocationTypeDevice, .id = 0};
        cudaError_t error = cudaMemPrefetchAsync(pieces[i].memory, pieces[i].bytes, gpu, 0, NULL);
#else
        cudaError_t error = cudaMemPrefetchAsync(pieces[i].memory, pieces[i].bytes, 0, NULL);
#endif
        ASSERT(error == cudaSuccess);
    }
    ASSERT(cudaDeviceSynchronize() == cudaSuccess);
}

#include <cuda_runtime_api.h>
#include <string.h>

#include "base/checked.h"
#include "base/status.h"
#include "workload_memory.h"

/* Small pieces are by themselves, so that compute-sanitizer sees what goes beyond one. Large ones
 * share allocations, where each begins a page of the GPU's: of allocations of some MiB a GPU reads
 * half as fast, as its pages are small. */
#define PIECES_MAX  8192 /* hundreds of experts, several each */
#define LARGE_BYTES ((size_t)1 << 20)
#define PAGE_BYTES  ((size_t)2 << 20)
#define CHUNK_BYTES ((size_t)1 << 30)
#define CHUNKS_MAX  PIECES_MAX

/* Of the first GPU. */
static struct {
    char *memory; /* NULL: free */
    int chunk;
} pieces[PIECES_MAX];

static struct chunk {
    char *memory; /* NULL: free */
    size_t bytes, used;
    int piece_count;
} chunks[CHUNKS_MAX];

static int chunk_open(size_t bytes)
{
    void *memory = NULL;
    int c = 0;
    while (c < CHUNKS_MAX && chunks[c].memory != NULL)
        c++;
    ASSERT(c < CHUNKS_MAX);
    ASSERT(cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal) == cudaSuccess);
    chunks[c] = (struct chunk){.memory = memory, .bytes = bytes};
    return c;
}

/* One with room for a large piece, or one that is made for the piece. */
static int chunk_for(size_t bytes)
{
    for (int c = 0; bytes >= LARGE_BYTES && c < CHUNKS_MAX; c++) {
        if (chunks[c].memory != NULL && chunks[c].bytes - chunks[c].used >= bytes)
            return c;
    }
    bool shares = bytes >= LARGE_BYTES && bytes < CHUNK_BYTES;
    return chunk_open(shares ? CHUNK_BYTES : bytes > 0 ? bytes : 1);
}

void *workload_memory_get(size_t bytes)
{
    int i = 0, c = chunk_for(bytes);
    struct chunk *chunk = &chunks[c];
    size_t taken = (size_t)round_up((int64_t)bytes, (int64_t)PAGE_BYTES);
    while (i < PIECES_MAX && pieces[i].memory != NULL)
        i++;
    ASSERT(i < PIECES_MAX);
    pieces[i].memory = chunk->memory + chunk->used;
    pieces[i].chunk = c;
    chunk->piece_count++;
    chunk->used = taken < chunk->bytes - chunk->used ? chunk->used + taken : chunk->bytes;
    return memset(pieces[i].memory, 0, bytes);
}

static void chunk_leave(struct chunk *chunk)
{
    if (--chunk->piece_count > 0)
        return;
    (void)cudaFree(chunk->memory);
    *chunk = (struct chunk){0};
}

void workload_memory_free(void *memory)
{
    for (int i = 0; memory != NULL && i < PIECES_MAX; i++) {
        if (pieces[i].memory != memory)
            continue;
        pieces[i].memory = NULL;
        chunk_leave(&chunks[pieces[i].chunk]);
        return;
    }
}

void workload_memory_settle(void)
{
    for (int c = 0; c < CHUNKS_MAX; c++) {
        if (chunks[c].memory == NULL)
            continue;
#if CUDART_VERSION >= 13000
        struct cudaMemLocation gpu = {.type = cudaMemLocationTypeDevice, .id = 0};
        cudaError_t error = cudaMemPrefetchAsync(chunks[c].memory, chunks[c].used, gpu, 0, NULL);
#else
        cudaError_t error = cudaMemPrefetchAsync(chunks[c].memory, chunks[c].used, 0, NULL);
#endif
        ASSERT(error == cudaSuccess);
    }
    ASSERT(cudaDeviceSynchronize() == cudaSuccess);
}

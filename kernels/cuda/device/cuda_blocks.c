#include "kernels/cuda/device/cuda_blocks.h"

#include <cuda_runtime_api.h>

#include "base/memory.h"
#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_pinned.h"

/* Of a few sizes, each twice the one before: what is given back fits who comes next. */
#define BLOCK_BYTES_LEAST ((size_t)4096)

static size_t block_bytes(size_t bytes)
{
    size_t size = BLOCK_BYTES_LEAST;
    while (size < bytes)
        size *= 2;
    return size;
}

static void block_free(struct cuda_block *block)
{
    (void)cudaFreeHost(block->host);
    (void)cudaFree(block->device);
    (void)cudaGetLastError();
    memory_free(block);
}

static enum status block_fill(struct cuda_block *block, int ordinal, struct error *err)
{
    TRY(cuda_pinned_malloc(ordinal, (void **)&block->host, block->bytes, err));
    CUDA_TRY(ordinal, cudaMalloc((void **)&block->device, block->bytes), err);
    return STATUS_OK;
}

enum status cuda_blocks_take(struct cuda_block **out, struct cuda_blocks *blocks, int ordinal,
                             size_t bytes, struct error *err)
{
    size_t size = block_bytes(bytes);
    struct cuda_block *block = blocks->first;
    while (block != NULL && (block->is_taken || block->bytes != size))
        block = block->next;
    if (block == NULL) {
        TRY(memory_get((void **)&block, 1, sizeof *block, "a graph", err));
        block->bytes = size;
        enum status status = block_fill(block, ordinal, err);
        if (status != STATUS_OK) {
            block_free(block);
            return status;
        }
        block->next = blocks->first;
        blocks->first = block;
    }
    block->is_taken = true;
    *out = block;
    return STATUS_OK;
}

void cuda_block_give_back(struct cuda_block *block)
{
    if (block != NULL)
        block->is_taken = false;
}

void cuda_blocks_deinit(struct cuda_blocks *blocks)
{
    while (blocks->first != NULL) {
        struct cuda_block *next = blocks->first->next;
        block_free(blocks->first);
        blocks->first = next;
    }
}

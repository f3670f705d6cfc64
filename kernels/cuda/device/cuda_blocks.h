/* Memory that is kept for who asks next, of a GPU and, pinned, of the host: a stream's steps get
 * and drop arrays of their graphs all the time. To free memory waits for what all GPUs do that
 * reach one another, and so for a collective of which a rank has launched its part, and another,
 * whose launch waits for who frees, has not. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_BLOCKS_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* As many bytes on either side. */
struct cuda_block {
    char *host, *device;
    size_t bytes;
    bool is_taken;
    struct cuda_block *next;
};

/* Of zeros; for one thread. */
struct cuda_blocks {
    struct cuda_block *first;
};

/* Of at least `bytes`, of which nobody knows what stands there; to be given back when nothing on a
 * stream works with it. */
enum status cuda_blocks_take(struct cuda_block **out, struct cuda_blocks *blocks, int ordinal,
                             size_t bytes, struct error *err) MUST_CHECK;
void cuda_block_give_back(struct cuda_block *block); /* NULL is allowed */

/* Frees all of them; those that are taken, too. */
void cuda_blocks_deinit(struct cuda_blocks *blocks);

#endif

/* The ways to join ranks that are GPUs: for the suite of tests/comm. On emulated ones each has an
 * order of the streams and of a kernel's threads: work that no event holds runs too early in some
 * of them. */
#include "comm_tools.h"
#include "cuda_boxes.h"
#include "gpu.h"

/* What was not brought is not there. */
const bool cuda_box_leaves_anything = false;

enum status cuda_box_open(struct box **out, int rank_count, int gpu_count, double bytes_per_second,
                          double patience_seconds, struct error *err)
{
    int gpus[COMM_RANKS_MAX];
    int there = gpu_count_use(gpu_count);
    for (int r = 0; r < rank_count; r++)
        gpus[r] = r % there;
    return box_open(out,
                    &(struct box_params){.rank_count = rank_count,
                                         .thread_count = rank_count,
                                         .patience_seconds = patience_seconds,
                                         .tag_names = tag_names,
                                         .tag_count = COMM_TAGS_MAX,
                                         .links = {.bytes_per_second = bytes_per_second},
                                         .gpus = gpus},
                    err);
}

/* Fast enough that nothing waits long, and paced. */
static enum status slow_links_6(struct box **out, int rank_count, double patience_seconds,
                                struct error *err)
{
    gpu_order_use(GPU_RANDOM, 6);
    return cuda_box_open(out, rank_count, 1, 1e9, patience_seconds, err);
}

#define DEFINE_OPEN(name, gpu_count, order, seed)                                                  \
    static enum status name(struct box **out, int rank_count, double patience_seconds,             \
                            struct error *err)                                                     \
    {                                                                                              \
        gpu_order_use(order, seed);                                                                \
        return cuda_box_open(out, rank_count, gpu_count, 0, patience_seconds, err);                \
    }

DEFINE_OPEN(one_gpu_0, 1, GPU_FORWARD, 0)
DEFINE_OPEN(one_gpu_1, 1, GPU_REVERSE, 1)
DEFINE_OPEN(one_gpu_2, 1, GPU_RANDOM, 2)
DEFINE_OPEN(one_gpu_3, 1, GPU_FORWARD, 3)
DEFINE_OPEN(one_gpu_4, 1, GPU_FORWARD, 4)
DEFINE_OPEN(two_gpus_5, 2, GPU_FORWARD, 5)
DEFINE_OPEN(own_gpus_0, rank_count, GPU_FORWARD, 0)
DEFINE_OPEN(own_gpus_2, rank_count, GPU_REVERSE, 2)
DEFINE_OPEN(own_gpus_3, rank_count, GPU_RANDOM, 3)

const struct backend backends[] = {
    {.name = "one GPU, seed 0", .open = one_gpu_0, .close = box_close},
    {.name = "one GPU, seed 1", .open = one_gpu_1, .close = box_close},
    {.name = "one GPU, seed 2", .open = one_gpu_2, .close = box_close},
    {.name = "one GPU, seed 3", .open = one_gpu_3, .close = box_close},
    {.name = "one GPU, seed 4", .open = one_gpu_4, .close = box_close},
    {.name = "two GPUs, seed 5", .open = two_gpus_5, .close = box_close},
    {.name = "a GPU each, seed 0", .open = own_gpus_0, .close = box_close},
    {.name = "a GPU each, seed 2", .open = own_gpus_2, .close = box_close},
    {.name = "a GPU each, seed 3", .open = own_gpus_3, .close = box_close},
    {.name = "slow links, seed 6", .open = slow_links_6, .close = box_close},
};
const int backend_count = sizeof backends / sizeof backends[0];

/* The ways to join ranks by the stub of NCCL: for the suite of tests/comm. Each has an order in
 * which streams come to run, times at which threads come to launch, and how long a launch takes. */
#include "nccl_tools.h"

#include "comm_tools.h"
#include "cuda_boxes.h"
#include "gpu.h"

static enum status open_with(struct box **out, int rank_count, int gpu_count,
                             double bytes_per_second, double patience_seconds,
                             const struct log_sink *log, struct error *err)
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
                                         .gpus = gpus,
                                         .log = log != NULL ? *log : (struct log_sink){0}},
                    err);
}

enum status nccl_box_open(struct box **out, int rank_count, double patience_seconds,
                          const struct log_sink *log, struct error *err)
{
    return open_with(out, rank_count, rank_count, 0, patience_seconds, log, err);
}

/* What was aborted may have been added up already. */
const bool cuda_box_leaves_anything = true;

/* For the tests of copies between GPUs, which NCCL holds, too. */
enum status cuda_box_open(struct box **out, int rank_count, int gpu_count, double bytes_per_second,
                          double patience_seconds, struct error *err)
{
    return open_with(out, rank_count, gpu_count, bytes_per_second, patience_seconds, NULL, err);
}

#define DEFINE_OPEN(name, order, stream_seed, polls, jitter)                                       \
    static enum status name(struct box **out, int rank_count, double patience_seconds,             \
                            struct error *err)                                                     \
    {                                                                                              \
        gpu_order_use(order, stream_seed);                                                         \
        stub()->polls_set(polls);                                                                  \
        stub()->jitter_set(jitter);                                                                \
        return nccl_box_open(out, rank_count, patience_seconds, NULL, err);                        \
    }

DEFINE_OPEN(open_0, GPU_FORWARD, 0, 2, 0)
DEFINE_OPEN(open_1, GPU_REVERSE, 1, 0, 0)
DEFINE_OPEN(open_2, GPU_RANDOM, 2, 1, 7)
DEFINE_OPEN(open_3, GPU_FORWARD, 3, 3, 11)
DEFINE_OPEN(open_4, GPU_FORWARD, 4, 0, 13)

const struct backend backends[] = {
    {.name = "seed 0, launched later", .open = open_0, .close = box_close},
    {.name = "seed 1", .open = open_1, .close = box_close},
    {.name = "seed 2, at random times, later", .open = open_2, .close = box_close},
    {.name = "seed 3, at random times, later", .open = open_3, .close = box_close},
    {.name = "seed 4, at random times", .open = open_4, .close = box_close},
};
const int backend_count = sizeof backends / sizeof backends[0];

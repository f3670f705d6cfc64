/* Boxes of GPUs. */
#ifndef TESTS_CUDA_COMM_CUDA_BOXES_H
#define TESTS_CUDA_COMM_CUDA_BOXES_H

#include <stdbool.h>

#include "comm/box.h"

/* The machine has `gpu_count` of them, or fewer where they are real, and rank r is on the r-th,
 * modulo their number. Links have that rate; 0: they are as they are. */
enum status cuda_box_open(struct box **out, int rank_count, int gpu_count, double bytes_per_second,
                          double patience_seconds, struct error *err) MUST_CHECK;

/* Whether in the results of a rank that was told of a failure there may be anything. */
extern const bool cuda_box_leaves_anything;

#endif

/* Boxes of GPUs. */
#ifndef TESTS_CUDA_COMM_CUDA_BOXES_H
#define TESTS_CUDA_COMM_CUDA_BOXES_H

#include "comm/box.h"

/* The machine has `gpu_count` of them, or fewer where they are real, and rank r is on the r-th,
 * modulo their number. */
enum status cuda_box_open(struct box **out, int rank_count, int gpu_count, double patience_seconds,
                          struct error *err) MUST_CHECK;

#endif

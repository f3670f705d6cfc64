/* Boxes of emulated GPUs. */
#ifndef TESTS_CUDA_COMM_CUDA_BOXES_H
#define TESTS_CUDA_COMM_CUDA_BOXES_H

#include "comm/box.h"

/* The machine has `gpu_count` of them, and rank r is on GPU r % gpu_count. */
enum status cuda_box_open(struct box **out, int rank_count, int gpu_count, double patience_seconds,
                          struct error *err) MUST_CHECK;

#endif

/* Boxes of emulated GPUs that the stub of NCCL joins. */
#ifndef TESTS_CUDA_NCCL_NCCL_TOOLS_H
#define TESTS_CUDA_NCCL_NCCL_TOOLS_H

#include "comm/box.h"
#include "nccl_stub_use.h"

/* As box_open, for ranks on as many GPUs. */
enum status nccl_box_open(struct box **out, int rank_count, double patience_seconds,
                          const struct log_sink *log, struct error *err) MUST_CHECK;

#endif

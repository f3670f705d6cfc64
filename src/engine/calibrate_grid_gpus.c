/* The grids of GPUs. Beside the CPU's: rows, sequences and bytes as many as a pass of prefill has,
 * for with few of them most of a GPU is idle, and its rate is another. */
#include "engine/calibrate_grid.h"

#define FFN(kind_, dtype_)                                                                         \
    {                                                                                              \
        .kind = (kind_), .dtype = (dtype_), .axis_count = 4, .points_max = 144,                    \
        .axes = {{0, 1, 1, 4, {1, 16, 128, 1024}},                                                 \
                 {1, -1, 1, 2, {1, 16}},                                                           \
                 {2, -1, 16, 3, {48, 768, 14336}},                                                 \
                 {3, -1, 16, 2, {1024, 4096}}},                                                    \
        .most_flops = {(kind_), (dtype_), {4096, 1, 4096, 4096}},                                  \
        .most_bytes = {(kind_), (dtype_), {8, 8, 4096, 4096}},                                     \
        .least = {(kind_), (dtype_), {1, 1, 16, 64}},                                              \
    }

static const struct grid grids[] = {
    {
        .kind = WORK_MATMUL,
        .dtype = DTYPE_BF16,
        .axis_count = 3,
        .points_max = 120,
        .axes = {{0, -1, 1, 4, {1, 16, 256, 4096}},
                 {1, -1, 16, 3, {64, 1024, 16384}},
                 {2, -1, 16, 2, {512, 4096}}},
        .most_flops = {WORK_MATMUL, DTYPE_BF16, {4096, 4096, 4096}},
        .most_bytes = {WORK_MATMUL, DTYPE_BF16, {1, 16384, 4096}},
        .least = {WORK_MATMUL, DTYPE_BF16, {1, 16, 64}},
    },
    FFN(WORK_FFN_UP, DTYPE_BF16),
    FFN(WORK_FFN_UP, DTYPE_INT4),
    FFN(WORK_FFN_DOWN, DTYPE_BF16),
    FFN(WORK_FFN_DOWN, DTYPE_INT4),
    {
        .kind = WORK_ATTENTION,
        .dtype = DTYPE_BF16,
        .axis_count = 4,
        .points_max = 360,
        .segments_max = 64,
        .tokens_max = 32768,
        .axes =
            {{WORK_SIZE_SCORE_ROWS, -1, 1, 12, {1, 2, 4, 8, 16, 24, 48, 96, 128, 256, 1024, 2048}},
             {2, 0, 1, 5, {1, 2, 8, 64, 1024}},
             {3, 4, 1, 3, {1, 4, 8}},
             {5, -1, 32, 2, {64, 128}}},
        .most_flops = {WORK_ATTENTION, DTYPE_BF16, {4096, 8390656, 4096, 16, 4, 128}},
        .most_bytes = {WORK_ATTENTION, DTYPE_BF16, {64, 65536, 65536, 16, 4, 128}},
        .least = {WORK_ATTENTION, DTYPE_BF16, {1, 1, 1, 1, 1, 64}},
    },
    {
        .kind = WORK_ROWS,
        .dtype = DTYPE_F32,
        .axis_count = 2,
        .points_max = 32,
        .axes = {{0, -1, 1, 4, {1, 32, 1024, 8192}}, {1, -1, 16, 2, {1024, 8192}}},
        .most_flops = {WORK_ROWS, DTYPE_F32, {8192, 4096}},
        .most_bytes = {WORK_ROWS, DTYPE_F32, {8192, 4096}},
        .least = {WORK_ROWS, DTYPE_F32, {1, 16}},
    },
    {
        .kind = WORK_DEQUANTIZE,
        .dtype = DTYPE_INT4,
        .axis_count = 1,
        .points_max = 12,
        .axes = {{0, -1, 32768, 4, {65536, 1 << 20, 1 << 24, 1 << 28}}},
        .most_flops = {WORK_DEQUANTIZE, DTYPE_INT4, {1 << 26}},
        .most_bytes = {WORK_DEQUANTIZE, DTYPE_INT4, {1 << 26}},
        .least = {WORK_DEQUANTIZE, DTYPE_INT4, {32768}},
    },
};

static const int64_t collective_bytes[] = {256, 4096, 65536, 1 << 20, 16 << 20, 256 << 20};

const struct calibrate_plan calibrate_plan_gpus = {
    .grids = grids,
    .grid_count = (int)(sizeof grids / sizeof *grids),
    .collective_bytes = collective_bytes,
    .collective_count = (int)(sizeof collective_bytes / sizeof *collective_bytes),
    .collective_points_max = 16,
    .file_bytes = (int64_t)256 << 20,
    .launch_seconds = 0.15,
    .tolerance = 0.03,
    .patience_seconds = 30,
    .point_seconds = 0.12,
    .sample_seconds = 2e-3,
};

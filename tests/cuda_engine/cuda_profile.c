#include "cuda_profile.h"

#include <criterion/criterion.h>

#include "measure/meter.h"

#define RANK_BYTES METER_RANK_BYTES_MIN

#define ONE(kind_, dtype_, ...)                                                                    \
    {                                                                                              \
        .kind = (kind_), .dtype = (dtype_), .points_max = 1,                                       \
        .most_flops = {(kind_), (dtype_), {__VA_ARGS__}},                                          \
        .most_bytes = {(kind_), (dtype_), {__VA_ARGS__}},                                          \
        .least = {(kind_), (dtype_), {__VA_ARGS__}},                                               \
    }

#define ATTENTION(dtype_)                                                                          \
    {                                                                                              \
        .kind = WORK_ATTENTION, .dtype = (dtype_), .axis_count = 4, .points_max = 1,               \
        .segments_max = 2, .tokens_max = 16,                                                       \
        .axes = {{WORK_SIZE_SCORE_ROWS, -1, 1, 1, {2}},                                            \
                 {2, 0, 1, 1, {4}},                                                                \
                 {3, 4, 1, 1, {1}},                                                                \
                 {5, -1, 32, 1, {32}}},                                                            \
        .most_flops = {WORK_ATTENTION, (dtype_), {4, 20, 8, 1, 1, 32}},                            \
        .most_bytes = {WORK_ATTENTION, (dtype_), {1, 8, 8, 1, 1, 32}},                             \
        .least = {WORK_ATTENTION, (dtype_), {1, 1, 1, 1, 1, 32}},                                  \
    }

static const struct grid grids[] = {
    {
        .kind = WORK_MATMUL,
        .dtype = DTYPE_BF16,
        .axis_count = 1,
        .points_max = 2,
        .axes = {{0, -1, 1, 2, {1, 4}}},
        .most_flops = {WORK_MATMUL, DTYPE_BF16, {4, 32, 32}},
        .most_bytes = {WORK_MATMUL, DTYPE_BF16, {1, 32, 32}},
        .least = {WORK_MATMUL, DTYPE_BF16, {1, 16, 16}},
    },
    ONE(WORK_MATMUL, DTYPE_F32, 2, 32, 32),
    ONE(WORK_FFN_UP, DTYPE_BF16, 4, 2, 32, 32),
    ONE(WORK_FFN_UP, DTYPE_F32, 4, 2, 32, 32),
    ONE(WORK_FFN_UP, DTYPE_INT4, 4, 2, 64, 64),
    ONE(WORK_FFN_DOWN, DTYPE_BF16, 4, 2, 32, 32),
    ONE(WORK_FFN_DOWN, DTYPE_F32, 4, 2, 32, 32),
    ONE(WORK_FFN_DOWN, DTYPE_INT4, 4, 2, 64, 64),
    ATTENTION(DTYPE_BF16),
    ATTENTION(DTYPE_F32),
    ONE(WORK_ROWS, DTYPE_F32, 2, 64),
    ONE(WORK_DEQUANTIZE, DTYPE_INT4, 4096),
};

static const int64_t collective_bytes[] = {64, 4096};

const struct calibrate_plan cuda_profile_plan = {
    .grids = grids,
    .grid_count = (int)(sizeof grids / sizeof *grids),
    .collective_bytes = collective_bytes,
    .collective_count = 2,
    .collective_points_max = 2,
    .file_bytes = 4 << 20,
    .launch_seconds = 1e6,
    .tolerance = 1e6,
    .point_seconds = 1e-9,
    .sample_seconds = 1e-9,
};

struct calibrate_params cuda_profile_params(const char *path, const char *devices,
                                            const struct calibrate_plan *plan)
{
    struct calibrate_params params = {.output_path = path, .plan = plan, .overwrites = true};
    struct error err;
    cr_assert_eq(engine_devices_parse(&params.devices, devices, &err), STATUS_OK, "%s",
                 err.message);
    params.memory_bytes = RANK_BYTES * (uint64_t)params.devices.rank_count;
    return params;
}

void cuda_profile_measure(struct calibrate_report *out, const char *path, const char *devices)
{
    struct error err;
    struct calibrate_params params = cuda_profile_params(path, devices, &cuda_profile_plan);
    cr_assert_eq(calibrate_run(out, &params, &err), STATUS_OK, "%s: %s", devices, err.message);
}

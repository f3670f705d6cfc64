#include "case_lists.h"
#include "device/ops.h"

static const struct kernel_case embed_cases[] = {
    {.dtype = DTYPE_F32, .token_count = 0, .rows = 5, .columns = 16},
    {.dtype = DTYPE_F32, .token_count = 1, .rows = 37, .columns = 16},
    {.dtype = DTYPE_F32, .token_count = 9, .rows = 5, .columns = 24, .stride_extra = 16},
    {.dtype = DTYPE_BF16, .token_count = 17, .rows = 37, .columns = 40},
    {.dtype = DTYPE_BF16, .token_count = 8, .rows = 16, .columns = 1},
    {FOR_BENCH, DTYPE_BF16, .token_count = 512, .rows = 32000, .columns = 2048},
    {FOR_GPU_BENCH, DTYPE_BF16, .token_count = 8192, .rows = 32000, .columns = 4096},
};

static const struct kernel_case rms_norm_cases[] = {
    {.token_count = 0, .columns = 16},
    {.token_count = 1, .columns = 1},
    {.token_count = 7, .columns = 15},
    {.token_count = 8, .columns = 16, .option = true},
    {.token_count = 9, .columns = 24, .stride_extra = 32, .option = true},
    {.token_count = 17, .columns = 64},
    {.token_count = 2, .columns = 4096},
    {.token_count = 2, .columns = 16403, .option = true},
    {FOR_BENCH, .token_count = 1, .columns = 4096},
    {FOR_BENCH, .token_count = 512, .columns = 4096},
    {FOR_GPU_BENCH, .token_count = 1, .columns = 4096},
    {FOR_GPU_BENCH, .token_count = 32, .columns = 4096},
    {FOR_GPU_BENCH, .token_count = 8192, .columns = 4096},
    {FOR_GPU_BENCH, .token_count = 16384, .columns = 2048},
};

static const struct kernel_case add_cases[] = {
    {.token_count = 0, .columns = 16},
    {.token_count = 1, .columns = 16},
    {.token_count = 8, .columns = 33},
    {.token_count = 17, .columns = 64, .stride_extra = 16},
    {FOR_BENCH, .token_count = 512, .columns = 4096},
    {FOR_GPU_BENCH, .token_count = 8192, .columns = 4096},
};

static const struct kernel_case combine_cases[] = {
    {.token_count = 1, .columns = 16, .top_k = 1},
    {.token_count = 9, .columns = 24, .top_k = 2},
    {.token_count = 17, .columns = 64, .top_k = 8, .stride_extra = 16},
    {.token_count = 9, .columns = 24, .top_k = 2, .choice_extra = 3},
    {.token_count = 9, .columns = 24, .top_k = 4, .option = true},
    {.token_count = 12, .columns = 40, .top_k = 3, .absent = true, .choice_extra = 4},
    {.token_count = 12, .columns = 40, .top_k = 3, .absent = true, .option = true},
    {.token_count = 1, .columns = 16, .top_k = 2, .absent = true}, /* a sum of nothing */
    {.token_count = 0, .columns = 16, .top_k = 2},
    {FOR_BENCH, .token_count = 512, .columns = 2048, .top_k = 8},
    {FOR_GPU_BENCH, .token_count = 32, .columns = 2048, .top_k = 8},
    {FOR_GPU_BENCH, .token_count = 16384, .columns = 2048, .top_k = 4},
};

static const struct kernel_case shared_add_cases[] = {
    {.token_count = 0, .columns = 16},
    {.token_count = 1, .columns = 16},
    {.token_count = 9, .columns = 24},
    {.token_count = 17, .columns = 300, .stride_extra = 16},
    {.token_count = 2, .columns = 8210},
    {FOR_BENCH, .token_count = 512, .columns = 2048},
    {FOR_GPU_BENCH, .token_count = 16384, .columns = 2048},
};

static const struct kernel_case choose_cases[] = {
    {.token_count = 0, .columns = 16},
    {.token_count = 1, .columns = 1},
    {.token_count = 9, .columns = 15, .option = true},
    {.token_count = 12, .columns = 16, .option = true},
    {.token_count = 5, .columns = 3000},
    {.token_count = 40, .columns = 5003, .stride_extra = 16, .option = true},
    {.token_count = 0, .columns = 16, .draws = true},
    {.token_count = 6, .columns = 1, .draws = true},
    {.token_count = 24, .columns = 31, .draws = true, .option = true},
    {.token_count = 12, .columns = 256, .draws = true},
    {.token_count = 12, .columns = 257, .draws = true},
    {.token_count = 48, .columns = 5003, .stride_extra = 16, .draws = true, .option = true},
    {FOR_BENCH, .token_count = 32, .columns = 32000},
    {FOR_BENCH, .token_count = 1, .columns = 151936},
    {FOR_BENCH, .token_count = 32, .columns = 32000, .draws = true},
    {FOR_BENCH, .token_count = 1, .columns = 151936, .draws = true},
    {FOR_GPU_BENCH, .token_count = 32, .columns = 151936},
    {FOR_GPU_BENCH, .token_count = 32, .columns = 151936, .draws = true},
};

static const struct kernel_case candidates_cases[] = {
    {.token_count = 0, .columns = 16},
    {.token_count = 3, .columns = 1, .draws = true},
    {.token_count = 24, .columns = 31, .draws = true, .option = true},
    {.token_count = 5, .columns = CANDIDATES_MAX},
    {.token_count = 12, .columns = CANDIDATES_MAX + 1, .draws = true, .option = true},
    {.token_count = 12, .columns = 1000, .option = true},
    {.token_count = 48, .columns = 5003, .stride_extra = 16, .draws = true, .option = true},
    {FOR_BENCH, .token_count = 32, .columns = 32000, .draws = true},
    {FOR_BENCH, .token_count = 1, .columns = 151936, .draws = true},
    {FOR_GPU_BENCH, .token_count = 1, .columns = 151936, .draws = true},
    {FOR_GPU_BENCH, .token_count = 32, .columns = 151936, .draws = true},
};

static const struct kernel_case gather_cases[] = {
    {.token_count = 1, .row_bytes = 64},
    {.token_count = 9, .row_bytes = 1},
    {.token_count = 20, .row_bytes = 12},
    {.token_count = 17, .row_bytes = 100},
    {.token_count = 33, .row_bytes = 4160},
    {.token_count = 0, .row_bytes = 64},
    {FOR_BENCH, .token_count = 64, .row_bytes = 16384},
    {FOR_GPU_BENCH, .token_count = 16384, .row_bytes = 8192},
};

/* A piece is 256 KiB. */
static const struct kernel_case copy_cases[] = {
    {.row_bytes = 0},
    {.row_bytes = 1},
    {.row_bytes = 1000},
    {.row_bytes = 262144},
    {.row_bytes = 262145},
    {.row_bytes = 1000003},
    {.row_bytes = 37, .rows = 5, .stride_extra = 3},
    {.row_bytes = 300001, .rows = 3, .stride_extra = 5},
    {.row_bytes = 64, .rows = 2},
    {FOR_BENCH, .row_bytes = 1 << 20},
    {FOR_BENCH, .row_bytes = 64 << 20},
    {FOR_GPU_BENCH, .row_bytes = 512 << 20},
};

/* Likewise. */
static const struct kernel_case fill_cases[] = {
    {.row_bytes = 0},      {.row_bytes = 1},       {.row_bytes = 1000},
    {.row_bytes = 262144}, {.row_bytes = 1000003}, {FOR_BENCH, .row_bytes = 64 << 20},
};

const struct case_list embed_list = CASE_LIST("embed", embed_cases);
const struct case_list rms_norm_list = CASE_LIST("rms_norm", rms_norm_cases);
const struct case_list add_list = CASE_LIST("add", add_cases);
const struct case_list combine_list = CASE_LIST("combine", combine_cases);
const struct case_list shared_add_list = CASE_LIST("shared_add", shared_add_cases);
const struct case_list choose_list = CASE_LIST("choose", choose_cases);
const struct case_list candidates_list = CASE_LIST("candidates", candidates_cases);
const struct case_list gather_list = CASE_LIST("gather", gather_cases);
const struct case_list copy_list = CASE_LIST("copy", copy_cases);
const struct case_list fill_list = CASE_LIST("fill", fill_cases);

#include "cases.h"

#include <stdio.h>

/* Strips of rows are up to 2, 6 or 24 high (12 of int4 by bytes) and the matrices' pieces 16, 48 or
 * 192: row counts stand on both sides of each. Columns stand on both sides of depths of passes over
 * the inputs: 128 of slices, and what many rows and a dozen have in the L1 cache. */
static const struct kernel_case embed_cases[] = {
    {.dtype = DTYPE_F32, .token_count = 0, .rows = 5, .columns = 16},
    {.dtype = DTYPE_F32, .token_count = 1, .rows = 37, .columns = 16},
    {.dtype = DTYPE_F32, .token_count = 9, .rows = 5, .columns = 24, .stride_extra = 16},
    {.dtype = DTYPE_BF16, .token_count = 17, .rows = 37, .columns = 40},
    {.dtype = DTYPE_BF16, .token_count = 8, .rows = 16, .columns = 1},
    {FOR_BENCH, DTYPE_BF16, .token_count = 512, .rows = 32000, .columns = 2048},
};

static const struct kernel_case rms_norm_cases[] = {
    {.token_count = 0, .columns = 16},
    {.token_count = 1, .columns = 1},
    {.token_count = 7, .columns = 15},
    {.token_count = 8, .columns = 16, .option = true},
    {.token_count = 9, .columns = 24, .stride_extra = 32, .option = true},
    {.token_count = 17, .columns = 64},
    {.token_count = 2, .columns = 4096},
    {FOR_BENCH, .token_count = 1, .columns = 4096},
    {FOR_BENCH, .token_count = 512, .columns = 4096},
};

static const struct kernel_case add_cases[] = {
    {.token_count = 0, .columns = 16},
    {.token_count = 1, .columns = 16},
    {.token_count = 8, .columns = 33},
    {.token_count = 17, .columns = 64, .stride_extra = 16},
    {FOR_BENCH, .token_count = 512, .columns = 4096},
};

static const struct kernel_case matmul_cases[] = {
    {.dtype = DTYPE_BF16, .token_count = 0, .rows = 40, .columns = 24, .option = true},
    {.dtype = DTYPE_F32, .token_count = 1, .rows = 1, .columns = 1},
    {.dtype = DTYPE_F32, .token_count = 2, .rows = 16, .columns = 16, .option = true},
    {.dtype = DTYPE_F32, .token_count = 3, .rows = 17, .columns = 15, .stride_extra = 16},
    {.dtype = DTYPE_F32, .token_count = 4, .rows = 70, .columns = 256, .option = true},
    {.dtype = DTYPE_F32, .token_count = 13, .rows = 33, .columns = 257},
    {.dtype = DTYPE_F32, .token_count = 25, .rows = 130, .columns = 530, .option = true},
    {.dtype = DTYPE_F32, .token_count = 1, .rows = 600, .columns = 272},
    {.dtype = DTYPE_BF16, .token_count = 1, .rows = 1, .columns = 2, .option = true},
    {.dtype = DTYPE_BF16, .token_count = 1, .rows = 65, .columns = 31},
    {.dtype = DTYPE_BF16, .token_count = 2, .rows = 100, .columns = 33, .stride_extra = 48},
    {.dtype = DTYPE_BF16, .token_count = 5, .rows = 16, .columns = 17},
    {.dtype = DTYPE_BF16, .token_count = 6, .rows = 48, .columns = 300},
    {.dtype = DTYPE_BF16, .token_count = 7, .rows = 520, .columns = 40, .option = true},
    {.dtype = DTYPE_BF16, .token_count = 8, .rows = 31, .columns = 272},
    {.dtype = DTYPE_BF16, .token_count = 9, .rows = 32, .columns = 24},
    {.dtype = DTYPE_BF16, .token_count = 10, .rows = 47, .columns = 48},
    {.dtype = DTYPE_BF16, .token_count = 11, .rows = 40, .columns = 64},
    {.dtype = DTYPE_BF16, .token_count = 12, .rows = 24, .columns = 500},
    {.dtype = DTYPE_BF16, .token_count = 24, .rows = 24, .columns = 140},
    {.dtype = DTYPE_BF16, .token_count = 49, .rows = 33, .columns = 300},
    {.dtype = DTYPE_BF16, .token_count = 61, .rows = 40, .columns = 24},
    {.dtype = DTYPE_BF16, .token_count = 193, .rows = 40, .columns = 24, .option = true},
    {.dtype = DTYPE_F32, .token_count = 200, .rows = 600, .columns = 130},
    {.dtype = DTYPE_BF16, .token_count = 400, .rows = 300, .columns = 270},
    {.dtype = DTYPE_BF16, .token_count = 2, .rows = 48, .columns = 13000}, /* many depths */
    {.dtype = DTYPE_BF16, .token_count = 70, .rows = 16, .columns = 1060},
    {.dtype = DTYPE_INT4, .token_count = 1, .rows = 80, .columns = 304},
    {.dtype = DTYPE_INT4, .token_count = 3, .rows = 48, .columns = 208, .option = true},
    {.dtype = DTYPE_INT4, .token_count = 20, .rows = 112, .columns = 272},
    {.dtype = DTYPE_INT4, .packing = PACK_INPUT, .token_count = 1, .rows = 208, .columns = 304},
    {.dtype = DTYPE_INT4,
     .packing = PACK_INPUT,
     .token_count = 7,
     .rows = 112,
     .columns = 272,
     .option = true},
    {FOR_BENCH, DTYPE_BF16, .token_count = 1, .rows = 4096, .columns = 4096},
    {FOR_BENCH, DTYPE_BF16, .token_count = 4, .rows = 4096, .columns = 4096},
    {FOR_BENCH, DTYPE_BF16, .token_count = 16, .rows = 4096, .columns = 4096},
    {FOR_BENCH, DTYPE_BF16, .token_count = 32, .rows = 4096, .columns = 4096},
    {FOR_BENCH, DTYPE_BF16, .token_count = 32, .rows = 32000, .columns = 1024},
    {FOR_BENCH, DTYPE_BF16, .token_count = 256, .rows = 4096, .columns = 4096},
    {FOR_BENCH, DTYPE_F32, .token_count = 1, .rows = 4096, .columns = 4096},
    {FOR_BENCH, DTYPE_F32, .token_count = 256, .rows = 4096, .columns = 4096},
    {FOR_BENCH, DTYPE_BF16, .token_count = 1, .rows = 151936, .columns = 2048},
};

static const struct kernel_case rope_append_cases[] = {
    {.dtype = DTYPE_F32, .head_count = 1, .kv_head_count = 1, .head_dim = 8}, /* no tokens */
    {.dtype = DTYPE_F32, .head_count = 1, .kv_head_count = 1, .head_dim = 8, .segments = {{1, 0}}},
    {.dtype = DTYPE_F32,
     .head_count = 6,
     .kv_head_count = 2,
     .head_dim = 24,
     .segments = {{17, 60}, {1, 64}, {5, 0}},
     .stride_extra = 16,
     .option = true},
    {.dtype = DTYPE_BF16,
     .head_count = 4,
     .kv_head_count = 4,
     .head_dim = 64,
     .segments = {{1, 127}, {70, 0}}},
    {.dtype = DTYPE_BF16,
     .head_count = 8,
     .kv_head_count = 1,
     .head_dim = 40,
     .segments = {{33, 100}, {16, 3}},
     .option = true},
    {FOR_BENCH, .dtype = DTYPE_BF16, .head_count = 32, .kv_head_count = 4, .head_dim = 128,
     .segments = {{512, 0}}, .option = true},
};

static const struct kernel_case attention_cases[] = {
    {.dtype = DTYPE_F32, .head_count = 1, .kv_head_count = 1, .head_dim = 8}, /* no tokens */
    {.dtype = DTYPE_F32, .head_count = 1, .kv_head_count = 1, .head_dim = 8, .segments = {{1, 0}}},
    {.dtype = DTYPE_F32,
     .head_count = 2,
     .kv_head_count = 1,
     .head_dim = 16,
     .segments = {{3, 62}, {1, 63}, {1, 64}, {30, 0}}},
    {.dtype = DTYPE_F32,
     .head_count = 6,
     .kv_head_count = 2,
     .head_dim = 24,
     .segments = {{1, 5}, {65, 64}, {7, 190}},
     .stride_extra = 16},
    {.dtype = DTYPE_BF16,
     .head_count = 4,
     .kv_head_count = 1,
     .head_dim = 40,
     .segments = {{130, 0}, {2, 127}}},
    {.dtype = DTYPE_BF16,
     .head_count = 10,
     .kv_head_count = 2,
     .head_dim = 64,
     .segments = {{5, 0}, {1, 300}}},
    {.dtype = DTYPE_BF16,
     .head_count = 6,
     .kv_head_count = 1,
     .head_dim = 128,
     .segments = {{9, 120}}},
    {.dtype = DTYPE_F32,
     .head_count = 7,
     .kv_head_count = 1,
     .head_dim = 256,
     .segments = {{8, 60}, {1, 0}}},
    {.dtype = DTYPE_BF16, /* rows for one tile of a page as it lies; the longest heads */
     .head_count = 5,
     .kv_head_count = 1,
     .head_dim = 256,
     .segments = {{1, 130}, {3, 75}}},
    {.dtype = DTYPE_BF16, /* odd tokens behind the last page's first vector, a page made ready */
     .head_count = 6,
     .kv_head_count = 1,
     .head_dim = 512,
     .segments = {{5, 80}, {2, 63}}},
    {.dtype = DTYPE_BF16,
     .head_count = 16,
     .kv_head_count = 2,
     .head_dim = 32,
     .segments = {{4, 63}, {11, 0}, {1, 511}}},
    {.dtype = DTYPE_F32,
     .head_count = 24,
     .kv_head_count = 1,
     .head_dim = 8,
     .segments = {{3, 63}}}, /* a group fills the block of rows */
    {.dtype = DTYPE_BF16,
     .head_count = 64,
     .kv_head_count = 2,
     .head_dim = 16,
     .segments = {{3, 63}, {1, 20}}}, /* a group is larger than the block */
    {.dtype = DTYPE_F32,
     .head_count = 13,
     .kv_head_count = 1,
     .head_dim = 16,
     .segments = {{5, 126}}},
    {.dtype = DTYPE_F32,
     .head_count = 2,
     .kv_head_count = 2,
     .head_dim = 16,
     .window = 1,
     .segments = {{70, 0}, {1, 64}}},
    {.dtype = DTYPE_F32,
     .head_count = 4,
     .kv_head_count = 2,
     .head_dim = 24,
     .window = 10,
     .segments = {{80, 50}, {1, 200}, {1, 3}}},
    {.dtype = DTYPE_BF16,
     .head_count = 4,
     .kv_head_count = 2,
     .head_dim = 16,
     .window = 64,
     .segments = {{66, 62}, {1, 191}, {2, 254}}},
    {.dtype = DTYPE_BF16,
     .head_count = 3,
     .kv_head_count = 1,
     .head_dim = 16,
     .window = 100,
     .segments = {{40, 90}, {1, 400}}},
    {.dtype = DTYPE_BF16, /* contexts of several chunks (kernels/cuda/attention.cuh) */
     .head_count = 6,
     .kv_head_count = 2,
     .head_dim = 24,
     .segments = {{1, 1100}, {1, 40}, {1, 511}, {1, 512}}},
    {.dtype = DTYPE_F32,
     .head_count = 18,
     .kv_head_count = 1,
     .head_dim = 16,
     .window = 600,
     .segments = {{1, 1300}, {1, 100}, {1, 599}}},
    {.dtype = DTYPE_BF16, /* rows on both sides of a chunk's end */
     .head_count = 4,
     .kv_head_count = 2,
     .head_dim = 16,
     .window = 515,
     .segments = {{7, 1020}, {1, 1030}}},
    {.dtype = DTYPE_BF16, /* one token of each, in one chunk */
     .head_count = 8,
     .kv_head_count = 2,
     .head_dim = 64,
     .segments = {{1, 130}, {1, 0}, {1, 511}}},
    {.dtype = DTYPE_BF16, /* several chunks of larger heads */
     .head_count = 8,
     .kv_head_count = 2,
     .head_dim = 128,
     .segments = {{1, 1100}, {1, 40}, {1, 512}}},
    {.dtype = DTYPE_F32,
     .head_count = 4,
     .kv_head_count = 2,
     .head_dim = 104,
     .segments = {{1, 700}, {1, 63}}},
    {.dtype = DTYPE_BF16,
     .head_count = 3,
     .kv_head_count = 1,
     .head_dim = 200,
     .segments = {{1, 600}}},
    {.dtype = DTYPE_F32,
     .head_count = 1,
     .kv_head_count = 1,
     .head_dim = 512,
     .segments = {{1, 513}}},
    {FOR_BENCH, .dtype = DTYPE_BF16, .head_count = 32, .kv_head_count = 4, .head_dim = 128,
     .segments = {{1, 4095}}},
    {FOR_BENCH, .dtype = DTYPE_BF16, .head_count = 32, .kv_head_count = 8, .head_dim = 128,
     .segments =
         {{1, 4095}, {1, 4095}, {1, 4095}, {1, 4095}, {1, 4095}, {1, 4095}, {1, 4095}, {1, 4095}}},
    {FOR_BENCH, .dtype = DTYPE_BF16, .head_count = 32, .kv_head_count = 8, .head_dim = 128,
     .window = 1024, .segments = {{1, 4095}, {1, 4095}, {1, 4095}, {1, 4095}}},
    {FOR_BENCH, .dtype = DTYPE_BF16, .head_count = 32, .kv_head_count = 8, .head_dim = 128,
     .segments = {{512, 512}}},
    {FOR_BENCH, .dtype = DTYPE_F32, .head_count = 32, .kv_head_count = 8, .head_dim = 128,
     .segments = {{512, 512}}},
};

static const struct kernel_case route_cases[] = {
    {.token_count = 1, .expert_count = 1, .top_k = 1},
    {.token_count = 9, .expert_count = 8, .top_k = 2, .option = true},
    {.token_count = 17, .expert_count = 60, .top_k = 4},
    {.token_count = 33, .expert_count = 128, .top_k = 8, .option = true},
    {.token_count = 5, .expert_count = 5, .top_k = 5, .option = true},
    {.token_count = 11, .expert_count = 8, .top_k = 2, .option = true, .choice_extra = 12},
    {.token_count = 9, .expert_count = 20, .top_k = 3, .choice_extra = 1},
    {.token_count = 0, .expert_count = 8, .top_k = 2},
    {FOR_BENCH, .token_count = 512, .expert_count = 128, .top_k = 8, .option = true},
};

static const struct kernel_case dispatch_cases[] = {
    {.token_count = 1, .expert_count = 1, .top_k = 1, .group_count = 1},
    {.token_count = 20, .expert_count = 8, .top_k = 3, .group_count = 1}, /* all in one */
    {.token_count = 20, .expert_count = 8, .top_k = 2, .group_count = 8}, /* each its own */
    {.token_count = 30, .expert_count = 12, .top_k = 2, .group_count = 4},
    {.token_count = 30, .expert_count = 12, .top_k = 6, .group_count = 4, .choice_extra = 6},
    {.token_count = 30, .expert_count = 12, .top_k = 3, .group_count = 6, .absent = true},
    {.token_count = 1, .expert_count = 12, .top_k = 3, .group_count = 6, .absent = true}, /* none */
    {.token_count = 9, .expert_count = 16, .top_k = 1, .group_count = 4, .spread = SPREAD_LAST},
    {.token_count = 13,
     .expert_count = 16,
     .top_k = 4,
     .group_count = 4,
     .spread = SPREAD_FEW, /* the odd groups have no tokens */
     .choice_extra = 1},
    {.token_count = 0, .expert_count = 8, .top_k = 2, .group_count = 4},
    {FOR_BENCH, .token_count = 512, .expert_count = 128, .top_k = 8, .group_count = 8},
};

static const struct kernel_case group_cases[] = {
    {.token_count = 1, .expert_count = 1, .top_k = 1},
    {.token_count = 40, .expert_count = 8, .top_k = 2},
    {.token_count = 13, .expert_count = 64, .top_k = 6, .spread = SPREAD_FEW},
    {.token_count = 9, .expert_count = 16, .top_k = 1, .spread = SPREAD_LAST},
    {.token_count = 40, .expert_count = 8, .top_k = 2, .local = LOCAL_ALL, .choice_extra = 2},
    {.token_count = 40, .expert_count = 12, .top_k = 3, .local = LOCAL_SOME, .choice_extra = 7},
    {.token_count = 40, .expert_count = 12, .top_k = 3, .local = LOCAL_SOME, .absent = true},
    {.token_count = 40, .expert_count = 12, .top_k = 3, .absent = true},
    {.token_count = 1, .expert_count = 12, .top_k = 3, .absent = true}, /* no choice at all */
    {.token_count = 8, .expert_count = 16, .top_k = 4, .spread = SPREAD_FEW, .local = LOCAL_SOME},
    {.token_count = 10, .expert_count = 8, .top_k = 2, .local = LOCAL_NONE},
    {.token_count = 0, .expert_count = 8, .top_k = 2, .local = LOCAL_ALL},
    {FOR_BENCH, .token_count = 512, .expert_count = 128, .top_k = 8},
};

/* Both halves of a feed-forward network take the same cases. */
static const struct kernel_case ffn_cases[] = {
    {.dtype = DTYPE_BF16,
     .token_count = 0,
     .rows = 40,
     .columns = 24,
     .expert_count = 3,
     .top_k = 2},
    {.dtype = DTYPE_BF16, .token_count = 4, .rows = 40, .columns = 24, .expert_count = 0},
    {.dtype = DTYPE_F32,
     .token_count = 1,
     .rows = 16,
     .columns = 16,
     .expert_count = 1,
     .top_k = 1},
    {.dtype = DTYPE_F32,
     .token_count = 11,
     .rows = 24,
     .columns = 40,
     .expert_count = 5,
     .top_k = 2,
     .stride_extra = 16},
    {.dtype = DTYPE_BF16,
     .token_count = 30,
     .rows = 40,
     .columns = 24,
     .expert_count = 9,
     .top_k = 3,
     .spread = SPREAD_FEW},
    {.dtype = DTYPE_BF16,
     .token_count = 29,
     .rows = 72,
     .columns = 272,
     .expert_count = 4,
     .top_k = 1,
     .spread = SPREAD_LAST},
    {.dtype = DTYPE_BF16,
     .token_count = 7,
     .rows = 300,
     .columns = 33,
     .expert_count = 3,
     .top_k = 2},
    {.dtype = DTYPE_BF16,
     .token_count = 2,
     .rows = 1030,
     .columns = 1100,
     .expert_count = 1,
     .spread = SPREAD_DENSE},
    {.dtype = DTYPE_F32,
     .token_count = 14,
     .rows = 65,
     .columns = 17,
     .expert_count = 1,
     .spread = SPREAD_DENSE},
    {.dtype = DTYPE_BF16, /* groups of many strips beside small ones */
     .token_count = 260,
     .rows = 48,
     .columns = 160,
     .expert_count = 6,
     .top_k = 2,
     .spread = SPREAD_LAST},
    {.dtype = DTYPE_INT4,
     .token_count = 1,
     .rows = 16,
     .columns = 16,
     .expert_count = 1,
     .top_k = 1},
    {.dtype = DTYPE_INT4,
     .token_count = 3,
     .rows = 80,
     .columns = 176,
     .expert_count = 5,
     .top_k = 2},
    {.dtype = DTYPE_INT4,
     .token_count = 19,
     .rows = 96,
     .columns = 304,
     .expert_count = 4,
     .top_k = 3,
     .stride_extra = 16,
     .option = true},
    {.dtype = DTYPE_INT4,
     .token_count = 100,
     .rows = 48,
     .columns = 240,
     .expert_count = 3,
     .top_k = 2,
     .spread = SPREAD_LAST},
    {.dtype = DTYPE_INT4,
     .token_count = 230,
     .rows = 112,
     .columns = 144,
     .expert_count = 1,
     .spread = SPREAD_DENSE,
     .option = true},
    {.dtype = DTYPE_BF16, /* one strip of two depths, several slices */
     .token_count = 12,
     .rows = 200,
     .columns = 1100,
     .expert_count = 1,
     .spread = SPREAD_DENSE},
    {.dtype = DTYPE_INT4,
     .token_count = 12,
     .rows = 208,
     .columns = 1104,
     .expert_count = 1,
     .spread = SPREAD_DENSE,
     .option = true},
    {.dtype = DTYPE_INT4, /* as many panels as a piece takes */
     .token_count = 24,
     .rows = 32,
     .columns = 4096,
     .expert_count = 8,
     .top_k = 8},
    {.dtype = DTYPE_INT4, /* few rows for each expert */
     .token_count = 9,
     .rows = 304,
     .columns = 208,
     .expert_count = 7,
     .top_k = 4},
    {.dtype = DTYPE_BF16, /* so many networks that a worker takes ahead, of more than one slice */
     .token_count = 1,
     .rows = 144,
     .columns = 48,
     .expert_count = 130,
     .top_k = 130},
    {.dtype = DTYPE_INT4,
     .token_count = 1,
     .rows = 144,
     .columns = 144,
     .expert_count = 130,
     .top_k = 130,
     .option = true},
    {.dtype = DTYPE_F32, /* a GPU's block has pieces of groups of many rows and of few */
     .token_count = 10,
     .rows = 304,
     .columns = 48,
     .expert_count = 7,
     .top_k = 3},
    {.dtype = DTYPE_BF16, /* the same by matrix instructions */
     .token_count = 64,
     .rows = 304,
     .columns = 80,
     .expert_count = 4,
     .top_k = 2},
    {.dtype = DTYPE_INT4, /* as long as the largest models' */
     .token_count = 3,
     .rows = 16,
     .columns = 14592,
     .expert_count = 1,
     .spread = SPREAD_DENSE},
    {.dtype = DTYPE_INT4, /* and of more than one piece */
     .token_count = 9,
     .rows = 48,
     .columns = 2064,
     .expert_count = 40,
     .top_k = 6},
    {FOR_BENCH, .dtype = DTYPE_BF16, .token_count = 1, .rows = 768, .columns = 2048,
     .expert_count = 32, .top_k = 8},
    {FOR_BENCH, .dtype = DTYPE_BF16, .token_count = 16, .rows = 768, .columns = 2048,
     .expert_count = 32, .top_k = 8},
    {FOR_BENCH, .dtype = DTYPE_BF16, .token_count = 512, .rows = 768, .columns = 2048,
     .expert_count = 32, .top_k = 8},
    {FOR_BENCH, .dtype = DTYPE_BF16, .token_count = 32, .rows = 1408, .columns = 2048,
     .expert_count = 1, .spread = SPREAD_DENSE},
    {FOR_BENCH, .dtype = DTYPE_BF16, .token_count = 256, .rows = 5632, .columns = 2048,
     .expert_count = 1, .spread = SPREAD_DENSE},
    {FOR_BENCH, .dtype = DTYPE_INT4, .token_count = 1, .rows = 768, .columns = 2048,
     .expert_count = 32, .top_k = 8},
    {FOR_BENCH, .dtype = DTYPE_INT4, .token_count = 16, .rows = 768, .columns = 2048,
     .expert_count = 32, .top_k = 8},
    {FOR_BENCH, .dtype = DTYPE_INT4, .token_count = 512, .rows = 768, .columns = 2048,
     .expert_count = 32, .top_k = 8},
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
};

static const struct kernel_case shared_add_cases[] = {
    {.token_count = 0, .columns = 16},
    {.token_count = 1, .columns = 16},
    {.token_count = 9, .columns = 24},
    {.token_count = 17, .columns = 300, .stride_extra = 16},
    {FOR_BENCH, .token_count = 512, .columns = 2048},
};

static const struct kernel_case gather_cases[] = {
    {.token_count = 1, .row_bytes = 64},
    {.token_count = 9, .row_bytes = 1},
    {.token_count = 20, .row_bytes = 12},
    {.token_count = 17, .row_bytes = 100},
    {.token_count = 33, .row_bytes = 4160},
    {.token_count = 0, .row_bytes = 64},
    {FOR_BENCH, .token_count = 64, .row_bytes = 16384},
};

/* Groups of 48 along 16 to 336; a piece is 128 tiles. */
static const struct kernel_case dequantize_cases[] = {
    {.dtype = DTYPE_BF16, .packing = PACK_OUTPUT, .rows = 16, .columns = 16},
    {.dtype = DTYPE_BF16, .packing = PACK_OUTPUT, .rows = 32, .columns = 48, .option = true},
    {.dtype = DTYPE_BF16, .packing = PACK_OUTPUT, .rows = 176, .columns = 336},
    {.dtype = DTYPE_BF16, .packing = PACK_INPUT, .rows = 16, .columns = 32},
    {.dtype = DTYPE_BF16, .packing = PACK_INPUT, .rows = 112, .columns = 16, .option = true},
    {.dtype = DTYPE_BF16, .packing = PACK_INPUT, .rows = 336, .columns = 112},
    {.dtype = DTYPE_F32, .packing = PACK_OUTPUT, .rows = 48, .columns = 112, .option = true},
    {.dtype = DTYPE_F32, .packing = PACK_OUTPUT, .rows = 256, .columns = 144},
    {.dtype = DTYPE_F32, .packing = PACK_INPUT, .rows = 64, .columns = 80},
    {.dtype = DTYPE_F32, .packing = PACK_INPUT, .rows = 144, .columns = 240, .option = true},
    {FOR_BENCH, .dtype = DTYPE_BF16, .packing = PACK_OUTPUT, .rows = 1408, .columns = 2048},
    {FOR_BENCH, .dtype = DTYPE_BF16, .packing = PACK_INPUT, .rows = 2048, .columns = 1408},
    {FOR_BENCH, .dtype = DTYPE_F32, .packing = PACK_OUTPUT, .rows = 1408, .columns = 2048},
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
};

#define LIST(name)                                                                                 \
    {                                                                                              \
#name, name##_cases, sizeof name##_cases / sizeof name##_cases[0]                          \
    }
#define LIST_OF(name, cases)                                                                       \
    {                                                                                              \
#name, cases, sizeof cases / sizeof cases[0]                                               \
    }

const struct case_list case_lists[OP_COUNT] = {
    [OP_EMBED] = LIST(embed),
    [OP_RMS_NORM] = LIST(rms_norm),
    [OP_ADD] = LIST(add),
    [OP_MATMUL] = LIST(matmul),
    [OP_ROPE_APPEND] = LIST(rope_append),
    [OP_ATTENTION] = LIST(attention),
    [OP_ROUTE] = LIST(route),
    [OP_DISPATCH] = LIST(dispatch),
    [OP_GROUP] = LIST(group),
    [OP_FFN_UP] = LIST_OF(ffn_up, ffn_cases),
    [OP_FFN_DOWN] = LIST_OF(ffn_down, ffn_cases),
    [OP_COMBINE] = LIST(combine),
    [OP_SHARED_ADD] = LIST(shared_add),
    [OP_GATHER] = LIST(gather),
    [OP_DEQUANTIZE] = LIST(dequantize),
    [OP_COPY] = LIST(copy),
};

static int describe_heads(char *out, size_t capacity, const struct kernel_case *c)
{
    int64_t tokens = 0, longest = 0;
    int count = 0;
    for (; count < CASE_SEGMENTS_MAX && c->segments[count].token_count > 0; count++) {
        int64_t end = c->segments[count].first_position + c->segments[count].token_count;
        tokens += c->segments[count].token_count;
        longest = end > longest ? end : longest;
    }
    return snprintf(out, capacity,
                    "%lld/%lld heads x %lld, window %lld, %d segments, %lld tokens, context %lld",
                    (long long)c->head_count, (long long)c->kv_head_count, (long long)c->head_dim,
                    (long long)c->window, count, (long long)tokens, (long long)longest);
}

void case_describe(char *out, size_t capacity, enum kernel_op op, const struct kernel_case *c)
{
    const char *dtype = c->dtype == DTYPE_INT4 ? "int4" : c->dtype == DTYPE_BF16 ? "bf16" : "f32";
    int used = snprintf(out, capacity, "%s ", case_lists[op].name);
    out += used;
    capacity -= (size_t)used;
    switch (op) {
    case OP_EMBED:
    case OP_MATMUL:
        snprintf(out, capacity, "%s %lldx%lld%s, %lld tokens", dtype, (long long)c->rows,
                 (long long)c->columns, op == OP_MATMUL && c->option ? " + bias" : "",
                 (long long)c->token_count);
        return;
    case OP_ROPE_APPEND:
    case OP_ATTENTION:
        used = snprintf(out, capacity, "%s ", dtype);
        describe_heads(out + used, capacity - (size_t)used, c);
        return;
    case OP_DISPATCH:
        used = snprintf(out, capacity, "to %lld groups, ", (long long)c->group_count);
        out += used;
        capacity -= (size_t)used;
        /* fall through */
    case OP_ROUTE:
    case OP_GROUP:
        snprintf(out, capacity, "%lld of %lld experts, %lld tokens", (long long)c->top_k,
                 (long long)c->expert_count, (long long)c->token_count);
        return;
    case OP_DEQUANTIZE:
        snprintf(out, capacity, "to %s, %lldx%lld, by %s%s", dtype, (long long)c->rows,
                 (long long)c->columns, c->packing == PACK_OUTPUT ? "output" : "input",
                 c->option ? ", with minima" : "");
        return;
    case OP_COPY:
        snprintf(out, capacity, "%lld rows, %lld bytes", (long long)(c->rows > 0 ? c->rows : 1),
                 (long long)c->row_bytes);
        return;
    case OP_GATHER:
        snprintf(out, capacity, "%lld rows, %lld bytes", (long long)c->token_count,
                 (long long)c->row_bytes);
        return;
    case OP_FFN_UP:
    case OP_FFN_DOWN:
        used = snprintf(out, capacity, "%s width %lld, hidden %lld, ", dtype, (long long)c->rows,
                        (long long)c->columns);
        if (c->spread == SPREAD_DENSE)
            snprintf(out + used, capacity - (size_t)used, "dense, %lld tokens",
                     (long long)c->token_count);
        else
            snprintf(out + used, capacity - (size_t)used, "%lld of %lld experts, %lld tokens",
                     (long long)c->top_k, (long long)c->expert_count, (long long)c->token_count);
        return;
    default:
        snprintf(out, capacity, "%lld values, %lld tokens", (long long)c->columns,
                 (long long)c->token_count);
    }
}

#include "case_lists.h"

/* Strips of rows are up to 2, 6 or 24 high (12 of int4 by bytes) and the matrices' pieces 16, 48 or
 * 192: row counts stand on both sides of each. Columns stand on both sides of depths of passes over
 * the inputs: 128 of slices, and what many rows and a dozen have in the L1 cache. */
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
    {.dtype = DTYPE_BF16, .token_count = 4, .rows = 48, .columns = 70},
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
    /* One row in the order of memory: blocks two at a time, panels four; one depth and several. */
    {.dtype = DTYPE_BF16, .packing = PACK_INPUT, .token_count = 1, .rows = 16, .columns = 16},
    {.dtype = DTYPE_BF16,
     .packing = PACK_INPUT,
     .token_count = 1,
     .rows = 336,
     .columns = 304,
     .option = true},
    {.dtype = DTYPE_BF16, .packing = PACK_INPUT, .token_count = 1, .rows = 80, .columns = 13000},
    {.dtype = DTYPE_F32, .packing = PACK_INPUT, .token_count = 1, .rows = 112, .columns = 6240},
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

const struct case_list matmul_list = CASE_LIST("matmul", matmul_cases);
const struct case_list dequantize_list = CASE_LIST("dequantize", dequantize_cases);

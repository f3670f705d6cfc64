/* Work by sizes alone is the work of matrices and segments of those sizes. */
#include <criterion/criterion.h>

#include "layout/work_shape.h"

TestSuite(work_shape, .timeout = 30);

static void check_same(const struct work_shape *shape, struct work expected)
{
    struct work found = work_of(shape);
    cr_assert_eq(found.kind, expected.kind);
    cr_assert_eq(found.flops, expected.flops);
    cr_assert_eq(found.held_bytes, expected.held_bytes);
    cr_assert_eq(found.activation_bytes, expected.activation_bytes);
}

static struct matrix matrix_of(enum packing packing, enum dtype dtype, int64_t rows,
                               int64_t columns)
{
    return (struct matrix){
        .dtype = dtype, .packing = packing, .rows = rows, .columns = columns, .group = 64};
}

Test(work_shape, products)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_INT4};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        struct matrix out = matrix_of(PACK_OUTPUT, dtypes[d], 96, 128);
        struct matrix in = matrix_of(PACK_INPUT, dtypes[d], 128, 96);
        check_same(&(struct work_shape){WORK_MATMUL, dtypes[d], {7, 96, 128}},
                   work_matmul(7, &out));
        check_same(&(struct work_shape){WORK_FFN_UP, dtypes[d], {7, 3, 96, 128}},
                   work_ffn_up(7, 3, &out));
        check_same(&(struct work_shape){WORK_FFN_DOWN, dtypes[d], {7, 3, 96, 128}},
                   work_ffn_down(7, 3, &in));
    }
}

/* Two prompts of 5 tokens, and one token behind 9. */
Test(work_shape, attention)
{
    struct work segments = work_attention(8, 2, 64);
    work_attention_add(&segments, 5, 0, 0, DTYPE_BF16);
    work_attention_add(&segments, 5, 0, 0, DTYPE_BF16);
    work_attention_add(&segments, 1, 9, 0, DTYPE_BF16);
    check_same(
        &(struct work_shape){WORK_ATTENTION, DTYPE_BF16, {11, 15 + 15 + 10, 5 + 5 + 10, 8, 2, 64}},
        segments);
}

/* A decode step of three sequences has a row of scores for each head of a KV head; a prompt's
 * tokens see each other, but for those behind them. */
Test(work_shape, score_rows)
{
    static const struct work_shape decode = {WORK_ATTENTION, DTYPE_BF16, {3, 300, 300, 16, 4, 64}};
    static const struct work_shape prompt = {WORK_ATTENTION, DTYPE_BF16, {9, 45, 9, 6, 2, 64}};
    cr_expect_eq(work_shape_size(&decode, WORK_SIZE_SCORE_ROWS), 4);
    cr_expect_eq(work_shape_size(&prompt, WORK_SIZE_SCORE_ROWS), 15);
    cr_expect_eq(work_shape_size(&prompt, 3), 6);
    cr_expect_eq(work_shape_size(&decode, WORK_SIZE_BYTES),
                 3 * 16 * 64 * 2 * 4 + 300 * 4 * 64 * 2 * 2);
    cr_expect_eq(
        work_shape_size(&(struct work_shape){WORK_ROWS, DTYPE_F32, {5, 64}}, WORK_SIZE_BYTES),
        5 * 64 * 2 * 4);
    cr_expect_eq(work_shape_size(&(struct work_shape){WORK_ATTENTION, DTYPE_BF16, {1}},
                                 WORK_SIZE_SCORE_ROWS),
                 0);
    cr_expect_eq(work_shape_size(&(struct work_shape){WORK_MATMUL, DTYPE_BF16, {1, 2, 3, 4, 5, 6}},
                                 WORK_SIZE_SCORE_ROWS),
                 0);
}

Test(work_shape, rows_and_weights)
{
    struct matrix packed = matrix_of(PACK_OUTPUT, DTYPE_INT4, 32, 1024);
    check_same(&(struct work_shape){WORK_ROWS, DTYPE_F32, {5, 64}},
               work_rows(5, 64, 2, sizeof(float)));
    check_same(&(struct work_shape){WORK_DEQUANTIZE, DTYPE_INT4, {32 * 1024}},
               work_dequantize(&packed, DTYPE_BF16));
    check_same(&(struct work_shape){WORK_OTHER, DTYPE_F32, {0}}, (struct work){WORK_OTHER});
}

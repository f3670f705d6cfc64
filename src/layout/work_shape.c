#include "layout/work_shape.h"

#define INT4_GROUP_SIZE 64

static struct matrix matrix_of(enum packing packing, enum dtype dtype, int64_t rows,
                               int64_t columns)
{
    return (struct matrix){.dtype = dtype,
                           .packing = packing,
                           .rows = rows,
                           .columns = columns,
                           .group = dtype == DTYPE_INT4 ? INT4_GROUP_SIZE : 0};
}

/* Pairs are known as their sum, not by segments. */
static struct work attention(const struct work_shape *shape)
{
    const int64_t *dims = shape->dims;
    struct work work = work_attention(dims[3], dims[4], dims[5]);
    work_attention_sum(&work, dims[0], dims[1], dims[2], shape->dtype);
    return work;
}

double work_shape_size(const struct work_shape *shape, int size)
{
    const int64_t *dims = shape->dims;
    if (size < WORK_SHAPE_DIMS)
        return (double)dims[size];
    if (size == WORK_SIZE_BYTES)
        return work_shape_bytes(shape);
    if (shape->kind != WORK_ATTENTION || dims[2] == 0 || dims[4] == 0)
        return 0;
    return (double)dims[1] / (double)dims[2] * (double)dims[3] / (double)dims[4];
}

struct work work_of(const struct work_shape *shape)
{
    const int64_t *dims = shape->dims;
    struct matrix matrix;
    switch (shape->kind) {
    case WORK_MATMUL:
        matrix = matrix_of(PACK_OUTPUT, shape->dtype, dims[1], dims[2]);
        return work_matmul(dims[0], &matrix);
    case WORK_ATTENTION:
        return attention(shape);
    case WORK_FFN_UP:
        matrix = matrix_of(PACK_OUTPUT, shape->dtype, dims[2], dims[3]);
        return work_ffn_up(dims[0], dims[1], &matrix);
    case WORK_FFN_DOWN:
        matrix = matrix_of(PACK_INPUT, shape->dtype, dims[3], dims[2]);
        return work_ffn_down(dims[0], dims[1], &matrix);
    case WORK_ROWS:
        return work_rows(dims[0], dims[1], 2, sizeof(float));
    case WORK_DEQUANTIZE: /* of any form: in whole groups */
        matrix = matrix_of(PACK_OUTPUT, DTYPE_INT4, ceil_div(dims[0], 1024), 1024);
        return work_dequantize(&matrix, DTYPE_BF16);
    default:
        return (struct work){.kind = shape->kind};
    }
}

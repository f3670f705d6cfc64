/* The order in which weights lie in memory: one packing for host, wire and device.
 *
 * A linear weight is a matrix of `rows` outputs by `columns` inputs. Two packings, both in panels
 * that vector registers read as they lie:
 *
 *   PACK_OUTPUT  blocks of 16 rows: [rows / 16][columns / u][16][u]
 *                attention, head, router, and gate and up of an expert
 *   PACK_INPUT   blocks of 16 columns (the matrix is kept transposed):
 *                [columns / 16][rows / 16][16 / u][16][u], the two inner 16 are columns in groups
 *                of u, then rows: down of an expert
 *
 * u is 2 for 16-bit types (pairs of neighbouring inputs stand together, as the bf16 dot-product
 * instructions take them), 1 for f32 and 8 for int4 (the first input in the lowest nibble): 32 bits
 * for each of 16 rows. So gate, up and down of an expert are all cut along the
 * expert's intermediate dimension into blocks of 16, and a tensor-parallel slice is one contiguous
 * range of blocks in each. What does not fill the last block is zero.
 *
 * A GPU takes the same bytes: a tile is the left operand of its matrix instruction as it lies
 * (kernels/cuda/product_mma.cu).
 */
#ifndef PHASOR_LAYOUT_PACKING_H
#define PHASOR_LAYOUT_PACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/checked.h"
#include "base/numeric.h"

#define PACK_BLOCK 16

enum packing { PACK_OUTPUT, PACK_INPUT };

/* A packed linear weight; the pointers are borrowed.
 *
 * int4: rows and columns are multiples of 16. A weight is scale x nibble + minimum, the two of its
 * group. Groups are `group` neighbours along the dimension that is not cut into blocks of 16
 * (hidden, for an expert's matrices; the last group may be shorter), and there is one of each of 16
 * neighbours of the other: PACK_OUTPUT  scales[rows / 16][ceil(columns / group)][16 rows]
 *   PACK_INPUT   scales[columns / 16][ceil(rows / group)][16 columns]
 * and minima alike; without minima they are -8 x scale (symmetric). */
struct matrix {
    const void *data;
    enum dtype dtype; /* DTYPE_F32, DTYPE_BF16 or DTYPE_INT4 */
    enum packing packing;
    int64_t rows;           /* outputs */
    int64_t columns;        /* inputs */
    const uint16_t *scales; /* int4: bf16 */
    const uint16_t *minima; /* int4: bf16, or NULL */
    int64_t group;          /* int4: a multiple of 16 */
};

/* Inputs are padded to 16 in both packings (pairs never cross the end), outputs to 16. */
static inline int64_t packed_count(int64_t rows, int64_t columns)
{
    return round_up(rows, PACK_BLOCK) * round_up(columns, PACK_BLOCK);
}

static inline int64_t packed_bytes(int64_t rows, int64_t columns, enum dtype dtype)
{
    return packed_count(rows, columns) * dtype_bits(dtype) / 8;
}

/* Scales (or minima) of an int4 matrix. */
static inline int64_t packed_scale_count(enum packing packing, int64_t rows, int64_t columns,
                                         int64_t group)
{
    return packing == PACK_OUTPUT ? round_up(rows, PACK_BLOCK) * ceil_div(columns, group)
                                  : round_up(columns, PACK_BLOCK) * ceil_div(rows, group);
}

/* Bytes of all there is of a matrix: of int4 the scales and minima too. */
static inline int64_t matrix_bytes(const struct matrix *matrix)
{
    int64_t bytes = packed_bytes(matrix->rows, matrix->columns, matrix->dtype);
    if (matrix->dtype != DTYPE_INT4)
        return bytes;
    return bytes +
           packed_scale_count(matrix->packing, matrix->rows, matrix->columns, matrix->group) *
               (int64_t)sizeof(uint16_t) * (matrix->minima != NULL ? 2 : 1);
}

/* Index of element (row, column) in the packed array, in elements. */
static inline int64_t packed_index(enum packing packing, enum dtype dtype, int64_t rows,
                                   int64_t columns, int64_t row, int64_t column)
{
    int64_t unit = 32 / dtype_bits(dtype);
    int64_t in_panel = column % unit + row % PACK_BLOCK * unit;
    if (packing == PACK_OUTPUT)
        return row / PACK_BLOCK * PACK_BLOCK * round_up(columns, PACK_BLOCK) +
               column / unit * PACK_BLOCK * unit + in_panel;
    return (column / PACK_BLOCK * ceil_div(rows, PACK_BLOCK) + row / PACK_BLOCK) * PACK_BLOCK *
               PACK_BLOCK +
           column % PACK_BLOCK / unit * PACK_BLOCK * unit + in_panel;
}

/* Index of the scale (and minimum) of element (row, column) of an int4 matrix. */
static inline int64_t packed_scale_index(const struct matrix *matrix, int64_t row, int64_t column)
{
    bool by_output = matrix->packing == PACK_OUTPUT;
    int64_t across = by_output ? row : column, along = by_output ? column : row;
    int64_t groups = ceil_div(by_output ? matrix->columns : matrix->rows, matrix->group);
    return (across / PACK_BLOCK * groups + along / matrix->group) * PACK_BLOCK +
           across % PACK_BLOCK;
}

/* Packs rows [first_row, first_row + row_count) of a [rows][columns] matrix, given as plain
 * row-major values of `dtype` (f32 or bf16) in `in`, into `out` (packed_bytes of the whole matrix).
 * Padding is not written: the caller zeroes the whole first. Any split into row ranges gives the
 * same bytes.
 */
void matrix_pack_rows(void *out, enum packing packing, enum dtype dtype, int64_t rows,
                      int64_t columns, const void *in, int64_t first_row, int64_t row_count);

#endif

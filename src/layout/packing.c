#include "layout/packing.h"

/* Element by element with a stride that is constant inside a row: within a row of PACK_OUTPUT the
 * pairs lie 16 pairs apart, of PACK_INPUT as well inside a block of 16 columns. */
static void pack_row_16(uint16_t *out, enum packing packing, int64_t rows, int64_t columns,
                        const uint16_t *in, int64_t row)
{
    for (int64_t column = 0; column < columns; column += PACK_BLOCK) {
        uint16_t *panel = out + packed_index(packing, DTYPE_BF16, rows, columns, row, column);
        int64_t count = columns - column < PACK_BLOCK ? columns - column : PACK_BLOCK;
        for (int64_t i = 0; i < count; i++)
            panel[i / 2 * 2 * PACK_BLOCK + i % 2] = in[column + i];
    }
}

static void pack_row_32(float *out, enum packing packing, int64_t rows, int64_t columns,
                        const float *in, int64_t row)
{
    for (int64_t column = 0; column < columns; column += PACK_BLOCK) {
        float *panel = out + packed_index(packing, DTYPE_F32, rows, columns, row, column);
        int64_t count = columns - column < PACK_BLOCK ? columns - column : PACK_BLOCK;
        for (int64_t i = 0; i < count; i++)
            panel[i * PACK_BLOCK] = in[column + i];
    }
}

void matrix_pack_rows(void *out, enum packing packing, enum dtype dtype, int64_t rows,
                      int64_t columns, const void *in, int64_t first_row, int64_t row_count)
{
    for (int64_t i = 0; i < row_count; i++) {
        if (dtype == DTYPE_F32)
            pack_row_32(out, packing, rows, columns, (const float *)in + i * columns,
                        first_row + i);
        else
            pack_row_16(out, packing, rows, columns, (const uint16_t *)in + i * columns,
                        first_row + i);
    }
}

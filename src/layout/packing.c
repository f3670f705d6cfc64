#include "layout/packing.h"

#include "layout/packing_tile.h"

/* A matrix on its way from rows to panels. */
struct pack_job {
    tile_pack_fn *tile_pack;
    char *out;
    enum packing packing;
    enum dtype dtype;
    int64_t value_bytes;
    int64_t rows, columns;
    const char *in; /* row first_row of the matrix */
    int64_t first_row;
};

static char *out_at(const struct pack_job *job, int64_t row, int64_t column)
{
    return job->out + packed_index(job->packing, job->dtype, job->rows, job->columns, row, column) *
                          job->value_bytes;
}

static const char *in_at(const struct pack_job *job, int64_t row, int64_t column)
{
    return job->in + ((row - job->first_row) * job->columns + column) * job->value_bytes;
}

/* ---- Element by element: what fills no tile -------------------------------------------------- */

/* The stride is constant inside a block of 16 columns: the pairs lie 16 pairs apart. */
static void block_pack_16(uint16_t *out, const uint16_t *in, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i / 2 * 2 * PACK_BLOCK + i % 2] = in[i];
}

static void block_pack_32(float *out, const float *in, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i * PACK_BLOCK] = in[i];
}

/* first_column is a multiple of 16. */
static void rows_pack(const struct pack_job *job, int64_t row, int64_t end, int64_t first_column)
{
    for (; row < end; row++) {
        for (int64_t column = first_column; column < job->columns; column += PACK_BLOCK) {
            int64_t left = job->columns - column;
            int64_t count = left < PACK_BLOCK ? left : PACK_BLOCK;
            void *out = out_at(job, row, column);
            const void *in = in_at(job, row, column);
            if (job->dtype == DTYPE_F32)
                block_pack_32(out, in, count);
            else
                block_pack_16(out, in, count);
        }
    }
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* All tiles of rows [first_row, end) and of columns up to column_end. */
static void tiles_pack(const struct pack_job *job, int64_t first_row, int64_t end,
                       int64_t column_end)
{
    int64_t row_bytes = job->columns * job->value_bytes;
    int64_t unit_count = PACK_BLOCK * job->value_bytes / 4;
    for (int64_t column = 0; column < column_end; column += PACK_BLOCK) {
        for (int64_t row = first_row; row < end; row += PACK_BLOCK)
            job->tile_pack(out_at(job, row, column), in_at(job, row, column), row_bytes,
                           unit_count);
    }
}

/* In the order in which tiles lie in `out`, so that memory is written from front to back. */
static void tiles_pack_in_order(const struct pack_job *job, int64_t row, int64_t end,
                                int64_t column_end)
{
    int64_t step = job->packing == PACK_INPUT ? end - row : PACK_BLOCK;
    for (; row < end; row += step)
        tiles_pack(job, row, row + step, column_end);
}

void matrix_pack_rows(void *out, enum packing packing, enum dtype dtype, int64_t rows,
                      int64_t columns, const void *in, int64_t first_row, int64_t row_count)
{
    const struct pack_job job = {.tile_pack = tile_pack_best(),
                                 .out = out,
                                 .packing = packing,
                                 .dtype = dtype,
                                 .value_bytes = dtype_bytes(dtype),
                                 .rows = rows,
                                 .columns = columns,
                                 .in = in,
                                 .first_row = first_row};
    int64_t end = first_row + row_count;
    int64_t tiles_row = round_up(first_row, PACK_BLOCK), tiles_end = end - end % PACK_BLOCK;
    int64_t column_end = columns - columns % PACK_BLOCK;
    if (tiles_row >= tiles_end) {
        rows_pack(&job, first_row, end, 0);
        return;
    }
    rows_pack(&job, first_row, tiles_row, 0);
    tiles_pack_in_order(&job, tiles_row, tiles_end, column_end);
    rows_pack(&job, tiles_row, tiles_end, column_end);
    rows_pack(&job, tiles_end, end, 0);
}

/* Packings against the prose of packing.h, written down once more as nested loops: for each packing
 * the order in which elements lie, from the outermost dimension to the innermost. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "layout/packing.h"
#include "layout/packing_tile.h"

#define SIDE_MAX 50

static const enum packing packings[] = {PACK_OUTPUT, PACK_INPUT};
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};

struct place {
    int64_t row, column;
};

/* The element of each place of the packed array, padding included, in order. */
static int64_t walk(struct place *out, enum packing packing, enum dtype dtype, int64_t rows,
                    int64_t columns)
{
    int64_t u = dtype == DTYPE_F32 ? 1 : 2, count = 0;
    int64_t row_blocks = (rows + 15) / 16, column_blocks = (columns + 15) / 16;
    if (packing == PACK_OUTPUT) {
        /* [rows / 16][columns / u][16][u] */
        for (int64_t block = 0; block < row_blocks; block++)
            for (int64_t group = 0; group < column_blocks * 16 / u; group++)
                for (int64_t r = 0; r < 16; r++)
                    for (int64_t i = 0; i < u; i++)
                        out[count++] = (struct place){block * 16 + r, group * u + i};
    } else {
        /* [columns / 16][rows / 16][16 / u][16][u]; the 16 / u and u are columns, the 16 rows */
        for (int64_t columns_at = 0; columns_at < column_blocks; columns_at++)
            for (int64_t rows_at = 0; rows_at < row_blocks; rows_at++)
                for (int64_t group = 0; group < 16 / u; group++)
                    for (int64_t r = 0; r < 16; r++)
                        for (int64_t i = 0; i < u; i++)
                            out[count++] =
                                (struct place){rows_at * 16 + r, columns_at * 16 + group * u + i};
    }
    return count;
}

static void put(void *array, enum dtype dtype, int64_t at, uint32_t value)
{
    if (dtype == DTYPE_F32)
        ((uint32_t *)array)[at] = value;
    else
        ((uint16_t *)array)[at] = (uint16_t)value;
}

static uint32_t get(const void *array, enum dtype dtype, int64_t at)
{
    return dtype == DTYPE_F32 ? ((const uint32_t *)array)[at] : ((const uint16_t *)array)[at];
}

/* A different value for each element, never 0. */
static uint32_t element(int64_t row, int64_t column, int64_t columns)
{
    return (uint32_t)(row * columns + column + 1);
}

static void plain_fill(void *plain, enum dtype dtype, int64_t rows, int64_t columns)
{
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column++)
            put(plain, dtype, row * columns + column, element(row, column, columns));
    }
}

static void check_shape(enum packing packing, enum dtype dtype, int64_t rows, int64_t columns)
{
    static struct place places[64 * 64];
    static char plain[64 * 64 * 4], packed[64 * 64 * 4];
    char name[96];
    snprintf(name, sizeof name, "%s %s %lldx%lld", packing == PACK_OUTPUT ? "output" : "input",
             dtype_name(dtype), (long long)rows, (long long)columns);
    int64_t count = walk(places, packing, dtype, rows, columns);
    cr_assert_eq(packed_count(rows, columns), count, "%s", name);
    cr_assert_eq(packed_bytes(rows, columns, dtype), count * dtype_bytes(dtype), "%s", name);
    plain_fill(plain, dtype, rows, columns);
    memset(packed, 0, sizeof packed);
    matrix_pack_rows(packed, packing, dtype, rows, columns, plain, 0, rows);
    for (int64_t i = 0; i < count; i++) {
        struct place at = places[i];
        bool inside = at.row < rows && at.column < columns;
        uint32_t expected = inside ? element(at.row, at.column, columns) : 0;
        if (get(packed, dtype, i) != expected)
            cr_assert(false, "%s: place %lld", name, (long long)i);
        if (inside && packed_index(packing, dtype, rows, columns, at.row, at.column) != i)
            cr_assert(false, "%s: index of row %lld, column %lld", name, (long long)at.row,
                      (long long)at.column);
    }
    for (size_t i = (size_t)(count * dtype_bytes(dtype)); i < sizeof packed; i++)
        cr_assert_eq(packed[i], 0, "%s: wrote behind its end", name);
}

Test(packing, every_small_shape_lies_as_the_prose_says)
{
    for (int p = 0; p < 2; p++) {
        for (int d = 0; d < 2; d++) {
            for (int64_t rows = 1; rows <= SIDE_MAX; rows++) {
                for (int64_t columns = 1; columns <= SIDE_MAX; columns++)
                    check_shape(packings[p], dtypes[d], rows, columns);
            }
        }
    }
}

/* Whatever the processor has, beside what any has: out[unit][row] of in[row][unit], rows apart by
 * anything, and nothing else is written. */
static void check_tile(tile_pack_fn *tile_pack, int64_t unit_count, int64_t row_bytes)
{
    enum { LINE = 16, ROW_MAX = 128 };
    static char in[16 * ROW_MAX + 1];
    uint32_t out[18 * LINE];
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (char)(i * 7 + i / 251);
    memset(out, 0xA5, sizeof out);
    tile_pack((char *)(out + LINE), in + 1, row_bytes, unit_count);
    for (int64_t line = -1; line <= unit_count; line++) {
        for (int64_t row = 0; row < 16; row++) {
            uint32_t expected = 0xA5A5A5A5;
            if (line >= 0 && line < unit_count)
                memcpy(&expected, in + 1 + row * row_bytes + line * 4, sizeof expected);
            cr_assert_eq(out[(line + 1) * LINE + row], expected, "%lld units, rows %lld apart",
                         (long long)unit_count, (long long)row_bytes);
        }
    }
}

Test(packing, a_tile_is_transposed_by_every_processor)
{
    tile_pack_fn *const packers[] = {tile_pack_plain, tile_pack_best()};
    for (int p = 0; p < 2; p++) {
        for (int64_t row_bytes = 64; row_bytes <= 128; row_bytes += 2) {
            check_tile(packers[p], 8, row_bytes);
            check_tile(packers[p], 16, row_bytes);
        }
    }
}

/* Packs in random row ranges, with and without whole tiles, in a random order of them. */
static void pack_in_parts(void *out, enum packing packing, enum dtype dtype, int64_t rows,
                          int64_t columns, const char *plain, struct random *random)
{
    int64_t starts[SIDE_MAX + 1], count = 0;
    for (int64_t row = 0; row < rows;
         row += 1 + (int64_t)random_below(random, row % 2 == 0 ? 40 : 9))
        starts[count++] = row;
    starts[count] = rows;
    bool done[SIDE_MAX] = {false};
    for (int64_t left = count; left > 0; left--) {
        int64_t part = (int64_t)random_below(random, (uint64_t)count);
        while (done[part])
            part = (part + 1) % count;
        done[part] = true;
        matrix_pack_rows(out, packing, dtype, rows, columns,
                         plain + starts[part] * columns * dtype_bytes(dtype), starts[part],
                         starts[part + 1] - starts[part]);
    }
}

Test(packing, any_split_into_rows_gives_the_same_bytes)
{
    static char plain[64 * 64 * 4], whole[64 * 64 * 4], parts[64 * 64 * 4];
    struct random random = {.seed = 8};
    for (int round = 0; round < 1000; round++) {
        enum packing packing = packings[round % 2];
        enum dtype dtype = dtypes[round / 2 % 2];
        int64_t rows = 1 + (int64_t)random_below(&random, SIDE_MAX);
        int64_t columns = 1 + (int64_t)random_below(&random, SIDE_MAX);
        plain_fill(plain, dtype, rows, columns);
        memset(whole, 0, sizeof whole);
        memset(parts, 0, sizeof parts);
        matrix_pack_rows(whole, packing, dtype, rows, columns, plain, 0, rows);
        pack_in_parts(parts, packing, dtype, rows, columns, plain, &random);
        cr_assert_eq(memcmp(whole, parts, sizeof whole), 0, "round %d", round);
        matrix_pack_rows(whole, packing, dtype, rows, columns, plain, 0, 0);
        cr_assert_eq(memcmp(whole, parts, sizeof whole), 0, "no rows are no change");
    }
}

/* A tensor-parallel slice of an expert cuts gate and up by rows and down by columns, in blocks of
 * 16 along the intermediate dimension: one contiguous range of the whole, which is the packed form
 * of the sliced matrix. The last slice may end in a block that is not full. */
static void check_slice(enum packing packing, enum dtype dtype, int64_t width, int64_t hidden,
                        int64_t first, int64_t end)
{
    static char plain[64 * 64 * 4], cut[64 * 64 * 4], whole[64 * 64 * 4], slice[64 * 64 * 4];
    bool by_rows = packing == PACK_OUTPUT;
    int64_t rows = by_rows ? width : hidden, columns = by_rows ? hidden : width;
    int64_t cut_rows = by_rows ? end - first : hidden, cut_columns = by_rows ? hidden : end - first;
    plain_fill(plain, dtype, rows, columns);
    for (int64_t row = 0; row < cut_rows; row++) {
        for (int64_t column = 0; column < cut_columns; column++)
            put(cut, dtype, row * cut_columns + column,
                by_rows ? element(first + row, column, columns)
                        : element(row, first + column, columns));
    }
    memset(whole, 0, sizeof whole);
    memset(slice, 0, sizeof slice);
    matrix_pack_rows(whole, packing, dtype, rows, columns, plain, 0, rows);
    matrix_pack_rows(slice, packing, dtype, cut_rows, cut_columns, cut, 0, cut_rows);
    int64_t block_bytes = packed_bytes(16, hidden, dtype);
    cr_assert_eq(memcmp(whole + first / 16 * block_bytes, slice,
                        (size_t)packed_bytes(cut_rows, cut_columns, dtype)),
                 0, "packing %d, %s, blocks from %lld to %lld of %lld, hidden %lld", packing,
                 dtype_name(dtype), (long long)first, (long long)end, (long long)width,
                 (long long)hidden);
}

Test(packing, a_tensor_parallel_slice_is_one_range)
{
    for (int p = 0; p < 2; p++) {
        for (int d = 0; d < 2; d++) {
            for (int64_t width = 16; width <= SIDE_MAX; width += 5) {
                for (int64_t hidden = 15; hidden <= 34; hidden++) {
                    for (int64_t first = 0; first < width; first += 16) {
                        for (int64_t end = first + 16; end < width; end += 16)
                            check_slice(packings[p], dtypes[d], width, hidden, first, end);
                        check_slice(packings[p], dtypes[d], width, hidden, first, width);
                    }
                }
            }
        }
    }
}

/* A function for each tile: its kind, rows and panels. */
#ifndef PHASOR_KERNELS_CPU_GEMM_TILES_H
#define PHASOR_KERNELS_CPU_GEMM_TILES_H

#include "kernels/cpu/gemm_int4.h"

typedef void tile_fn(const struct tile_work *work);

#if defined(__AVX512F__)
#define FOR_PAIR_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define FOR_SINGLE_ROWS(X)                                                                         \
    FOR_PAIR_ROWS(X) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24)
#else
#define FOR_PAIR_ROWS(X) X(1) X(2)
#if STRIP_ROWS == 6
#define FOR_SINGLE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define FOR_SINGLE_ROWS(X) X(1) X(2)
#endif
#endif

/* Two panels for so many rows: enough sums to hide the latency of the additions. Not more: each is
 * one more place in memory that is read in turn, and a processor looks ahead by itself in few. */
#if defined(__AVX512F__)
#define PAIR_ROWS 12 /* 24 sums */
#else
#define PAIR_ROWS 2
#endif

/* Of int4, up to strip_rows_most rows. By bytes, four rows of two panels are 16 sums. */
#if KERNEL_BYTES && STRIP_ROWS == 24
#define INT4_PAIR_ROWS          4
#define FOR_INT4_PAIR_ROWS(X)   X(1) X(2) X(3) X(4)
#define FOR_INT4_SINGLE_ROWS(X) FOR_PAIR_ROWS(X)
#elif KERNEL_BYTES
#define INT4_PAIR_ROWS          1
#define FOR_INT4_PAIR_ROWS(X)   X(1)
#define FOR_INT4_SINGLE_ROWS(X) X(1)
#else
#define INT4_PAIR_ROWS          PAIR_ROWS
#define FOR_INT4_PAIR_ROWS(X)   FOR_PAIR_ROWS(X)
#define FOR_INT4_SINGLE_ROWS(X) FOR_SINGLE_ROWS(X)
#endif

static inline int tile_panels(const struct tiles *tiles, int rows, int64_t left)
{
    const enum tile_kind kind = tiles->kind;
    int most = is_int4(kind) ? INT4_PAIR_ROWS : PAIR_ROWS;
    /* AMX: some rows read weights as they lie in one run of memory; more use twice what they load.
     */
    if (takes_amx(kind))
        most = rows <= AMX_FEW_ROWS || rows > AMX_TILE_ROWS || tiles->matrix->packing == PACK_INPUT
                   ? rows
                   : 0;
    /* Panels by output lie one behind another in memory, and are read fastest so where they are
     * short. */
    if (KERNEL_BYTES && kind == TILE_INT4_OUTPUT)
        most = 0;
    return rows <= most && left >= 2 ? 2 : 1;
}

#define DEFINE_TILE(name, product, kind, rows, panels)                                             \
    static void tile_##name##_##rows##x##panels(const struct tile_work *work)                      \
    {                                                                                              \
        product(rows, panels, kind, work);                                                         \
    }
#if KERNEL_AMX
#define DEFINE_BF16(rows, panels)
#define NAME_BF16(rows, panels) NULL
#define DEFINE_CHUNKS(rows, panels)                                                                \
    static void tile_chunks_##rows##x##panels(const struct tile_work *work)                        \
    {                                                                                              \
        tile_product_chunks(rows, panels, work);                                                   \
    }
#define DEFINE_FEW(rows) DEFINE_CHUNKS(rows, 1) DEFINE_CHUNKS(rows, 2)
DEFINE_FEW(1)
DEFINE_FEW(2)
DEFINE_FEW(3)
DEFINE_FEW(4)
static tile_fn *const chunk_tiles[AMX_FEW_ROWS][2] = {{tile_chunks_1x1, tile_chunks_1x2},
                                                      {tile_chunks_2x1, tile_chunks_2x2},
                                                      {tile_chunks_3x1, tile_chunks_3x2},
                                                      {tile_chunks_4x1, tile_chunks_4x2}};
#else
#define DEFINE_BF16(rows, panels) DEFINE_TILE(bf16, tile_product, TILE_BF16, rows, panels)
#define NAME_BF16(rows, panels)   tile_bf16_##rows##x##panels
#endif
#define DEFINE_FLOATS(rows, panels)                                                                \
    DEFINE_TILE(f32, tile_product, TILE_F32, rows, panels) DEFINE_BF16(rows, panels)
#define DEFINE_INT4(rows, panels)                                                                  \
    DEFINE_TILE(int4_output, tile_product_int4, true, rows, panels)                                \
    DEFINE_TILE(int4_input, tile_product_int4, false, rows, panels)
#define DEFINE_SINGLE(rows)      DEFINE_FLOATS(rows, 1)
#define DEFINE_PAIR(rows)        DEFINE_FLOATS(rows, 2)
#define DEFINE_INT4_SINGLE(rows) DEFINE_INT4(rows, 1)
#define DEFINE_INT4_PAIR(rows)   DEFINE_INT4(rows, 2)
FOR_SINGLE_ROWS(DEFINE_SINGLE)
FOR_PAIR_ROWS(DEFINE_PAIR)
FOR_INT4_SINGLE_ROWS(DEFINE_INT4_SINGLE)
FOR_INT4_PAIR_ROWS(DEFINE_INT4_PAIR)

#define NAME_SINGLE(rows)      {tile_f32_##rows##x1, NAME_BF16(rows, 1)},
#define NAME_PAIR(rows)        {tile_f32_##rows##x2, NAME_BF16(rows, 2)},
#define NAME_INT4_SINGLE(rows) {tile_int4_output_##rows##x1, tile_int4_input_##rows##x1},
#define NAME_INT4_PAIR(rows)   {tile_int4_output_##rows##x2, tile_int4_input_##rows##x2},
static tile_fn *const float_tiles[2][STRIP_ROWS][2] = {{FOR_SINGLE_ROWS(NAME_SINGLE)},
                                                       {FOR_PAIR_ROWS(NAME_PAIR)}};
static tile_fn *const int4_tiles[2][STRIP_ROWS][2] = {{FOR_INT4_SINGLE_ROWS(NAME_INT4_SINGLE)},
                                                      {FOR_INT4_PAIR_ROWS(NAME_INT4_PAIR)}};

static inline tile_fn *tile_choose(int rows, int panels, enum tile_kind kind)
{
#if KERNEL_AMX
    if (takes_amx(kind))
        return chunk_tiles[rows - 1][panels - 1];
#endif
    return is_int4(kind) ? int4_tiles[panels - 1][rows - 1][kind - TILE_INT4_OUTPUT]
                         : float_tiles[panels - 1][rows - 1][kind];
}

#endif

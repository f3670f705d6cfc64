/* A function for each tile: its kind, rows and panels. */
#ifndef PHASOR_KERNELS_CPU_GEMM_TILES_H
#define PHASOR_KERNELS_CPU_GEMM_TILES_H

#include "kernels/cpu/gemm_int4.h"

typedef void tile_fn(const struct tile_work *work);

#define DEFINE_TILE_KIND(name, product, kind, rows, panels)                                        \
    static void tile_##name##_##rows##x##panels(const struct tile_work *work)                      \
    {                                                                                              \
        product(rows, panels, kind, work);                                                         \
    }
#define DEFINE_TILE(rows, panels)                                                                  \
    DEFINE_TILE_KIND(f32, tile_product, TILE_F32, rows, panels)                                    \
    DEFINE_TILE_KIND(bf16, tile_product, TILE_BF16, rows, panels)                                  \
    DEFINE_TILE_KIND(int4_output, tile_product_int4, true, rows, panels)                           \
    DEFINE_TILE_KIND(int4_input, tile_product_int4, false, rows, panels)

/* Two panels for so many rows: enough sums to hide the latency of the additions. Not more: each is
 * one more place in memory that is read in turn, and a processor looks ahead by itself in few. */
#if defined(__AVX512F__)
#define PAIR_ROWS 12 /* 24 sums */
#else
#define PAIR_ROWS 2
#endif

static inline int tile_panels(enum tile_kind kind, int rows, int64_t left)
{
    /* Bytes have two sums each. By input they leave the panels of a slice in their order. */
    if (is_int4(kind) && takes_bytes(rows) && (kind == TILE_INT4_OUTPUT || rows > PAIR_ROWS / 3))
        return 1;
    return rows <= PAIR_ROWS && left >= 2 ? 2 : 1;
}

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

#define DEFINE_SINGLE(rows) DEFINE_TILE(rows, 1)
#define DEFINE_PAIR(rows)   DEFINE_TILE(rows, 2)
FOR_SINGLE_ROWS(DEFINE_SINGLE)
FOR_PAIR_ROWS(DEFINE_PAIR)

#define NAME_TILES(rows, panels)                                                                   \
    {tile_f32_##rows##x##panels, tile_bf16_##rows##x##panels, tile_int4_output_##rows##x##panels,  \
     tile_int4_input_##rows##x##panels},
#define NAME_SINGLE(rows) NAME_TILES(rows, 1)
#define NAME_PAIR(rows)   NAME_TILES(rows, 2)
static tile_fn *const single_tiles[STRIP_ROWS][4] = {FOR_SINGLE_ROWS(NAME_SINGLE)};
static tile_fn *const pair_tiles[PAIR_ROWS][4] = {FOR_PAIR_ROWS(NAME_PAIR)};

static inline tile_fn *tile_choose(int rows, int panels, enum tile_kind kind)
{
    return panels == 2 ? pair_tiles[rows - 1][kind] : single_tiles[rows - 1][kind];
}

#endif

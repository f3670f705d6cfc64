/* The inner product of the matrix kernels: up to STRIP_ROWS rows of inputs times one, two or four
 * panels of 16 outputs, with all sums in registers. */
#ifndef PHASOR_KERNELS_CPU_GEMM_TILE_H
#define PHASOR_KERNELS_CPU_GEMM_TILE_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"
#include "layout/packing.h"

/* Rows of a strip: what the registers hold as sums, one panel wide. A value of the inputs is then
 * used once from each load, which AVX-512 does in the multiply-add itself: per 48 of these a pair
 * of columns takes three instructions more. That counts where two threads share a core. */
#if defined(__AVX512F__)
#define STRIP_ROWS 24 /* of 32 registers */
#elif defined(__AVX2__)
#define STRIP_ROWS 6 /* 12 of 16 */
#else
#define STRIP_ROWS 2 /* 8 of 16 or of NEON's 32 */
#endif

/* Inputs of a strip that are copied at a time, as [rows][strip_stride(rows)] words of 32 bits, each
 * one input or a pair: 12 KiB of the L1 cache. */
#define STRIP_WORDS  3072
#define TILE_VALUES  (PACK_BLOCK * PACK_BLOCK)
#define FETCH_BLOCKS 4 /* a tile asks for weights so many blocks ahead */

INLINE int64_t strip_stride(int rows)
{
    return STRIP_WORDS / rows / PACK_BLOCK * PACK_BLOCK;
}

/* Blocks of that. */
INLINE int64_t strip_blocks(int rows)
{
    return strip_stride(rows) / PACK_BLOCK;
}

enum tile_kind { TILE_F32, TILE_BF16, TILE_INT4_OUTPUT, TILE_INT4_INPUT };

/* Whether the inputs are rounded to bf16 and multiplied two at a time, as the weights lie. A kind
 * does so for any number of rows or for none, so that a row's result is its own. */
INLINE bool takes_pairs(enum tile_kind kind)
{
    return KERNEL_PAIRS && kind == TILE_BF16;
}

/* Columns at a time. */
INLINE int64_t strip_depth(int rows, enum tile_kind kind)
{
    return strip_stride(rows) * (takes_pairs(kind) ? 2 : 1);
}

/* Where the tiles (16 x 16) of a matrix lie. Both packings have the same inside of a tile; they
 * differ in the order of the tiles, which is two steps here. */
struct tiles {
    const struct matrix *matrix;
    enum tile_kind kind;
    int64_t panel_count, block_count; /* of 16 rows, of 16 columns */
    int64_t panel_step, block_step;   /* bytes */
    int64_t group_blocks;             /* int4: blocks of 16 in a group */
    int64_t group_count;              /* int4: groups of a row or column */
};

static inline struct tiles tiles_of(const struct matrix *matrix)
{
    int64_t bytes = TILE_VALUES * dtype_bits(matrix->dtype) / 8;
    bool by_output = matrix->packing == PACK_OUTPUT;
    struct tiles tiles = {
        .matrix = matrix,
        .kind = matrix->dtype == DTYPE_F32    ? TILE_F32
                : matrix->dtype == DTYPE_BF16 ? TILE_BF16
                : by_output                   ? TILE_INT4_OUTPUT
                                              : TILE_INT4_INPUT,
        .panel_count = ceil_div(matrix->rows, PACK_BLOCK),
        .block_count = ceil_div(matrix->columns, PACK_BLOCK),
    };
    tiles.panel_step = by_output ? tiles.block_count * bytes : bytes;
    tiles.block_step = by_output ? bytes : tiles.panel_count * bytes;
    if (matrix->dtype == DTYPE_INT4) {
        tiles.group_blocks = matrix->group / PACK_BLOCK;
        tiles.group_count = ceil_div(by_output ? matrix->columns : matrix->rows, matrix->group);
    }
    return tiles;
}

/* A product of one tile: sums[row][panel][16] += in[row][...] x panels [panel, panel + panels) of
 * the matrix over blocks [block, block + block_count), columns in rising order.
 *
 * int4: a weight is scale x (nibble - 8) + offset, and only the nibble is made a number in the
 * inner loop. Where a block has a scale for each output, the sum of a block is multiplied by it
 * (TILE_INT4_OUTPUT); where it has one for each input, the inputs have been (TILE_INT4_INPUT), and
 * all panels are of one group. What the offsets add, from the sums of each block's inputs, or of
 * inputs times offsets, comes block by block too: so a row's result depends neither on the rows
 * beside it nor on how many columns are taken at a time. */
struct tile_work {
    const struct tiles *tiles;
    float *sums;
    const float *in; /* of the first block, [rows][strip_stride(rows)] */
    /* int4 with minima: [rows][strip_blocks(rows)]; else NULL */
    const float *block_sums;
    int64_t panel, block, block_count;
};

/* ---- Weights of a tile as vectors of 16 outputs --------------------------------------------- */

/* int4: where the 16 scales (and minima) of a panel and block are. */
INLINE int64_t scale_index(const struct tiles *tiles, int64_t panel, int64_t block,
                           const bool by_output)
{
    int64_t across = by_output ? panel : block, along = by_output ? block : panel;
    return (across * tiles->group_count + along / tiles->group_blocks) * LANES;
}

/* 16 offsets: what is added to scale x (nibble - 8). */
INLINE v16 nibble_offsets(const struct matrix *matrix, int64_t at)
{
    return v16_load_bf16(matrix->minima + at) + 8.0f * v16_load_bf16(matrix->scales + at);
}

/* Of the outputs of each panel, in one group; 1 where that has been multiplied with the inputs. */
struct tile_scales {
    v16 scale[4], offset[4];
};

/* The scales for `block` of the work; returns the first block that wants others. */
INLINE int64_t scales_load(struct tile_scales *out, const int panels, const bool by_output,
                           const struct tile_work *work, int64_t block)
{
    const struct tiles *tiles = work->tiles;
    const struct matrix *matrix = tiles->matrix;
    for (int p = 0; p < panels; p++) {
        out->scale[p] = out->offset[p] = v16_all(1);
        if (!by_output)
            continue;
        int64_t at = scale_index(tiles, work->panel + p, work->block + block, true);
        out->scale[p] = v16_load_bf16(matrix->scales + at);
        if (work->block_sums != NULL)
            out->offset[p] = nibble_offsets(matrix, at);
    }
    int64_t in_group = (work->block + block) % tiles->group_blocks;
    return by_output ? block + tiles->group_blocks - in_group : work->block_count;
}

/* Nibble k of each lane less 8, -8 to 7. */
INLINE v16 nibble_number(v16u bits, const int k)
{
#if defined(__AVX512F__) && !defined(__clang__)
    const v16 numbers = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    return __builtin_shuffle(numbers, (v16i)(bits >> 4 * k)); /* looks at the low four bits */
#else
    return __builtin_convertvector((v16i)((bits ^ 0x88888888u) << (28 - 4 * k)) >> 28, v16);
#endif
}

/* Weights of 16 outputs for input `k` of the unit of 32 bits at `unit`; of a pair as they lie; of
 * int4 the numbers. */
INLINE v16 unit_weights(const enum tile_kind kind, const char *unit, const int k)
{
    if (kind == TILE_F32 || takes_pairs(kind))
        return v16_load((const float *)unit);
    v16u bits = *(const v16u *)unit;
    if (kind == TILE_BF16)
        return k == 0 ? (v16)(bits << 16) : (v16)(bits & 0xFFFF0000u);
    return nibble_number(bits, k);
}

/* ---- The product --------------------------------------------------------------------------- */

/* What the input or the pair at `in` adds. */
INLINE v16 tile_add(const enum tile_kind kind, v16 sum, v16 weights, const float *in)
{
    if (takes_pairs(kind))
        return v16_dot_pairs(sum, (v16u)weights, in);
    return sum + v16_all(*in) * weights;
}

/* rows, panels and kind are constants where this is called. */
INLINE void tile_product(const int rows, const int panels, const enum tile_kind kind,
                         const struct tile_work *work)
{
    const bool by_output = kind == TILE_INT4_OUTPUT, is_int4 = by_output || kind == TILE_INT4_INPUT;
    const int unit = kind == TILE_F32 ? 1 : is_int4 ? 8 : 2; /* inputs in 32 bits */
    const int steps = takes_pairs(kind) ? 1 : unit;          /* words of the inputs for a unit */
    const int64_t stride = strip_stride(rows);
    const struct tiles *tiles = work->tiles;
    const int64_t panel_step = tiles->panel_step, block_step = tiles->block_step;
    const char *tile =
        (const char *)tiles->matrix->data + work->panel * panel_step + work->block * block_step;
    const float *in = work->in;
    v16 sum[STRIP_ROWS][4], total[STRIP_ROWS][4]; /* total: of the blocks before, by_output */
    struct tile_scales scales;
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
            sum[r][p] = v16_load(work->sums + (r * panels + p) * LANES);
    }
    for (int64_t block = 0, group_end = 0; block < work->block_count; block++, tile += block_step) {
        if (is_int4 && block == group_end)
            group_end = scales_load(&scales, panels, by_output, work, block);
#pragma GCC unroll 24
        for (int r = 0; r < rows && by_output; r++) {
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) {
                total[r][p] = sum[r][p];
                sum[r][p] = v16_all(0);
            }
        }
        for (int u = 0; u < PACK_BLOCK / unit; u++, in += steps) {
            const char *units = tile + u * LANES * 4;
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                __builtin_prefetch(units + p * panel_step + FETCH_BLOCKS * block_step);
#pragma GCC unroll 8
            for (int k = 0; k < steps; k++) {
                v16 weights[4];
#pragma GCC unroll 4
                for (int p = 0; p < panels; p++)
                    weights[p] = unit_weights(kind, units + p * panel_step, k);
#pragma GCC unroll 24
                for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
                    for (int p = 0; p < panels; p++)
                        sum[r][p] = tile_add(kind, sum[r][p], weights[p], in + r * stride + k);
                }
            }
        }
#pragma GCC unroll 24
        for (int r = 0; r < rows && by_output; r++) {
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                sum[r][p] = total[r][p] + sum[r][p] * scales.scale[p];
        }
        if (!is_int4 || work->block_sums == NULL)
            continue;
#pragma GCC unroll 24
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                sum[r][p] +=
                    scales.offset[p] * v16_all(work->block_sums[r * strip_blocks(rows) + block]);
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
            v16_store(work->sums + (r * panels + p) * LANES, sum[r][p]);
    }
}

typedef void tile_fn(const struct tile_work *work);

#define DEFINE_TILE_KIND(name, kind, rows, panels)                                                 \
    static void tile_##name##_##rows##x##panels(const struct tile_work *work)                      \
    {                                                                                              \
        tile_product(rows, panels, kind, work);                                                    \
    }
#define DEFINE_TILE(rows, panels)                                                                  \
    DEFINE_TILE_KIND(f32, TILE_F32, rows, panels)                                                  \
    DEFINE_TILE_KIND(bf16, TILE_BF16, rows, panels)                                                \
    DEFINE_TILE_KIND(int4_output, TILE_INT4_OUTPUT, rows, panels)                                  \
    DEFINE_TILE_KIND(int4_input, TILE_INT4_INPUT, rows, panels)
/* The widest tile of so many rows: enough sums to hide the latency of the additions. */
#if defined(__AVX512F__)
#define WIDE_ROWS 4  /* 16 sums */
#define PAIR_ROWS 12 /* 24 */
#else
#define WIDE_ROWS 1
#define PAIR_ROWS 2
#endif

static inline int tile_panels(int rows, int64_t left)
{
    return rows <= WIDE_ROWS && left >= 4 ? 4 : rows <= PAIR_ROWS && left >= 2 ? 2 : 1;
}

#if defined(__AVX512F__)
#define FOR_WIDE_ROWS(X) X(1) X(2) X(3) X(4)
#define FOR_PAIR_ROWS(X) FOR_WIDE_ROWS(X) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define FOR_SINGLE_ROWS(X)                                                                         \
    FOR_PAIR_ROWS(X) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24)
#else
#define FOR_WIDE_ROWS(X) X(1)
#define FOR_PAIR_ROWS(X) X(1) X(2)
#if STRIP_ROWS == 6
#define FOR_SINGLE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define FOR_SINGLE_ROWS(X) X(1) X(2)
#endif
#endif

#define DEFINE_SINGLE(rows) DEFINE_TILE(rows, 1)
#define DEFINE_PAIR(rows)   DEFINE_TILE(rows, 2)
#define DEFINE_WIDE(rows)   DEFINE_TILE(rows, 4)
FOR_SINGLE_ROWS(DEFINE_SINGLE)
FOR_PAIR_ROWS(DEFINE_PAIR)
FOR_WIDE_ROWS(DEFINE_WIDE)

#define NAME_TILES(rows, panels)                                                                   \
    {tile_f32_##rows##x##panels, tile_bf16_##rows##x##panels, tile_int4_output_##rows##x##panels,  \
     tile_int4_input_##rows##x##panels},
#define NAME_SINGLE(rows) NAME_TILES(rows, 1)
#define NAME_PAIR(rows)   NAME_TILES(rows, 2)
#define NAME_WIDE(rows)   NAME_TILES(rows, 4)
static tile_fn *const single_tiles[STRIP_ROWS][4] = {FOR_SINGLE_ROWS(NAME_SINGLE)};
static tile_fn *const pair_tiles[PAIR_ROWS][4] = {FOR_PAIR_ROWS(NAME_PAIR)};
static tile_fn *const wide_tiles[WIDE_ROWS][4] = {FOR_WIDE_ROWS(NAME_WIDE)};

static inline tile_fn *tile_choose(int rows, int panels, enum tile_kind kind)
{
    return panels == 4   ? wide_tiles[rows - 1][kind]
           : panels == 2 ? pair_tiles[rows - 1][kind]
                         : single_tiles[rows - 1][kind];
}

#endif

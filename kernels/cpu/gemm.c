/* Matrix products with packed weights: plain, and the two halves of a feed-forward network over
 * groups of rows (grouped GEMM).
 *
 * Both packings are made of 16 x 16 tiles with the same inside (layout/packing.h); they differ in
 * the order of the tiles, which is two steps here. A piece of work is some panels (16 outputs each)
 * of one group. Its rows go in strips of up to STRIP_ROWS; the inputs of a strip are copied, DEPTH
 * columns at a time, into a scratch of fixed stride that stays in the L1 cache, while the piece's
 * weights stay in the L2 cache from strip to strip. */
#include <string.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

/* Rows of a strip: what the registers hold as accumulators, 2 panels wide. */
#if defined(__AVX512F__)
#define STRIP_ROWS 12 /* 24 of 32 registers */
#elif defined(__AVX2__)
#define STRIP_ROWS 3 /* 12 of 16 */
#else
#define STRIP_ROWS 2 /* 16 of 16 or of NEON's 32 */
#endif

#define DEPTH       256 /* columns: 12 x 256 floats are 12 KiB */
#define PIECE_BYTES (384 * 1024)
#define PANELS_MAX  32 /* of a piece */
#define TILE_VALUES (PACK_BLOCK * PACK_BLOCK)

struct scratch {
    float in[STRIP_ROWS][DEPTH];
    float sums[STRIP_ROWS][PANELS_MAX * LANES];
};

/* Where the tiles of a matrix lie. */
struct tiles {
    const char *base;
    enum dtype dtype;
    int64_t panel_count, block_count; /* of 16 rows, of 16 columns */
    int64_t panel_step, block_step;   /* bytes */
};

static struct tiles tiles_of(const struct matrix *matrix)
{
    int64_t bytes = TILE_VALUES * dtype_bytes(matrix->dtype);
    struct tiles tiles = {
        .base = matrix->data,
        .dtype = matrix->dtype,
        .panel_count = ceil_div(matrix->rows, PACK_BLOCK),
        .block_count = ceil_div(matrix->columns, PACK_BLOCK),
    };
    bool by_output = matrix->packing == PACK_OUTPUT;
    tiles.panel_step = by_output ? tiles.block_count * bytes : bytes;
    tiles.block_step = by_output ? bytes : tiles.panel_count * bytes;
    return tiles;
}

/* sums[row][panel x 16 ...] += in x tiles, for `rows` rows and `panels` neighbouring panels over
 * `block_count` blocks of 16 columns. rows and panels are constants where this is called. */
INLINE void tile_product(const int rows, const int panels, const bool is_bf16, float *sums,
                         const float *in, const char *weights, int64_t panel_step,
                         int64_t block_step, int64_t block_count)
{
    v16 sum[STRIP_ROWS][4];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
            sum[r][p] = v16_load(sums + r * PANELS_MAX * LANES + p * LANES);
    }
    for (int64_t block = 0; block < block_count; block++) {
        const char *tile = weights + block * block_step;
        for (int pair = 0; pair < PACK_BLOCK / 2; pair++) {
            v16 even[4], odd[4];
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) {
                if (is_bf16) {
                    v16_load_pairs(&even[p], &odd[p],
                                   (const uint16_t *)(tile + p * panel_step) + pair * 2 * LANES);
                } else {
                    const float *two = (const float *)(tile + p * panel_step) + pair * 2 * LANES;
                    even[p] = v16_load(two);
                    odd[p] = v16_load(two + LANES);
                }
            }
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                const float *values = in + r * DEPTH + block * PACK_BLOCK + pair * 2;
#pragma GCC unroll 4
                for (int p = 0; p < panels; p++)
                    sum[r][p] += v16_all(values[0]) * even[p];
#pragma GCC unroll 4
                for (int p = 0; p < panels; p++)
                    sum[r][p] += v16_all(values[1]) * odd[p];
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
            v16_store(sums + r * PANELS_MAX * LANES + p * LANES, sum[r][p]);
    }
}

typedef void tile_fn(float *sums, const float *in, const char *weights, int64_t panel_step,
                     int64_t block_step, int64_t block_count);

#define DEFINE_TILE(rows, panels)                                                                  \
    static void tile_bf16_##rows##x##panels(float *sums, const float *in, const char *weights,     \
                                            int64_t panel_step, int64_t block_step,                \
                                            int64_t block_count)                                   \
    {                                                                                              \
        tile_product(rows, panels, true, sums, in, weights, panel_step, block_step, block_count);  \
    }                                                                                              \
    static void tile_f32_##rows##x##panels(float *sums, const float *in, const char *weights,      \
                                           int64_t panel_step, int64_t block_step,                 \
                                           int64_t block_count)                                    \
    {                                                                                              \
        tile_product(rows, panels, false, sums, in, weights, panel_step, block_step, block_count); \
    }
#define DEFINE_TILES(rows) DEFINE_TILE(rows, 1) DEFINE_TILE(rows, 2)
#define TILES(rows)                                                                                \
    {                                                                                              \
        {tile_f32_##rows##x1, tile_f32_##rows##x2},                                                \
        {                                                                                          \
            tile_bf16_##rows##x1, tile_bf16_##rows##x2                                             \
        }                                                                                          \
    }

DEFINE_TILES(1)
DEFINE_TILES(2)
DEFINE_TILE(1, 4) /* few rows: more panels at once hide the latency of the additions */
DEFINE_TILE(2, 4)
#if STRIP_ROWS >= 3
DEFINE_TILES(3)
#endif
#if STRIP_ROWS >= 12
DEFINE_TILES(4)
DEFINE_TILES(5)
DEFINE_TILES(6)
DEFINE_TILES(7)
DEFINE_TILES(8)
DEFINE_TILES(9)
DEFINE_TILES(10)
DEFINE_TILES(11)
DEFINE_TILES(12)
#endif

static tile_fn *const tile_table[STRIP_ROWS][2][2] = {
    TILES(1), TILES(2),
#if STRIP_ROWS >= 3
    TILES(3),
#endif
#if STRIP_ROWS >= 12
    TILES(4), TILES(5), TILES(6), TILES(7), TILES(8), TILES(9), TILES(10), TILES(11), TILES(12),
#endif
};

static tile_fn *const wide_table[2][2] = {
    {tile_f32_1x4, tile_bf16_1x4},
    {tile_f32_2x4, tile_bf16_2x4},
};

/* Adds the product of a strip's inputs and `panels` neighbouring panels to the sums. */
static void strip_product(const struct tiles *tiles, float *sums, const float *in, int rows,
                          int64_t first_panel, int64_t panels, int64_t first_block,
                          int64_t block_count)
{
    bool is_bf16 = tiles->dtype == DTYPE_BF16;
    const char *weights =
        tiles->base + first_panel * tiles->panel_step + first_block * tiles->block_step;
    int64_t panel = 0;
    while (panel < panels) {
        int64_t left = panels - panel;
        int step = rows <= 2 && left >= 4 ? 4 : left >= 2 ? 2 : 1;
        tile_fn *tile =
            step == 4 ? wide_table[rows - 1][is_bf16] : tile_table[rows - 1][is_bf16][step - 1];
        tile(sums + panel * LANES, in, weights + panel * tiles->panel_step, tiles->panel_step,
             tiles->block_step, block_count);
        panel += step;
    }
}

/* Rows of the inputs: row s is in + row_of[s] x stride, or in + s x stride. */
struct rows {
    const float *in;
    const int32_t *row_of;
    int64_t stride;
    int64_t columns;
};

static const float *row_at(const struct rows *rows, int64_t row)
{
    return rows->in + (rows->row_of != NULL ? rows->row_of[row] : row) * rows->stride;
}

/* Copies columns [first, first + count) of a strip; what is beyond the last column becomes zero. */
static void strip_load(struct scratch *scratch, const struct rows *rows, int64_t first_row,
                       int row_count, int64_t first, int64_t count)
{
    int64_t valid = rows->columns - first < count ? rows->columns - first : count;
    for (int r = 0; r < row_count; r++) {
        memcpy(scratch->in[r], row_at(rows, first_row + r) + first, (size_t)valid * sizeof(float));
        memset(scratch->in[r] + valid, 0, (size_t)(count - valid) * sizeof(float));
    }
}

/* sums = inputs of a strip x panels of one or two matrices (gate, up): those of the second stand
 * behind those of the first. */
static void strip_run(struct scratch *scratch, const struct tiles *tiles, int matrix_count,
                      const struct rows *rows, int64_t first_row, int row_count,
                      int64_t first_panel, int64_t panels)
{
    memset(scratch->sums, 0, sizeof scratch->sums[0] * (size_t)row_count);
    int64_t padded = tiles[0].block_count * PACK_BLOCK;
    for (int64_t first = 0; first < padded; first += DEPTH) {
        int64_t count = padded - first < DEPTH ? padded - first : DEPTH;
        strip_load(scratch, rows, first_row, row_count, first, count);
        for (int m = 0; m < matrix_count; m++)
            strip_product(&tiles[m], scratch->sums[0] + m * panels * LANES, scratch->in[0],
                          row_count, first_panel, panels, first / PACK_BLOCK, count / PACK_BLOCK);
    }
}

/* How many panels make a piece: their weights fit PIECE_BYTES, and there are some pieces for each
 * worker. */
static int64_t panels_per_piece(const struct tiles *tiles, int matrix_count, int64_t group_count,
                                int worker_count)
{
    int64_t panel_bytes =
        tiles->block_count * TILE_VALUES * dtype_bytes(tiles->dtype) * matrix_count;
    int64_t fitting = PIECE_BYTES / panel_bytes;
    int64_t spread = ceil_div(tiles->panel_count * group_count, 4 * (int64_t)worker_count);
    int64_t panels = fitting < spread ? fitting : spread;
    if (panels > PANELS_MAX / matrix_count)
        panels = PANELS_MAX / matrix_count;
    if (panels >= 4)
        panels -= panels % 4;
    return panels < 1 ? 1 : panels;
}

static int strip_rows_of(int64_t left)
{
    return left < STRIP_ROWS ? (int)left : STRIP_ROWS;
}

/* ---- The plain product --------------------------------------------------------------------- */

#define MATMUL_ROWS (STRIP_ROWS * 20) /* of a piece, so that few panels still make many pieces */

static void matmul_store(const struct op_matmul *op, const struct scratch *scratch,
                         int64_t first_row, int row_count, int64_t first_panel, int64_t panels)
{
    for (int r = 0; r < row_count; r++) {
        float *out = op->out + (first_row + r) * op->out_stride + first_panel * LANES;
        for (int64_t p = 0; p < panels; p++) {
            v16 sum = v16_load(scratch->sums[r] + p * LANES);
            if (op->bias != NULL)
                sum += v16_load(op->bias + (first_panel + p) * LANES);
            v16_store(out + p * LANES, sum);
        }
    }
}

void KERNEL(matmul)(const struct op_matmul *op, struct share *share)
{
    struct scratch scratch;
    struct tiles tiles = tiles_of(&op->weight);
    struct rows rows = {op->in, NULL, op->in_stride, op->weight.columns};
    int64_t row_pieces = ceil_div(op->row_count, MATMUL_ROWS);
    int64_t panels = panels_per_piece(&tiles, 1, row_pieces, share->worker_count);
    int64_t panel_pieces = ceil_div(tiles.panel_count, panels);
    int64_t piece;
    while ((piece = share_take(share)) < row_pieces * panel_pieces) {
        int64_t first_panel = piece / row_pieces * panels;
        int64_t first_row = piece % row_pieces * MATMUL_ROWS;
        int64_t end =
            first_row + MATMUL_ROWS < op->row_count ? first_row + MATMUL_ROWS : op->row_count;
        int64_t count =
            tiles.panel_count - first_panel < panels ? tiles.panel_count - first_panel : panels;
        for (int64_t row = first_row; row < end; row += STRIP_ROWS) {
            int strip = strip_rows_of(end - row);
            strip_run(&scratch, &tiles, 1, &rows, row, strip, first_panel, count);
            matmul_store(op, &scratch, row, strip, first_panel, count);
        }
    }
}

/* ---- Groups of rows: feed-forward networks ------------------------------------------------- */

/* A piece of grouped work: some panels of one group, all of its rows. */
struct group_piece {
    int64_t group, first_panel, panels, first_row, end_row;
};

/* Whether there is a piece left; pieces of groups without rows are passed over. */
static bool group_piece_take(struct group_piece *out, struct share *share, const int32_t *offsets,
                             int64_t group_count, int64_t panel_count, int64_t panels)
{
    int64_t per_group = ceil_div(panel_count, panels);
    int64_t piece;
    while ((piece = share_take(share)) < per_group * group_count) {
        int64_t group = piece / per_group;
        if (offsets[group] == offsets[group + 1])
            continue;
        int64_t first = piece % per_group * panels;
        *out = (struct group_piece){
            .group = group,
            .first_panel = first,
            .panels = panel_count - first < panels ? panel_count - first : panels,
            .first_row = offsets[group],
            .end_row = offsets[group + 1],
        };
        return true;
    }
    return false;
}

static void ffn_up_store(const struct op_ffn_up *op, const struct scratch *scratch, int64_t row,
                         int row_count, const struct group_piece *piece)
{
    for (int r = 0; r < row_count; r++) {
        float *out = op->out + (row + r) * op->out_stride + piece->first_panel * LANES;
        const float *gate = scratch->sums[r];
        const float *up = gate + piece->panels * LANES;
        for (int64_t i = 0; i < piece->panels * LANES; i += LANES)
            v16_store(out + i, v16_silu(v16_load(gate + i)) * v16_load(up + i));
    }
}

void KERNEL(ffn_up)(const struct op_ffn_up *op, struct share *share)
{
    if (op->group_count == 0)
        return;
    struct scratch scratch;
    struct tiles shape = tiles_of(&op->groups[0].gate);
    struct rows rows = {op->in, op->token_of, op->in_stride, op->groups[0].gate.columns};
    int64_t panels = panels_per_piece(&shape, 2, op->group_count, share->worker_count);
    struct group_piece piece;
    while (
        group_piece_take(&piece, share, op->offsets, op->group_count, shape.panel_count, panels)) {
        struct tiles both[2] = {tiles_of(&op->groups[piece.group].gate),
                                tiles_of(&op->groups[piece.group].up)};
        for (int64_t row = piece.first_row; row < piece.end_row; row += STRIP_ROWS) {
            int strip = strip_rows_of(piece.end_row - row);
            strip_run(&scratch, both, 2, &rows, row, strip, piece.first_panel, piece.panels);
            ffn_up_store(op, &scratch, row, strip, &piece);
        }
    }
}

void KERNEL(ffn_down)(const struct op_ffn_down *op, struct share *share)
{
    if (op->group_count == 0)
        return;
    struct scratch scratch;
    struct tiles shape = tiles_of(&op->groups[0].down);
    struct rows rows = {op->in, NULL, op->in_stride, op->groups[0].down.columns};
    int64_t panels = panels_per_piece(&shape, 1, op->group_count, share->worker_count);
    struct group_piece piece;
    while (
        group_piece_take(&piece, share, op->offsets, op->group_count, shape.panel_count, panels)) {
        struct tiles tiles = tiles_of(&op->groups[piece.group].down);
        for (int64_t row = piece.first_row; row < piece.end_row; row += STRIP_ROWS) {
            int strip = strip_rows_of(piece.end_row - row);
            strip_run(&scratch, &tiles, 1, &rows, row, strip, piece.first_panel, piece.panels);
            for (int r = 0; r < strip; r++)
                memcpy(op->out + (row + r) * op->out_stride + piece.first_panel * LANES,
                       scratch.sums[r], (size_t)piece.panels * LANES * sizeof(float));
        }
    }
}

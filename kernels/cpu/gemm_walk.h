/* How a piece is gone through: its rows in strips, of each strip the panels tile by tile, and what
 * the caches are asked for meanwhile. */
#ifndef PHASOR_KERNELS_CPU_GEMM_WALK_H
#define PHASOR_KERNELS_CPU_GEMM_WALK_H

#include "kernels/cpu/gemm_cut.h"

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

/* Rounds inputs to bf16, the first `valid` of `count`, a multiple of 16; the others become zero. */
static void row_round(uint16_t *to, const float *from, int64_t valid, int64_t count)
{
    int64_t c = 0;
    for (; c + LANES <= valid; c += LANES)
        vec_store_pairs(to + c, vec_load(from + c));
    for (; c < count; c += LANES) {
        float last[LANES] = {0};
        if (c < valid)
            memcpy(last, from + c, (size_t)(valid - c) * sizeof(float));
        vec_store_pairs(to + c, vec_load(last));
    }
}

/* The same, as f32. */
static void row_round_wide(float *to, const float *from, int64_t count)
{
    int64_t c = 0;
    for (; c + LANES <= count; c += LANES)
        vec_store(to + c, (vec)(vec_bf16_bits(vec_load(from + c)) << 16));
    for (; c < count; c++)
        to[c] = bf16_to_f32(bf16_from_f32(from[c]));
}

/* Goes through the panels of a piece, tile by tile; a tile that takes scaled inputs is of one
 * group. */
struct walk {
    const struct piece *piece;
    int rows;
    int step;           /* panels of this tile; 0: there is none */
    int64_t panel;      /* its first, of the piece */
    int64_t group_left; /* int4 by input: panels from there on that are of one group */
};

static void walk_step(struct walk *walk)
{
    const struct tiles *tiles = &walk->piece->tiles[0];
    int64_t left = walk->piece->panels - walk->panel;
    if (tiles->kind == TILE_INT4_INPUT && walk->group_left < left)
        left = walk->group_left;
    if (walk->piece->by_bytes)
        walk->step = left >= 2 ? 2 : (int)left;
    else
        walk->step = left > 0 ? tile_panels(tiles, walk->rows, left) : 0;
}

static struct walk walk_begin(const struct piece *piece, int rows)
{
    const struct tiles *tiles = &piece->tiles[0];
    struct walk walk = {.piece = piece, .rows = rows};
    if (tiles->kind == TILE_INT4_INPUT)
        walk.group_left = tiles->group_blocks - piece->first_panel % tiles->group_blocks;
    walk_step(&walk);
    return walk;
}

/* Whether the tile after this one has another group. */
static bool walk_ends_group(const struct walk *walk)
{
    return walk->group_left == walk->step;
}

static void walk_on(struct walk *walk)
{
    walk->panel += walk->step;
    walk->group_left =
        walk_ends_group(walk) ? walk->piece->tiles[0].group_blocks : walk->group_left - walk->step;
    walk_step(walk);
}

static int strip_height(const struct piece *piece, int64_t row)
{
    int64_t left = piece->row_count - row;
    return (int)(left < piece->strip_rows ? left : piece->strip_rows);
}

/* What the caches are asked for while a strip is computed, a little with each tile (AMX, whose
 * tiles are as fast as memory: the L2 cache): the inputs of the strip that comes next, and this
 * strip's part of the weights of the next depth. The hardware does not see either coming: rows and
 * panels lie apart. */
struct ahead {
    const float *rows[STRIP_ROWS_MOST]; /* at their next columns */
    int row_count;
    int64_t line_count, lines_each; /* of a row; with each tile */
    int64_t first_block, end_block; /* of weights */
};

#define LINE_VALUES 16 /* floats of a cache line */
#define LINE_BYTES  64

static void fetch_rows(const struct ahead *ahead, int64_t tile)
{
    int64_t first = tile * ahead->lines_each, end = first + ahead->lines_each;
    for (int64_t line = first; line < end && line < ahead->line_count; line++) {
        for (int r = 0; r < ahead->row_count; r++)
            __builtin_prefetch(ahead->rows[r] + line * LINE_VALUES, 0, KERNEL_AMX ? 2 : 3);
    }
}

static void fetch_weights(const struct ahead *ahead, const struct tiles *tiles, int64_t panel,
                          int panels)
{
    int64_t bytes = TILE_VALUES * dtype_bits(tiles->matrix->dtype) / 8;
    for (int64_t block = ahead->first_block; block < ahead->end_block; block++) {
        for (int p = 0; p < panels; p++) {
            const char *tile = tile_at(tiles, panel + p, block);
            for (int64_t at = 0; at < bytes; at += LINE_BYTES)
                __builtin_prefetch(tile + at, 0, 2);
        }
    }
}

/* What comes after the strip at `row` in the depth that begins at column `first`. */
static struct ahead look_ahead(const struct piece *piece, const struct rows *rows, int64_t row,
                               int64_t first)
{
    struct ahead ahead = {0};
    int64_t block_count = piece->tiles[0].block_count, depth = piece_depth(piece);
    int64_t depth_blocks = depth / PACK_BLOCK;
    int64_t next_block = first / PACK_BLOCK + depth_blocks;
    int64_t blocks =
        block_count - next_block < depth_blocks ? block_count - next_block : depth_blocks;
    int64_t strip = row / piece->strip_rows, strips = ceil_div(piece->row_count, piece->strip_rows);
    int64_t next_row = row + piece->strip_rows, column = first;
    if (strips == 1)
        return ahead; /* a depth is short: its own fetches suffice */
    if (blocks > 0) {
        ahead.first_block = next_block + blocks * strip / strips;
        ahead.end_block = next_block + blocks * (strip + 1) / strips;
    }
    if (next_row >= piece->row_count) {
        next_row = 0;
        column += depth;
    }
    if (column >= rows->columns)
        return ahead;
    int64_t left = rows->columns - column;
    ahead.row_count = strip_height(piece, next_row);
    for (int r = 0; r < ahead.row_count; r++)
        ahead.rows[r] = row_at(rows, piece->first_row + next_row + r) + column;
    ahead.line_count = ceil_div(left < depth ? left : depth, LINE_VALUES);
    int step = piece->by_bytes
                   ? 2
                   : tile_panels(&piece->tiles[0], strip_height(piece, row), piece->panels);
    ahead.lines_each =
        ceil_div(ahead.line_count, ceil_div(piece->panels, step) * piece->matrix_count);
    return ahead;
}

#endif

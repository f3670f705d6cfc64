/* Pieces of many rows with INT4 weights by AMX's products of bytes (kernels/cpu/amx.h).
 *
 * Inputs are the whole numbers of kernels/cpu/gemm_fixed.h, weights their nibbles: the products are
 * the same numbers as those of kernels/cpu/gemm_int4.h, units are added in the same order, so it
 * does not matter to a row which of the two its piece goes by. Of a depth each nibble becomes a
 * byte, once for all rows of the piece, in the L2 cache; a strip's inputs are put apart, the high
 * bytes of 64 columns before their low ones. */
#ifndef PHASOR_KERNELS_CPU_GEMM_AMX_INT4_H
#define PHASOR_KERNELS_CPU_GEMM_AMX_INT4_H

#include "kernels/cpu/gemm_amx.h"

#if KERNEL_AMX

_Static_assert(LANES == PACK_BLOCK, "a vector has a word of each output of a panel");
_Static_assert(BYTES_CHUNK_BLOCKS *PACK_BLOCK == AMX_BYTES_COLUMNS, "a chunk is of whole blocks");
_Static_assert(FIXED_BLOCKS % BYTES_CHUNK_BLOCKS == 0, "units begin with a chunk");

#define CHUNK_WORDS (2 * CHUNK_PAIRS) /* of a row's inputs: high and low bytes */

/* Some blocks of columns of a piece. */
struct bytes_depth {
    int64_t first_block, block_count, chunk_count;
};

static char *bytes_at(struct amx_scratch *scratch, const struct piece *piece,
                      const struct bytes_depth *depth, int matrix, int64_t panel)
{
    return scratch->weights +
           (matrix * piece->panels + panel) * depth->chunk_count * AMX_BYTES_CHUNK;
}

/* A block of one panel: of each eight columns a line of the even ones and one of the odd ones. */
INLINE void block_spread(char *to, const char *tile)
{
#pragma GCC unroll 2
    for (int u = 0; u < 2; u++) {
        vecu bits = *(const vecu *)(tile + u * UNIT_BYTES);
        *(vecu *)(to + 2 * u * UNIT_BYTES) = bits & 0x0F0F0F0Fu;
        *(vecu *)(to + (2 * u + 1) * UNIT_BYTES) = bits >> 4 & 0x0F0F0F0Fu;
    }
}

/* Spreads the weights of a depth, in the order in which they lie in memory; what fills a last chunk
 * is zero. */
static void depth_spread(struct amx_scratch *scratch, const struct piece *piece,
                         const struct bytes_depth *depth)
{
    const int64_t panel_bytes = depth->chunk_count * AMX_BYTES_CHUNK;
    const int64_t block_bytes = AMX_BYTES_CHUNK / BYTES_CHUNK_BLOCKS;
    const bool by_input = piece->tiles[0].kind == TILE_INT4_INPUT;
    const int64_t outer = by_input ? depth->block_count : piece->panels;
    const int64_t inner = by_input ? piece->panels : depth->block_count;
    ASSERT(piece->matrix_count * piece->panels * panel_bytes <= DEPTH_BYTES);
    for (int m = 0; m < piece->matrix_count; m++) {
        const struct tiles *tiles = &piece->tiles[m];
        char *to = bytes_at(scratch, piece, depth, m, 0);
        for (int64_t o = 0; o < outer; o++) {
            for (int64_t i = 0; i < inner; i++) {
                int64_t panel = by_input ? i : o, block = by_input ? o : i;
                block_spread(
                    to + panel * panel_bytes + block * block_bytes,
                    tile_at(tiles, piece->first_panel + panel, depth->first_block + block));
            }
        }
        for (int64_t panel = 0; panel < piece->panels; panel++) {
            int64_t filled = depth->block_count * block_bytes;
            memset(to + panel * panel_bytes + filled, 0, (size_t)(panel_bytes - filled));
        }
    }
}

/* Rounds a strip's inputs as the tiles at `panel` take them, and puts their bytes apart. */
static void strip_fix_apart(struct amx_scratch *scratch, struct fixed_strip *fixed,
                            const struct tiles *tiles, int64_t panel, const struct rows *rows,
                            int64_t first_row, int row_count, const struct bytes_depth *depth)
{
    uint32_t *to = scratch->in;
    fixed_cut(fixed, tiles, depth->first_block, depth->block_count);
    for (int r = 0; r < row_count; r++) {
        const uint32_t *words = fixed->words + r * strip_stride(row_count);
        fixed_row(fixed, 0, tiles, panel, row_at(rows, first_row + r), r, row_count,
                  depth->first_block, depth->block_count);
        for (int64_t c = 0; c < depth->chunk_count; c++, to += CHUNK_WORDS, words += CHUNK_WORDS) {
            vecu first = *(const vecu *)words, second = *(const vecu *)(words + LANES);
            *(vecu *)to = __builtin_shufflevector(first, second, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17,
                                                  20, 21, 24, 25, 28, 29);
            *(vecu *)(to + LANES) = __builtin_shufflevector(first, second, 2, 3, 6, 7, 10, 11, 14,
                                                            15, 18, 19, 22, 23, 26, 27, 30, 31);
        }
    }
}

/* Adds the products of a strip and one tile of panels, unit by unit. by_output is a constant where
 * this is called. */
INLINE void amx_tile_int4(struct amx_shape *shape, struct amx_scratch *scratch,
                          const struct fixed_strip *fixed, const struct piece *piece,
                          const struct bytes_depth *depth, const struct walk *walk, int matrix,
                          const bool by_output, float *sums)
{
    const struct tiles *tiles = &piece->tiles[matrix];
    const bool has_minima = tiles->matrix->minima != NULL;
    const int64_t panel = piece->first_panel + walk->panel, step = strip_blocks(walk->rows);
    struct tile_scales scales;
    struct amx_bytes_product product; /* its sums are written before they are read */
    product.in_step = depth->chunk_count * CHUNK_WORDS * 4;
    product.rows = walk->rows;
    product.panels = walk->step;
    for (int64_t block = 0, end; block < depth->block_count; block = end) {
        const int64_t chunk = block / BYTES_CHUNK_BLOCKS;
        end = fixed->ends[block];
        product.in = scratch->in + chunk * CHUNK_WORDS;
        product.chunk_count = ceil_div(end - block, BYTES_CHUNK_BLOCKS);
        for (int p = 0; p < walk->step; p++)
            product.weights[p] =
                bytes_at(scratch, piece, depth, matrix, walk->panel + p) + chunk * AMX_BYTES_CHUNK;
        amx_multiply_bytes(shape, &product);
        if (by_output)
            scales_load(&scales, walk->step, tiles, panel, depth->first_block + block);
        for (int r = 0; r < walk->rows; r++) {
            const int32_t eights = fixed->eights[r * step + block];
            for (int p = 0; p < walk->step; p++) {
                veci high = *(const veci *)product.sums[p][0][r];
                veci low = *(const veci *)product.sums[p][1][r];
                unit_add(sums + (r * walk->step + p) * LANES, (high << 8) + low + eights, by_output,
                         &scales, p, fixed, r * step + block, has_minima);
            }
        }
    }
}

static void amx_strip_int4(struct amx_shape *shape, struct amx_scratch *scratch,
                           struct fixed_strip *fixed, const struct piece *piece,
                           const struct rows *rows, int64_t row, const struct bytes_depth *depth,
                           float *sums)
{
    const bool by_output = piece->tiles[0].kind == TILE_INT4_OUTPUT;
    const int row_count = strip_height(piece, row);
    struct ahead ahead = look_ahead(piece, rows, row, depth->first_block * PACK_BLOCK);
    int64_t tile = 0;
    for (int m = 0; m < piece->matrix_count; m++) {
        const struct tiles *tiles = &piece->tiles[m];
        bool is_fixed = by_output && m > 0; /* the inputs that the tile takes */
        for (struct walk walk = walk_begin(piece, row_count); walk.step > 0; walk_on(&walk)) {
            if (!is_fixed)
                strip_fix_apart(scratch, fixed, tiles, piece->first_panel + walk.panel, rows,
                                piece->first_row + row, row_count, depth);
            is_fixed = by_output || !walk_ends_group(&walk);
            fetch_rows(&ahead, tile++);
            fetch_weights(&ahead, tiles, piece->first_panel + walk.panel, walk.step);
            if (by_output)
                amx_tile_int4(shape, scratch, fixed, piece, depth, &walk, m, true, sums);
            else
                amx_tile_int4(shape, scratch, fixed, piece, depth, &walk, m, false, sums);
            sums += row_count * walk.step * PACK_BLOCK;
        }
    }
}

/* Adds the products of a piece to `sums`, strip by strip (strip_sums). */
static void piece_run_amx_int4(float *sums, struct amx_scratch *scratch, struct fixed_strip *fixed,
                               const struct piece *piece, const struct rows *rows)
{
    const int64_t block_count = piece->tiles[0].block_count;
    const int64_t depth_blocks = piece_depth(piece) / PACK_BLOCK;
    struct amx_shape shape = amx_begin();
    for (int64_t first = 0; first < block_count; first += depth_blocks) {
        int64_t left = block_count - first;
        struct bytes_depth depth = {.first_block = first,
                                    .block_count = left < depth_blocks ? left : depth_blocks};
        depth.chunk_count = ceil_div(depth.block_count, BYTES_CHUNK_BLOCKS);
        depth_spread(scratch, piece, &depth);
        for (int64_t row = 0; row < piece->row_count; row += piece->strip_rows)
            amx_strip_int4(&shape, scratch, fixed, piece, rows, row, &depth,
                           sums + row * piece->panels * piece->matrix_count * PACK_BLOCK);
    }
    amx_end(&shape);
}

#endif
#endif

/* Pieces of work with bf16 weights by AMX (kernels/cpu/amx.h).
 *
 * A chunk of 32 columns of a panel packed by output lies as the instruction takes it, one chunk
 * behind another. Packed by input, the two halves of a chunk are in two blocks: a depth of the
 * piece's weights is put in order first, in the L2 cache, once for all of its strips, and in the
 * order in which it lies in memory. So is the last chunk of a panel that ends with half of one. */
#ifndef PHASOR_KERNELS_CPU_GEMM_AMX_H
#define PHASOR_KERNELS_CPU_GEMM_AMX_H

#include "kernels/cpu/gemm_walk.h"

#if KERNEL_AMX

_Static_assert(CHUNK_COLUMNS == AMX_COLUMNS, "pieces are cut so that their weights have room");
#define CHUNK_BLOCKS (CHUNK_COLUMNS / PACK_BLOCK)
#define HALF_BYTES   (CHUNK_BYTES / CHUNK_BLOCKS)
#define ORDER_FETCH                                                                                \
    8 /* panels ahead, of each of two blocks; behind the last those of the next two */

struct amx_scratch {
    _Alignas(64) uint32_t in[AMX_STRIP_WORDS]; /* [rows][strip_words] pairs of bf16 */
    /* [matrix][panel][chunk][CHUNK_BYTES]: all chunks of a depth, or the last halves alone. */
    _Alignas(64) char weights[DEPTH_BYTES];
};

/* Some blocks of columns of a piece. */
struct depth {
    int64_t first_block, block_count;
    bool is_ordered; /* else weights are multiplied as they lie, but for a last half */
};

/* Of a panel, in the scratch. */
static int64_t ordered_chunks(const struct depth *depth)
{
    if (depth->is_ordered)
        return ceil_div(depth->block_count, CHUNK_BLOCKS);
    return depth->block_count % CHUNK_BLOCKS;
}

static char *ordered_at(struct amx_scratch *scratch, const struct piece *piece,
                        const struct depth *depth, int matrix, int64_t panel)
{
    return scratch->weights +
           (matrix * piece->panels + panel) * ordered_chunks(depth) * CHUNK_BYTES;
}

INLINE void half_copy(char *to, const char *from)
{
#pragma GCC unroll 8
    for (int line = 0; line < HALF_BYTES / 64; line++)
        memcpy(to + line * 64, from + line * 64, 64);
}

INLINE void half_fetch(const char *from)
{
    for (int line = 0; line < HALF_BYTES / 64; line++)
        fetch_line(from + line * 64);
}

/* Where what is fetched beside panel `p` of a block lies. Where the piece is known that comes next,
 * in its place there: then it is in the L2 cache before its turn. */
static const char *order_fetch(const struct tiles *tiles, const struct piece *piece, int64_t block,
                               int64_t p)
{
    if (piece->ahead != NULL)
        return tile_at(&piece->ahead->tiles[tiles - piece->tiles], piece->ahead->first_panel + p,
                       block);
    if (p + ORDER_FETCH >= piece->panels) {
        p -= piece->panels;
        block += CHUNK_BLOCKS;
    }
    return tile_at(tiles, piece->first_panel + p + ORDER_FETCH, block);
}

/* Puts the chunk that begins with `block` in order, of all panels. */
static void chunk_order(char *to, int64_t to_step, const struct tiles *tiles,
                        const struct piece *piece, int64_t block, bool has_second)
{
    for (int64_t p = 0; p < piece->panels; p++, to += to_step) {
        const char *half = tile_at(tiles, piece->first_panel + p, block);
        const char *fetch = order_fetch(tiles, piece, block, p);
        half_fetch(fetch);
        half_copy(to, half);
        if (has_second) {
            half_fetch(fetch + tiles->block_step);
            half_copy(to + HALF_BYTES, half + tiles->block_step);
        } else {
            memset(to + HALF_BYTES, 0, HALF_BYTES);
        }
    }
}

static void depth_order(struct amx_scratch *scratch, const struct piece *piece,
                        const struct depth *depth)
{
    const int64_t chunks = ordered_chunks(depth);
    const int64_t end = depth->first_block + depth->block_count;
    ASSERT(piece->matrix_count * piece->panels * chunks * CHUNK_BYTES <= DEPTH_BYTES);
    for (int m = 0; m < piece->matrix_count; m++) {
        for (int64_t c = 0; c < chunks; c++) {
            int64_t block = depth->is_ordered ? depth->first_block + c * CHUNK_BLOCKS : end - 1;
            chunk_order(ordered_at(scratch, piece, depth, m, 0) + c * CHUNK_BYTES,
                        chunks * CHUNK_BYTES, &piece->tiles[m], piece, block, block + 1 < end);
        }
    }
}

/* One tile of a strip over a depth. */
static void amx_tile(struct amx_shape *shape, struct amx_product *product,
                     struct amx_scratch *scratch, const struct piece *piece,
                     const struct depth *depth, const struct walk *walk, int matrix)
{
    const struct tiles *tiles = &piece->tiles[matrix];
    struct amx_product last = *product;
    for (int p = 0; p < walk->step; p++) {
        last.weights[p] = ordered_at(scratch, piece, depth, matrix, walk->panel + p);
        product->weights[p] =
            tile_at(tiles, piece->first_panel + walk->panel + p, depth->first_block);
    }
    if (piece->row_count <= AMX_ROWS && !depth->is_ordered) {
        product->fetch_lines = CHUNK_PAIRS;
        product->fetch[0] = product->weights[0] + FETCH_BYTES;
        product->fetch[1] = product->weights[1] + FETCH_BYTES;
    }
    product->panels = last.panels = walk->step;
    product->chunk_count = depth->block_count / CHUNK_BLOCKS;
    last.chunk_count = ordered_chunks(depth);
    if (!depth->is_ordered && product->chunk_count > 0) {
        amx_multiply(shape, product);
        last.adds = true;
        last.in = (const char *)product->in + product->chunk_count * CHUNK_COLUMNS * 2;
    }
    if (last.chunk_count > 0)
        amx_multiply(shape, &last);
}

/* Multiplies a strip's inputs, of a depth, with the piece's panels. */
static void amx_strip(struct amx_shape *shape, struct amx_product *product,
                      struct amx_scratch *scratch, const struct piece *piece,
                      const struct depth *depth, const struct ahead *ahead)
{
    int64_t tile = 0;
    for (int m = 0; m < piece->matrix_count; m++) {
        for (struct walk walk = walk_begin(piece, product->rows); walk.step > 0; walk_on(&walk)) {
            product->sums_step = walk.step * PACK_BLOCK;
            fetch_rows(ahead, tile++);
            fetch_weights(ahead, &piece->tiles[m], piece->first_panel + walk.panel, walk.step);
            amx_tile(shape, product, scratch, piece, depth, &walk, m);
            product->sums += product->rows * walk.step * PACK_BLOCK;
        }
    }
}

/* Inputs of a strip, rounded; whole chunks. */
static void amx_load(struct amx_scratch *scratch, const struct rows *rows, int64_t first_row,
                     int row_count, int64_t words, int64_t first, int64_t count)
{
    int64_t valid = rows->columns - first < count ? rows->columns - first : count;
    for (int r = 0; r < row_count; r++)
        row_round((uint16_t *)(scratch->in + r * words), row_at(rows, first_row + r) + first, valid,
                  round_up(count, CHUNK_COLUMNS));
}

/* Leaves the products of a piece in `sums`, strip by strip (strip_sums). */
static void piece_run_amx(float *sums, struct amx_scratch *scratch, const struct piece *piece,
                          const struct rows *rows)
{
    const struct tiles *tiles = &piece->tiles[0];
    const int64_t padded = tiles->block_count * PACK_BLOCK, columns = piece_depth(piece);
    const int64_t words = strip_words(tiles, piece->row_count, piece->strip_rows);
    struct amx_shape shape = amx_begin();
    for (int64_t first = 0; first < padded; first += columns) {
        int64_t count = padded - first < columns ? padded - first : columns;
        struct depth depth = {.first_block = first / PACK_BLOCK,
                              .block_count = count / PACK_BLOCK,
                              .is_ordered = tiles->matrix->packing == PACK_INPUT};
        depth_order(scratch, piece, &depth);
        for (int64_t row = 0; row < piece->row_count; row += piece->strip_rows) {
            struct ahead ahead = look_ahead(piece, rows, row, first);
            struct amx_product product = {
                .sums = sums + row * piece->panels * piece->matrix_count * PACK_BLOCK,
                .adds = first > 0,
                .in = scratch->in,
                .in_step = words * (int64_t)sizeof *scratch->in,
                .pair_step = PACK_BLOCK * 4,
                .chunk_step = CHUNK_BYTES,
                .rows = strip_height(piece, row),
            };
            amx_load(scratch, rows, piece->first_row + row, product.rows, words, first, count);
            amx_strip(&shape, &product, scratch, piece, &depth, &ahead);
        }
    }
    amx_end(&shape);
}

#else

struct amx_scratch {
    char none;
};

#endif
#endif

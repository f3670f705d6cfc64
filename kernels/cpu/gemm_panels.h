/* More rows of bf16 pairs than one strip has: two panels at a time go through all of a piece's
 * rows.
 *
 * The rows are in strips of up to PAIR_ROWS, whose inputs lie in the L2 cache; the weights of two
 * panels and a depth stay in the L1 cache meanwhile, so memory is asked for each once. A processor
 * loads as many vectors in a cycle as it multiplies: of 12 rows and two panels 24 products take 14
 * loads, of 24 rows and one panel 25. The next two panels come from memory while these are
 * multiplied, a part with each strip (of more than eight strips with the first eight), so that
 * memory has as much to do at any time. Each sum grows as in other tiles, so a row's is the same.
 */
#ifndef PHASOR_KERNELS_CPU_GEMM_PANELS_H
#define PHASOR_KERNELS_CPU_GEMM_PANELS_H

#include "kernels/cpu/gemm_walk.h"

#if KERNEL_PAIRS && !KERNEL_AMX

#define DEPTH_PAIRS       256 /* of columns: two panels have 32 KiB */
#define PANEL_STRIP_WORDS (PAIR_ROWS * DEPTH_PAIRS)
#define PANEL_STRIPS      (2 * ROWS_MAX / PAIR_ROWS) /* of inputs at a time: 384 KiB */

/* What goes beyond a depth is the next one's. Several depths' inputs are there at a time where they
 * fit, so that few rows read weights in the order of memory. */
struct panels {
    const struct piece *piece;
    float *sums;
    uint32_t *in;          /* [depth][strip][rows][DEPTH_PAIRS] pairs */
    int64_t depth, depths; /* blocks of one; how many there are */
    int64_t span;          /* that are there at a time */
    int height, strips;    /* rows of a strip but the last */
};

/* Two panels, or a matrix's last one, and a depth of the span that begins with `first`. */
struct panels_at {
    int64_t first, depth, panel;
    int matrix;
};

/* Goes on; false: that was the last. */
static bool panels_step(struct panels_at *at, const struct panels *panels)
{
    const struct piece *piece = panels->piece;
    at->depth++;
    if (at->depth < at->first + panels->span && at->depth < panels->depths)
        return true;
    at->depth = at->first;
    at->panel += 2;
    if (at->panel < piece->panels)
        return true;
    at->panel = 0;
    at->matrix++;
    if (at->matrix < piece->matrix_count)
        return true;
    at->matrix = 0;
    at->first += panels->span;
    at->depth = at->first;
    return at->first < panels->depths;
}

static int64_t panels_blocks(const struct panels *panels, int64_t depth)
{
    int64_t left = panels->piece->tiles[0].block_count - depth * panels->depth;
    return left < panels->depth ? left : panels->depth;
}

/* Rounds the inputs of the span that begins with depth `first`. */
static void panels_load(const struct panels *panels, const struct rows *rows, int64_t first)
{
    const int height = panels->height;
    for (int64_t d = 0; d < panels->span && first + d < panels->depths; d++) {
        int64_t column = (first + d) * panels->depth * PACK_BLOCK;
        int64_t count = panels_blocks(panels, first + d) * PACK_BLOCK;
        int64_t valid = rows->columns - column < count ? rows->columns - column : count;
        uint32_t *in = panels->in + d * panels->strips * PANEL_STRIP_WORDS;
        for (int64_t r = 0; r < panels->piece->row_count; r++)
            row_round((uint16_t *)(in + r / height * PANEL_STRIP_WORDS + r % height * DEPTH_PAIRS),
                      row_at(rows, panels->piece->first_row + r) + column, valid, count);
    }
}

/* ---- A tile --------------------------------------------------------------------------------- */

struct panels_tile {
    const struct tiles *tiles;
    const char *tile;
    const uint32_t *in; /* [rows][DEPTH_PAIRS] */
    float *sums;        /* [rows][panels][16] */
    int64_t block_count;
    const char *next; /* what comes next: its tile, from the first unit on that is asked for */
    int64_t next_panel_step; /* 0: it is one panel */
    int next_units;          /* of each block; all blocks are one matrix's or two alike */
};

/* rows and panels are constants where this is called. */
INLINE void panels_product(const int rows, const int panels, const struct panels_tile *work)
{
    const int64_t panel_step = work->tiles->panel_step, block_step = work->tiles->block_step;
    const int64_t next_panel_step = work->next_panel_step;
    const int vectors = panels * PANEL_VECTORS, next_units = work->next_units;
    const char *tile = work->tile, *next = work->next;
    const uint32_t *in = work->in;
    int units = BLOCK_PAIRS;
    __asm__("" : "+r"(units)); /* as in tile_product: a loop */
    vec sum[PAIR_ROWS][2 * PANEL_VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[r][v] = vec_load(work->sums + (r * vectors + v) * LANES);
    }
    for (int64_t block = 0; block < work->block_count; block++) {
        for (int u = 0; u < units; u++, in++) {
            vecu weights[2 * PANEL_VECTORS];
            if (u < next_units) {
                fetch_line(next + u * UNIT_BYTES);
                fetch_line(next + u * UNIT_BYTES + next_panel_step);
            }
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++)
                weights[v] = *(const vecu *)vector_at(tile + u * UNIT_BYTES, panel_step, v);
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                vecu pair = pairs_all(in + r * DEPTH_PAIRS);
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++)
                    sum[r][v] = vec_dot_pairs_of(sum[r][v], weights[v], pair);
            }
        }
        tile += block_step;
        next += block_step;
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            vec_store(work->sums + (r * vectors + v) * LANES, sum[r][v]);
    }
}

typedef void panels_fn(const struct panels_tile *work);
#define DEFINE_PANELS(rows)                                                                        \
    static void panels_##rows##x1(const struct panels_tile *work)                                  \
    {                                                                                              \
        panels_product(rows, 1, work);                                                             \
    }                                                                                              \
    static void panels_##rows##x2(const struct panels_tile *work)                                  \
    {                                                                                              \
        panels_product(rows, 2, work);                                                             \
    }
FOR_PAIR_ROWS(DEFINE_PANELS)
#define NAME_PANELS(rows) {panels_##rows##x1, panels_##rows##x2},
static panels_fn *const panels_products[PAIR_ROWS][2] = {FOR_PAIR_ROWS(NAME_PANELS)};

/* ---- A piece -------------------------------------------------------------------------------- */

static const char *panels_tile_at(const struct panels *panels, const struct panels_at *at)
{
    return tile_at(&panels->piece->tiles[at->matrix], panels->piece->first_panel + at->panel,
                   at->depth * panels->depth);
}

/* Sets what comes next, behind the piece too if that is known. Returns the units of each block that
 * a strip asks for. */
static int panels_next(struct panels_tile *work, const struct panels *panels,
                       const struct panels_at *next)
{
    const struct piece *ahead = panels->piece->ahead;
    int64_t left = 0;
    work->next = work->tile;
    if (next != NULL) {
        work->next = panels_tile_at(panels, next);
        left = panels->piece->panels - next->panel;
    } else if (ahead != NULL) {
        work->next = tile_at(&ahead->tiles[0], ahead->first_panel, 0);
        left = ahead->panels;
    }
    work->next_panel_step = left > 1 ? work->tiles->panel_step : 0;
    return left > 0 ? (int)ceil_div(BLOCK_PAIRS, panels->strips) : 0;
}

/* All strips; `next` is what comes behind, or NULL. */
static void panels_run(const struct panels *panels, const struct panels_at *at,
                       const struct panels_at *next)
{
    const struct piece *piece = panels->piece;
    const int64_t width = piece->panels * piece->matrix_count * PACK_BLOCK; /* sums of a row */
    const int count = piece->panels - at->panel >= 2 ? 2 : 1;
    struct panels_tile work = {.tiles = &piece->tiles[at->matrix],
                               .tile = panels_tile_at(panels, at),
                               .block_count = panels_blocks(panels, at->depth)};
    const int units = panels_next(&work, panels, next);
    int units_left = BLOCK_PAIRS;
    for (int s = 0; s < panels->strips; s++) {
        int64_t row = (int64_t)s * panels->height, left = piece->row_count - row;
        int rows = left < panels->height ? (int)left : panels->height;
        work.in = panels->in +
                  ((at->depth - at->first) * panels->strips + s) * (int64_t)PANEL_STRIP_WORDS;
        work.sums = panels->sums + row * width +
                    (at->matrix * piece->panels + at->panel) * rows * PACK_BLOCK;
        work.next_units = units_left < units ? units_left : units;
        panels_products[rows - 1][count - 1](&work);
        units_left -= work.next_units;
        work.next += work.next_units * UNIT_BYTES;
    }
}

/* sums (as strip_sums has them) += the piece's rows x its panels; `in` has room for PANEL_STRIPS
 * strips of inputs. */
static void piece_run_panels(float *sums, uint32_t *in, const struct piece *piece,
                             const struct rows *rows)
{
    const int64_t blocks = piece->tiles[0].block_count;
    struct panels panels = {.piece = piece, .sums = sums, .in = in, .height = piece->strip_rows};
    panels.depths = ceil_div(blocks, 2 * DEPTH_PAIRS / PACK_BLOCK);
    panels.depth = ceil_div(blocks, panels.depths);
    panels.strips = (int)ceil_div(piece->row_count, panels.height);
    panels.span = PANEL_STRIPS / panels.strips;
    struct panels_at at = {0};
    for (bool goes_on = true; goes_on;) {
        struct panels_at next = at;
        if (at.depth == at.first && at.panel == 0 && at.matrix == 0)
            panels_load(&panels, rows, at.first);
        goes_on = panels_step(&next, &panels);
        panels_run(&panels, &at, goes_on ? &next : NULL);
        at = next;
    }
}

#endif

#endif

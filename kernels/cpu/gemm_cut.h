/* How matrix products are cut into pieces of work, and how a worker takes them. */
#ifndef PHASOR_KERNELS_CPU_GEMM_CUT_H
#define PHASOR_KERNELS_CPU_GEMM_CUT_H

#include "kernels/cpu/gemm_tiles.h"

#define ROWS_MAX        (STRIP_ROWS * 8)
#define AMX_ROWS_MAX    (AMX_ROWS * 12) /* its products are so fast that memory would not keep up */
#define AMX_STRIP_WORDS 16384           /* of inputs, pairs of bf16: 64 KiB */
#define PANELS_MAX      32              /* of a piece, gate's and up's together; more of few rows */
#define SUMS_MAX        ((KERNEL_AMX ? AMX_ROWS_MAX : ROWS_MAX) * PANELS_MAX) /* of 16 each */
#define DEPTH_BYTES     (256 * 1024) /* weights of a piece and depth */
#define LYING_BYTES     (512 * 1024) /* likewise by AMX, where they are not put in order */
#define PIECES_EACH     4            /* wanted for each worker, so that they end together */
#define PANELS_WANTED   8            /* of a piece, even where it makes fewer pieces */
#define SLICE_BLOCKS    8            /* of columns at a time, of one strip packed by input, */
#define SLICE_BYTES     4096         /* or all, where a panel has no more bytes than these */
#define SLICE_PANELS    64           /* wanted of each piece then, where that is fair; */
#define SLICE_RUN       8192 /* bytes of a block, for which pieces may be cut smaller to be many */
#define PIECES_AHEAD    16   /* for each worker, where each may hold one more than it works on */
#define AHEAD_BYTES     (768 * 1024) /* of such a piece: it waits in the L2 cache */

#define BYTES_CHUNK_BLOCKS 4   /* of a chunk of AMX's products of bytes */
#define BYTES_DEPTH        384 /* columns at a time then: what DEPTH_BYTES hold, a byte for each */

#define AMX_COLUMNS 32 /* that its instruction multiplies: half as many take as much room */

#define PANELS_MAX_FEW 48 /* of a piece of few rows that goes by panels */

/* In the order of memory (kernels/cpu/gemm_row.h). */
#define ORDER_ROWS       PAIR_ROWS /* pairs: at most, as their sums lie in pairs of panels */
#define NARROW_PANELS    16        /* pairs: sums that the registers hold */
#define WIDE_PANELS      48  /* pairs: from so many on a sum is stored before it is wanted again */
#define GROUP_PANELS_MIN 4   /* int4: of a group */
#define ORDER_PANELS_MAX 256 /* int4: of a piece, whose groups and sums fit a strip's room */

/* ---- A piece ------------------------------------------------------------------------------- */

/* Some rows times some panels of one matrix, or of two alike (gate and up). */
struct piece {
    struct tiles tiles[2];
    int matrix_count;
    int64_t first_row, row_count;
    int64_t first_panel, panels; /* of each matrix */
    int strip_rows;              /* of each strip but the last */
    bool in_order;               /* few rows, in the order of memory: kernels/cpu/gemm_row.h */
    bool by_panels;              /* many rows of pairs: kernels/cpu/gemm_panels.h */
    bool by_bytes;               /* many rows of int4 by AMX: kernels/cpu/gemm_amx_int4.h */
    const struct piece *ahead;   /* that the worker runs next, or NULL: not known */
};

/* Whether a piece of so many rows has its bf16 weights multiplied by AMX's instruction. For a few
 * vectors keep up with memory, and read it in longer runs. */
static bool goes_by_amx(const struct tiles *tiles, int64_t row_count)
{
    return takes_amx(tiles->kind) && row_count > AMX_FEW_ROWS;
}

/* Whether a piece of so many rows has its INT4 weights multiplied by AMX's instruction for bytes,
 * to the same numbers; units of inputs are whole chunks of it, so groups have to be whole units. */
static bool goes_by_bytes(const struct tiles *tiles, int64_t row_count)
{
    return KERNEL_AMX && is_int4(tiles->kind) && row_count > strip_rows_most(tiles->kind) &&
           (tiles->kind == TILE_INT4_INPUT || tiles->group_blocks % FIXED_BLOCKS == 0);
}

static int64_t piece_rows_most(enum tile_kind kind)
{
    return takes_amx(kind) ? AMX_ROWS_MAX : ROWS_MAX;
}

/* Whether a piece of so many rows, if not in order, goes through slices. Else each of its tiles
 * would take a little of every block: of no run enough for the processor to look ahead. */
static bool takes_slices(const struct tiles *tiles, int64_t row_count)
{
    return tiles->matrix->packing == PACK_INPUT && row_count <= strip_rows_most(tiles->kind);
}

/* Whether an operation whose groups have so many rows at most goes through memory in its order: of
 * one row a panel's sums are few enough to come and go with each block (of pairs: of ORDER_ROWS,
 * see cut_of). int4: by bytes, where a group has enough panels to be worth a rounding of the inputs
 * for each unit. */
static bool goes_in_order(const struct tiles *tiles, int64_t row_count)
{
    if (is_int4(tiles->kind) && (!KERNEL_BYTES || tiles->group_blocks < GROUP_PANELS_MIN))
        return false;
    return tiles->matrix->packing == PACK_INPUT && row_count == 1;
}

/* Whether so many rows go by panels (kernels/cpu/gemm_panels.h). Of one strip memory decides, which
 * is read faster in one place. */
static bool goes_by_panels(const struct tiles *tiles, int64_t row_count)
{
    return takes_pairs(tiles->kind) && row_count > strip_rows_most(tiles->kind);
}

/* Columns in a word of a strip. */
static int64_t word_columns(const struct tiles *tiles, int64_t row_count)
{
    bool has_pairs = takes_pairs(tiles->kind) || is_int4(tiles->kind);
    return has_pairs || goes_by_amx(tiles, row_count) ? 2 : 1;
}

/* Words from one of a strip's rows to the next. AMX has up to 16 KiB of inputs in the L1 cache
 * beside the weights, of a depth that does not depend on how many rows a group has, because its
 * weights have to have room; one strip, which reads weights at memory's rate, has what makes its
 * runs longer. */
static int64_t strip_words(const struct tiles *tiles, int64_t row_count, int strip_rows)
{
    if (!goes_by_amx(tiles, row_count))
        return strip_stride(strip_rows);
    if (row_count > AMX_ROWS)
        return AMX_STRIP_WORDS / 4 / AMX_ROWS;
    return AMX_STRIP_WORDS / strip_rows / STRIP_STEP * STRIP_STEP;
}

/* Columns at a time, at most. */
static int64_t columns_most(const struct tiles *tiles, int64_t row_count, int strip_rows)
{
    int64_t columns = strip_words(tiles, row_count, strip_rows) * word_columns(tiles, row_count);
    int64_t slice = SLICE_BLOCKS * PACK_BLOCK, all = tiles->block_count * PACK_BLOCK;
    if (all * PACK_BLOCK * dtype_bits(tiles->matrix->dtype) / 8 <= SLICE_BYTES)
        slice = all;
    return takes_slices(tiles, row_count) && slice < columns ? slice : columns;
}

/* Columns at a time: as many in each depth. */
static int64_t piece_depth(const struct piece *piece)
{
    const struct tiles *tiles = &piece->tiles[0];
    int64_t columns = tiles->block_count * PACK_BLOCK;
    int64_t most = piece->by_bytes ? BYTES_DEPTH
                   : piece->in_order
                       ? strip_stride((int)piece->row_count) * word_columns(tiles, piece->row_count)
                       : columns_most(tiles, piece->row_count, piece->strip_rows);
    return round_up(ceil_div(columns, ceil_div(columns, most)),
                    STRIP_STEP * word_columns(tiles, piece->row_count));
}

/* Strips of one height, so that none is left with a row or two. */
static int strip_rows_of(int64_t row_count, int most)
{
    return (int)ceil_div(row_count, ceil_div(row_count, most));
}

/* ---- An operation's pieces ----------------------------------------------------------------- */

/* Those of a group stand together, and of these the ones that share weights. */
struct cut {
    int64_t panel_count;  /* of a matrix */
    int64_t panels;       /* of a piece, in each matrix */
    int64_t panel_pieces; /* of a group */
    int64_t row_pieces;   /* of the group with most rows */
    int strip_rows;       /* at most */
    int64_t rows_most;    /* of a piece; */
    int64_t rows_step;    /* all but a group's last have multiples of these */
    int64_t order_rows;   /* pieces of so many rows at most are in the order of memory */
    bool by_panels;       /* those of more rows than a strip has; */
    bool by_bytes;        /* likewise */
};

/* Whether pieces of so many panels keep the workers busy alike: the last to end has at most an
 * eighth more than its share. */
static bool is_fair(int64_t panel_count, int64_t group_count, int64_t panels, int worker_count)
{
    int64_t pieces = ceil_div(panel_count, panels);
    int64_t most = ceil_div(pieces * group_count, worker_count) * ceil_div(panel_count, pieces);
    return most * worker_count * 8 <= panel_count * group_count * 9;
}

/* Whether pieces of so many panels are fewer than PIECES_EACH: at the end one worker may have as
 * much to do as a whole piece, while the others wait. */
static bool is_few(int64_t panel_count, int64_t group_count, int64_t panels, int worker_count)
{
    return ceil_div(panel_count, panels) * group_count < PIECES_EACH * (int64_t)worker_count;
}

/* The fewest panels of each matrix that are worth a piece of their own; fewer where else a worker
 * would have none, as of a router's few outputs. */
static int64_t panels_wanted(const struct tiles *tiles, int matrix_count, int64_t group_count,
                             int64_t rows_most, int worker_count)
{
    int64_t wanted = takes_slices(tiles, rows_most) ? SLICE_PANELS : PANELS_WANTED;
    int64_t row_pieces = ceil_div(rows_most, piece_rows_most(tiles->kind));
    int64_t each = ceil_div(tiles->panel_count * group_count * row_pieces, worker_count);
    int64_t run = SLICE_RUN / (TILE_VALUES * dtype_bits(tiles->matrix->dtype) / 8);
    if (takes_pairs(tiles->kind) && goes_in_order(tiles, rows_most)) {
        if (!is_fair(tiles->panel_count, group_count, wanted, worker_count))
            wanted = is_fair(tiles->panel_count, group_count, NARROW_PANELS, worker_count)
                         ? NARROW_PANELS
                         : PANELS_WANTED;
    } else {
        while (wanted > PANELS_WANTED &&
               (!is_fair(tiles->panel_count, group_count, wanted, worker_count) ||
                (wanted > run && is_few(tiles->panel_count, group_count, wanted, worker_count))))
            wanted /= 2;
    }
    wanted /= matrix_count;
    return wanted < each ? wanted : each;
}

/* Of each piece of a group, in multiples of `step` but for the last. */
static int64_t piece_rows_of(int64_t row_count, int64_t most, int64_t step)
{
    int64_t pieces = ceil_div(row_count, most);
    return pieces == 0 ? step : round_up(ceil_div(row_count, pieces), step);
}

static struct cut cut_of(const struct tiles *tiles, int matrix_count, int64_t group_count,
                         int64_t rows_most, int worker_count)
{
    int strip_rows = strip_rows_most(tiles->kind);
    int64_t piece_rows = piece_rows_most(tiles->kind);
    int64_t depth = takes_slices(tiles, rows_most) ? columns_most(tiles, rows_most, strip_rows)
                                                   : columns_most(tiles, piece_rows, strip_rows);
    int64_t held = takes_amx(tiles->kind) ? round_up(depth, AMX_COLUMNS) : depth;
    int64_t panel_bytes = held * PACK_BLOCK * dtype_bits(tiles->matrix->dtype) / 8;
    int64_t rows = takes_slices(tiles, rows_most) ? strip_rows : piece_rows;
    int64_t fitting = DEPTH_BYTES / (panel_bytes * matrix_count);
    if (takes_amx(tiles->kind) && rows_most > AMX_ROWS) {
        /* The more panels, the fewer times inputs are read: as many as there is room for. */
        rows = piece_rows = piece_rows_of(rows_most, piece_rows, AMX_ROWS);
        if (tiles->matrix->packing == PACK_OUTPUT)
            fitting = LYING_BYTES / (panel_bytes * matrix_count);
    }
    if (takes_amx(tiles->kind)) /* whole tiles, below, of two panels */
        fitting = fitting / 2 * 2;
    const bool by_panels = goes_by_panels(tiles, rows_most);
    if (by_panels) { /* whose weights do not wait in a cache */
        rows = rows_most < piece_rows ? rows_most : piece_rows;
        fitting = PANELS_MAX_FEW / matrix_count;
    }
    int64_t most = piece_rows_most(tiles->kind) * PANELS_MAX / (rows * matrix_count);
    struct cut cut = {.panel_count = tiles->panel_count,
                      .row_pieces = ceil_div(rows_most, piece_rows),
                      .strip_rows = strip_rows,
                      .rows_most = piece_rows,
                      .rows_step = takes_amx(tiles->kind)            ? AMX_ROWS
                                   : goes_by_bytes(tiles, rows_most) ? AMX_TILE_ROWS
                                                                     : STRIP_ROWS,
                      .by_panels = by_panels,
                      .by_bytes = goes_by_bytes(tiles, rows_most)};
    const bool in_order = goes_in_order(tiles, rows_most);
    cut.order_rows = in_order;
    if (takes_pairs(tiles->kind) && takes_slices(tiles, rows_most))
        cut.order_rows = ORDER_ROWS;
    int64_t spread = ceil_div(tiles->panel_count * group_count * cut.row_pieces,
                              PIECES_EACH * (int64_t)worker_count);
    int64_t wanted = panels_wanted(tiles, matrix_count, group_count, rows_most, worker_count);
    cut.panels = spread > wanted ? spread : wanted;
    cut.panels = cut.panels > 1 ? cut.panels : 1; /* none where there are no rows */
    cut.panels = cut.panels < fitting ? cut.panels : fitting;
    if (in_order && is_int4(tiles->kind) && most > ORDER_PANELS_MAX)
        most = ORDER_PANELS_MAX;
    cut.panels = cut.panels < most ? cut.panels : most;
    cut.panel_pieces = ceil_div(cut.panel_count, cut.panels);
    /* Equal pieces, of whole tiles. */
    int tile_rows = rows_most < strip_rows ? (int)rows_most : strip_rows;
    int64_t step = tile_panels(tiles, tile_rows, cut.panels);
    cut.panels = ceil_div(cut.panel_count, cut.panel_pieces);
    if (in_order && takes_pairs(tiles->kind) && cut.panels >= NARROW_PANELS &&
        cut.panels < WIDE_PANELS)
        step = NARROW_PANELS;
    cut.panels = round_up(cut.panels, step);
    cut.panels = cut.panels < most ? cut.panels : most;
    cut.panel_pieces = ceil_div(cut.panel_count, cut.panels);
    return cut;
}

/* The rows and panels of piece `index` of a group with `row_count` rows from `first_row` on; false
 * where the group has fewer. */
static bool piece_place(struct piece *piece, const struct cut *cut, int64_t index,
                        int64_t first_row, int64_t row_count)
{
    int64_t chunks = ceil_div(row_count, cut->rows_most);
    int64_t chunk = index % cut->row_pieces;
    if (chunk >= chunks)
        return false;
    int64_t chunk_rows = piece_rows_of(row_count, cut->rows_most, cut->rows_step);
    int64_t row = chunk * chunk_rows, panel = index / cut->row_pieces * cut->panels;
    piece->first_row = first_row + row;
    piece->row_count = row_count - row < chunk_rows ? row_count - row : chunk_rows;
    piece->by_panels = cut->by_panels && piece->row_count > cut->strip_rows;
    piece->by_bytes = cut->by_bytes && piece->row_count > cut->strip_rows;
    int strip_rows = piece->by_panels  ? PAIR_ROWS
                     : piece->by_bytes ? AMX_TILE_ROWS
                                       : cut->strip_rows;
    piece->strip_rows = strip_rows_of(piece->row_count, strip_rows);
    piece->in_order = piece->row_count <= cut->order_rows;
    piece->first_panel = panel;
    piece->panels = cut->panel_count - panel < cut->panels ? cut->panel_count - panel : cut->panels;
    return true;
}

/* ---- Pieces of groups ---------------------------------------------------------------------- */

/* What a worker takes of gate and up, or of down, of all groups (networks) that have rows. */
struct group_queue {
    const struct ffn_weights *groups;
    const int32_t *offsets; /* group g has rows [offsets[g], offsets[g + 1]) */
    int64_t group_count;
    int matrix_count; /* 2: gate and up; 1: down */
    struct share *share;
    struct cut cut;
    /* Where pieces in slices are many and small, a worker takes each before it runs the one before,
     * whose tiles then bring its weights to the L2 cache, and likewise where pieces by panels are
     * many. Long runs of weights, as of a strip packed by output or of a few rows in order, the
     * processor itself fetches as fast; where some groups have more rows than can be in order, all
     * are in slices. At the end a worker may hold a whole piece more than is_fair counts with, of
     * PIECES_AHEAD; and one that is to leave (share_take) still runs the piece that it holds. */
    bool takes_ahead, has_next;
    struct piece next;
};

/* Sets the place of the next piece; those that their groups do not have are passed over. */
static bool group_piece_take(struct piece *piece, const struct group_queue *queue)
{
    const struct cut *cut = &queue->cut;
    int64_t per_group = cut->panel_pieces * cut->row_pieces;
    int64_t index;
    *piece = (struct piece){.matrix_count = queue->matrix_count};
    while ((index = share_take(queue->share)) < per_group * queue->group_count) {
        int64_t group = index / per_group;
        int64_t first = queue->offsets[group], count = queue->offsets[group + 1] - first;
        if (count == 0 || !piece_place(piece, cut, index % per_group, first, count))
            continue;
        const struct ffn_weights *weights = &queue->groups[group];
        piece->tiles[0] = tiles_of(queue->matrix_count == 2 ? &weights->gate : &weights->down);
        if (queue->matrix_count == 2)
            piece->tiles[1] = tiles_of(&weights->up);
        return true;
    }
    return false;
}

/* `group_count` > 0. */
static void group_queue_begin(struct group_queue *queue, const struct ffn_weights *groups,
                              const int32_t *offsets, int64_t group_count, int matrix_count,
                              struct share *share)
{
    struct tiles shape = tiles_of(matrix_count == 2 ? &groups[0].gate : &groups[0].down);
    int64_t busy = 0, most = 0, row_pieces = 0;
    for (int64_t g = 0; g < group_count; g++) {
        int64_t count = offsets[g + 1] - offsets[g];
        busy += count > 0;
        row_pieces += ceil_div(count, piece_rows_most(shape.kind));
        most = count > most ? count : most;
    }
    *queue = (struct group_queue){
        .groups = groups,
        .offsets = offsets,
        .group_count = group_count,
        .matrix_count = matrix_count,
        .share = share,
        .cut = cut_of(&shape, matrix_count, busy, most, share->worker_count),
    };
    const struct cut *cut = &queue->cut;
    const bool are_many =
        row_pieces * cut->panel_pieces >= PIECES_AHEAD * (int64_t)share->worker_count;
    int64_t bytes =
        cut->panels * shape.block_count * TILE_VALUES * dtype_bits(shape.matrix->dtype) / 8;
    const bool slices_wait =
        takes_slices(&shape, most) && most > cut->order_rows && bytes <= AHEAD_BYTES;
    queue->takes_ahead = are_many && (slices_wait || cut->by_panels);
    if (queue->takes_ahead) {
        queue->cut.order_rows = 0;
        queue->has_next = group_piece_take(&queue->next, queue);
    }
}

/* The next piece, which may point into the queue, until the next call; false: there is none. */
static bool group_queue_take(struct piece *piece, struct group_queue *queue)
{
    if (!queue->takes_ahead)
        return group_piece_take(piece, queue);
    if (!queue->has_next)
        return false;
    *piece = queue->next;
    queue->has_next = group_piece_take(&queue->next, queue);
    if (queue->has_next && piece->by_panels == queue->cut.by_panels)
        piece->ahead = &queue->next;
    return true;
}

#endif

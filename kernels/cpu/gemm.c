/* Matrix products with packed weights: plain, and the two halves of a feed-forward network over
 * groups of rows (grouped GEMM).
 *
 * A piece of work is up to ROWS_MAX rows times some panels (16 outputs each) of one group. It goes
 * through the columns a depth at a time, for each through the rows in strips, for each strip
 * through the panels (the order of Goto and van de Geijn, "Anatomy of High-Performance Matrix
 * Multiplication", 2008): a strip's inputs stay in the L1 cache, copied there with a fixed stride;
 * the weights of a depth and the sums of the piece stay in the L2 cache. So an input is read from
 * beyond it once for each piece, and a weight once for ROWS_MAX rows. A few rows
 * (decode) are one strip, each weight is read once, and memory decides: what is packed by input
 * then goes through a few blocks of columns at a time, whose panels lie one behind another. */
#include <string.h>

#include "kernels/cpu/gemm_tiles.h"
#include "kernels/cpu/kernels.h"

#define ROWS_MAX      (STRIP_ROWS * 8)
#define PANELS_MAX    32 /* of a piece, gate's and up's together; more of one strip */
#define SUMS_MAX      (ROWS_MAX * PANELS_MAX) /* of 16 each: 384 KiB */
#define DEPTH_BYTES   (256 * 1024)            /* weights of a piece and depth */
#define PIECES_EACH   4  /* wanted for each worker, so that they end together */
#define PANELS_WANTED 8  /* of a piece, even where it makes fewer pieces */
#define SLICE_BLOCKS  8  /* of columns at a time, of one strip packed by input */
#define SLICE_PANELS  64 /* wanted of each piece then, where that is fair */

struct scratch {
    float in[STRIP_WORDS];
    struct fixed_strip fixed; /* int4: instead */
    float sums[SUMS_MAX * LANES];
};

/* ---- A piece ------------------------------------------------------------------------------- */

/* Some rows times some panels of one matrix, or of two alike (gate and up). */
struct piece {
    struct tiles tiles[2];
    int matrix_count;
    int64_t group;
    int64_t first_row, row_count;
    int64_t first_panel, panels; /* of each matrix */
    int strip_rows;              /* of each strip but the last */
};

/* Whether a piece of so many rows goes through slices of SLICE_BLOCKS blocks. Else each of its
 * tiles would take a little of every block: of no run of memory enough for the processor to look
 * ahead. */
static bool takes_slices(const struct tiles *tiles, int64_t row_count)
{
    return tiles->matrix->packing == PACK_INPUT && row_count <= strip_rows_most(tiles->kind);
}

/* Columns at a time, at most. */
static int64_t columns_most(const struct tiles *tiles, int64_t row_count, int strip_rows)
{
    int64_t columns = strip_stride(strip_rows) * word_columns(tiles->kind);
    int64_t slice = SLICE_BLOCKS * PACK_BLOCK;
    return takes_slices(tiles, row_count) && slice < columns ? slice : columns;
}

/* Columns at a time: as many in each depth. */
static int64_t piece_depth(const struct piece *piece)
{
    const struct tiles *tiles = &piece->tiles[0];
    int64_t columns = tiles->block_count * PACK_BLOCK;
    int64_t most = columns_most(tiles, piece->row_count, piece->strip_rows);
    return round_up(ceil_div(columns, ceil_div(columns, most)),
                    STRIP_STEP * word_columns(tiles->kind));
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

/* Strips of one height, so that none is left with a row or two. */
static int strip_rows_of(int64_t row_count, int most)
{
    return (int)ceil_div(row_count, ceil_div(row_count, most));
}

/* The sums of a strip: tiles one after another, those of the second matrix behind the first's; each
 * is [row][panel of the tile][16]. */
static float *strip_sums(struct scratch *scratch, const struct piece *piece, int64_t row)
{
    return scratch->sums + row * piece->panels * piece->matrix_count * LANES;
}

/* Rounds inputs to bf16, `valid` of `count`, which is that rounded up to 16; the others become
 * zero.
 */
static void row_round(float *to, const float *from, int64_t valid, int64_t count)
{
    uint16_t *halves = (uint16_t *)to;
    int64_t whole = valid / LANES * LANES;
    for (int64_t c = 0; c < whole; c += LANES)
        v16_store_bf16(halves + c, v16_load(from + c));
    if (whole < count) {
        float last[LANES] = {0};
        memcpy(last, from + whole, (size_t)(valid - whole) * sizeof(float));
        v16_store_bf16(halves + whole, v16_load(last));
    }
}

/* Copies columns [first, first + count) of a strip, as tiles of the kind take them; what is beyond
 * the last column becomes zero. */
static void strip_load(float *to, const struct rows *rows, enum tile_kind kind, int64_t first_row,
                       int row_count, int64_t first, int64_t count)
{
    int64_t valid = rows->columns - first < count ? rows->columns - first : count;
    for (int r = 0; r < row_count; r++, to += strip_stride(row_count)) {
        const float *from = row_at(rows, first_row + r) + first;
        if (takes_pairs(kind)) {
            row_round(to, from, valid, count);
            continue;
        }
        memcpy(to, from, (size_t)valid * sizeof(float));
        memset(to + valid, 0, (size_t)(count - valid) * sizeof(float));
    }
}

/* What the caches are asked for while a strip is computed, a little with each tile: the inputs of
 * the strip that comes next, and this strip's part of the weights of the next depth. The hardware
 * does not see either coming: rows and panels lie apart. */
struct ahead {
    const float *rows[STRIP_ROWS]; /* at their next columns */
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
            __builtin_prefetch(ahead->rows[r] + line * LINE_VALUES);
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

/* Panels of the tile at `panel` of the piece; one that takes scaled inputs is of one group. */
static int piece_step(const struct piece *piece, int rows, int64_t panel)
{
    const struct tiles *tiles = &piece->tiles[0];
    int64_t left = piece->panels - panel;
    if (tiles->kind == TILE_INT4_INPUT) {
        int64_t of_group = tiles->group_blocks - (piece->first_panel + panel) % tiles->group_blocks;
        left = left < of_group ? left : of_group;
    }
    return tile_panels(tiles->kind, rows, left);
}

/* int4: the inputs of a strip as the tiles at `panel` take them; `is_first` of these columns. */
static void strip_fix(struct fixed_strip *to, const struct tiles *tiles, int64_t panel,
                      const struct rows *rows, int64_t first_row, int row_count,
                      int64_t first_block, int64_t block_count, bool is_first)
{
    for (int r = 0; r < row_count && is_first; r++)
        fixed_measure(to, tiles, row_at(rows, first_row + r) + first_block * PACK_BLOCK,
                      r * strip_blocks(row_count), first_block, block_count);
    if (tiles->kind == TILE_INT4_INPUT)
        fixed_scales(to, tiles, panel, first_block, block_count);
    for (int r = 0; r < row_count; r++)
        fixed_row(to, tiles, panel, row_at(rows, first_row + r), r, row_count, first_block,
                  block_count);
}

/* Whether the parts of a slice that its tiles fetch, so many blocks of `step` panels one behind
 * another, end where a block of the piece does. */
static bool slices_in_order(const struct piece *piece, int64_t block_count, int step)
{
    return takes_slices(&piece->tiles[0], piece->row_count) &&
           piece->panels % (step * block_count) == 0;
}

/* What the tile at `panel` of the piece fetches when its own blocks are: those of the tile behind
 * it, of the next matrix or the next blocks; behind all, the panels that another piece begins with.
 * In slices that is a part of the next slice, in the order of memory, which is faster than that of
 * tiles; the last one has none. */
static void next_choose(struct tile_work *work, const struct piece *piece, int matrix,
                        int64_t panel, int step)
{
    const struct tiles *tiles = work->tiles;
    int64_t block = work->block, next_block = block + work->block_count;
    int64_t part = panel * work->block_count, part_block = next_block + part / piece->panels;
    work->next_step = tiles->block_step;
    if (slices_in_order(piece, work->block_count, step) && part_block < tiles->block_count) {
        work->next = tile_at(tiles, piece->first_panel + part % piece->panels, part_block);
        work->next_step = step * tiles->panel_step;
        return;
    }
    panel += step;
    if (panel >= piece->panels && matrix + 1 < piece->matrix_count) {
        tiles = &piece->tiles[matrix + 1];
        panel = 0;
    } else if (panel >= piece->panels && next_block < tiles->block_count) {
        tiles = &piece->tiles[0];
        block = next_block;
        panel = 0;
    } else if (panel >= piece->panels) {
        block = 0;
    }
    work->next = tile_at(tiles, piece->first_panel + panel, block);
}

/* Adds the product of a strip's inputs and the piece's panels over some blocks of columns. */
static void strip_product(const struct piece *piece, float *sums, struct scratch *scratch,
                          const struct rows *rows, int64_t first_row, int row_count,
                          int64_t first_block, int64_t block_count, const struct ahead *ahead)
{
    int64_t tile = 0;
    for (int m = 0; m < piece->matrix_count; m++) {
        const struct tiles *tiles = &piece->tiles[m];
        struct tile_work work = {.tiles = tiles,
                                 .in = scratch->in,
                                 .fixed = &scratch->fixed,
                                 .block = first_block,
                                 .block_count = block_count};
        for (int64_t panel = 0; panel < piece->panels;) {
            int step = piece_step(piece, row_count, panel);
            work.sums = sums;
            work.panel = piece->first_panel + panel;
            if (is_int4(tiles->kind) && (panel + m == 0 || (tiles->kind == TILE_INT4_INPUT &&
                                                            work.panel % tiles->group_blocks == 0)))
                strip_fix(&scratch->fixed, tiles, work.panel, rows, first_row, row_count,
                          first_block, block_count, panel == 0);
            next_choose(&work, piece, m, panel, step);
            fetch_rows(ahead, tile++);
            fetch_weights(ahead, work.tiles, work.panel, step);
            tile_choose(row_count, step, work.tiles->kind)(&work);
            sums += row_count * step * LANES;
            panel += step;
        }
    }
}

static int strip_height(const struct piece *piece, int64_t row)
{
    int64_t left = piece->row_count - row;
    return (int)(left < piece->strip_rows ? left : piece->strip_rows);
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
    ahead.lines_each = ceil_div(ahead.line_count, piece->panels * piece->matrix_count);
    return ahead;
}

static void piece_run(struct scratch *scratch, const struct piece *piece, const struct rows *rows)
{
    int64_t padded = piece->tiles[0].block_count * PACK_BLOCK, depth = piece_depth(piece);
    memset(scratch->sums, 0,
           (size_t)(piece->row_count * piece->panels * piece->matrix_count * LANES) *
               sizeof(float));
    for (int64_t first = 0; first < padded; first += depth) {
        int64_t count = padded - first < depth ? padded - first : depth;
        for (int64_t row = 0; row < piece->row_count; row += piece->strip_rows) {
            int height = strip_height(piece, row);
            struct ahead ahead = look_ahead(piece, rows, row, first);
            if (!is_int4(piece->tiles[0].kind))
                strip_load(scratch->in, rows, piece->tiles[0].kind, piece->first_row + row, height,
                           first, count);
            strip_product(piece, strip_sums(scratch, piece, row), scratch, rows,
                          piece->first_row + row, height, first / PACK_BLOCK, count / PACK_BLOCK,
                          &ahead);
        }
    }
}

/* ---- How work is cut ----------------------------------------------------------------------- */

/* One operation's pieces: those of a group stand together, and of these the ones that share
 * weights. */
struct cut {
    int64_t panel_count;  /* of a matrix */
    int64_t panels;       /* of a piece, in each matrix */
    int64_t panel_pieces; /* of a group */
    int64_t row_pieces;   /* of the group with most rows */
    int strip_rows;       /* at most */
};

/* Whether pieces of so many panels keep the workers busy alike: the last to end has at most an
 * eighth more than its share. */
static bool is_fair(int64_t panel_count, int64_t group_count, int64_t panels, int worker_count)
{
    int64_t pieces = ceil_div(panel_count, panels);
    int64_t most = ceil_div(pieces * group_count, worker_count) * ceil_div(panel_count, pieces);
    return most * worker_count * 8 <= panel_count * group_count * 9;
}

/* The fewest panels of a piece that are worth a piece of their own. */
static int64_t panels_wanted(const struct tiles *tiles, int64_t group_count, int64_t rows_most,
                             int worker_count)
{
    int64_t wanted = takes_slices(tiles, rows_most) ? SLICE_PANELS : PANELS_WANTED;
    while (wanted > PANELS_WANTED &&
           !is_fair(tiles->panel_count, group_count, wanted, worker_count))
        wanted /= 2;
    return wanted;
}

static struct cut cut_of(const struct tiles *tiles, int matrix_count, int64_t group_count,
                         int64_t rows_most, int worker_count)
{
    int strip_rows = strip_rows_most(tiles->kind);
    int64_t depth = columns_most(tiles, rows_most, strip_rows);
    int64_t panel_bytes = depth * PACK_BLOCK * dtype_bits(tiles->matrix->dtype) / 8;
    int64_t rows = takes_slices(tiles, rows_most) ? strip_rows : ROWS_MAX;
    int64_t most = SUMS_MAX / (rows * matrix_count);
    int64_t fitting = DEPTH_BYTES / (panel_bytes * matrix_count);
    struct cut cut = {.panel_count = tiles->panel_count,
                      .row_pieces = ceil_div(rows_most, ROWS_MAX),
                      .strip_rows = strip_rows};
    int64_t spread = ceil_div(tiles->panel_count * group_count * cut.row_pieces,
                              PIECES_EACH * (int64_t)worker_count);
    int64_t wanted = panels_wanted(tiles, group_count, rows_most, worker_count) / matrix_count;
    cut.panels = spread > wanted ? spread : wanted;
    cut.panels = cut.panels < fitting ? cut.panels : fitting;
    cut.panels = cut.panels < most ? cut.panels : most;
    cut.panel_pieces = ceil_div(cut.panel_count, cut.panels);
    /* Equal pieces, of whole tiles. */
    int tile_rows = rows_most < strip_rows ? (int)rows_most : strip_rows;
    cut.panels = round_up(ceil_div(cut.panel_count, cut.panel_pieces),
                          tile_panels(tiles->kind, tile_rows, cut.panels));
    cut.panels = cut.panels < most ? cut.panels : most;
    cut.panel_pieces = ceil_div(cut.panel_count, cut.panels);
    return cut;
}

/* The rows and panels of piece `index` of a group with `row_count` rows from `first_row` on; false
 * where the group has fewer. */
static bool piece_place(struct piece *piece, const struct cut *cut, int64_t index,
                        int64_t first_row, int64_t row_count)
{
    int64_t chunks = ceil_div(row_count, ROWS_MAX);
    int64_t chunk = index % cut->row_pieces;
    if (chunk >= chunks)
        return false;
    int64_t chunk_rows = round_up(ceil_div(row_count, chunks), STRIP_ROWS);
    int64_t row = chunk * chunk_rows, panel = index / cut->row_pieces * cut->panels;
    if (row >= row_count)
        return false;
    piece->first_row = first_row + row;
    piece->row_count = row_count - row < chunk_rows ? row_count - row : chunk_rows;
    piece->strip_rows = strip_rows_of(piece->row_count, cut->strip_rows);
    piece->first_panel = panel;
    piece->panels = cut->panel_count - panel < cut->panels ? cut->panel_count - panel : cut->panels;
    return true;
}

/* ---- The plain product --------------------------------------------------------------------- */

/* Gives a strip's sums of one matrix to `out`, with the bias of its panels, or NULL. */
static void strip_store(float *out, int64_t out_stride, const float *sums,
                        const struct piece *piece, int rows, const float *bias)
{
    for (int64_t panel = 0; panel < piece->panels;) {
        int step = piece_step(piece, rows, panel);
        for (int r = 0; r < rows; r++) {
            for (int p = 0; p < step; p++, sums += LANES) {
                int64_t at = (panel + p) * LANES;
                v16 sum = v16_load(sums);
                if (bias != NULL)
                    sum += v16_load(bias + at);
                v16_store(out + r * out_stride + at, sum);
            }
        }
        panel += step;
    }
}

static void piece_store(struct scratch *scratch, const struct piece *piece, float *out,
                        int64_t out_stride, const float *bias)
{
    out += piece->first_row * out_stride + piece->first_panel * LANES;
    if (bias != NULL)
        bias += piece->first_panel * LANES;
    for (int64_t row = 0; row < piece->row_count; row += piece->strip_rows)
        strip_store(out + row * out_stride, out_stride, strip_sums(scratch, piece, row), piece,
                    strip_height(piece, row), bias);
}

void KERNEL(matmul)(const struct op_matmul *op, struct share *share)
{
    struct scratch scratch;
    struct piece piece = {.tiles = {tiles_of(&op->weight)}, .matrix_count = 1};
    struct rows rows = {op->in, NULL, op->in_stride, op->weight.columns};
    struct cut cut = cut_of(&piece.tiles[0], 1, 1, op->row_count, share->worker_count);
    int64_t index;
    while ((index = share_take(share)) < cut.panel_pieces * cut.row_pieces) {
        if (!piece_place(&piece, &cut, index, 0, op->row_count))
            continue;
        piece_run(&scratch, &piece, &rows);
        piece_store(&scratch, &piece, op->out, op->out_stride, op->bias);
    }
}

/* ---- Groups of rows: feed-forward networks ------------------------------------------------- */

static int64_t rows_most(const int32_t *offsets, int64_t group_count)
{
    int64_t most = 0;
    for (int64_t g = 0; g < group_count; g++) {
        int64_t count = offsets[g + 1] - offsets[g];
        most = count > most ? count : most;
    }
    return most;
}

/* Groups that have rows. */
static int64_t groups_busy(const int32_t *offsets, int64_t group_count)
{
    int64_t count = 0;
    for (int64_t g = 0; g < group_count; g++)
        count += offsets[g + 1] > offsets[g];
    return count;
}

static struct cut cut_groups(const struct tiles *tiles, int matrix_count, const int32_t *offsets,
                             int64_t group_count, const struct share *share)
{
    int64_t busy = groups_busy(offsets, group_count);
    return cut_of(tiles, matrix_count, busy, rows_most(offsets, group_count), share->worker_count);
}

/* Whether there is a piece left; those that their groups do not have are passed over. */
static bool group_piece_take(struct piece *piece, const struct cut *cut, struct share *share,
                             const int32_t *offsets, int64_t group_count)
{
    int64_t per_group = cut->panel_pieces * cut->row_pieces;
    int64_t index;
    while ((index = share_take(share)) < per_group * group_count) {
        piece->group = index / per_group;
        const int32_t *offset = offsets + piece->group;
        if (offset[1] > offset[0] &&
            piece_place(piece, cut, index % per_group, offset[0], offset[1] - offset[0]))
            return true;
    }
    return false;
}

/* out = silu(gate) x up for a strip; the sums of up stand behind those of gate. */
static void strip_store_ffn(float *out, int64_t out_stride, const float *sums,
                            const struct piece *piece, int rows)
{
    const float *up = sums + rows * piece->panels * LANES;
    for (int64_t panel = 0; panel < piece->panels;) {
        int step = piece_step(piece, rows, panel);
        for (int r = 0; r < rows; r++) {
            for (int p = 0; p < step; p++, sums += LANES, up += LANES)
                v16_store(out + r * out_stride + (panel + p) * LANES,
                          v16_silu(v16_load(sums)) * v16_load(up));
        }
        panel += step;
    }
}

void KERNEL(ffn_up)(const struct op_ffn_up *op, struct share *share)
{
    if (op->group_count == 0)
        return;
    struct scratch scratch;
    struct tiles shape = tiles_of(&op->groups[0].gate);
    struct rows rows = {op->in, op->token_of, op->in_stride, op->groups[0].gate.columns};
    struct cut cut = cut_groups(&shape, 2, op->offsets, op->group_count, share);
    struct piece piece = {.matrix_count = 2};
    while (group_piece_take(&piece, &cut, share, op->offsets, op->group_count)) {
        piece.tiles[0] = tiles_of(&op->groups[piece.group].gate);
        piece.tiles[1] = tiles_of(&op->groups[piece.group].up);
        piece_run(&scratch, &piece, &rows);
        for (int64_t row = 0; row < piece.row_count; row += piece.strip_rows)
            strip_store_ffn(op->out + (piece.first_row + row) * op->out_stride +
                                piece.first_panel * LANES,
                            op->out_stride, strip_sums(&scratch, &piece, row), &piece,
                            strip_height(&piece, row));
    }
}

void KERNEL(ffn_down)(const struct op_ffn_down *op, struct share *share)
{
    if (op->group_count == 0)
        return;
    struct scratch scratch;
    struct tiles shape = tiles_of(&op->groups[0].down);
    struct rows rows = {op->in, NULL, op->in_stride, op->groups[0].down.columns};
    struct cut cut = cut_groups(&shape, 1, op->offsets, op->group_count, share);
    struct piece piece = {.matrix_count = 1};
    while (group_piece_take(&piece, &cut, share, op->offsets, op->group_count)) {
        piece.tiles[0] = tiles_of(&op->groups[piece.group].down);
        piece_run(&scratch, &piece, &rows);
        piece_store(&scratch, &piece, op->out, op->out_stride, NULL);
    }
}

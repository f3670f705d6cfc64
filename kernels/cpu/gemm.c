/* Matrix products with packed weights: plain, and the two halves of a feed-forward network over
 * groups of rows (grouped GEMM).
 *
 * A piece of work is up to ROWS_MAX rows times some panels (16 outputs each) of one group. It goes
 * through the columns a depth at a time, for each through the rows in strips, for each strip
 * through the panels (the order of Goto and van de Geijn, "Anatomy of High-Performance Matrix
 * Multiplication", 2008): a strip's inputs stay in the L1 cache, copied there with a fixed stride;
 * the weights of a depth and the sums of the piece stay in the L2 cache. So an input is read from
 * beyond it once for each piece, and a weight once for ROWS_MAX rows. With bf16 pairs the caches
 * change parts (kernels/cpu/gemm_panels.h). A few rows (decode) are one strip, each weight is read
 * once, and memory decides: what is packed by input then goes through some blocks of columns at a
 * time, whose panels lie one behind another; one row, of bf16 pairs some, in the order of memory
 * (kernels/cpu/gemm_row.h). How work is cut: kernels/cpu/gemm_cut.h; by AMX:
 * kernels/cpu/gemm_amx.h and gemm_amx_int4.h. */
#include <string.h>

#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/gemm_amx_int4.h"
#include "kernels/cpu/gemm_cut.h"
#include "kernels/cpu/gemm_panels.h"
#include "kernels/cpu/gemm_row.h"
#include "kernels/cpu/gemm_walk.h"
#include "kernels/cpu/kernels.h"

struct scratch {
    _Alignas(64) float in[STRIP_WORDS];
    _Alignas(64) struct fixed_strip fixed; /* int4: instead */
    struct amx_scratch amx;                /* bf16 by AMX: instead */
#if KERNEL_PAIRS && !KERNEL_AMX
    _Alignas(64) uint32_t pairs[PANEL_STRIPS * PANEL_STRIP_WORDS]; /* by panels: instead */
#endif
    _Alignas(64) float sums[SUMS_MAX * PACK_BLOCK];
};

/* The sums of a strip: tiles one after another, those of the second matrix behind the first's; each
 * is [row][panel of the tile][16]. */
static float *strip_sums(struct scratch *scratch, const struct piece *piece, int64_t row)
{
    return scratch->sums + row * piece->panels * piece->matrix_count * PACK_BLOCK;
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
            row_round((uint16_t *)to, from, valid, count);
            continue;
        }
        if (takes_amx(kind))
            row_round_wide(to, from, valid);
        else
            memcpy(to, from, (size_t)valid * sizeof(float));
        memset(to + valid, 0, (size_t)(count - valid) * sizeof(float));
    }
}

/* int4: where the tiles find their inputs. By input they are rounded for as many groups of panels
 * at a time as fit: those of one wait for each other. */
struct fixing {
    int64_t at;   /* blocks of the strip: of the tile's group */
    int64_t left; /* groups behind that one */
};

/* Rounds the inputs of a strip for the tiles at `panel` and for groups behind that. */
static void strip_fix(struct fixing *fixing, struct fixed_strip *to, const struct piece *piece,
                      const struct tiles *tiles, int64_t panel, const struct rows *rows,
                      int64_t first_row, int row_count, int64_t first_block, int64_t block_count)
{
    int64_t groups = 1;
    if (tiles->kind == TILE_INT4_INPUT) {
        int64_t end = piece->first_panel + piece->panels, size = tiles->group_blocks;
        int64_t most = strip_blocks(row_count) / block_count;
        groups = ceil_div(end, size) - panel / size;
        groups = groups < most ? groups : most;
    }
    fixed_cut(to, tiles, first_block, block_count);
    for (int r = 0; r < row_count; r++) {
        for (int64_t g = 0; g < groups; g++)
            fixed_row(to, g * block_count, tiles, panel + g * tiles->group_blocks,
                      row_at(rows, first_row + r), r, row_count, first_block, block_count);
    }
    *fixing = (struct fixing){.left = groups - 1};
}

/* Goes on to the next group; false: its inputs are not rounded yet. */
static bool fixing_on(struct fixing *fixing, int64_t block_count)
{
    fixing->at += block_count;
    return fixing->left-- > 0;
}

/* The part of the next slice that a tile fetches: as much as the tile itself, in the order of
 * memory, which is faster than that of tiles. A block's panels are a run. */
struct slice_part {
    bool is_taken;
    int64_t panels; /* of the piece that has the slice */
    int64_t panel, block;
};

static struct slice_part slice_part_begin(const struct walk *walk, int64_t first_block)
{
    const struct piece *piece = walk->piece;
    return (struct slice_part){.is_taken = takes_slices(&piece->tiles[0], piece->row_count),
                               .panels = (piece->ahead != NULL ? piece->ahead : piece)->panels,
                               .block = first_block};
}

static void slice_part_on(struct slice_part *part, const struct walk *walk, int64_t block_count)
{
    part->panel += walk->step * block_count;
    part->block += part->panel / part->panels;
    part->panel %= part->panels;
}

/* Of a run that ends in it, with one panel less than whole steps have, it asks for the one beside
 * that instead of its own last. */
static void slice_part_choose(struct tile_work *work, const struct slice_part *part,
                              const struct tiles *tiles, int64_t first_panel, int64_t block,
                              int step)
{
    work->fetches_next |= work->block > 0; /* a piece's first slice nobody has fetched */
    work->next = tile_at(tiles, first_panel + part->panel, block);
    work->next_step = step * tiles->panel_step;
    work->next_left = ceil_div(part->panels - part->panel, step);
    work->next_run = ceil_div(part->panels, step);
    work->next_behind = tile_at(tiles, first_panel, block + 1);
}

/* What a tile fetches when its own blocks are: its part of the next slice, else the blocks of the
 * tile behind it, of the next matrix or the next blocks; behind all, the panels that another piece
 * begins with. Where the next piece is known, all tiles fetch its weights instead, which then are
 * in the L2 cache before it begins, but for some where it has more panels. */
static void next_choose(struct tile_work *work, const struct walk *walk, int matrix,
                        const struct slice_part *part)
{
    const struct piece *piece = walk->piece;
    const struct tiles *tiles = work->tiles;
    int64_t panel = walk->panel + walk->step;
    int64_t block = work->block, next_block = block + work->block_count;
    int64_t part_block = part->block + (piece->ahead != NULL ? 0 : work->block_count);
    work->fetches_next = piece->ahead != NULL;
    work->next_step = tiles->block_step;
    work->next_left = work->block_count; /* there is no end of a run */
    if (piece->ahead != NULL) {
        piece = piece->ahead;
        tiles = &piece->tiles[matrix];
        panel = walk->panel;
    }
    if (part->is_taken && part_block < tiles->block_count) {
        slice_part_choose(work, part, tiles, piece->first_panel, part_block, walk->step);
        return;
    }
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

/* int4 by input: scales (and minima) of the next piece for the blocks that this one has come to,
 * which a strip asks for with its tiles, a few blocks with each: all at once would wait for each
 * other. */
struct scales_ahead {
    const struct piece *piece; /* NULL: nothing is asked for */
    int64_t block, end;
    int64_t step; /* with each tile */
};

static struct scales_ahead scales_ahead_of(const struct piece *piece, int row_count, int64_t block,
                                           int64_t block_count)
{
    const enum tile_kind kind = piece->tiles[0].kind;
    struct scales_ahead scales = {0};
    if (piece->ahead == NULL || kind != TILE_INT4_INPUT)
        return scales;
    int64_t tile_count =
        ceil_div(piece->panels, tile_panels(&piece->tiles[0], row_count, piece->panels));
    scales.piece = piece->ahead;
    scales.block = block;
    scales.end = block + block_count;
    scales.step = ceil_div(block_count, tile_count);
    return scales;
}

static void fetch_scales(struct scales_ahead *scales)
{
    const struct piece *piece = scales->piece;
    const int64_t line_scales = LINE_BYTES / (int64_t)sizeof(uint16_t);
    if (piece == NULL)
        return;
    const struct matrix *matrix = piece->tiles[0].matrix;
    for (int64_t i = 0; i < scales->step && scales->block < scales->end; i++, scales->block++) {
        int64_t last_panel = piece->first_panel + piece->panels - 1;
        int64_t first = scale_index(&piece->tiles[0], piece->first_panel, scales->block);
        int64_t last = scale_index(&piece->tiles[0], last_panel, scales->block);
        for (int64_t at = first / line_scales * line_scales; at <= last; at += line_scales) {
            fetch_line((const char *)(matrix->scales + at));
            if (matrix->minima != NULL)
                fetch_line((const char *)(matrix->minima + at));
        }
    }
}

/* Adds the product of a strip's inputs and the piece's panels over some blocks of columns. */
static void strip_product(const struct piece *piece, float *sums, struct scratch *scratch,
                          const struct rows *rows, int64_t first_row, int row_count,
                          int64_t first_block, int64_t block_count, const struct ahead *ahead)
{
    const enum tile_kind kind = piece->tiles[0].kind;
    struct fixing fixing = {0};
    int64_t tile = 0;
    struct scales_ahead scales = scales_ahead_of(piece, row_count, first_block, block_count);
    for (int m = 0; m < piece->matrix_count; m++) {
        const struct tiles *tiles = &piece->tiles[m];
        struct tile_work work = {.tiles = tiles,
                                 .in = scratch->in,
                                 .fixed = &scratch->fixed,
                                 .block = first_block,
                                 .block_count = block_count};
        struct walk walk = walk_begin(piece, row_count);
        struct slice_part part = slice_part_begin(&walk, first_block);
        bool is_fixed = !is_int4(kind) || m > 0; /* the inputs that the tile takes */
        while (walk.step > 0) {
            work.sums = sums;
            work.panel = piece->first_panel + walk.panel;
            if (!is_fixed)
                strip_fix(&fixing, &scratch->fixed, piece, tiles, work.panel, rows, first_row,
                          row_count, first_block, block_count);
            work.fixed_at = fixing.at;
            next_choose(&work, &walk, m, &part);
            fetch_scales(&scales);
            fetch_rows(ahead, tile++);
            fetch_weights(ahead, tiles, work.panel, walk.step);
            tile_choose(row_count, walk.step, kind)(&work);
            sums += row_count * walk.step * PACK_BLOCK;
            is_fixed = true;
            if (kind == TILE_INT4_INPUT && walk_ends_group(&walk))
                is_fixed = fixing_on(&fixing, block_count);
            slice_part_on(&part, &walk, block_count);
            walk_on(&walk);
        }
    }
}

/* One row, or few, in the order of memory. */
static void piece_run_in_order(struct scratch *scratch, const struct piece *piece,
                               const struct rows *rows)
{
    int64_t padded = piece->tiles[0].block_count * PACK_BLOCK, depth = piece_depth(piece);
    float *sums = scratch->sums;
    const int rows_each = (int)piece->row_count;
    for (int m = 0; m < piece->matrix_count; m++, sums += rows_each * piece->panels * PACK_BLOCK) {
#if KERNEL_BYTES
        if (is_int4(piece->tiles[m].kind)) {
            row_product_int4(&piece->tiles[m], piece, sums, (veci *)scratch->in, &scratch->fixed,
                             row_at(rows, piece->first_row));
            continue;
        }
#endif
        for (int64_t first = 0; first < padded; first += depth) {
            int64_t count = padded - first < depth ? padded - first : depth;
            strip_load(scratch->in, rows, piece->tiles[m].kind, piece->first_row, rows_each, first,
                       count);
            row_product(&piece->tiles[m], piece, sums, scratch->in, first / PACK_BLOCK,
                        count / PACK_BLOCK);
        }
    }
}

static void piece_run(struct scratch *scratch, const struct piece *piece, const struct rows *rows)
{
    int64_t padded = piece->tiles[0].block_count * PACK_BLOCK, depth = piece_depth(piece);
#if KERNEL_AMX
    if (goes_by_amx(&piece->tiles[0], piece->row_count)) {
        piece_run_amx(scratch->sums, &scratch->amx, piece, rows);
        return;
    }
#endif
    memset(scratch->sums, 0,
           (size_t)(piece->row_count * piece->panels * piece->matrix_count * PACK_BLOCK) *
               sizeof(float));
#if KERNEL_AMX
    if (piece->by_bytes) {
        piece_run_amx_int4(scratch->sums, &scratch->amx, &scratch->fixed, piece, rows);
        return;
    }
#endif
#if KERNEL_PAIRS && !KERNEL_AMX
    if (piece->by_panels) {
        piece_run_panels(scratch->sums, scratch->pairs, piece, rows);
        return;
    }
#endif
    if (piece->in_order) {
        piece_run_in_order(scratch, piece, rows);
        return;
    }
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

/* ---- The plain product --------------------------------------------------------------------- */

/* By AMX, which else waits for memory: outputs of more bytes than these do not stay in a cache
 * until they are read. */
#define FAR_BYTES (4 << 20)

static bool is_far_out(int64_t rows, int64_t stride)
{
    return KERNEL_AMX && rows * stride * (int64_t)sizeof(float) > FAR_BYTES;
}

/* Gives a strip's sums of one matrix to `out`, with the bias of its panels, or NULL. `is_far` is a
 * constant where this is called. */
INLINE void strip_store(float *out, int64_t out_stride, const float *sums,
                        const struct piece *piece, int rows, const float *bias, const bool is_far)
{
    for (struct walk walk = walk_begin(piece, rows); walk.step > 0; walk_on(&walk)) {
        for (int r = 0; r < rows; r++) {
            for (int v = 0; v < walk.step * PANEL_VECTORS; v++, sums += LANES) {
                int64_t at = walk.panel * PACK_BLOCK + v * LANES;
                vec sum = vec_load(sums);
                if (bias != NULL)
                    sum += vec_load(bias + at);
                vec_store_past(out + r * out_stride + at, sum, is_far);
            }
        }
    }
}

static void piece_store(struct scratch *scratch, const struct piece *piece, float *out,
                        int64_t out_stride, const float *bias, bool is_far)
{
    out += piece->first_row * out_stride + piece->first_panel * PACK_BLOCK;
    if (bias != NULL)
        bias += piece->first_panel * PACK_BLOCK;
    for (int64_t row = 0; row < piece->row_count; row += piece->strip_rows) {
        const float *sums = strip_sums(scratch, piece, row);
        int rows = strip_height(piece, row);
        if (is_far)
            strip_store(out + row * out_stride, out_stride, sums, piece, rows, bias, true);
        else
            strip_store(out + row * out_stride, out_stride, sums, piece, rows, bias, false);
    }
}

void KERNEL(matmul)(const struct op_matmul *op, struct share *share)
{
    struct scratch scratch;
    struct piece piece = {.tiles = {tiles_of(&op->weight)}, .matrix_count = 1};
    struct rows rows = {op->in, NULL, op->in_stride, op->weight.columns};
    struct cut cut = cut_of(&piece.tiles[0], 1, 1, op->row_count, share->worker_count);
    int64_t index;
    while ((index = share_take(share)) < cut.panel_pieces * cut.row_pieces) {
        bool has_rows = piece_place(&piece, &cut, index, 0, op->row_count);
        ASSERT(has_rows);
        piece_run(&scratch, &piece, &rows);
        piece_store(&scratch, &piece, op->out, op->out_stride, op->bias,
                    is_far_out(op->row_count, op->out_stride));
    }
    stores_past_end();
}

/* ---- Groups of rows: feed-forward networks ------------------------------------------------- */

/* From so many rows of a group on its outputs are more than caches hold until they are read. */
#define FAR_ROWS STRIP_ROWS_MOST

/* out = silu(gate) x up for a strip; the sums of up stand behind those of gate. */
static void strip_store_ffn(float *out, int64_t out_stride, const float *sums,
                            const struct piece *piece, int rows)
{
    const float *up = sums + rows * piece->panels * PACK_BLOCK;
    const bool is_far = piece->row_count > FAR_ROWS;
    for (struct walk walk = walk_begin(piece, rows); walk.step > 0; walk_on(&walk)) {
        for (int r = 0; r < rows; r++) {
            for (int v = 0; v < walk.step * PANEL_VECTORS; v++, sums += LANES, up += LANES)
                vec_store_past(out + r * out_stride + walk.panel * PACK_BLOCK + v * LANES,
                               vec_silu(vec_load(sums)) * vec_load(up), is_far);
        }
    }
}

void KERNEL(ffn_up)(const struct op_ffn_up *op, struct share *share)
{
    if (op->group_count == 0)
        return;
    struct scratch scratch;
    struct group_queue queue;
    struct piece piece;
    struct rows rows = {op->in, op->token_of, op->in_stride, op->groups[0].gate.columns};
    group_queue_begin(&queue, op->groups, op->offsets, op->group_count, 2, share);
    while (group_queue_take(&piece, &queue)) {
        piece_run(&scratch, &piece, &rows);
        for (int64_t row = 0; row < piece.row_count; row += piece.strip_rows)
            strip_store_ffn(op->out + (piece.first_row + row) * op->out_stride +
                                piece.first_panel * PACK_BLOCK,
                            op->out_stride, strip_sums(&scratch, &piece, row), &piece,
                            strip_height(&piece, row));
    }
    stores_past_end();
}

void KERNEL(ffn_down)(const struct op_ffn_down *op, struct share *share)
{
    if (op->group_count == 0)
        return;
    struct scratch scratch;
    struct group_queue queue;
    struct piece piece;
    struct rows rows = {op->in, NULL, op->in_stride, op->groups[0].down.columns};
    const bool is_far = is_far_out(op->offsets[op->group_count], op->out_stride);
    group_queue_begin(&queue, op->groups, op->offsets, op->group_count, 1, share);
    while (group_queue_take(&piece, &queue)) {
        piece_run(&scratch, &piece, &rows);
        piece_store(&scratch, &piece, op->out, op->out_stride, NULL, is_far);
    }
    stores_past_end();
}

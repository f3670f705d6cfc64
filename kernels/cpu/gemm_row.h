/* One row times weights that are packed by input, in the order of memory.
 *
 * A block's panels lie one behind another: a piece reads a run of memory, then the run of its next
 * block. The sums of all its panels are in the L1 cache, from which each block takes them and to
 * which it gives them back; of more rows they would cost more than the weights do. Two blocks, a
 * chunk of AMX's, are read at a time, because a core that reads in two places reads faster than in
 * one. Each sum grows as in other tiles, so a row's result is the same. */
#ifndef PHASOR_KERNELS_CPU_GEMM_ROW_H
#define PHASOR_KERNELS_CPU_GEMM_ROW_H

#include "kernels/cpu/gemm_cut.h"

#define GO_BLOCKS 2  /* at a time */
#define GO_PANELS 4  /* likewise: enough sums to hide the latency of the additions */
#define GO_FETCH  12 /* tiles of each run ahead; behind its end those of the run to come */

/* The panels and blocks that are multiplied at a time: sums[panels][16], the tile of the first, its
 * inputs, and what is fetched meanwhile: as much, in the same places. */
struct row_work {
    float *sums;
    const char *tile, *ahead;
    int64_t block_step;
    const float *in;
};

/* panels, blocks and kind are constants where this is called. */
INLINE void row_tiles(const int panels, const int blocks, const enum tile_kind kind,
                      const struct row_work *work)
{
    const int unit = kind == TILE_F32 ? 1 : 2;
    const int steps = takes_pairs(kind) ? 1 : unit;
    const int64_t tile_bytes = TILE_VALUES * 4 / unit;
    const char *tile = work->tile, *ahead = work->ahead;
    const float *in = work->in;
    const bool by_chunk =
        takes_amx(kind); /* sums of its even and of its odd columns, from zero on */
    const int vectors = panels * PANEL_VECTORS;
    vec sum[GO_PANELS * PANEL_VECTORS], odd[GO_PANELS * PANEL_VECTORS];
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) {
        sum[v] = by_chunk ? (vec){0} : vec_load(work->sums + v * LANES);
        odd[v] = (vec){0};
    }
#pragma GCC unroll 2
    for (int b = 0; b < blocks; b++, tile += work->block_step, ahead += work->block_step) {
        for (int u = 0; u < PACK_BLOCK / unit; u++, in += steps) {
            const char *units = tile + u * UNIT_BYTES;
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                fetch_line(ahead + u * UNIT_BYTES + p * tile_bytes);
#pragma GCC unroll 2
            for (int k = 0; k < steps; k++) {
#pragma GCC unroll 16
                for (int v = 0; v < vectors; v++) {
                    vec weights = unit_weights(kind, vector_at(units, tile_bytes, v), k);
                    if (by_chunk && k == 1)
                        odd[v] = tile_add(kind, odd[v], weights, in + k);
                    else
                        sum[v] = tile_add(kind, sum[v], weights, in + k);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) {
        if (by_chunk)
            sum[v] = vec_load(work->sums + v * LANES) + (sum[v] + odd[v]);
        vec_store(work->sums + v * LANES, sum[v]);
    }
}

/* All panels of a piece over some blocks; blocks and kind are constants. */
INLINE void row_blocks(const int blocks, const enum tile_kind kind, const struct tiles *tiles,
                       const struct piece *piece, float *sums, const float *in, int64_t block)
{
    const int64_t run = piece->panels * tiles->panel_step;
    const int64_t wanted = GO_FETCH * tiles->panel_step, fetch = run < wanted ? run : wanted;
    const char *first = tile_at(tiles, piece->first_panel, block);
    const char *next = first + blocks * tiles->block_step;
    int64_t step;
    for (int64_t p = 0; p < piece->panels; p += step) {
        int64_t at = p * tiles->panel_step, to = at + fetch;
        struct row_work work = {
            .sums = sums + p * PACK_BLOCK,
            .tile = first + at,
            .ahead = to < run ? first + to : next + to - run,
            .block_step = tiles->block_step,
            .in = in,
        };
        step = piece->panels - p >= GO_PANELS ? GO_PANELS : 1;
        if (step == GO_PANELS)
            row_tiles(GO_PANELS, blocks, kind, &work);
        else
            row_tiles(1, blocks, kind, &work);
    }
}

INLINE void row_run(const enum tile_kind kind, const struct tiles *tiles, const struct piece *piece,
                    float *sums, const float *in, int64_t first_block, int64_t block_count)
{
    const int64_t words = PACK_BLOCK / (takes_pairs(kind) ? 2 : 1);
    int64_t block = first_block, end = first_block + block_count;
    for (; block + GO_BLOCKS <= end; block += GO_BLOCKS, in += GO_BLOCKS * words)
        row_blocks(GO_BLOCKS, kind, tiles, piece, sums, in, block);
    for (; block < end; block++, in += words)
        row_blocks(1, kind, tiles, piece, sums, in, block);
}

/* sums[panels][16] += in x the piece's panels of one matrix over some blocks, the first of which
 * `in` begins with; f32 or bf16, `in` as tile_work has it. */
static void row_product(const struct tiles *tiles, const struct piece *piece, float *sums,
                        const float *in, int64_t first_block, int64_t block_count)
{
    if (tiles->kind == TILE_F32)
        row_run(TILE_F32, tiles, piece, sums, in, first_block, block_count);
    else
        row_run(TILE_BF16, tiles, piece, sums, in, first_block, block_count);
}

#endif

/* How a block of product_few.cu goes through its panels: which part of which panel a warp has in
 * each round. */
#ifndef PHASOR_KERNELS_CUDA_PRODUCT_FEW_CUH
#define PHASOR_KERNELS_CUDA_PRODUCT_FEW_CUH

#include "kernels/cuda/product_int4.cuh"

#define WARPS        12
#define THREADS      (WARPS * WARP)
#define SUMS_BYTES   (48 * 1024) /* the most that sums of a round take */
#define TOTALS_BYTES (16 * 1024)

/* What a block does at a time: a run of panels of one group. */
template <int MATS> struct run {
    const uint32_t *data[MATS]; /* the lane's part of the matrix' first tile */
    const uint16_t *scales[MATS], *minima[MATS];
    struct product_rows rows;
    int panel, panel_count;
    int step; /* words from a tile of a panel to the next one */
};

/* Where the block is: the first panel of the round, counted in the run, which window of its
 * columns, and how many units each warp has done in the round. */
struct place {
    int first, window, pass;
};

/* A warp's part of a panel in a round. */
struct unit {
    int64_t at;      /* words from the first tile of the matrix */
    int panel, tile; /* the first one in its panel */
    int count;       /* tiles; 0: none */
    int scale_at;
};

/* Units of a round for each warp: more where they are short, as each round has a barrier. */
template <enum weights WEIGHTS, int MATS, int TILES> __host__ __device__ constexpr int passes_most()
{
    return (WEIGHTS == WEIGHTS_BF16 ? 2 : 4) < MATS * TILES
               ? 1
               : (WEIGHTS == WEIGHTS_BF16 ? 2 : 4) / (MATS * TILES);
}

template <int MATS, int TILES> __host__ __device__ constexpr int sums_buffers()
{
    return MATS * TILES <= 4 ? 2 : 1;
}

/* Values that a unit's sums of one matrix take: [row][output]. */
template <int TILES> __host__ __device__ constexpr int sums_size()
{
    return MMA_ROWS * TILES * PACK_BLOCK;
}

template <enum weights WEIGHTS, int MATS, int TILES> __host__ __device__ constexpr int sums_bytes()
{
    return sums_buffers<MATS, TILES>() * passes_most<WEIGHTS, MATS, TILES>() * WARPS * MATS *
           sums_size<TILES>() * (int)sizeof(float);
}

/* Which of p.rounds. */
template <int TILES> __host__ __device__ constexpr int rounds_index()
{
    return TILES == 1 ? 0 : TILES == 2 ? 1 : 2;
}

/* Parts whose inputs, and scales where columns have them, fit in shared memory; 0: not one. */
template <enum weights WEIGHTS, int TILES>
static int parts_staged(const struct product &p, int shared_bytes)
{
    int room = shared_bytes - SUMS_BYTES - TOTALS_BYTES;
    int each = MMA_PART_TILES * PACK_BLOCK * 2; /* of a row, or of a group of scales or minima */
    int scales = WEIGHTS != WEIGHTS_BY_INPUT ? 0 : p.weight.minima != NULL ? 2 : 1;
    return room < 0 ? 0 : room / (each * (MMA_ROWS * TILES + p.scale_groups_staged * scales));
}

/* False if shared memory does not hold the inputs of a part. */
template <enum weights WEIGHTS, int MATS, int TILES>
static bool rounds_find(struct product *p, int shared_bytes)
{
    const int panel_bytes = MATS * sums_size<TILES>() * (int)sizeof(float);
    const int units = WARPS * passes_most<WEIGHTS, MATS, TILES>();
    struct few_rounds *rounds = &p->rounds[rounds_index<TILES>()];
    int staged = parts_staged<WEIGHTS, TILES>(*p, shared_bytes);
    int parts = mma_parts(p->tile_count), most = staged < units ? staged : units;
    if (staged == 0)
        return false;
    rounds->windows = (parts + most - 1) / most;
    rounds->parts = (parts + rounds->windows - 1) / rounds->windows;
    rounds->panels = units / rounds->parts;
    if (rounds->windows > 1 && rounds->panels > TOTALS_BYTES / panel_bytes)
        rounds->panels = TOTALS_BYTES / panel_bytes;
    rounds->staged = staged >= parts ? parts : rounds->parts;
    rounds->parts_inverse = 65536 / (uint32_t)rounds->parts + 1;
    return true;
}

/* To where the block is next. */
template <int MATS, int TILES>
__device__ static void place_next(struct place *place, const struct product &p,
                                  const struct run<MATS> &run)
{
    const struct few_rounds &rounds = p.rounds[rounds_index<TILES>()];
    int units = min(rounds.panels, run.panel_count - place->first) * rounds.parts;
    if (++place->pass * WARPS < units)
        return;
    place->pass = 0;
    if (++place->window < rounds.windows)
        return;
    place->window = 0;
    place->first += rounds.panels;
}

/* The warp's unit there. */
template <enum product_kind KIND, enum weights WEIGHTS, int MATS, int TILES>
__device__ static struct unit unit_of(const struct product &p, const struct run<MATS> &run,
                                      struct place place)
{
    const struct few_rounds &rounds = p.rounds[rounds_index<TILES>()];
    struct unit unit = {0, run.panel, 0, 0, 0};
    int index = place.pass * WARPS + warp_id();
    int panel = (int)((uint32_t)index * rounds.parts_inverse >> 16);
    int tile = (place.window * rounds.parts + index - panel * rounds.parts) * MMA_PART_TILES;
    if (panel >= rounds.panels || place.first + panel >= run.panel_count || tile >= p.tile_count)
        return unit;
    unit.panel = run.panel + place.first + panel;
    unit.tile = tile;
    unit.count = min(p.tile_count - tile, MMA_PART_TILES);
    unit.at = product_tile<KIND>(p, unit.panel, tile) *
              (WEIGHTS == WEIGHTS_BF16 ? TILE_WORDS : INT4_TILE_WORDS);
    if (WEIGHTS == WEIGHTS_BY_OUTPUT)
        unit.scale_at = unit.panel * p.scale_group_count * PACK_BLOCK;
    return unit;
}

#endif

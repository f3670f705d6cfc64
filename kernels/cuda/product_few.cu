/* Products with few rows by the matrix instructions for bf16 (sm_80 and later), with bf16 and with
 * INT4 weights. What they cost is the reading of the weights.
 *
 * A block, one on each multiprocessor, has a run of neighbouring panels, so that all have as many
 * bytes to read. It goes through them in rounds: each warp takes another part (MMA_PART_TILES) of a
 * panel, the parts' sums meet in shared memory and are added up in their order. A warp reads its
 * weights to registers, each once, always SLOTS steps before they are multiplied, across the ends
 * of rounds; inputs stand in shared memory, rounded to bf16 and in the order of right operands, all
 * of a group where they fit, else those of a round. */
#include "kernels/cuda/product_few.cuh"

/* Steps that are under way. */
__host__ __device__ constexpr int few_slots(enum weights weights, int mats)
{
    return mats == 2 || weights == WEIGHTS_BF16 ? 4 : 8;
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* Zeros behind the unit's last tile. */
template <int MATS>
__device__ static void bf16_load(uint32_t words[MATS][8], const struct run<MATS> &run,
                                 const struct unit &unit, int first)
{
#pragma unroll
    for (int m = 0; m < MATS; m++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint2 low = make_uint2(0, 0), high = make_uint2(0, 0);
            const uint32_t *at = run.data[m] + unit.at + (first + i) * run.step;
            if (first + i < unit.count) {
                low = weights_stream((const uint2 *)at);
                high = weights_stream((const uint2 *)(at + TILE_WORDS / 2));
            }
            words[m][4 * i] = low.x;
            words[m][4 * i + 1] = low.y;
            words[m][4 * i + 2] = high.x;
            words[m][4 * i + 3] = high.y;
        }
    }
}

/* Behind the unit's last tile again that one, beside inputs of 0. */
template <enum weights WEIGHTS, int MATS>
__device__ static void few_int4_load(uint32_t words[MATS][step_words(WEIGHTS)],
                                     const struct product &p, const struct run<MATS> &run,
                                     const struct unit &unit, int first)
{
    int tile = min(first + lane_in_group(), max(unit.count - 1, 0)), scale = 0;
    if (WEIGHTS == WEIGHTS_BY_OUTPUT)
        scale = unit.scale_at + scale_group_of(p, unit.tile + tile) * PACK_BLOCK;
#pragma unroll
    for (int m = 0; m < MATS; m++)
        int4_load<WEIGHTS>(words[m], run.data[m] + unit.at + tile * run.step, run.scales[m],
                           run.minima[m], scale, true);
}

/* Loads the step that begins with tile `first` of the unit. */
template <enum weights WEIGHTS, int MATS>
__device__ static void step_load(uint32_t words[MATS][step_words(WEIGHTS)], const struct product &p,
                                 const struct run<MATS> &run, const struct unit &unit, int first)
{
    if constexpr (WEIGHTS == WEIGHTS_BF16)
        bf16_load<MATS>(words, run, unit, first);
    else
        few_int4_load<WEIGHTS, MATS>(words, p, run, unit, first);
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

/* They stand as [two tiles][row][lane of four], of INT4 [four tiles][half][row][lane of four]. */

/* The lane's words of a row: `in` is the row's first column of the pair of tiles (INT4: of the four
 * tiles that it is the half `half` of), `tiles` how many of them there are. */
template <enum weights WEIGHTS>
__device__ static uint4 inputs_words(const float *in, int lane, int half, int tiles)
{
    const float2 none = make_float2(0, 0);
    float2 v[4] = {none, none, none, none};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (WEIGHTS == WEIGHTS_BF16 ? i / 2 < tiles : lane < tiles)
            v[i] = *(const float2 *)(in + (WEIGHTS == WEIGHTS_BF16
                                               ? 8 * i + 2 * lane
                                               : lane * PACK_BLOCK + 4 * i + 2 * half));
    }
    if (WEIGHTS == WEIGHTS_BF16)
        return make_uint4(bf16_pair(v[0].x, v[0].y), bf16_pair(v[1].x, v[1].y),
                          bf16_pair(v[2].x, v[2].y), bf16_pair(v[3].x, v[3].y));
    return make_uint4(bf16_pair(v[0].x, v[1].x), bf16_pair(v[2].x, v[3].x),
                      bf16_pair(v[0].y, v[1].y), bf16_pair(v[2].y, v[3].y));
}

/* All rows of `tiles` tiles from `first` on, with zeros behind the last of the panel. A thread has
 * one row. */
template <enum product_kind KIND, enum weights WEIGHTS, int MATS>
__device__ static void inputs_stage(uint4 *out, const struct product &p,
                                    const struct run<MATS> &run, int first, int tiles)
{
    int shift = 0;
    while (1 << shift < run.rows.count)
        shift++;
    int lane = (int)threadIdx.x % 4, row = (int)threadIdx.x / 4 & ((1 << shift) - 1);
    if (row >= run.rows.count)
        return;
    const float *in = product_input<KIND>(p, run.rows.first + row);
#pragma unroll 2
    for (int pair = (int)threadIdx.x / 4 >> shift; pair < tiles / 2; pair += THREADS / 4 >> shift) {
        int half = WEIGHTS == WEIGHTS_BF16 ? 0 : pair % 2;
        int tile = first + 2 * (pair - half);
        out[(pair * run.rows.count + row) * 4 + lane] =
            inputs_words<WEIGHTS>(in + tile * PACK_BLOCK, lane, half, p.tile_count - tile);
    }
}

/* Of columns that have scales: [group][tile][half], `count` groups from `group` on. */
__device__ static void scales_stage(uint4 *out, const struct product &p, const uint16_t *scales,
                                    int group, int count, int first, int parts)
{
    int tiles = parts * MMA_PART_TILES;
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < count * tiles * 2; i += THREADS) {
        int half = i % 2, tile = first + i / 2 % tiles, of = group + i / 2 / tiles;
        uint4 words = make_uint4(0, 0, 0, 0);
        if (tile < p.tile_count)
            words = scales_words(scales_raw(p, scales, tile, of, half));
        out[i] = words;
    }
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Where a lane finds what stands in shared memory, for the unit at hand. */
template <int TILES> struct operands {
    const uint4 *in;
    int row[TILES]; /* the lane's words of each tile of rows */
    const uint4 *scales, *minima;
    uint32_t offset;
};

template <int MATS, int TILES>
__device__ static void bf16_product(float sum[MATS][TILES][4], const uint32_t words[MATS][8],
                                    const struct operands<TILES> &of, const uint4 *in)
{
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        uint4 four = in[of.row[n]];
        uint32_t b[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int m = 0; m < MATS; m++)
                mma_bf16(sum[m][n], words[m] + 4 * i, b + 2 * i);
        }
    }
}

template <enum weights WEIGHTS, int MATS, int TILES>
__device__ static void
int4_product(float sum[MATS][TILES][4], const uint32_t words[MATS][step_words(WEIGHTS)],
             const struct operands<TILES> &of, const uint4 *in, int pair_size, int tile)
{
#pragma unroll(TILES > 2 ? 1 : 2)
    for (int half = 0; half < 2; half++) {
        uint4 scales = make_uint4(0, 0, 0, 0);
        uint4 minima = make_uint4(NO_MINIMUM, NO_MINIMUM, NO_MINIMUM, NO_MINIMUM);
        if (WEIGHTS == WEIGHTS_BY_INPUT) {
            scales = of.scales[2 * tile + half];
            if (of.minima != NULL)
                minima = of.minima[2 * tile + half];
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t scale[2] = {j == 0 ? scales.x : scales.z, j == 0 ? scales.y : scales.w};
            uint32_t minimum[2] = {j == 0 ? minima.x : minima.z, j == 0 ? minima.y : minima.w};
            uint32_t a[MATS][4];
#pragma unroll
            for (int m = 0; m < MATS; m++)
                int4_weights<WEIGHTS>(a[m], words[m], 2 * half + j, scale, minimum, of.offset);
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                uint2 two = ((const uint2 *)(in + half * pair_size + of.row[n]))[j];
                uint32_t b[2] = {two.x, two.y};
#pragma unroll
                for (int m = 0; m < MATS; m++)
                    mma_bf16(sum[m][n], a[m], b);
            }
        }
    }
}

/* Adds the products of the step that begins with tile `tile` of the unit. */
template <enum weights WEIGHTS, int MATS, int TILES>
__device__ static void few_product(float sum[MATS][TILES][4],
                                   const uint32_t words[MATS][step_words(WEIGHTS)],
                                   const struct operands<TILES> &of, int pair_size, int tile)
{
    const uint4 *in = of.in + tile / 2 * pair_size;
    if constexpr (WEIGHTS == WEIGHTS_BF16)
        bf16_product<MATS, TILES>(sum, words, of, in);
    else
        int4_product<WEIGHTS, MATS, TILES>(sum, words, of, in, pair_size, tile);
}

/* The sums of the warp's unit at `place`. `words` has its first steps, and gets those of the next
 * one, which `unit` becomes, and its place `place`. */
template <enum product_kind KIND, enum weights WEIGHTS, int MATS, int TILES, int SLOTS>
__device__ static void
unit_sum(float sum[MATS][TILES][4], uint32_t words[SLOTS][MATS][step_words(WEIGHTS)],
         const struct product &p, const struct run<MATS> &run, const struct operands<TILES> &of,
         struct unit *unit, struct place *place)
{
    const int step_tiles = step_tiles_of(WEIGHTS), pair_size = run.rows.count * 4;
    int tile = 0, count = unit->count;
    for (int m = 0; m < MATS; m++) {
        for (int n = 0; n < TILES; n++)
            sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0;
    }
#pragma unroll 1
    do {
        int first = tile + SLOTS * step_tiles;
        if (first >= count) {
            place_next<MATS, TILES>(place, p, run);
            *unit = unit_of<KIND, WEIGHTS, MATS, TILES>(p, run, *place);
            first = 0;
        }
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            if (tile + i * step_tiles < count)
                few_product<WEIGHTS, MATS, TILES>(sum, words[i], of, pair_size,
                                                  tile + i * step_tiles);
            step_load<WEIGHTS, MATS>(words[i], p, run, *unit, first + i * step_tiles);
            loads_fence();
        }
        tile += SLOTS * step_tiles;
    } while (tile < count);
}

/* ---- A run ----------------------------------------------------------------------------------- */

/* The sums of a unit, [matrix][row][output]. */
template <int MATS, int TILES>
__device__ static void sums_store(float *sums, const float sum[MATS][TILES][4], int rows)
{
#pragma unroll
    for (int m = 0; m < MATS; m++) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            int row = sum_row<MMA_BF16>(n);
            float *at = sums + m * sums_size<TILES>() + row * PACK_BLOCK + sum_output<MMA_BF16>(0);
            if (row < rows)
                *(float2 *)at = make_float2(sum[m][n][0], sum[m][n][2]);
            if (row + 1 < rows)
                *(float2 *)(at + PACK_BLOCK) = make_float2(sum[m][n][1], sum[m][n][3]);
        }
    }
}

/* Adds up the parts of the round at `place`, after those of the rounds before; writes what is
 * complete. `sums` is [panel][part][matrix][row][output], `totals` [panel][matrix][row][output]. A
 * thread has the same values in all windows. */
template <enum product_kind KIND, int MATS, int TILES>
__device__ static void parts_add(const float *sums, float *totals, const struct product &p,
                                 const struct run<MATS> &run, struct place place)
{
    const struct few_rounds &rounds = p.rounds[rounds_index<TILES>()];
    int parts = min(rounds.parts, mma_parts(p.tile_count) - place.window * rounds.parts);
    int panels = min(rounds.panels, run.panel_count - place.first);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < panels * sums_size<TILES>(); i += THREADS) {
        int row = i / PACK_BLOCK % (MMA_ROWS * TILES), output = i % PACK_BLOCK;
        int panel = i / sums_size<TILES>(), at = i % sums_size<TILES>();
        float total[MATS];
        if (row >= run.rows.count)
            continue;
#pragma unroll
        for (int m = 0; m < MATS; m++) {
            const float *of = sums + (panel * rounds.parts * MATS + m) * sums_size<TILES>() + at;
            total[m] = *of;
            if (place.window > 0)
                total[m] += totals[(panel * MATS + m) * sums_size<TILES>() + at];
        }
#pragma unroll 2
        for (int part = 1; part < parts; part++) {
#pragma unroll
            for (int m = 0; m < MATS; m++)
                total[m] +=
                    sums[((panel * rounds.parts + part) * MATS + m) * sums_size<TILES>() + at];
        }
        if (place.window + 1 < rounds.windows) {
#pragma unroll
            for (int m = 0; m < MATS; m++)
                totals[(panel * MATS + m) * sums_size<TILES>() + at] = total[m];
            continue;
        }
        product_write<KIND>(p, run.rows.first + row,
                            (run.panel + place.first + panel) * PACK_BLOCK + output, total[0],
                            total[MATS - 1]);
    }
}

/* Where in shared memory: behind the sums the totals, inputs, scales and minima. */
__device__ static uint4 *inputs_at(unsigned char *shared)
{
    return (uint4 *)(shared + SUMS_BYTES + TOTALS_BYTES);
}

template <int TILES>
__device__ static uint4 *scales_at(unsigned char *shared, const struct product &p, int which)
{
    int pairs = p.rounds[rounds_index<TILES>()].staged * MMA_PART_TILES / 2;
    return inputs_at(shared) + pairs * 4 * (MMA_ROWS * TILES + which * p.scale_groups_staged);
}

/* Brings the inputs of the parts from `part` on, and the scales of their columns. */
template <enum product_kind KIND, enum weights WEIGHTS, int MATS, int TILES>
__device__ static void parts_stage(unsigned char *shared, const struct product &p,
                                   const struct run<MATS> &run, int part)
{
    int first = part * MMA_PART_TILES, staged = p.rounds[rounds_index<TILES>()].staged;
    int tiles =
        min(staged * MMA_PART_TILES, (int)device_round_up(p.tile_count - first, MMA_PART_TILES));
    inputs_stage<KIND, WEIGHTS, MATS>(inputs_at(shared), p, run, first, tiles);
    if (WEIGHTS != WEIGHTS_BY_INPUT)
        return;
    int group = scale_group_of(p, run.panel);
    int groups = scale_group_of(p, run.panel + run.panel_count - 1) - group + 1;
    scales_stage(scales_at<TILES>(shared, p, 0), p, run.scales[0], group, groups, first, staged);
    if (run.minima[0] != NULL)
        scales_stage(scales_at<TILES>(shared, p, 1), p, run.minima[0], group, groups, first,
                     staged);
}

/* Where the lane finds the unit's operands; `part` is the first one that is there. */
template <enum weights WEIGHTS, int MATS, int TILES>
__device__ static struct operands<TILES> operands_of(unsigned char *shared, const struct product &p,
                                                     const struct run<MATS> &run,
                                                     const struct unit &unit, int part) {
    struct operands<TILES> of;
    int tile = unit.count > 0 ? unit.tile - part * MMA_PART_TILES : 0;
    of.in = inputs_at(shared) + tile / 2 * run.rows.count * 4;
#pragma unroll
    for (int n = 0; n < TILES; n++)
        of.row[n] = min(n * MMA_ROWS + lane_group(), run.rows.count - 1) * 4 + lane_in_group();
    of.offset = nibbles_offset(WEIGHTS != WEIGHTS_BF16 && run.minima[0] != NULL);
    of.scales = of.minima = NULL;
    if (WEIGHTS != WEIGHTS_BY_INPUT)
        return of;
    int group = scale_group_of(p, unit.panel) - scale_group_of(p, run.panel);
    int staged = p.rounds[rounds_index<TILES>()].staged;
    int at = (group * staged * MMA_PART_TILES + tile + lane_in_group()) * 2;
    of.scales = scales_at<TILES>(shared, p, 0) + at;
    if (run.minima[0] != NULL)
        of.minima = scales_at<TILES>(shared, p, 1) + at;
    return of;
}

template <enum product_kind KIND, enum weights WEIGHTS, int TILES>
__device__ static void run_product(const struct product &p,
                                   const struct run<KIND == PRODUCT_UP ? 2 : 1> &run,
                                   unsigned char *shared)
{
    const int mats = KIND == PRODUCT_UP ? 2 : 1, buffers = sums_buffers<mats, TILES>();
    const int slots = few_slots(WEIGHTS, mats), step_tiles = step_tiles_of(WEIGHTS);
    const int buffer_size = sums_bytes<WEIGHTS, mats, TILES>() / buffers / (int)sizeof(float);
    const struct few_rounds &rounds = p.rounds[rounds_index<TILES>()];
    float *sums = (float *)shared;
    float *totals = (float *)(shared + SUMS_BYTES);
    static_assert(sums_bytes<WEIGHTS, mats, TILES>() <= SUMS_BYTES, "sums have their place");
    bool stages = true;
    int buffer = 0;
    uint32_t words[slots][mats][step_words(WEIGHTS)];
    struct place place = {0, 0, 0};
    struct unit unit = unit_of<KIND, WEIGHTS, mats, TILES>(p, run, place);
#pragma unroll
    for (int i = 0; i < slots; i++)
        step_load<WEIGHTS, mats>(words[i], p, run, unit, i * step_tiles);
#pragma unroll 1
    while (place.first < run.panel_count) {
        struct place now = place;
        bool has_all = rounds.windows == 1 || rounds.staged > rounds.parts;
        int part = has_all ? 0 : now.window * rounds.parts; /* the first one that is there */
        float sum[mats][TILES][4];
        if (stages && now.pass == 0) {
            parts_stage<KIND, WEIGHTS, mats, TILES>(shared, p, run, part);
            __syncthreads();
            stages = !has_all;
        }
        unit_sum<KIND, WEIGHTS, mats, TILES, slots>(
            sum, words, p, run, operands_of<WEIGHTS, mats, TILES>(shared, p, run, unit, part),
            &unit, &place);
        sums_store<mats, TILES>(sums + buffer * buffer_size +
                                    (now.pass * WARPS + warp_id()) * mats * sums_size<TILES>(),
                                sum, run.rows.count);
        if (place.pass > 0)
            continue;
        __syncthreads();
        parts_add<KIND, mats, TILES>(sums + buffer * buffer_size, totals, p, run, now);
        buffer = (buffer + 1) % buffers;
        if (buffers == 1)
            __syncthreads(); /* before the sums are others */
    }
}

/* ---- The kernel ------------------------------------------------------------------------------ */

__device__ static int few_pieces(const struct product &p, int row_count)
{
    return row_count > 0 && row_count <= p.flat_rows ? p.panel_count : 0;
}

/* Panels of all groups. */
template <enum product_kind KIND> __device__ static int64_t panels_of_all(const struct product &p)
{
    int64_t count = 0;
#pragma unroll 1
    for (int first = 0; first < p.group_count; first += WARP) {
        int g = first + lane_id();
        if (g < p.group_count)
            count += few_pieces(p, product_rows_of<KIND>(p, g).count);
    }
    return warp_sum(count);
}

template <enum product_kind KIND, enum weights WEIGHTS>
__global__ void __launch_bounds__(THREADS, 1) product_few_kernel(const struct product p)
{
    KERNEL_SHARED(unsigned char, shared);
    const int mats = KIND == PRODUCT_UP ? 2 : 1;
    product_groups_count<KIND>(p);
    int64_t all = panels_of_all<KIND>(p);
    int at = (int)(all * blockIdx.x / gridDim.x), end = (int)(all * (blockIdx.x + 1) / gridDim.x);
    int group, panel;
    while (at < end && piece_find<KIND>(&group, &panel, p, at, few_pieces)) {
        struct run<mats> run;
        run.rows = product_rows_of<KIND>(p, group);
        run.panel = panel;
        run.panel_count = min(end - at, p.panel_count - panel);
        for (int m = 0; m < mats; m++) {
            struct matrix matrix = product_matrix<KIND>(p, group, m);
            int lane = WEIGHTS == WEIGHTS_BF16 ? weights_lane<MMA_BF16>() : 2 * lane_group();
            run.data[m] = (const uint32_t *)matrix.data + lane;
            run.scales[m] = matrix.scales;
            run.minima[m] = matrix.minima;
            if (WEIGHTS == WEIGHTS_BY_OUTPUT) {
                run.scales[m] += 2 * lane_group();
                if (run.minima[m] != NULL)
                    run.minima[m] += 2 * lane_group();
            }
        }
        run.step = (int)(product_tile<KIND>(p, 0, 1) - product_tile<KIND>(p, 0, 0)) *
                   (WEIGHTS == WEIGHTS_BF16 ? TILE_WORDS : INT4_TILE_WORDS);
        if (WEIGHTS == WEIGHTS_BY_INPUT) { /* as many panels as the scales that there is room for */
            int groups = scale_group_of(p, panel) + p.scale_groups_staged;
            int most = groups * p.scale_group_tiles - panel;
            run.panel_count = min(run.panel_count, most);
        }
        at += run.panel_count;
        if (run.rows.count <= MMA_ROWS)
            run_product<KIND, WEIGHTS, 1>(p, run, shared);
        else if (run.rows.count <= 2 * MMA_ROWS)
            run_product<KIND, WEIGHTS, 2>(p, run, shared);
        else
            run_product<KIND, WEIGHTS, 4>(p, run, shared);
    }
}

/* How many rows are few: 32, or as many as leave room for the inputs of a part. */
template <enum weights WEIGHTS, int MATS>
static int few_rows_find(struct product *p, int shared_bytes)
{
    rounds_find<WEIGHTS, MATS, 1>(p, shared_bytes);
    if (!rounds_find<WEIGHTS, MATS, 2>(p, shared_bytes))
        return MMA_ROWS;
    return rounds_find<WEIGHTS, MATS, 4>(p, shared_bytes) ? 4 * MMA_ROWS : 2 * MMA_ROWS;
}

template <enum product_kind KIND, enum weights WEIGHTS>
static cudaError_t few_launch(const struct cuda_launch *launch, struct product *p)
{
    const int mats = KIND == PRODUCT_UP ? 2 : 1;
    p->scale_groups_staged = 8;
    if (parts_staged<WEIGHTS, 4>(*p, launch->shared_bytes_max) < mma_parts(p->tile_count))
        p->scale_groups_staged = 2;
    p->flat_rows = few_rows_find<WEIGHTS, mats>(p, launch->shared_bytes_max);
    if (KIND == PRODUCT_MATMUL && p->row_count > p->flat_rows)
        return cudaSuccess;
    cudaError_t failure = product_allow(launch, (const void *)product_few_kernel<KIND, WEIGHTS>);
    if (failure != cudaSuccess)
        return failure;
    KERNEL_LAUNCH((product_few_kernel<KIND, WEIGHTS>), (unsigned)launch->multiprocessors, THREADS,
                  (size_t)launch->shared_bytes_max, launch->stream, *p);
    return cudaGetLastError();
}

cudaError_t product_few(const struct cuda_launch *launch, struct product *p, enum product_kind kind)
{
    bool is_int4 = p->weight.dtype == DTYPE_INT4;
    if (kind == PRODUCT_UP)
        return is_int4 ? few_launch<PRODUCT_UP, WEIGHTS_BY_OUTPUT>(launch, p)
                       : few_launch<PRODUCT_UP, WEIGHTS_BF16>(launch, p);
    if (kind == PRODUCT_DOWN)
        return is_int4 ? few_launch<PRODUCT_DOWN, WEIGHTS_BY_INPUT>(launch, p)
                       : few_launch<PRODUCT_DOWN, WEIGHTS_BF16>(launch, p);
    if (!is_int4)
        return few_launch<PRODUCT_MATMUL, WEIGHTS_BF16>(launch, p);
    return p->weight.packing == PACK_OUTPUT
               ? few_launch<PRODUCT_MATMUL, WEIGHTS_BY_OUTPUT>(launch, p)
               : few_launch<PRODUCT_MATMUL, WEIGHTS_BY_INPUT>(launch, p);
}

/* Products with bf16 weights by matrix instructions. From sm_80 on those of few rows are
 * product_few.cu's.
 *
 * A tile of 16 outputs and 16 columns, as it is packed, is the left operand: the instruction's rows
 * g and g + 8 are outputs 2g and 2g + 1, so a lane takes it by two loads of 8 bytes (but on Volta:
 * see below), and a warp reads 512 bytes that lie together. Weights go from memory to registers,
 * each read once by the block; no two of its warps have the same. Inputs are the right operand,
 * eight rows of them at a time.
 *
 * Before sm_80 up to FLAT_ROWS rows of a group are `flat`: each warp takes other parts of the
 * columns, so that many bytes are under way, and reads inputs where they are. More are `tall`: a
 * block has up to 8 x TALL_TILES rows, whose inputs stand in shared memory, and each warp two tiles
 * of outputs. Sums are as in product.cuh, with parts of MMA_PART_TILES tiles. Where a block's
 * shared memory does not hold the sums of all parts, as rows are so long, all are tall, however
 * few.
 *
 * A tall block of 128 rows and 16 tiles of outputs multiplies 2^20 times in 32 columns, for 16 KiB
 * of weights and 16 KiB of inputs (f32): 1/64 byte of each for a multiply-add; of 64 rows (GPUs
 * with 99 KiB of shared memory) 1/32 byte of weights. A warp reads 512 bytes of shared memory for
 * four instructions. A thread has 128 sums, 32 words of weights (this chunk's and the next one's),
 * and 16 each of inputs on their way and of right operands: with its addresses all 255 registers,
 * so there is one block a multiprocessor, with 144 KiB of shared memory (64 rows: 72).
 *
 * Before sm_80 the instructions take fp16. A weight is rounded to it in registers: one of 2^-17 and
 * more keeps all its bits, a smaller one is off by up to 2^-25, a finite one beyond 65504 is 65504.
 * Inputs
 * are rounded to it in units of fixed.cuh, one for a row and part, so that the largest is below
 * 2^14, and the sum of the part is multiplied with the unit: an input is off by up to 2^-11 of
 * itself, or 2^-38 of the largest or of 2^-100. A row with 2^126 or what is no number gives none.
 * Tall blocks have 32 rows on Turing (64 KiB of shared memory), 64 on Volta (96). Volta's four
 * quad-pairs are the halves of a tile's outputs and of 16 rows, so that a lane has the weights of
 * one output. */
#include "kernels/cuda/product_operands.cuh"

#define WARPS      8
#define THREADS    (WARPS * WARP)
#define FLAT_TILES 4 /* before sm_80 */
#define FLAT_ROWS  (MMA_ROWS * FLAT_TILES)
#define TALL_TILES 16

/* Writes sums of tile `n` of rows. */
template <enum mma MMA, enum product_kind KIND>
__device__ static void sums_write(const struct product &p, struct product_rows rows, int n,
                                  int panel, const float gate[4], const float up[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = sum_row<MMA>(n) + i % 2;
        int output = panel * PACK_BLOCK + sum_output<MMA>(i / 2);
        if (r < rows.count)
            product_write<KIND>(p, rows.first + r, output, gate[i], up[i]);
    }
}

/* ---- Few rows -------------------------------------------------------------------------------- */

/* Panels of a piece of work: as many as give each warp a part, where parts are few. */
__host__ __device__ static int flat_panels(int tile_count)
{
    int parts = mma_parts(tile_count);
    return parts >= WARPS ? 1 : (WARPS + parts - 1) / parts;
}

/* Words of weights of a matrix that a lane has under way. On Volta's, where inputs are four times
 * as many, more of them would not leave two blocks their registers. */
__host__ __device__ constexpr int flat_words(enum mma mma)
{
    return mma == MMA_VOLTA ? 16 : 32;
}

/* The lane's part of 16 inputs of one row. */
template <enum mma MMA>
__device__ static void inputs_load(uint32_t b[input_words(MMA)], const float *in, float inverse)
{
    if (MMA == MMA_VOLTA) {
#pragma unroll
        for (int i = 0; i < input_words(MMA) / 2; i++) {
            float4 four = *(const float4 *)(in + 4 * i);
            b[2 * i] = inputs_pair<MMA>(four.x, four.y, inverse);
            b[2 * i + 1] = inputs_pair<MMA>(four.z, four.w, inverse);
        }
        return;
    }
    float2 low = *(const float2 *)(in + 2 * lane_in_group());
    float2 high = *(const float2 *)(in + 2 * lane_in_group() + 8);
    b[0] = inputs_pair<MMA>(low.x, low.y, inverse);
    b[1] = inputs_pair<MMA>(high.x, high.y, inverse);
}

/* The largest magnitude of a part of row `lane`, of up to 32 rows. */
template <enum product_kind KIND, int TILES>
__device__ static uint32_t part_most(const struct product &p, struct product_rows rows, int part)
{
    int first = part * MMA_PART_TILES, count = min(p.tile_count - first, MMA_PART_TILES);
    uint32_t own = 0;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        int row = min(n * MMA_ROWS + lane_group(), rows.count - 1);
        const float *in = product_input<KIND>(p, rows.first + row) + first * PACK_BLOCK;
        uint32_t most = 0;
#pragma unroll 8
        for (int k = 0; k < count; k++)
            most = float4_most(most, *(const float4 *)(in + k * PACK_BLOCK + 4 * lane_in_group()));
        most = max(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = max(most, __shfl_xor_sync(ALL_LANES, most, 2));
        most = __shfl_sync(ALL_LANES, most, lane_id() % MMA_ROWS * 4);
        if (lane_id() / MMA_ROWS == n)
            own = most;
    }
    return own;
}

/* One part of a panel for all rows, at most 8 x TILES. Behind the last row there is again that one:
 * what a column gives does not touch the others. */
template <enum mma MMA, enum product_kind KIND, int MATS, int TILES>
__device__ static void part_sum(float sum[MATS][TILES][4], const struct product &p, int group,
                                struct product_rows rows, int panel, int part)
{
    const int steps = TILES / step_tiles(MMA), loads = flat_words(MMA) / weight_words(MMA);
    int first = part * MMA_PART_TILES, count = min(p.tile_count - first, MMA_PART_TILES);
    int64_t at = product_tile<KIND>(p, panel, first) * TILE_WORDS + weights_lane<MMA>();
    int64_t step = (product_tile<KIND>(p, panel, 1) - product_tile<KIND>(p, panel, 0)) * TILE_WORDS;
    const uint32_t *weights[MATS];
    const float *in[steps];
    float unit = 1, inverse = 1, inverse_of[steps];
    if (MMA != MMA_BF16)
        unit = fixed_unit(&inverse, part_most<KIND, TILES>(p, rows, part));
    for (int s = 0; s < steps; s++) {
        int row = lane_row<MMA>(s * step_tiles(MMA));
        in[s] = product_input<KIND>(p, rows.first + min(row, rows.count - 1));
        inverse_of[s] = MMA == MMA_BF16 ? 1 : __shfl_sync(ALL_LANES, inverse, row);
    }
    for (int m = 0; m < MATS; m++) {
        weights[m] = (const uint32_t *)product_matrix<KIND>(p, group, m).data + at;
        for (int n = 0; n < TILES; n++)
            sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0;
    }
    for (int k = 0; k < count; k += loads) {
        uint32_t a[loads][MATS][weight_words(MMA)] = {};
#pragma unroll
        for (int i = 0; i < loads; i++) {
#pragma unroll
            for (int m = 0; m < MATS; m++) {
                if (k + i < count)
                    weights_load<MMA>(a[i][m], weights[m] + (k + i) * step);
            }
        }
#pragma unroll
        for (int i = 0; i < loads; i++) {
            if (k + i >= count)
                break;
#pragma unroll
            for (int m = 0; m < MATS; m++)
                weights_round<MMA>(a[i][m]);
#pragma unroll
            for (int s = 0; s < steps; s++) {
                uint32_t b[input_words(MMA)];
                inputs_load<MMA>(b, in[s] + (first + k + i) * PACK_BLOCK, inverse_of[s]);
#pragma unroll
                for (int m = 0; m < MATS; m++)
                    step_product<MMA>(sum[m] + s * step_tiles(MMA), a[i][m], b);
            }
        }
    }
    for (int n = 0; MMA != MMA_BF16 && n < TILES; n++) {
        float2 units = make_float2(__shfl_sync(ALL_LANES, unit, sum_row<MMA>(n)),
                                   __shfl_sync(ALL_LANES, unit, sum_row<MMA>(n) + 1));
        for (int m = 0; m < MATS; m++)
            sum_scale(sum[m][n], units);
    }
}

/* Panels first_panel .. + panel_count - 1 for all rows of a group, at most 8 x TILES. The block's
 * warps take the pairs of a panel and a part; their sums stand in shared memory,
 * [pair][matrix][tile of rows][lane], until all are there. */
template <enum mma MMA, enum product_kind KIND, int TILES>
__device__ static void flat(const struct product &p, int group, struct product_rows rows,
                            int first_panel, int panel_count, float4 *sums)
{
    const int mats = KIND == PRODUCT_UP ? 2 : 1;
    int parts = mma_parts(p.tile_count);
    for (int pair = warp_id(); pair < panel_count * parts; pair += WARPS) {
        float sum[mats][TILES][4];
        part_sum<MMA, KIND, mats, TILES>(sum, p, group, rows, first_panel + pair / parts,
                                         pair % parts);
        for (int m = 0; m < mats; m++) {
            for (int n = 0; n < TILES; n++)
                sums[((pair * mats + m) * TILES + n) * WARP + lane_id()] =
                    make_float4(sum[m][n][0], sum[m][n][1], sum[m][n][2], sum[m][n][3]);
        }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = warp_id(); i < panel_count * TILES; i += WARPS) {
        int panel = i / TILES, n = i % TILES;
        float total[mats][4];
        for (int m = 0; m < mats; m++) {
            const float4 *of = sums + ((panel * parts * mats + m) * TILES + n) * WARP + lane_id();
            float4 sum = *of;
            for (int part = 1; part < parts; part++)
                sum = float4_add(sum, of[part * mats * TILES * WARP]);
            total[m][0] = sum.x;
            total[m][1] = sum.y;
            total[m][2] = sum.z;
            total[m][3] = sum.w;
        }
        sums_write<MMA, KIND>(p, rows, n, first_panel + panel, total[0], total[mats - 1]);
    }
    __syncthreads(); /* before the sums are others */
}

/* ---- Many rows ------------------------------------------------------------------------------- */

/* Columns are gone through by chunks of two tiles. Of a row and chunk the 16 pairs of inputs stand
 * as the right operands of a lane need them, all its words together: [t][tile][low, high]; on Volta
 * as they are, with as many words behind as keep a quad-pair's rows in other banks. */
#define CHUNK_TILES   2
#define CHUNK_COLUMNS (CHUNK_TILES * PACK_BLOCK)
#define CHUNK_WORDS   (CHUNK_COLUMNS / 2)
#define PART_CHUNKS   (MMA_PART_TILES / CHUNK_TILES)
#define ROW_FLOAT4S   (CHUNK_COLUMNS / 4)

__host__ __device__ constexpr int row_words(enum mma mma)
{
    return CHUNK_WORDS + (mma == MMA_VOLTA ? 4 : 0);
}

/* Where pair `pair` of a row's chunk stands. */
template <enum mma MMA> __device__ static int pair_word(int pair)
{
    return MMA == MMA_VOLTA ? pair : pair % 4 * 4 + pair / 8 * 2 + pair % 8 / 4;
}

/* A thread brings one float4 of each of TILES / 4 rows; behind the last row again that one, since
 * what a column gives does not touch the others. */
template <int TILES> struct inputs_stage {
    uint32_t from[TILES / 4]; /* in float4s behind p.in, which has less than 64 GiB */
    float4 value[TILES / 4];
    float inverse[TILES / 4]; /* of the row's unit */
};

__device__ static int stage_row(int i)
{
    return i * (THREADS / ROW_FLOAT4S) + (int)threadIdx.x / ROW_FLOAT4S;
}

template <enum product_kind KIND, int TILES>
__device__ static void stage_begin(struct inputs_stage<TILES> *stage, const struct product &p,
                                   struct product_rows rows)
{
    for (int i = 0; i < TILES / 4; i++) {
        const float *row = product_input<KIND>(p, rows.first + min(stage_row(i), rows.count - 1));
        stage->from[i] = (uint32_t)((row - p.in) / 4) + threadIdx.x % ROW_FLOAT4S;
        stage->inverse[i] = 1;
    }
}

/* Finds the units of the part that begins with chunk `chunk`, which is next; all threads of a row
 * have them then, and units[row]. */
template <int TILES>
__device__ static void stage_units(struct inputs_stage<TILES> *stage, float *units,
                                   const struct product &p, int chunk)
{
    int first = chunk * CHUNK_TILES + (int)threadIdx.x % ROW_FLOAT4S / (PACK_BLOCK / 4);
#pragma unroll
    for (int i = 0; i < TILES / 4; i++) {
        uint32_t most = 0;
#pragma unroll 4
        for (int j = 0; j < PART_CHUNKS; j++) {
            if (first + j * CHUNK_TILES < p.tile_count)
                most = float4_most(most, ((const float4 *)p.in)[stage->from[i] + j * ROW_FLOAT4S]);
        }
        for (int step = ROW_FLOAT4S / 2; step > 0; step /= 2)
            most = max(most, __shfl_xor_sync(ALL_LANES, most, step));
        float unit = fixed_unit(&stage->inverse[i], most);
        if (threadIdx.x % ROW_FLOAT4S == 0)
            units[stage_row(i)] = unit;
    }
}

/* Brings chunk `chunk`; then the next one is next. `units` is [2][8 x TILES], of even parts and of
 * odd ones: those of the next part are found before this one is added up. */
template <enum mma MMA, int TILES>
__device__ static void stage_load(struct inputs_stage<TILES> *stage, float *units,
                                  const struct product &p, int chunk)
{
    int tile = chunk * CHUNK_TILES + (int)threadIdx.x % ROW_FLOAT4S / (PACK_BLOCK / 4);
    if constexpr (MMA != MMA_BF16) {
        if (chunk % PART_CHUNKS == 0)
            stage_units<TILES>(stage, units + chunk / PART_CHUNKS % 2 * MMA_ROWS * TILES, p, chunk);
    }
#pragma unroll
    for (int i = 0; i < TILES / 4; i++) {
        stage->value[i] = make_float4(0, 0, 0, 0);
        if (tile < p.tile_count)
            stage->value[i] = ((const float4 *)p.in)[stage->from[i]];
        stage->from[i] += ROW_FLOAT4S;
    }
}

template <enum mma MMA, int TILES>
__device__ static void stage_store(uint32_t *to, const struct inputs_stage<TILES> &stage)
{
    int pair = (int)threadIdx.x % ROW_FLOAT4S * 2; /* of the row's chunk, and the next one */
#pragma unroll
    for (int i = 0; i < TILES / 4; i++) {
        uint32_t *at = to + stage_row(i) * row_words(MMA) + pair_word<MMA>(pair);
        float4 value = stage.value[i];
        at[0] = inputs_pair<MMA>(value.x, value.y, stage.inverse[i]);
        at[pair_word<MMA>(1)] = inputs_pair<MMA>(value.z, value.w, stage.inverse[i]);
    }
}

/* The two tiles of outputs of a warp: gate and up of one panel, or two panels. */
struct warp_weights {
    const uint32_t *at[2]; /* the lane's part of the next tile */
    int step;              /* from a tile to the next: a row of tiles has less than 2^31 words */
};

/* Behind the last panel there is again that one, which is not written. */
template <enum mma MMA, enum product_kind KIND>
__device__ static struct warp_weights warp_weights_of(const struct product &p, int group, int panel)
{
    struct warp_weights weights;
    for (int m = 0; m < 2; m++) {
        int of = min(KIND == PRODUCT_UP ? panel : panel + m, p.panel_count - 1);
        const uint32_t *data =
            (const uint32_t *)product_matrix<KIND>(p, group, KIND == PRODUCT_UP ? m : 0).data;
        weights.at[m] = data + product_tile<KIND>(p, of, 0) * TILE_WORDS + weights_lane<MMA>();
    }
    weights.step = (int)(product_tile<KIND>(p, 0, 1) - product_tile<KIND>(p, 0, 0)) * TILE_WORDS;
    return weights;
}

/* Brings chunk `chunk`, as it is packed; then the next one is next. */
template <enum mma MMA>
__device__ static void chunk_weights_load(uint32_t a[2][CHUNK_TILES][weight_words(MMA)],
                                          struct warp_weights *weights, const struct product &p,
                                          int chunk)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int j = 0; j < CHUNK_TILES; j++) {
#pragma unroll
            for (int i = 0; i < weight_words(MMA); i++)
                a[m][j][i] = 0;
            if (chunk * CHUNK_TILES + j < p.tile_count)
                weights_load<MMA>(a[m][j], weights->at[m]);
            weights->at[m] += weights->step;
        }
    }
}

/* `next` becomes this chunk's. */
template <enum mma MMA>
__device__ static void chunk_weights_take(uint32_t a[2][CHUNK_TILES][weight_words(MMA)],
                                          const uint32_t next[2][CHUNK_TILES][weight_words(MMA)])
{
    memcpy(a, next, 2 * CHUNK_TILES * weight_words(MMA) * sizeof(uint32_t));
#pragma unroll
    for (int i = 0; i < 2 * CHUNK_TILES; i++)
        weights_round<MMA>(a[i / CHUNK_TILES][i % CHUNK_TILES]);
}

template <enum mma MMA, int TILES>
__device__ static void chunk_product(float sum[2][TILES][4],
                                     const uint32_t a[2][CHUNK_TILES][weight_words(MMA)],
                                     const uint32_t *inputs)
{
    int first = MMA == MMA_VOLTA ? 0 : lane_in_group() * 4; /* of the lane's words in a row */
#pragma unroll
    for (int n = 0; n < TILES; n += step_tiles(MMA)) {
        const uint4 *at = (const uint4 *)(inputs + lane_row<MMA>(n) * row_words(MMA) + first);
        uint32_t b[CHUNK_TILES][input_words(MMA)];
#pragma unroll
        for (int i = 0; i < CHUNK_TILES * input_words(MMA) / 4; i++) {
            uint4 four = at[i];
            memcpy(&b[0][0] + 4 * i, &four, sizeof four);
        }
#pragma unroll
        for (int j = 0; j < CHUNK_TILES; j++) {
#pragma unroll
            for (int m = 0; m < 2; m++)
                step_product<MMA>(sum[m] + n, a[m][j], b[j]);
        }
    }
}

/* Adds a part to the thread's sums of the parts before, and makes it 0. `totals` is
 * [2 x TILES][THREADS], `units` [8 x TILES] of this part. */
template <enum mma MMA, int TILES>
__device__ static void totals_add(float4 *totals, float sum[2][TILES][4], const float *units,
                                  bool is_first)
{
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        float *of = sum[i / TILES][i % TILES];
        float4 *to = totals + i * THREADS + threadIdx.x;
        if (MMA != MMA_BF16)
            sum_scale(of, *(const float2 *)(units + sum_row<MMA>(i % TILES)));
        float4 part = make_float4(of[0], of[1], of[2], of[3]);
        *to = is_first ? part : float4_add(*to, part);
        of[0] = of[1] = of[2] = of[3] = 0;
    }
}

/* Bytes of shared memory: inputs of two chunks, the totals, and units of two parts. */
__host__ __device__ static size_t tall_bytes(enum mma mma, int tiles)
{
    size_t units = mma == MMA_BF16 ? 0 : 2 * sizeof(float) * MMA_ROWS * tiles;
    return 2 * sizeof(uint32_t) * row_words(mma) * MMA_ROWS * tiles +
           sizeof(float4) * 2 * THREADS * tiles + units;
}

/* 8 x TILES rows at most, and two tiles of outputs for each warp. While a chunk is multiplied the
 * next one is on its way to registers. */
template <enum mma MMA, enum product_kind KIND, int TILES>
__device__ static void tall(const struct product &p, int group, struct product_rows rows,
                            int first_panel, unsigned char *shared)
{
    uint32_t *inputs = (uint32_t *)shared; /* [2][8 x TILES][row_words] */
    const int inputs_words = MMA_ROWS * TILES * row_words(MMA);
    float4 *totals = (float4 *)(inputs + 2 * inputs_words);
    float *units = (float *)(totals + 2 * TILES * THREADS); /* [2][8 x TILES] */
    int panel = first_panel + warp_id() * (KIND == PRODUCT_UP ? 1 : 2);
    int chunks = (p.tile_count + CHUNK_TILES - 1) / CHUNK_TILES;
    float sum[2][TILES][4] = {};
    uint32_t a[2][CHUNK_TILES][weight_words(MMA)], next[2][CHUNK_TILES][weight_words(MMA)];
    struct inputs_stage<TILES> stage;
    struct warp_weights weights = warp_weights_of<MMA, KIND>(p, group, panel);
    stage_begin<KIND, TILES>(&stage, p, rows);
    stage_load<MMA, TILES>(&stage, units, p, 0);
    chunk_weights_load<MMA>(next, &weights, p, 0);
    chunk_weights_take<MMA>(a, next);
    stage_store<MMA, TILES>(inputs, stage);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk++) {
        stage_load<MMA, TILES>(&stage, units, p, chunk + 1); /* zeros behind the last */
        chunk_weights_load<MMA>(next, &weights, p, chunk + 1);
        __syncthreads(); /* this chunk's inputs are there; all are done with the one before */
        chunk_product<MMA, TILES>(sum, a, inputs + chunk % 2 * inputs_words);
        if ((chunk + 1) % PART_CHUNKS == 0 || chunk + 1 == chunks)
            totals_add<MMA, TILES>(totals, sum, units + chunk / PART_CHUNKS % 2 * MMA_ROWS * TILES,
                                   chunk < PART_CHUNKS);
        stage_store<MMA, TILES>(inputs + (chunk + 1) % 2 * inputs_words, stage);
        chunk_weights_take<MMA>(a, next);
    }
#pragma unroll 1
    for (int n = 0; n < TILES; n++) {
        float4 first = totals[n * THREADS + threadIdx.x];
        float4 second = totals[(TILES + n) * THREADS + threadIdx.x];
        float one[4] = {first.x, first.y, first.z, first.w};
        float two[4] = {second.x, second.y, second.z, second.w};
        if (panel < p.panel_count)
            sums_write<MMA, KIND>(p, rows, n, panel, one, two);
        if (KIND != PRODUCT_UP && panel + 1 < p.panel_count)
            sums_write<MMA, KIND>(p, rows, n, panel + 1, two, two);
    }
    __syncthreads(); /* before the inputs are others */
}

/* ---- The kernel ------------------------------------------------------------------------------ */

/* Panels of a piece of `tall`. */
template <enum product_kind KIND> __host__ __device__ static int tall_panels()
{
    return KIND == PRODUCT_UP ? WARPS : 2 * WARPS;
}

/* Pieces of work of a group; neighbours have the same panels, whose weights the second-level cache
 * then has. */
template <enum mma MMA, enum product_kind KIND, int TILES>
__device__ static int group_pieces(const struct product &p, int row_count)
{
    if (row_count == 0 || (MMA == MMA_BF16 && row_count <= p.flat_rows))
        return 0;
    if (row_count <= p.flat_rows)
        return (int)device_ceil_div(p.panel_count, flat_panels(p.tile_count));
    return (int)(device_ceil_div(row_count, MMA_ROWS * TILES) *
                 device_ceil_div(p.panel_count, tall_panels<KIND>()));
}

/* Piece `piece` of a group of few rows. */
template <enum mma MMA, enum product_kind KIND>
__device__ static void flat_piece(const struct product &p, int group, struct product_rows rows,
                                  int piece, unsigned char *shared)
{
    int panels = flat_panels(p.tile_count), first = piece * panels;
    panels = min(panels, p.panel_count - first);
    if (rows.count <= MMA_ROWS * step_tiles(MMA))
        flat<MMA, KIND, step_tiles(MMA)>(p, group, rows, first, panels, (float4 *)shared);
    else
        flat<MMA, KIND, FLAT_TILES>(p, group, rows, first, panels, (float4 *)shared);
}

/* Piece `piece` of a group of many rows. */
template <enum mma MMA, enum product_kind KIND, int TILES>
__device__ static void tall_piece(const struct product &p, int group, struct product_rows rows,
                                  int piece, unsigned char *shared)
{
    int strips = (int)device_ceil_div(rows.count, MMA_ROWS * TILES);
    int strip = piece % strips, panel = piece / strips * tall_panels<KIND>();
    rows.first += strip * MMA_ROWS * TILES;
    rows.count = min(rows.count - strip * MMA_ROWS * TILES, MMA_ROWS * TILES);
    const int few = TILES > TALL_TILES / 2 ? TALL_TILES / 2 : TILES;
    if (rows.count <= MMA_ROWS * few)
        tall<MMA, KIND, few>(p, group, rows, panel, shared);
    else
        tall<MMA, KIND, TILES>(p, group, rows, panel, shared);
}

/* TILES: of rows, in the highest piece; 0: groups that are not flat are left to others. */
template <enum mma MMA, enum product_kind KIND, int TILES>
__global__ void __launch_bounds__(THREADS, TILES == 0 ? 2 : 1)
    product_mma_kernel(const struct product p)
{
    KERNEL_SHARED(unsigned char, shared);
    int group, piece;
    product_groups_count<KIND>(p);
    for (int64_t index = blockIdx.x; piece_find<KIND>(&group, &piece, p, index, group_pieces < MMA,
                                                      KIND, TILES == 0 ? TALL_TILES : TILES >);
         index += gridDim.x) {
        struct product_rows rows = product_rows_of<KIND>(p, group);
        if constexpr (MMA != MMA_BF16) {
            if (TILES == 0 || rows.count <= p.flat_rows) {
                flat_piece<MMA, KIND>(p, group, rows, piece, shared);
                continue;
            }
        }
        if constexpr (TILES > 0)
            tall_piece<MMA, KIND, TILES>(p, group, rows, piece, shared);
    }
}

/* Bytes of shared memory that `flat` needs for its sums. */
static size_t flat_bytes(const struct product *p, enum product_kind kind)
{
    return sizeof(float4) * WARP * (kind == PRODUCT_UP ? 2 : 1) * FLAT_TILES *
           (size_t)(flat_panels(p->tile_count) * mma_parts(p->tile_count));
}

template <enum mma MMA, enum product_kind KIND, int TILES>
static cudaError_t product_mma_launch(const struct cuda_launch *launch, const struct product *p)
{
    size_t flat = MMA != MMA_BF16 && p->flat_rows > 0 ? flat_bytes(p, KIND) : 0;
    size_t tall = tall_bytes(MMA, TILES); /* 0 of what is not there */
    int blocks = launch->multiprocessors * (TILES == 0 ? 2 : 1);
    cudaError_t failure = product_allow(launch, (const void *)product_mma_kernel<MMA, KIND, TILES>);
    if (failure != cudaSuccess)
        return failure;
    KERNEL_LAUNCH((product_mma_kernel<MMA, KIND, TILES>), (unsigned)blocks, THREADS,
                  flat > tall ? flat : tall, launch->stream, *p);
    return cudaGetLastError();
}

template <enum mma MMA, int TILES>
static cudaError_t product_mma_run(const struct cuda_launch *launch, const struct product *p,
                                   enum product_kind kind)
{
    if (kind == PRODUCT_UP)
        return product_mma_launch<MMA, PRODUCT_UP, TILES>(launch, p);
    if (kind == PRODUCT_DOWN)
        return product_mma_launch<MMA, PRODUCT_DOWN, TILES>(launch, p);
    if constexpr (MMA != MMA_BF16) {
        if (p->row_count <= p->flat_rows)
            return product_mma_launch<MMA, PRODUCT_MATMUL, 0>(launch, p);
    }
    return product_mma_launch<MMA, PRODUCT_MATMUL, TILES>(launch, p);
}

cudaError_t product_mma(const struct cuda_launch *launch, const struct product *of,
                        enum product_kind kind)
{
    struct product p = *of;
    size_t most = (size_t)launch->shared_bytes_max;
    if (launch->capability >= CUDA_BF16_CAPABILITY) {
        cudaError_t failure = product_few(launch, &p, kind);
        if (failure != cudaSuccess || product_is_few(&p))
            return failure;
        if (product_wgmma_takes(launch, DTYPE_BF16, p.position_most) &&
            product_wgmma_scratch(p.position_most, p.group_count, p.tile_count) <=
                launch->scratch_bytes)
            return product_wgmma(launch, &p, kind);
        if (tall_bytes(MMA_BF16, TALL_TILES) <= most)
            return product_mma_run<MMA_BF16, TALL_TILES>(launch, &p, kind);
        return product_mma_run<MMA_BF16, TALL_TILES / 2>(launch, &p, kind);
    }
    p.flat_rows = flat_bytes(&p, kind) <= most ? FLAT_ROWS : 0;
    if (launch->capability < 75)
        return product_mma_run<MMA_VOLTA, TALL_TILES / 2>(launch, &p, kind);
    return product_mma_run<MMA_TURING, TALL_TILES / 4>(launch, &p, kind);
}

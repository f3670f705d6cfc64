/* Products of INT4 weights with many rows by the matrix instructions for bf16 (sm_80 and later);
 * few rows are product_few.cu's.
 *
 * As `tall` in product_mma.cu: a block has up to 8 x TILES rows, whose inputs stand in shared
 * memory, and each warp two tiles of outputs, gate and up of one panel or two panels. It goes
 * through the columns by steps of four tiles (product_int4.cuh); weights become bf16 in registers,
 * where they are multiplied with all rows of the block. While a step is multiplied the next one is
 * on its way to registers. Of 96 rows inputs and sums take 120 KiB, of 64 80. */
#include "kernels/cuda/product_int4.cuh"

#define WARPS         8
#define THREADS       (WARPS * WARP)
#define PANELS        (2 * WARPS) /* of a block, where each warp has two */
#define TILES_MAX     12
#define TILES_FEW     8
#define STEP_TILES    4
#define PART_STEPS    (MMA_PART_TILES / STEP_TILES)
#define SCALE_THREADS (PANELS * STEP_TILES * 2) /* a step's scales; as many have minima */

/* Inputs of a step: [half][row][lane of four], a tile's columns for a lane. */
template <int TILES> __host__ __device__ constexpr int step_size()
{
    return 2 * MMA_ROWS * TILES * STEP_TILES;
}

/* Rows of which a thread has a tile's columns in a step. */
template <int TILES> __host__ __device__ constexpr int stage_rows()
{
    return (MMA_ROWS * TILES * STEP_TILES + THREADS - 1) / THREADS;
}

/* What a thread brings of a step, one after another: half of the columns of one tile, of its rows.
 */
template <int TILES> struct stage {
    const float *from[stage_rows<TILES>()];
    float2 value[4];
};

__device__ static int stage_row(int i)
{
    return i * (THREADS / STEP_TILES) + (int)threadIdx.x / STEP_TILES;
}

/* Behind the last row there is again that one: what a column gives does not touch the others. */
template <enum product_kind KIND, int TILES>
__device__ static void stage_begin(struct stage<TILES> *stage, const struct product &p,
                                   struct product_rows rows)
{
#pragma unroll
    for (int i = 0; i < stage_rows<TILES>(); i++)
        stage->from[i] = product_input<KIND>(p, rows.first + min(stage_row(i), rows.count - 1)) +
                         threadIdx.x % STEP_TILES * PACK_BLOCK;
}

/* Brings half `half` of row `i` of step `step`, zeros behind the last tile. */
template <int TILES>
__device__ static void stage_load(struct stage<TILES> *stage, const struct product &p, int i,
                                  int half, int step)
{
    bool is_there = step * STEP_TILES + (int)threadIdx.x % STEP_TILES < p.tile_count;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        stage->value[q] = make_float2(0, 0);
        if (is_there)
            stage->value[q] = *(const float2 *)(stage->from[i] + step * STEP_TILES * PACK_BLOCK +
                                                4 * q + 2 * half);
    }
}

template <int TILES>
__device__ static void stage_store(uint4 *in, const struct stage<TILES> &stage, int i, int half)
{
    const float2 *v = stage.value;
    if (stage_row(i) >= MMA_ROWS * TILES)
        return;
    in[half * step_size<TILES>() / 2 + stage_row(i) * STEP_TILES + threadIdx.x % STEP_TILES] =
        make_uint4(bf16_pair(v[0].x, v[1].x), bf16_pair(v[2].x, v[3].x), bf16_pair(v[0].y, v[1].y),
                   bf16_pair(v[2].y, v[3].y));
}

/* Where columns have scales, a thread's of step `step`; [scales, minima][panel][tile][half]. */
__device__ static uint4 stage_scales(const struct product &p, const struct matrix &matrix,
                                     int first_panel, int step)
{
    int panel = min(first_panel + (int)threadIdx.x % SCALE_THREADS / 8, p.panel_count - 1);
    int tile = step * STEP_TILES + (int)threadIdx.x % 8 / 2;
    const uint16_t *of = threadIdx.x < SCALE_THREADS ? matrix.scales : matrix.minima;
    if (tile >= p.tile_count || of == NULL)
        return make_uint4(0, 0, 0, 0);
    return scales_raw(p, of, tile, scale_group_of(p, panel), (int)threadIdx.x % 2);
}

/* The two tiles of outputs of a warp. */
struct warp_weights {
    const uint32_t *data[2]; /* the lane's words of the step at hand */
    const uint16_t *scales[2], *minima[2];
    int step; /* words from a tile of a panel to the next one */
};

/* Behind the last panel there is again that one, which is not written. */
template <enum product_kind KIND, enum weights WEIGHTS>
__device__ static struct warp_weights weights_of(const struct product &p, int group, int panel)
{
    struct warp_weights weights;
    weights.step =
        (int)(product_tile<KIND>(p, 0, 1) - product_tile<KIND>(p, 0, 0)) * INT4_TILE_WORDS;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int of = min(KIND == PRODUCT_UP ? panel : panel + m, p.panel_count - 1);
        struct matrix matrix = product_matrix<KIND>(p, group, KIND == PRODUCT_UP ? m : 0);
        int64_t scale = (int64_t)of * p.scale_group_count * PACK_BLOCK + 2 * lane_group();
        weights.data[m] = (const uint32_t *)matrix.data +
                          product_tile<KIND>(p, of, 0) * INT4_TILE_WORDS + 2 * lane_group() +
                          lane_in_group() * weights.step;
        weights.scales[m] = matrix.scales + scale;
        weights.minima[m] = matrix.minima == NULL ? NULL : matrix.minima + scale;
    }
    return weights;
}

/* Brings step `step`; then the next one is next. */
template <enum weights WEIGHTS>
__device__ static void step_load(uint32_t words[2][step_words(WEIGHTS)],
                                 struct warp_weights *weights, const struct product &p, int step)
{
    int tile = step * STEP_TILES + lane_in_group(), scale = 0;
    if (WEIGHTS == WEIGHTS_BY_OUTPUT)
        scale = scale_group_of(p, tile) * PACK_BLOCK;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int4_load<WEIGHTS>(words[m], weights->data[m], weights->scales[m], weights->minima[m],
                           scale, tile < p.tile_count);
        weights->data[m] += STEP_TILES * weights->step;
    }
}

/* The weights of half a step, [matrix][instruction]; `scales` are the warp's. */
template <enum weights WEIGHTS>
__device__ static void half_weights(uint32_t a[2][2][4],
                                    const uint32_t words[2][step_words(WEIGHTS)],
                                    const uint4 *scales, bool has_minima, int half)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
        uint4 scale = make_uint4(0, 0, 0, 0);
        uint4 minimum = make_uint4(NO_MINIMUM, NO_MINIMUM, NO_MINIMUM, NO_MINIMUM);
        const uint4 *at = scales + (m * STEP_TILES + lane_in_group()) * 2 + half;
        if (WEIGHTS == WEIGHTS_BY_INPUT) {
            scale = *at;
            if (has_minima)
                minimum = at[SCALE_THREADS];
        }
        uint32_t first[2] = {scale.x, scale.y}, second[2] = {scale.z, scale.w};
        uint32_t least[2] = {minimum.x, minimum.y}, next[2] = {minimum.z, minimum.w};
        int4_weights<WEIGHTS>(a[m][0], words[m], 2 * half, first, least,
                              nibbles_offset(has_minima));
        int4_weights<WEIGHTS>(a[m][1], words[m], 2 * half + 1, second, next,
                              nibbles_offset(has_minima));
    }
}

/* Of half of the rows; instruction by instruction as product_few.cu has them. */
template <int TILES>
__device__ static void half_product(float sum[2][TILES][4], const uint32_t a[2][2][4],
                                    const uint4 *in, int which)
{
#pragma unroll
    for (int n = which * TILES / 2; n < (which + 1) * TILES / 2; n++) {
        uint4 four = in[n * MMA_ROWS * STEP_TILES + lane_id()];
        uint32_t b[2][2] = {{four.x, four.y}, {four.z, four.w}};
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int m = 0; m < 2; m++)
                mma_bf16(sum[m][n], a[m][j], b[j]);
        }
    }
}

/* Adds a part to the thread's sums of the parts before, and makes it 0. */
template <int TILES>
__device__ static void totals_add(float4 *totals, float sum[2][TILES][4], bool is_first)
{
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        float *of = sum[i / TILES][i % TILES];
        float4 *to = totals + i * THREADS + threadIdx.x;
        float4 part = make_float4(of[0], of[1], of[2], of[3]);
        *to = is_first ? part : float4_add(*to, part);
        of[0] = of[1] = of[2] = of[3] = 0;
    }
}

/* Writes the sums of the thread's two tiles of outputs. */
template <enum product_kind KIND, int TILES>
__device__ static void totals_write(const float4 *totals, const struct product &p,
                                    struct product_rows rows, int panel)
{
#pragma unroll 1
    for (int n = 0; n < TILES; n++) {
        float4 first = totals[n * THREADS + threadIdx.x];
        float4 second = totals[(TILES + n) * THREADS + threadIdx.x];
        float one[4] = {first.x, first.y, first.z, first.w};
        float two[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = sum_row<MMA_BF16>(n) + i % 2, output = sum_output<MMA_BF16>(i / 2);
            if (row >= rows.count)
                continue;
            if (panel < p.panel_count)
                product_write<KIND>(p, rows.first + row, panel * PACK_BLOCK + output, one[i],
                                    two[i]);
            if (KIND != PRODUCT_UP && panel + 1 < p.panel_count)
                product_write<KIND>(p, rows.first + row, (panel + 1) * PACK_BLOCK + output, two[i],
                                    two[i]);
        }
    }
}

/* Bytes of shared memory: inputs and scales of two steps, and the totals. */
__host__ __device__ static size_t tall_bytes(enum weights weights, int tiles)
{
    size_t scales = weights == WEIGHTS_BY_INPUT ? 2 * SCALE_THREADS : 0;
    return sizeof(uint4) * 2 * (size_t)(2 * MMA_ROWS * tiles * STEP_TILES + scales) +
           sizeof(float4) * 2 * THREADS * (size_t)tiles;
}

/* 8 x TILES rows at most, and two tiles of outputs for each warp. */
template <enum product_kind KIND, enum weights WEIGHTS, int TILES>
__device__ static void tall(const struct product &p, int group, struct product_rows rows,
                            int first_panel, unsigned char *shared)
{
    float4 *totals = (float4 *)shared;
    uint4 *in = (uint4 *)(totals + 2 * TILES * THREADS);
    uint4 *scales = in + 2 * step_size<TILES>(); /* [2][2 x SCALE_THREADS] */
    int own = warp_id() * (KIND == PRODUCT_UP ? 1 : 2);
    int steps = (p.tile_count + STEP_TILES - 1) / STEP_TILES;
    struct matrix matrix = product_matrix<KIND>(p, group, 0);
    bool has_minima = matrix.minima != NULL;
    float sum[2][TILES][4] = {};
    uint32_t words[2][step_words(WEIGHTS)];
    struct stage<TILES> stage;
    struct warp_weights weights = weights_of<KIND, WEIGHTS>(p, group, first_panel + own);
    stage_begin<KIND, TILES>(&stage, p, rows);
#pragma unroll
    for (int i = 0; i < 2 * stage_rows<TILES>(); i++) {
        stage_load<TILES>(&stage, p, i / 2, i % 2, 0);
        stage_store<TILES>(in, stage, i / 2, i % 2);
    }
    if (WEIGHTS == WEIGHTS_BY_INPUT)
        scales[threadIdx.x] = scales_words(stage_scales(p, matrix, first_panel, 0));
    step_load<WEIGHTS>(words, &weights, p, 0);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        int now = step % 2, then = (step + 1) % 2;
        const uint4 *own_scales = scales + now * 2 * SCALE_THREADS + own * STEP_TILES * 2;
        uint4 next_scales = make_uint4(0, 0, 0, 0);
        if (WEIGHTS == WEIGHTS_BY_INPUT)
            next_scales = stage_scales(p, matrix, first_panel, step + 1);
        __syncthreads(); /* this step's inputs are there; all are done with the one before */
        uint32_t a[2][2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int half = i / 2;
            if (i % 2 == 0)
                half_weights<WEIGHTS>(a, words, own_scales, has_minima, half);
            if (i == 2)
                step_load<WEIGHTS>(words, &weights, p, step + 1); /* zeros behind the last */
            if (i < 2 * stage_rows<TILES>())
                stage_load<TILES>(&stage, p, i / 2, i % 2, step + 1);
            half_product<TILES>(sum, a, in + (2 * now + half) * step_size<TILES>() / 2, i % 2);
            if (i < 2 * stage_rows<TILES>())
                stage_store<TILES>(in + then * step_size<TILES>(), stage, i / 2, i % 2);
        }
        if (WEIGHTS == WEIGHTS_BY_INPUT)
            scales[then * 2 * SCALE_THREADS + threadIdx.x] = scales_words(next_scales);
        if ((step + 1) % PART_STEPS == 0 || step + 1 == steps)
            totals_add<TILES>(totals, sum, step < PART_STEPS);
    }
    totals_write<KIND, TILES>(totals, p, rows, first_panel + own);
    __syncthreads(); /* before the inputs are others */
}

/* ---- The kernel ------------------------------------------------------------------------------ */

template <enum product_kind KIND> __device__ static int tall_panels()
{
    return KIND == PRODUCT_UP ? WARPS : PANELS;
}

/* Pieces of work of a group; neighbours have the same panels, whose weights the second-level cache
 * then has. */
template <enum product_kind KIND, int TILES>
__device__ static int group_pieces(const struct product &p, int row_count)
{
    if (row_count <= p.flat_rows)
        return 0;
    return (int)(device_ceil_div(row_count, MMA_ROWS * TILES) *
                 device_ceil_div(p.panel_count, tall_panels<KIND>()));
}

template <enum product_kind KIND, enum weights WEIGHTS, int TILES>
__global__ void __launch_bounds__(THREADS, 1) product_int4_kernel(const struct product p)
{
    KERNEL_SHARED(unsigned char, shared);
    int group, piece;
    for (int64_t index = blockIdx.x;
         piece_find<KIND>(&group, &piece, p, index, group_pieces<KIND, TILES>);
         index += gridDim.x) {
        struct product_rows rows = product_rows_of<KIND>(p, group);
        int strips = (int)device_ceil_div(rows.count, MMA_ROWS * TILES);
        int strip = piece % strips, panel = piece / strips * tall_panels<KIND>();
        rows.first += strip * MMA_ROWS * TILES;
        rows.count = min(rows.count - strip * MMA_ROWS * TILES, MMA_ROWS * TILES);
        if (rows.count <= MMA_ROWS * TILES_FEW)
            tall<KIND, WEIGHTS, TILES_FEW>(p, group, rows, panel, shared);
        else
            tall<KIND, WEIGHTS, TILES>(p, group, rows, panel, shared);
    }
}

template <enum product_kind KIND, enum weights WEIGHTS, int TILES>
static cudaError_t int4_launch(const struct cuda_launch *launch, const struct product *p)
{
    cudaError_t failure =
        product_allow(launch, (const void *)product_int4_kernel<KIND, WEIGHTS, TILES>);
    if (failure != cudaSuccess)
        return failure;
    KERNEL_LAUNCH((product_int4_kernel<KIND, WEIGHTS, TILES>), (unsigned)launch->multiprocessors,
                  THREADS, tall_bytes(WEIGHTS, TILES), launch->stream, *p);
    return cudaGetLastError();
}

template <enum product_kind KIND, enum weights WEIGHTS>
static cudaError_t int4_run(const struct cuda_launch *launch, const struct product *p)
{
    if (tall_bytes(WEIGHTS, TILES_MAX) <= (size_t)launch->shared_bytes_max)
        return int4_launch<KIND, WEIGHTS, TILES_MAX>(launch, p);
    return int4_launch<KIND, WEIGHTS, TILES_FEW>(launch, p);
}

cudaError_t product_int4(const struct cuda_launch *launch, const struct product *of,
                         enum product_kind kind)
{
    struct product p = *of;
    cudaError_t failure = product_few(launch, &p, kind);
    if (failure != cudaSuccess || product_is_few(&p))
        return failure;
    if (kind == PRODUCT_UP)
        return int4_run<PRODUCT_UP, WEIGHTS_BY_OUTPUT>(launch, &p);
    if (kind == PRODUCT_DOWN)
        return int4_run<PRODUCT_DOWN, WEIGHTS_BY_INPUT>(launch, &p);
    return p.weight.packing == PACK_OUTPUT ? int4_run<PRODUCT_MATMUL, WEIGHTS_BY_OUTPUT>(launch, &p)
                                           : int4_run<PRODUCT_MATMUL, WEIGHTS_BY_INPUT>(launch, &p);
}

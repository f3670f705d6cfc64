/* Products with bf16 weights by matrix instructions.
 *
 * A tile of 16 outputs and 16 columns, as it is packed, is the left operand: the instruction's rows
 * g and g + 8 are outputs 2g and 2g + 1, so a lane takes it by two loads of 8 bytes, and a warp
 * reads 512 bytes that lie together. Weights go from memory to registers, each read once by the
 * block; no two of its warps have the same. Inputs are the right operand, eight rows of them at a
 * time.
 *
 * Up to FLAT_ROWS rows of a group are `flat`: each warp takes other parts of the columns, so that
 * many bytes are under way, and reads inputs where they are. More are `tall`: a block has up to
 * 8 x TALL_TILES rows, whose inputs stand in shared memory, and each warp two tiles of outputs.
 * Sums are as in product.cuh, with parts of MMA_PART_TILES tiles. */
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product.cuh"

#define WARPS          8
#define THREADS        (WARPS * WARP)
#define MMA_PART_TILES 32
#define MMA_ROWS       8 /* rows of inputs in an instruction */
#define FLAT_TILES     4
#define FLAT_ROWS      (MMA_ROWS * FLAT_TILES)
#define FLAT_LOADS     8 /* tiles of weights that a warp has under way */
#define TALL_TILES     16
#define TALL_ROWS      (MMA_ROWS * TALL_TILES)
#define TILE_PAIRS     64 /* 8 bytes each, in a tile of weights */

__device__ static int lane_group()
{
    return lane_id() / 4;
}

__device__ static int lane_in_group()
{
    return lane_id() % 4;
}

__host__ __device__ static int mma_parts(int tile_count)
{
    return (tile_count + MMA_PART_TILES - 1) / MMA_PART_TILES;
}

/* The lane's part of a tile of weights. */
__device__ static void weights_load(uint32_t a[4], const uint2 *tile)
{
    const uint2 *at = tile + lane_in_group() * 8 + lane_group();
    uint2 low = at[0], high = at[TILE_PAIRS / 2];
    a[0] = low.x;
    a[1] = low.y;
    a[2] = high.x;
    a[3] = high.y;
}

/* Sums of outputs 2g and 2g + 1 of a panel for rows 2t and 2t + 1 from `row` on. */
template <enum product_kind KIND>
__device__ static void sums_write(const struct product &p, struct product_rows rows, int row,
                                  int panel, const float gate[4], const float up[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = row + 2 * lane_in_group() + i % 2;
        int output = panel * PACK_BLOCK + 2 * lane_group() + i / 2;
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

/* A column of the right operand: 16 inputs of one row, of which the lane has four. */
__device__ static void inputs_load(uint32_t b[2], const float *in)
{
    float2 low = *(const float2 *)(in + 2 * lane_in_group());
    float2 high = *(const float2 *)(in + 2 * lane_in_group() + 8);
    b[0] = bf16_pair(low.x, low.y);
    b[1] = bf16_pair(high.x, high.y);
}

/* One part of a panel for all rows. in[n] is row 8n + g, or any other: what a column gives does not
 * touch the others. */
template <enum product_kind KIND, int MATS, int TILES>
__device__ static void part_sum(float sum[MATS][TILES][4], const struct product &p, int group,
                                int panel, int part, const float *const in[TILES])
{
    int first = part * MMA_PART_TILES, count = min(p.tile_count - first, MMA_PART_TILES);
    int64_t at = product_tile<KIND>(p, panel, first) * TILE_PAIRS;
    int64_t step = (product_tile<KIND>(p, panel, 1) - product_tile<KIND>(p, panel, 0)) * TILE_PAIRS;
    const uint2 *weights[MATS];
    for (int m = 0; m < MATS; m++) {
        weights[m] = (const uint2 *)product_matrix<KIND>(p, group, m).data + at;
        for (int n = 0; n < TILES; n++)
            sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0;
    }
    for (int k = 0; k < count; k += FLAT_LOADS) {
        uint32_t a[FLAT_LOADS][MATS][4];
#pragma unroll
        for (int i = 0; i < FLAT_LOADS; i++) {
#pragma unroll
            for (int m = 0; m < MATS; m++) {
                if (k + i < count)
                    weights_load(a[i][m], weights[m] + (k + i) * step);
            }
        }
#pragma unroll
        for (int i = 0; i < FLAT_LOADS; i++) {
            if (k + i >= count)
                break;
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                uint32_t b[2];
                inputs_load(b, in[n] + (first + k + i) * PACK_BLOCK);
#pragma unroll
                for (int m = 0; m < MATS; m++)
                    mma_bf16(sum[m][n], a[i][m], b);
            }
        }
    }
}

/* Panels first_panel .. + panel_count - 1 for all rows of a group, at most 8 x TILES. The block's
 * warps take the pairs of a panel and a part; their sums stand in shared memory,
 * [pair][matrix][tile of rows][lane], until all are there. */
template <enum product_kind KIND, int TILES>
__device__ static void flat(const struct product &p, int group, struct product_rows rows,
                            int first_panel, int panel_count, float4 *sums)
{
    const int mats = KIND == PRODUCT_UP ? 2 : 1;
    int parts = mma_parts(p.tile_count);
    const float *in[TILES];
    for (int n = 0; n < TILES; n++) {
        int row = min(n * MMA_ROWS + lane_group(), rows.count - 1);
        in[n] = product_input<KIND>(p, rows.first + row);
    }
    for (int pair = warp_id(); pair < panel_count * parts; pair += WARPS) {
        float sum[mats][TILES][4];
        part_sum<KIND, mats, TILES>(sum, p, group, first_panel + pair / parts, pair % parts, in);
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
        float total[2][4];
        for (int m = 0; m < mats; m++) {
            for (int part = 0; part < parts; part++) {
                float4 of =
                    sums[(((panel * parts + part) * mats + m) * TILES + n) * WARP + lane_id()];
                float next[4] = {of.x, of.y, of.z, of.w};
                for (int j = 0; j < 4; j++)
                    total[m][j] = part == 0 ? next[j] : total[m][j] + next[j];
            }
        }
        sums_write<KIND>(p, rows, n * MMA_ROWS, first_panel + panel, total[0], total[mats - 1]);
    }
    __syncthreads(); /* before the sums are others */
}

/* ---- Many rows ------------------------------------------------------------------------------- */

/* Columns are gone through by chunks of two tiles. Of a row and chunk the 16 pairs of inputs stand
 * as the right operands of a lane need them: its four words together, [t][tile][low, high]. */
#define CHUNK_TILES   2
#define CHUNK_COLUMNS (CHUNK_TILES * PACK_BLOCK)
#define CHUNK_WORDS   (CHUNK_COLUMNS / 2)
#define ROW_FLOAT4S   (CHUNK_COLUMNS / 4)

/* A thread brings one float4 of each of TILES / 4 rows. */
template <int TILES> struct inputs_stage {
    const float *from[TILES / 4]; /* NULL: no such row */
    float4 value[TILES / 4];
};

template <enum product_kind KIND, int TILES>
__device__ static void stage_begin(struct inputs_stage<TILES> *stage, const struct product &p,
                                   struct product_rows rows)
{
    for (int i = 0; i < TILES / 4; i++) {
        int row = i * (THREADS / ROW_FLOAT4S) + (int)threadIdx.x / ROW_FLOAT4S;
        stage->from[i] = row < rows.count ? product_input<KIND>(p, rows.first + row) : NULL;
    }
}

template <int TILES>
__device__ static void stage_load(struct inputs_stage<TILES> *stage, const struct product &p,
                                  int chunk)
{
    int column = chunk * CHUNK_COLUMNS + (int)threadIdx.x % ROW_FLOAT4S * 4;
#pragma unroll
    for (int i = 0; i < TILES / 4; i++) {
        stage->value[i] = make_float4(0, 0, 0, 0);
        if (stage->from[i] != NULL && column < p.tile_count * PACK_BLOCK)
            stage->value[i] = *(const float4 *)(stage->from[i] + column);
    }
}

template <int TILES>
__device__ static void stage_store(uint32_t *to, const struct inputs_stage<TILES> &stage)
{
    int pair = (int)threadIdx.x % ROW_FLOAT4S * 2; /* of the row's chunk, and the next one */
    int tile = pair / 8, high = pair % 8 / 4, t = pair % 4;
#pragma unroll
    for (int i = 0; i < TILES / 4; i++) {
        int row = i * (THREADS / ROW_FLOAT4S) + (int)threadIdx.x / ROW_FLOAT4S;
        uint32_t *at = to + row * CHUNK_WORDS + t * 4 + tile * 2 + high;
        at[0] = bf16_pair(stage.value[i].x, stage.value[i].y);
        at[4] = bf16_pair(stage.value[i].z, stage.value[i].w);
    }
}

/* The two tiles of outputs of a warp: gate and up of one panel, or two panels. */
struct warp_weights {
    const uint2 *tile[2]; /* at chunk 0; NULL: no such panel */
    int step;             /* from a tile to the next: a matrix has less than 2^31 x 8 bytes */
};

template <enum product_kind KIND>
__device__ static struct warp_weights warp_weights_of(const struct product &p, int group, int panel)
{
    struct warp_weights weights;
    for (int m = 0; m < 2; m++) {
        int of = KIND == PRODUCT_UP ? panel : panel + m;
        const uint2 *data =
            (const uint2 *)product_matrix<KIND>(p, group, KIND == PRODUCT_UP ? m : 0).data;
        weights.tile[m] =
            of < p.panel_count ? data + product_tile<KIND>(p, of, 0) * TILE_PAIRS : NULL;
    }
    weights.step = (int)(product_tile<KIND>(p, 0, 1) - product_tile<KIND>(p, 0, 0)) * TILE_PAIRS;
    return weights;
}

__device__ static void chunk_weights_load(uint32_t a[2][CHUNK_TILES][4],
                                          const struct warp_weights &weights,
                                          const struct product &p, int chunk)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int j = 0; j < CHUNK_TILES; j++) {
            int k = chunk * CHUNK_TILES + j;
            a[m][j][0] = a[m][j][1] = a[m][j][2] = a[m][j][3] = 0;
            if (weights.tile[m] != NULL && k < p.tile_count)
                weights_load(a[m][j], weights.tile[m] + k * weights.step);
        }
    }
}

template <int TILES>
__device__ static void chunk_product(float sum[2][TILES][4], const uint32_t a[2][CHUNK_TILES][4],
                                     const uint32_t *inputs)
{
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        const uint32_t *at =
            inputs + (n * MMA_ROWS + lane_group()) * CHUNK_WORDS + lane_in_group() * 4;
        uint4 four = *(const uint4 *)at;
        uint32_t b[CHUNK_TILES][2] = {{four.x, four.y}, {four.z, four.w}};
#pragma unroll
        for (int j = 0; j < CHUNK_TILES; j++) {
#pragma unroll
            for (int m = 0; m < 2; m++)
                mma_bf16(sum[m][n], a[m][j], b[j]);
        }
    }
}

/* Adds a part to the thread's sums of the parts before, and makes it 0. `totals` is
 * [2 x TILES][THREADS]. */
template <int TILES>
__device__ static void totals_add(float4 *totals, float sum[2][TILES][4], bool is_first)
{
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        float *of = sum[i / TILES][i % TILES];
        float4 *to = totals + i * THREADS + threadIdx.x, total = *to;
        if (is_first)
            total = make_float4(of[0], of[1], of[2], of[3]);
        else
            total = make_float4(total.x + of[0], total.y + of[1], total.z + of[2], total.w + of[3]);
        *to = total;
        of[0] = of[1] = of[2] = of[3] = 0;
    }
}

/* Bytes of shared memory: inputs of two chunks, and the totals. */
__host__ __device__ static size_t tall_bytes(int tiles)
{
    return 2 * sizeof(uint32_t) * CHUNK_WORDS * MMA_ROWS * tiles +
           sizeof(float4) * 2 * THREADS * tiles;
}

/* 8 x TILES rows at most, and two tiles of outputs for each warp. While a chunk is multiplied the
 * next one is on its way to registers. */
template <enum product_kind KIND, int TILES>
__device__ static void tall(const struct product &p, int group, struct product_rows rows,
                            int first_panel, unsigned char *shared)
{
    uint32_t *inputs = (uint32_t *)shared; /* [2][8 x TILES][CHUNK_WORDS] */
    const int inputs_words = MMA_ROWS * TILES * CHUNK_WORDS;
    float4 *totals = (float4 *)(inputs + 2 * inputs_words);
    int panel = first_panel + warp_id() * (KIND == PRODUCT_UP ? 1 : 2);
    int chunks = (p.tile_count + CHUNK_TILES - 1) / CHUNK_TILES;
    float sum[2][TILES][4] = {};
    uint32_t a[2][CHUNK_TILES][4], next[2][CHUNK_TILES][4];
    struct inputs_stage<TILES> stage;
    struct warp_weights weights = warp_weights_of<KIND>(p, group, panel);
    stage_begin<KIND, TILES>(&stage, p, rows);
    stage_load<TILES>(&stage, p, 0);
    chunk_weights_load(a, weights, p, 0);
    stage_store<TILES>(inputs, stage);
    for (int chunk = 0; chunk < chunks; chunk++) {
        if (chunk + 1 < chunks) {
            stage_load<TILES>(&stage, p, chunk + 1);
            chunk_weights_load(next, weights, p, chunk + 1);
        }
        __syncthreads(); /* this chunk's inputs are there; all are done with the one before */
        chunk_product<TILES>(sum, a, inputs + chunk % 2 * inputs_words);
        if ((chunk + 1) % (MMA_PART_TILES / CHUNK_TILES) == 0 || chunk + 1 == chunks)
            totals_add<TILES>(totals, sum, chunk < MMA_PART_TILES / CHUNK_TILES);
        if (chunk + 1 < chunks) {
            stage_store<TILES>(inputs + (chunk + 1) % 2 * inputs_words, stage);
            memcpy(a, next, sizeof a);
        }
    }
#pragma unroll 1
    for (int n = 0; n < TILES; n++) {
        float4 first = totals[n * THREADS + threadIdx.x];
        float4 second = totals[(TILES + n) * THREADS + threadIdx.x];
        float one[4] = {first.x, first.y, first.z, first.w};
        float two[4] = {second.x, second.y, second.z, second.w};
        if (weights.tile[0] != NULL)
            sums_write<KIND>(p, rows, n * MMA_ROWS, panel, one, two);
        if (KIND != PRODUCT_UP && weights.tile[1] != NULL)
            sums_write<KIND>(p, rows, n * MMA_ROWS, panel + 1, two, two);
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
template <enum product_kind KIND, int TILES>
__device__ static int group_pieces(const struct product &p, int row_count)
{
    if (row_count == 0)
        return 0;
    if (row_count <= FLAT_ROWS)
        return (int)device_ceil_div(p.panel_count, flat_panels(p.tile_count));
    return (int)(device_ceil_div(row_count, MMA_ROWS * TILES) *
                 device_ceil_div(p.panel_count, tall_panels<KIND>()));
}

/* Piece `piece` of a group of many rows. */
template <enum product_kind KIND, int TILES>
__device__ static void tall_piece(const struct product &p, int group, struct product_rows rows,
                                  int piece, unsigned char *shared)
{
    int strips = (int)device_ceil_div(rows.count, MMA_ROWS * TILES);
    int strip = piece % strips, panel = piece / strips * tall_panels<KIND>();
    rows.first += strip * MMA_ROWS * TILES;
    rows.count = min(rows.count - strip * MMA_ROWS * TILES, MMA_ROWS * TILES);
    if (TILES > TALL_TILES / 2 && rows.count <= MMA_ROWS * TALL_TILES / 2)
        tall<KIND, TALL_TILES / 2>(p, group, rows, panel, shared);
    else
        tall<KIND, TILES>(p, group, rows, panel, shared);
}

/* TILES: of rows, in the highest piece; 0: all groups are known to be flat. */
template <enum product_kind KIND, int TILES>
__global__ void __launch_bounds__(THREADS, TILES == 0 ? 2 : 1)
    product_mma_kernel(const struct product p)
{
    KERNEL_SHARED(unsigned char, shared);
    int group, piece;
    for (int64_t index = blockIdx.x; piece_find<KIND>(&group, &piece, p, index, group_pieces < KIND,
                                                      TILES == 0 ? TALL_TILES : TILES >);
         index += gridDim.x) {
        struct product_rows rows = product_rows_of<KIND>(p, group);
        if (TILES == 0 || rows.count <= FLAT_ROWS) {
            int panels = flat_panels(p.tile_count), first = piece * panels;
            panels = min(panels, p.panel_count - first);
            if (rows.count <= MMA_ROWS)
                flat<KIND, 1>(p, group, rows, first, panels, (float4 *)shared);
            else
                flat<KIND, FLAT_TILES>(p, group, rows, first, panels, (float4 *)shared);
            continue;
        }
        if (TILES > 0)
            tall_piece<KIND, TILES == 0 ? TALL_TILES : TILES>(p, group, rows, piece, shared);
    }
}

/* Bytes of shared memory that `flat` needs for its sums. */
static size_t flat_bytes(const struct product *p, int mats, int tiles)
{
    return sizeof(float4) * WARP *
           (size_t)(mats * tiles * flat_panels(p->tile_count) * mma_parts(p->tile_count));
}

template <enum product_kind KIND, int TILES>
static cudaError_t product_mma_launch(const struct cuda_launch *launch, const struct product *p)
{
    size_t bytes = flat_bytes(p, KIND == PRODUCT_UP ? 2 : 1, FLAT_TILES), tall = tall_bytes(TILES);
    int blocks = launch->multiprocessors * (TILES == 0 ? 2 : 1);
    bytes = bytes > tall ? bytes : tall; /* 0 of what is not there */
    cudaError_t failure =
        cudaFuncSetAttribute((const void *)product_mma_kernel<KIND, TILES>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (failure != cudaSuccess)
        return failure;
    KERNEL_LAUNCH((product_mma_kernel<KIND, TILES>), (unsigned)blocks, THREADS, bytes,
                  launch->stream, *p);
    return cudaGetLastError();
}

template <int TILES>
static cudaError_t product_mma_run(const struct cuda_launch *launch, const struct product *p,
                                   enum product_kind kind)
{
    if (kind == PRODUCT_UP)
        return product_mma_launch<PRODUCT_UP, TILES>(launch, p);
    if (kind == PRODUCT_DOWN)
        return product_mma_launch<PRODUCT_DOWN, TILES>(launch, p);
    return product_mma_launch<PRODUCT_MATMUL, TILES>(launch, p);
}

bool product_mma_takes(const struct cuda_launch *launch, const struct product *p)
{
    size_t most = (size_t)launch->shared_bytes_max;
    return launch->capability >= 80 && p->weight.dtype == DTYPE_BF16 &&
           tall_bytes(TALL_TILES / 2) <= most && flat_bytes(p, 2, FLAT_TILES) <= most;
}

cudaError_t product_mma(const struct cuda_launch *launch, const struct product *p,
                        enum product_kind kind)
{
    if (kind == PRODUCT_MATMUL && p->row_count <= FLAT_ROWS)
        return product_mma_launch<PRODUCT_MATMUL, 0>(launch, p);
    if (tall_bytes(TALL_TILES) <= (size_t)launch->shared_bytes_max)
        return product_mma_run<TALL_TILES>(launch, p, kind);
    return product_mma_run<TALL_TILES / 2>(launch, p, kind);
}

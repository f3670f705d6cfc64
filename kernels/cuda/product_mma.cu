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
 * Sums are as in product.cuh, with parts of MMA_PART_TILES tiles.
 *
 * A tall block of 128 rows and 16 tiles of outputs multiplies 2^20 times in 32 columns, for 16 KiB
 * of weights and 16 KiB of inputs (f32): 1/64 byte of each for a multiply-add; of 64 rows (GPUs
 * with 99 KiB of shared memory) 1/32 byte of weights. A warp reads 512 bytes of shared memory for
 * four instructions. A thread has 128 sums, 32 words of weights (this chunk's and the next one's),
 * and 16 each of inputs on their way and of right operands: with its addresses all 255 registers,
 * so there is one block a multiprocessor, with 144 KiB of shared memory (64 rows: 72). */
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

/* Where the lane's part of a tile of weights begins. */
__device__ static int weights_lane()
{
    return lane_in_group() * 8 + lane_group();
}

/* The lane's part of a tile of weights, which begins at `at`. */
__device__ static void weights_load(uint32_t a[4], const uint2 *at)
{
    uint2 low = at[0], high = at[TILE_PAIRS / 2];
    a[0] = low.x;
    a[1] = low.y;
    a[2] = high.x;
    a[3] = high.y;
}

__device__ static float4 float4_add(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
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
    int64_t at = product_tile<KIND>(p, panel, first) * TILE_PAIRS + weights_lane();
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
                a[i][m][0] = a[i][m][1] = a[i][m][2] = a[i][m][3] = 0;
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

/* A thread brings one float4 of each of TILES / 4 rows; behind the last row again that one, since
 * what a column gives does not touch the others. */
template <int TILES> struct inputs_stage {
    const float *from[TILES / 4];
    float4 value[TILES / 4];
};

template <enum product_kind KIND, int TILES>
__device__ static void stage_begin(struct inputs_stage<TILES> *stage, const struct product &p,
                                   struct product_rows rows)
{
    for (int i = 0; i < TILES / 4; i++) {
        int row = i * (THREADS / ROW_FLOAT4S) + (int)threadIdx.x / ROW_FLOAT4S;
        stage->from[i] = product_input<KIND>(p, rows.first + min(row, rows.count - 1)) +
                         threadIdx.x % ROW_FLOAT4S * 4;
    }
}

/* Brings chunk `chunk`; then the next one is next. */
template <int TILES>
__device__ static void stage_load(struct inputs_stage<TILES> *stage, const struct product &p,
                                  int chunk)
{
    int tile = chunk * CHUNK_TILES + (int)threadIdx.x % ROW_FLOAT4S / (PACK_BLOCK / 4);
#pragma unroll
    for (int i = 0; i < TILES / 4; i++) {
        stage->value[i] = make_float4(0, 0, 0, 0);
        if (tile < p.tile_count)
            stage->value[i] = *(const float4 *)stage->from[i];
        stage->from[i] += CHUNK_COLUMNS;
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
    const uint2 *at[2]; /* the lane's part of the next tile */
    int step;           /* from a tile to the next: a matrix has less than 2^31 x 8 bytes */
};

/* Behind the last panel there is again that one, which is not written. */
template <enum product_kind KIND>
__device__ static struct warp_weights warp_weights_of(const struct product &p, int group, int panel)
{
    struct warp_weights weights;
    for (int m = 0; m < 2; m++) {
        int of = min(KIND == PRODUCT_UP ? panel : panel + m, p.panel_count - 1);
        const uint2 *data =
            (const uint2 *)product_matrix<KIND>(p, group, KIND == PRODUCT_UP ? m : 0).data;
        weights.at[m] = data + product_tile<KIND>(p, of, 0) * TILE_PAIRS + weights_lane();
    }
    weights.step = (int)(product_tile<KIND>(p, 0, 1) - product_tile<KIND>(p, 0, 0)) * TILE_PAIRS;
    return weights;
}

/* Brings chunk `chunk`; then the next one is next. */
__device__ static void chunk_weights_load(uint32_t a[2][CHUNK_TILES][4],
                                          struct warp_weights *weights, const struct product &p,
                                          int chunk)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int j = 0; j < CHUNK_TILES; j++) {
            a[m][j][0] = a[m][j][1] = a[m][j][2] = a[m][j][3] = 0;
            if (chunk * CHUNK_TILES + j < p.tile_count)
                weights_load(a[m][j], weights->at[m]);
            weights->at[m] += weights->step;
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
        float4 *to = totals + i * THREADS + threadIdx.x;
        float4 part = make_float4(of[0], of[1], of[2], of[3]);
        *to = is_first ? part : float4_add(*to, part);
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
    chunk_weights_load(a, &weights, p, 0);
    stage_store<TILES>(inputs, stage);
    for (int chunk = 0; chunk < chunks; chunk++) {
        stage_load<TILES>(&stage, p, chunk + 1); /* zeros behind the last */
        chunk_weights_load(next, &weights, p, chunk + 1);
        __syncthreads(); /* this chunk's inputs are there; all are done with the one before */
        chunk_product<TILES>(sum, a, inputs + chunk % 2 * inputs_words);
        if ((chunk + 1) % (MMA_PART_TILES / CHUNK_TILES) == 0 || chunk + 1 == chunks)
            totals_add<TILES>(totals, sum, chunk < MMA_PART_TILES / CHUNK_TILES);
        stage_store<TILES>(inputs + (chunk + 1) % 2 * inputs_words, stage);
        memcpy(a, next, sizeof a);
    }
#pragma unroll 1
    for (int n = 0; n < TILES; n++) {
        float4 first = totals[n * THREADS + threadIdx.x];
        float4 second = totals[(TILES + n) * THREADS + threadIdx.x];
        float one[4] = {first.x, first.y, first.z, first.w};
        float two[4] = {second.x, second.y, second.z, second.w};
        if (panel < p.panel_count)
            sums_write<KIND>(p, rows, n * MMA_ROWS, panel, one, two);
        if (KIND != PRODUCT_UP && panel + 1 < p.panel_count)
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
        product_allow(launch, (const void *)product_mma_kernel<KIND, TILES>);
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

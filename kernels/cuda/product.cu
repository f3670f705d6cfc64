/* Products of activations with f32 and INT4 weights; and the launchers of all, which give those
 * with bf16 weights to product_mma.cu.
 *
 * A team is half a warp: 16 lanes, one for each output of a panel, that go down the panel's tiles
 * with 64 neighbouring bytes at a time, each weight read once by the block. Where a group has few
 * rows (FLAT_ROWS) every team of a block takes other parts of the columns, so that many bytes are
 * under way: `flat`. Where it has more, the teams of a block take other rows and panels of the same
 * part, whose inputs stand in shared memory: `tall`. A block goes through such pieces of work until
 * none is left; which groups have how many rows, only the device knows. */
#include "kernels/cuda/fixed.cuh"

#define TEAM          16
#define WARPS         4
#define THREADS       (WARPS * WARP)
#define TEAMS         (THREADS / TEAM)
#define FLAT_ROWS     4
#define NARROW_PANELS 16 /* of a matrix with few outputs, of which so many rows are few */
#define NARROW_ROWS   64
#define TEAM_ROWS     8               /* tall: of a team */
#define TALL_ROWS     (2 * TEAM_ROWS) /* tall: of a block; its warps have a panel each */

#define BLOCKS_PER_MULTIPROCESSOR 4

__device__ static int team_id()
{
    return (int)(threadIdx.x / TEAM);
}

__device__ static int team_lane()
{
    return (int)(threadIdx.x % TEAM);
}

/* The lanes of this team in its warp. */
__device__ static unsigned team_mask()
{
    return 0xFFFFu << (lane_id() & TEAM);
}

/* One part of a panel, of MATS matrices (gate and up, or one), as a team sums it. */
template <int MATS> struct panel_part {
    struct matrix matrix[MATS];
    int64_t first_tile; /* of the matrix */
    int64_t tile_step;  /* from a tile to the next, in tiles */
    int panel, part;
    int tile_count; /* in the part */
};

template <enum product_kind KIND, int MATS>
__device__ static struct panel_part<MATS> panel_part_of(const struct product &p, int group,
                                                        int panel, int part) {
    struct panel_part<MATS> of;
    for (int m = 0; m < MATS; m++)
        of.matrix[m] = product_matrix<KIND>(p, group, m);
    of.first_tile = product_tile<KIND>(p, panel, part *PART_TILES);
    of.tile_step = product_tile<KIND>(p, panel, 1) - product_tile<KIND>(p, panel, 0);
    of.panel = panel;
    of.part = part;
    of.tile_count = min(p.tile_count - part * PART_TILES, PART_TILES);
    return of;
}

/* ---- f32 ------------------------------------------------------------------------------------- */

/* The weights of four neighbouring columns: words 4q .. of a tile's column. */
__device__ static float4
four_weights(const uint32_t *words, int q)
{
    return make_float4(__uint_as_float(words[4 * q]), __uint_as_float(words[4 * q + 1]),
                       __uint_as_float(words[4 * q + 2]), __uint_as_float(words[4 * q + 3]));
}

__device__ static float four_products(float sum, float4 a, float4 b)
{
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    return fmaf(a.w, b.w, sum);
}

/* sum[m][r] = the part's sum of one output of matrix m, this lane's, and row r. in[r] are the
 * inputs at the part's first column. */
template <int MATS, int ROWS>
__device__ static void part_sum(float sum[MATS][ROWS], const struct panel_part<MATS> &of,
                                const float *const in[ROWS])
{
    const int words = PACK_BLOCK; /* of an output in a tile */
    int64_t step = of.tile_step * words * PACK_BLOCK;
    int64_t at = of.first_tile * words * PACK_BLOCK + team_lane();
    for (int m = 0; m < MATS; m++) {
        for (int r = 0; r < ROWS; r++)
            sum[m][r] = 0;
    }
#pragma unroll 2
    for (int k = 0; k < of.tile_count; k++, at += step) {
        uint32_t word[MATS][words];
#pragma unroll
        for (int m = 0; m < MATS; m++) {
#pragma unroll
            for (int i = 0; i < words; i++)
                word[m][i] = ((const uint32_t *)of.matrix[m].data)[at + i * PACK_BLOCK];
        }
#pragma unroll
        for (int q = 0; q < 4; q++) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float4 v = *(const float4 *)(in[r] + k * PACK_BLOCK + 4 * q);
#pragma unroll
                for (int m = 0; m < MATS; m++)
                    sum[m][r] = four_products(sum[m][r], four_weights(word[m], q), v);
            }
        }
    }
}

/* ---- int4 ------------------------------------------------------------------------------------ */

/* A team's inputs of one part. */
template <int ROWS> struct fixed_part {
    fixed_eight eights[ROWS][2 * PART_TILES];
    float units[ROWS][PART_TILES]; /* at each tile: of its unit */
    float sums[ROWS][PART_TILES];  /* with minima, at each tile: of its inputs, which the offsets of
                                    * outputs multiply, or of inputs times their offsets */
};

/* What multiplies the 16 inputs of a tile, and their offsets: 1 each where outputs have them. */
struct tile_factors {
    float scale[PACK_BLOCK], offset[PACK_BLOCK];
};

__device__ static float offset_of(const struct matrix &matrix, int64_t at)
{
    return bf16_widen(matrix.minima[at]) + 8.0f * bf16_widen(matrix.scales[at]);
}

template <bool BY_OUTPUT>
__device__ static void factors_load(struct tile_factors *out, const struct product &p,
                                    const struct matrix &matrix, int panel, int tile)
{
    int64_t at = ((int64_t)tile * p.scale_group_count + panel / p.scale_group_tiles) * PACK_BLOCK;
#pragma unroll
    for (int c = 0; c < PACK_BLOCK; c++) {
        out->scale[c] = BY_OUTPUT ? 1.0f : bf16_widen(matrix.scales[at + c]);
        out->offset[c] = 1.0f;
        if (!BY_OUTPUT && matrix.minima != NULL)
            out->offset[c] = offset_of(matrix, at + c);
    }
}

/* The largest `value` of the tiles that have their unit in common with this lane's. */
__device__ static uint32_t unit_most(uint32_t value, int tile, int start, bool by_output,
                                     int scale_group_tiles)
{
    uint32_t most = 0;
    for (int i = 0; i < UNIT_TILES; i++) {
        uint32_t other =
            __shfl_sync(team_mask(), value, team_lane() / UNIT_TILES * UNIT_TILES + i, TEAM);
        int of = tile / UNIT_TILES * UNIT_TILES + i;
        if (unit_start(of, by_output, scale_group_tiles) == start)
            most = max(most, other);
    }
    return most;
}

/* Rounds row `r` of the part; a lane has a tile. in: at the part's first column. */
template <bool BY_OUTPUT, int ROWS>
__device__ static void fixed_row(struct fixed_part<ROWS> *out, int r, const struct product &p,
                                 const struct matrix &matrix, int panel, int first_tile,
                                 int tile_count, const float *in)
{
    struct tile_factors factors;
    float value[PACK_BLOCK], inverse, sum = 0;
    uint32_t most = 0;
    int lane = team_lane(), tile = first_tile + lane;
    int start = unit_start(tile, BY_OUTPUT, p.scale_group_tiles);
    if (lane < tile_count) {
        factors_load<BY_OUTPUT>(&factors, p, matrix, panel, tile);
#pragma unroll
        for (int c = 0; c < PACK_BLOCK; c++) {
            value[c] = in[lane * PACK_BLOCK + c];
            sum = fmaf(value[c], factors.offset[c], sum);
            value[c] *= factors.scale[c];
            most = max(most, magnitude_bits(value[c]));
        }
    }
    most = unit_most(most, tile, start, BY_OUTPUT, p.scale_group_tiles);
    if (lane >= tile_count)
        return;
    out->units[r][lane] = fixed_unit(&inverse, most);
    out->sums[r][lane] = sum;
    out->eights[r][2 * lane] = fixed_pack(value, inverse);
    out->eights[r][2 * lane + 1] = fixed_pack(value + 8, inverse);
}

/* As part_sum; `kept` is the team's. in[r] are the inputs at the part's first column. */
template <bool BY_OUTPUT, int MATS, int ROWS>
__device__ static void part_sum_int4(float sum[MATS][ROWS], const struct product &p,
                                     const struct panel_part<MATS> &of, const float *const in[ROWS],
                                     struct fixed_part<ROWS> *kept)
{
    int first = of.part * PART_TILES;
    struct fixed_sum whole[MATS][ROWS] = {};
    __syncwarp(team_mask()); /* the team has used what stands there */
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        fixed_row<BY_OUTPUT, ROWS>(kept, r, p, of.matrix[0], of.panel, first, of.tile_count, in[r]);
    __syncwarp(team_mask());
    for (int m = 0; m < MATS; m++) {
        for (int r = 0; r < ROWS; r++)
            sum[m][r] = 0;
    }
    for (int k = 0; k < of.tile_count; k++) {
        int64_t at = (of.first_tile + k * of.tile_step) * 2 * PACK_BLOCK + team_lane();
        int start = unit_start(first + k, BY_OUTPUT, p.scale_group_tiles);
        bool is_last = k + 1 == of.tile_count ||
                       unit_start(first + k + 1, BY_OUTPUT, p.scale_group_tiles) != start;
#pragma unroll
        for (int m = 0; m < MATS; m++) {
            const struct matrix &matrix = of.matrix[m];
            float scale = 1, offset = 1;
            if (BY_OUTPUT) {
                int64_t group =
                    (int64_t)of.panel * p.scale_group_count + (first + k) / p.scale_group_tiles;
                scale = bf16_widen(matrix.scales[group * PACK_BLOCK + team_lane()]);
                if (matrix.minima != NULL)
                    offset = offset_of(matrix, group * PACK_BLOCK + team_lane());
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t word = ((const uint32_t *)matrix.data)[at + i * PACK_BLOCK];
                uint32_t even = nibbles_even(word), odd = nibbles_odd(word);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    dot_eight(&whole[m][r], kept->eights[r][2 * k + i], even, odd);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (matrix.minima != NULL)
                    sum[m][r] = fmaf(offset, kept->sums[r][k], sum[m][r]);
                if (!is_last)
                    continue;
                float factor = kept->units[r][k] * scale;
                sum[m][r] = fmaf(fixed_sum_value(whole[m][r]), factor, sum[m][r]);
                whole[m][r].high = whole[m][r].low = 0;
            }
        }
    }
}

/* ---- Few rows -------------------------------------------------------------------------------- */

/* What a team sums with, whatever the type of the weights. */
template <enum product_kind KIND, enum dtype DTYPE, int ROWS>
__device__ static void team_sum(float sum[KIND == PRODUCT_UP ? 2 : 1][ROWS],
                                const struct product &p,
                                const struct panel_part<KIND == PRODUCT_UP ? 2 : 1> &of,
                                const float *const in[ROWS], unsigned char *kept)
{
    const int mats = KIND == PRODUCT_UP ? 2 : 1;
    struct fixed_part<ROWS> *fixed =
        (struct fixed_part<ROWS> *)(kept + team_id() * sizeof(struct fixed_part<ROWS>));
    if (DTYPE != DTYPE_INT4)
        part_sum<mats, ROWS>(sum, of, in);
    else if (KIND == PRODUCT_DOWN || (KIND == PRODUCT_MATMUL && p.weight.packing == PACK_INPUT))
        part_sum_int4<false, mats, ROWS>(sum, p, of, in, fixed);
    else
        part_sum_int4<true, mats, ROWS>(sum, p, of, in, fixed);
}

/* Bytes of shared memory, beside the sums, that `flat` needs for ROWS rows. */
template <enum dtype DTYPE, int ROWS> __host__ __device__ constexpr size_t flat_kept_bytes()
{
    return DTYPE == DTYPE_INT4 ? TEAMS * sizeof(struct fixed_part<ROWS>) : 0;
}

/* Panels first_panel .. + panel_count - 1 for all rows of a group, at most ROWS. The block's teams
 * take the pairs of a panel and a part; their sums stand in shared memory,
 * [pair][matrix][row][output], until all are there. */
template <enum product_kind KIND, enum dtype DTYPE, int ROWS>
__device__ static void flat(const struct product &p, int group, struct product_rows rows,
                            int first_panel, int panel_count, unsigned char *shared)
{
    const int mats = KIND == PRODUCT_UP ? 2 : 1;
    float *sums = (float *)(shared + flat_kept_bytes<DTYPE, ROWS>());
    const float *in[ROWS];
    for (int r = 0; r < ROWS; r++)
        in[r] = product_input<KIND>(p, rows.first + min(r, rows.count - 1));
    for (int pair = team_id(); pair < panel_count * p.part_count; pair += TEAMS) {
        int part = pair % p.part_count;
        struct panel_part<mats> of =
            panel_part_of<KIND, mats>(p, group, first_panel + pair / p.part_count, part);
        const float *from[ROWS];
        float sum[mats][ROWS];
        for (int r = 0; r < ROWS; r++)
            from[r] = in[r] + part * PART_COLUMNS;
        team_sum<KIND, DTYPE, ROWS>(sum, p, of, from, shared);
        for (int m = 0; m < mats; m++) {
            for (int r = 0; r < ROWS; r++)
                sums[((pair * mats + m) * ROWS + r) * PACK_BLOCK + team_lane()] = sum[m][r];
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < panel_count * rows.count * PACK_BLOCK; i += THREADS) {
        int output = i % PACK_BLOCK, r = i / PACK_BLOCK % rows.count;
        int panel = i / PACK_BLOCK / rows.count;
        float total[2] = {0, 0};
        for (int part = 0; part < p.part_count; part++) {
            for (int m = 0; m < mats; m++)
                total[m] +=
                    sums[(((panel * p.part_count + part) * mats + m) * ROWS + r) * PACK_BLOCK +
                         output];
        }
        product_write<KIND>(p, rows.first + r, (first_panel + panel) * PACK_BLOCK + output,
                            total[0], total[1]);
    }
    __syncthreads(); /* before the sums are others */
}

/* ---- Many rows ------------------------------------------------------------------------------- */

template <enum dtype DTYPE> __host__ __device__ constexpr size_t tall_bytes()
{
    return DTYPE == DTYPE_INT4 ? TEAMS * sizeof(struct fixed_part<TEAM_ROWS>)
                               : TALL_ROWS * PART_COLUMNS * sizeof(float);
}

/* The inputs of a part to shared memory, [TALL_ROWS][PART_COLUMNS]; zeros behind the last row. */
template <enum product_kind KIND>
__device__ static void inputs_stage(float *out, const struct product &p, struct product_rows rows,
                                    int part)
{
    int columns = min(p.tile_count - part * PART_TILES, PART_TILES) * PACK_BLOCK;
    int c = (int)(threadIdx.x % (PART_COLUMNS / 4)) * 4;
    if (c >= columns)
        return;
    for (int r = (int)(threadIdx.x / (PART_COLUMNS / 4)); r < TALL_ROWS;
         r += THREADS / (PART_COLUMNS / 4)) {
        float4 v = make_float4(0, 0, 0, 0);
        if (r < rows.count)
            v = *(const float4 *)(product_input<KIND>(p, rows.first + r) + part * PART_COLUMNS + c);
        *(float4 *)(out + r * PART_COLUMNS + c) = v;
    }
}

/* TALL_ROWS rows at most, and a panel for each warp. */
template <enum product_kind KIND, enum dtype DTYPE>
__device__ static void tall(const struct product &p, int group, struct product_rows rows,
                            int first_panel, unsigned char *shared)
{
    const int mats = KIND == PRODUCT_UP ? 2 : 1;
    int panel = first_panel + warp_id(), first_row = team_id() % 2 * TEAM_ROWS;
    float total[mats][TEAM_ROWS] = {};
    for (int part = 0; part < p.part_count; part++) {
        const float *in[TEAM_ROWS];
        if (DTYPE != DTYPE_INT4) {
            __syncthreads(); /* all have used what stands there */
            inputs_stage<KIND>((float *)shared, p, rows, part);
            __syncthreads();
        }
        for (int r = 0; r < TEAM_ROWS; r++) {
            int row = min(first_row + r, rows.count - 1); /* what is computed twice is not used */
            in[r] = DTYPE != DTYPE_INT4
                        ? (const float *)shared + (first_row + r) * PART_COLUMNS
                        : product_input<KIND>(p, rows.first + row) + part * PART_COLUMNS;
        }
        if (panel >= p.panel_count)
            continue;
        float sum[mats][TEAM_ROWS];
        struct panel_part<mats> of = panel_part_of<KIND, mats>(p, group, panel, part);
        team_sum<KIND, DTYPE, TEAM_ROWS>(sum, p, of, in, shared);
        for (int m = 0; m < mats; m++) {
            for (int r = 0; r < TEAM_ROWS; r++)
                total[m][r] += sum[m][r];
        }
    }
    for (int r = 0; r < TEAM_ROWS; r++) {
        if (panel < p.panel_count && first_row + r < rows.count)
            product_write<KIND>(p, rows.first + first_row + r, panel * PACK_BLOCK + team_lane(),
                                total[0][r], total[mats - 1][r]);
    }
    __syncthreads(); /* before the inputs are others */
}

/* ---- The kernel ------------------------------------------------------------------------------ */

/* Panels of a piece of `flat`: as many as give each team a part to do, where parts are few. */
__host__ __device__ static int flat_panels(int part_count)
{
    return part_count >= TEAMS ? 1 : part_count >= TEAMS / 2 ? 2 : 4;
}

/* Whether a group goes by `flat`: few rows do, and of a matrix with few outputs, as routers are,
 * more of them, FLAT_ROWS at a time: by `tall` some blocks would have all work. */
__device__ static bool is_flat(const struct product &p, int row_count)
{
    return row_count <= (p.panel_count <= NARROW_PANELS ? NARROW_ROWS : FLAT_ROWS);
}

/* Pieces of work of a group; neighbours have the same panels, whose weights the second-level cache
 * then has. */
__device__ static int group_pieces(const struct product &p, int row_count)
{
    if (row_count == 0)
        return 0;
    if (is_flat(p, row_count))
        return (int)(device_ceil_div(row_count, FLAT_ROWS) *
                     device_ceil_div(p.panel_count, flat_panels(p.part_count)));
    return (int)(device_ceil_div(row_count, TALL_ROWS) * device_ceil_div(p.panel_count, WARPS));
}

template <enum product_kind KIND, enum dtype DTYPE>
__global__ void __launch_bounds__(THREADS, 2) product_kernel(const struct product p)
{
    KERNEL_SHARED(unsigned char, shared);
    int group, piece;
    product_groups_count<KIND>(p);
    for (int64_t index = blockIdx.x; piece_find<KIND>(&group, &piece, p, index, group_pieces);
         index += gridDim.x) {
        struct product_rows rows = product_rows_of<KIND>(p, group);
        if (is_flat(p, rows.count)) {
            int strips = (int)device_ceil_div(rows.count, FLAT_ROWS), strip = piece % strips;
            int panels = flat_panels(p.part_count), first = piece / strips * panels;
            rows.first += strip * FLAT_ROWS;
            rows.count = min(rows.count - strip * FLAT_ROWS, FLAT_ROWS);
            panels = min(panels, p.panel_count - first);
            if (rows.count == 1)
                flat<KIND, DTYPE, 1>(p, group, rows, first, panels, shared);
            else
                flat<KIND, DTYPE, FLAT_ROWS>(p, group, rows, first, panels, shared);
            continue;
        }
        int strips = (int)device_ceil_div(rows.count, TALL_ROWS);
        int strip = piece % strips, panel = piece / strips * WARPS;
        rows.first += strip * TALL_ROWS;
        rows.count = min(rows.count - strip * TALL_ROWS, TALL_ROWS);
        tall<KIND, DTYPE>(p, group, rows, panel, shared);
    }
}

template <enum product_kind KIND, enum dtype DTYPE>
static cudaError_t product_launch(const struct cuda_launch *launch, const struct product *p)
{
    const int mats = KIND == PRODUCT_UP ? 2 : 1;
    size_t pairs = (size_t)flat_panels(p->part_count) * (size_t)p->part_count;
    size_t bytes =
        flat_kept_bytes<DTYPE, FLAT_ROWS>() + pairs * mats * FLAT_ROWS * PACK_BLOCK * sizeof(float);
    bytes = bytes > tall_bytes<DTYPE>() ? bytes : tall_bytes<DTYPE>();
    if (bytes > 48 * 1024) {
        cudaError_t failure = product_allow(launch, (const void *)product_kernel<KIND, DTYPE>);
        if (failure != cudaSuccess)
            return failure;
    }
    int64_t blocks = (int64_t)launch->multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    int64_t pieces_most = p->panel_count * p->row_count;
    if (KIND == PRODUCT_MATMUL && pieces_most < blocks)
        blocks = pieces_most;
    KERNEL_LAUNCH((product_kernel<KIND, DTYPE>), (unsigned)blocks, THREADS, bytes, launch->stream,
                  *p);
    return cudaGetLastError();
}

template <enum product_kind KIND>
static cudaError_t product_run(const struct cuda_launch *launch, const struct product *p)
{
    if (p->weight.dtype == DTYPE_BF16)
        return product_mma(launch, p, KIND);
    if (p->weight.dtype == DTYPE_INT4 && launch->capability >= CUDA_BF16_CAPABILITY)
        return product_int4(launch, p, KIND);
    if (p->weight.dtype == DTYPE_INT4)
        return product_launch<KIND, DTYPE_INT4>(launch, p);
    return product_launch<KIND, DTYPE_F32>(launch, p);
}

static struct product product_shape(const struct matrix *weight)
{
    struct product p = {};
    p.weight = *weight;
    p.group_count = 1;
    p.panel_count = (int)ceil_div(weight->rows, PACK_BLOCK);
    p.tile_count = (int)ceil_div(weight->columns, PACK_BLOCK);
    p.part_count = (int)ceil_div(p.tile_count, PART_TILES);
    if (weight->dtype == DTYPE_INT4) {
        bool by_output = weight->packing == PACK_OUTPUT;
        p.scale_group_tiles = (int)(weight->group / PACK_BLOCK);
        p.scale_group_count =
            (int)ceil_div(by_output ? p.tile_count : p.panel_count, p.scale_group_tiles);
        p.scale_group_inverse = UINT32_MAX / (uint32_t)p.scale_group_tiles;
    }
    return p;
}

/* For inputs as bf16, where product_wgmma takes them. */
static size_t product_scratch(const struct cuda_launch *launch, const struct matrix *weight,
                              int64_t position_most, int64_t group_count)
{
    if (!product_wgmma_takes(launch, weight->dtype, position_most))
        return 0;
    return product_wgmma_scratch(position_most, (int)group_count,
                                 (int)ceil_div(weight->columns, PACK_BLOCK));
}

size_t cuda_matmul_scratch(const struct cuda_launch *launch, const struct op_matmul *op)
{
    return product_scratch(launch, &op->weight, op->row_count, 1);
}

size_t cuda_ffn_up_scratch(const struct cuda_launch *launch, const struct op_ffn_up *op,
                           const struct ffn_weights *first)
{
    return product_scratch(launch, &first->gate, op->position_most, op->group_count);
}

size_t cuda_ffn_down_scratch(const struct cuda_launch *launch, const struct op_ffn_down *op,
                             const struct ffn_weights *first)
{
    return product_scratch(launch, &first->down, op->position_most, op->group_count);
}

cudaError_t cuda_matmul(const struct cuda_launch *launch, const struct op_matmul *op)
{
    if (op->row_count == 0 || op->weight.rows == 0)
        return cudaSuccess;
    struct product p = product_shape(&op->weight);
    p.out = op->out;
    p.in = op->in;
    p.bias = op->bias;
    p.row_count = p.row_limit = p.position_most = op->row_count;
    p.out_stride = op->out_stride;
    p.in_stride = op->in_stride;
    return product_run<PRODUCT_MATMUL>(launch, &p);
}

cudaError_t cuda_ffn_up(const struct cuda_launch *launch, const struct op_ffn_up *op,
                        const struct ffn_weights *first)
{
    if (op->group_count == 0)
        return cudaSuccess;
    struct product p = product_shape(&first->gate);
    p.out = op->out;
    p.in = op->in;
    p.groups = op->groups;
    p.offsets = op->offsets;
    p.token_of = op->token_of;
    p.position_most = op->position_most;
    p.group_count = (int)op->group_count;
    p.row_limit = op->row_limit;
    p.groups_with_rows = launch->groups_with_rows;
    p.out_stride = op->out_stride;
    p.in_stride = op->in_stride;
    return product_run<PRODUCT_UP>(launch, &p);
}

cudaError_t cuda_ffn_down(const struct cuda_launch *launch, const struct op_ffn_down *op,
                          const struct ffn_weights *first)
{
    if (op->group_count == 0)
        return cudaSuccess;
    struct product p = product_shape(&first->down);
    p.out = op->out;
    p.in = op->in;
    p.groups = op->groups;
    p.offsets = op->offsets;
    p.position_most = op->position_most;
    p.group_count = (int)op->group_count;
    p.row_limit = op->row_limit;
    p.groups_with_rows = launch->groups_with_rows;
    p.out_stride = op->out_stride;
    p.in_stride = op->in_stride;
    return product_run<PRODUCT_DOWN>(launch, &p);
}

/* From INT4 to the numbers that a native matrix has.
 *
 * A tile is 16 x 16 weights. In: 128 bytes, [2][16] words, a word for 8 columns of a row. Out: 512
 * bytes of bf16, [8][16] pairs of columns; or 1024 of f32, [16][16]. In both packings tiles stand
 * one behind another in either form, and the 16 scales of a panel and group stand together
 * (layout/packing.h). A thread makes 16 bytes: four rows of one pair of columns, or of one column;
 * so a warp writes 512 bytes that lie together, and its four threads that need the same words are
 * served by one read. Bytes: the matrix and the result once. */
#include "kernels/cuda/parts.cuh"

#define THREADS      256
#define WARPS        (THREADS / WARP)
#define TILE_THREADS 32 /* of bf16: 16 bytes each */
#define TILE_WORDS   32
#define WARP_TILES   4 /* that a warp has on their way at once, one behind another */

/* Pairs of bf16: the scales, or minima, of a thread's four rows; or of its columns, that have one
 * for all rows. `at` is the first's place: a multiple of 4, or of 2 where there are two columns. */
template <bool BF16, bool BY_OUTPUT>
__device__ static uint2 factors_load(const uint16_t *from, int64_t at)
{
    if (BY_OUTPUT)
        return *(const uint2 *)(from + at);
    return make_uint2(BF16 ? *(const uint32_t *)(from + at) : from[at], 0);
}

__device__ static float factor_of(uint2 pairs, int i)
{
    uint32_t pair = i / 2 == 0 ? pairs.x : pairs.y;
    return i % 2 == 0 ? pair_low(pair) : pair_high(pair);
}

/* A nibble below the leading bit of 2^23 is that number's last digits: as a float without a
 * conversion, of which a multiprocessor makes few at a time. A product of a bf16 and a nibble is
 * exact in f32, so the sum is rounded once. */
__device__ static float weight_of(uint32_t word, int nibble, float scale, float minimum)
{
    float digits = __uint_as_float((word >> (4 * nibble) & 15u) | 0x4B000000u) - 0x1p23f;
    return fmaf(digits, scale, minimum);
}

/* Blocks [tiles of a panel][panels]. A warp makes WARP_TILES tiles of bf16, or half as many of f32:
 * all that it needs is asked for before the first is made. */
template <bool BF16, bool BY_OUTPUT>
__global__ void __launch_bounds__(THREADS)
    dequantize_kernel(uint4 *out, const struct matrix in, int panel_tiles, int group_tiles)
{
    const int threads = BF16 ? TILE_THREADS : 2 * TILE_THREADS; /* of a tile */
    const int units = panel_tiles * threads;                    /* of 16 bytes of a panel */
    const int first = (int)(blockIdx.x * WARPS + warp_id()) * (WARP_TILES * WARP) + lane_id();
    int64_t panel = blockIdx.y;
    int64_t groups = (panel_tiles + group_tiles - 1) / group_tiles;
    uint4 words[WARP_TILES];
    uint2 scales[WARP_TILES], minima[WARP_TILES];
#pragma unroll
    for (int i = 0; i < WARP_TILES; i++) {
        int unit = first + i * WARP, tile = unit / threads, part = unit % threads;
        int rows = part % 4 * 4, column = BF16 ? part / 4 * 2 : part / 4;
        words[i] = make_uint4(0, 0, 0, 0);
        scales[i] = minima[i] = make_uint2(0, 0);
        if (unit >= units)
            continue;
        words[i] =
            *(const uint4 *)((const uint32_t *)in.data + (panel * panel_tiles + tile) * TILE_WORDS +
                             column / 8 * PACK_BLOCK + rows);
        int64_t at =
            (panel * groups + tile / group_tiles) * PACK_BLOCK + (BY_OUTPUT ? rows : column);
        scales[i] = factors_load<BF16, BY_OUTPUT>(in.scales, at);
        if (in.minima != NULL)
            minima[i] = factors_load<BF16, BY_OUTPUT>(in.minima, at);
    }
#pragma unroll
    for (int i = 0; i < WARP_TILES; i++) {
        int unit = first + i * WARP, part = unit % threads;
        int column = BF16 ? part / 4 * 2 : part / 4;
        uint32_t word[4] = {words[i].x, words[i].y, words[i].z, words[i].w}, made[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float value[2];
#pragma unroll
            for (int c = 0; c < (BF16 ? 2 : 1); c++) {
                int of = BY_OUTPUT ? r : c;
                float scale = factor_of(scales[i], of);
                float minimum = in.minima != NULL ? factor_of(minima[i], of) : -8.0f * scale;
                value[c] = weight_of(word[r], column % 8 + c, scale, minimum);
            }
            made[r] = BF16 ? bf16_pair(value[0], value[1]) : __float_as_uint(value[0]);
        }
        if (unit < units)
            out[panel * units + unit] = make_uint4(made[0], made[1], made[2], made[3]);
    }
}

template <bool BF16, bool BY_OUTPUT>
static void dequantize_launch(const struct cuda_launch *launch, const struct op_dequantize *op)
{
    const struct matrix *in = &op->in;
    int64_t panels = (BY_OUTPUT ? in->rows : in->columns) / PACK_BLOCK;
    int64_t panel_tiles = (BY_OUTPUT ? in->columns : in->rows) / PACK_BLOCK;
    int64_t per_block = WARPS * WARP_TILES / (BF16 ? 1 : 2);
    dim3 grid(grid_for(panel_tiles, per_block), (unsigned)panels);
    KERNEL_LAUNCH((dequantize_kernel<BF16, BY_OUTPUT>), grid, THREADS, 0, launch->stream,
                  (uint4 *)op->out, *in, (int)panel_tiles, (int)(in->group / PACK_BLOCK));
}

cudaError_t cuda_dequantize(const struct cuda_launch *launch, const struct op_dequantize *op)
{
    bool by_output = op->in.packing == PACK_OUTPUT, is_bf16 = op->dtype == DTYPE_BF16;
    if (op->in.rows == 0 || op->in.columns == 0)
        return cudaSuccess;
    if (is_bf16 && by_output)
        dequantize_launch<true, true>(launch, op);
    else if (is_bf16)
        dequantize_launch<true, false>(launch, op);
    else if (by_output)
        dequantize_launch<false, true>(launch, op);
    else
        dequantize_launch<false, false>(launch, op);
    return cudaGetLastError();
}

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
#define TILE_THREADS 32 /* of bf16: 16 bytes each */
#define TILE_WORDS   32

/* Scale and minimum of each of four rows; or of one column, for all of them. */
__device__ static void scales_load(float scale[4], float minimum[4], const struct matrix *in,
                                   int64_t at, bool by_output)
{
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int64_t index = at + (by_output ? r : 0);
        scale[r] = bf16_widen(in->scales[index]);
        minimum[r] = in->minima != NULL ? bf16_widen(in->minima[index]) : -8.0f * scale[r];
    }
}

/* A product of a bf16 and a nibble is exact in f32, so the sum is rounded once. */
__device__ static float weight_of(uint32_t word, int nibble, float scale, float minimum)
{
    return fmaf((float)(word >> (4 * nibble) & 15u), scale, minimum);
}

/* Blocks [tiles of a panel][panels]. A warp makes a tile of bf16, or the half of one of f32. */
template <bool BF16, bool BY_OUTPUT>
__global__ void __launch_bounds__(THREADS)
    dequantize_kernel(uint4 *out, const struct matrix in, int panel_tiles, int group_tiles)
{
    const int threads = BF16 ? TILE_THREADS : 2 * TILE_THREADS; /* of a tile */
    int tile = (int)((blockIdx.x * THREADS + threadIdx.x) / threads);
    if (tile >= panel_tiles)
        return;
    int unit = (int)(threadIdx.x % threads) / 4, rows = (int)(threadIdx.x % 4) * 4;
    int column = BF16 ? 2 * unit : unit;
    int64_t panel = blockIdx.y, at = panel * panel_tiles + tile;
    int64_t groups = (panel_tiles + group_tiles - 1) / group_tiles;
    int64_t scales = (panel * groups + tile / group_tiles) * PACK_BLOCK;
    uint4 words = *(const uint4 *)((const uint32_t *)in.data + at * TILE_WORDS +
                                   column / 8 * PACK_BLOCK + rows);
    uint32_t word[4] = {words.x, words.y, words.z, words.w}, made[4];
    float scale[4], minimum[4];
    scales_load(scale, minimum, &in, scales + (BY_OUTPUT ? rows : column), BY_OUTPUT);
    if (BF16) {
        float next_scale[4], next_minimum[4];
        if (!BY_OUTPUT)
            scales_load(next_scale, next_minimum, &in, scales + column + 1, false);
#pragma unroll
        for (int r = 0; r < 4; r++)
            made[r] =
                bf16_pair(weight_of(word[r], column % 8, scale[r], minimum[r]),
                          weight_of(word[r], column % 8 + 1, BY_OUTPUT ? scale[r] : next_scale[r],
                                    BY_OUTPUT ? minimum[r] : next_minimum[r]));
    } else {
#pragma unroll
        for (int r = 0; r < 4; r++)
            made[r] = __float_as_uint(weight_of(word[r], column % 8, scale[r], minimum[r]));
    }
    out[at * threads + (int)(threadIdx.x % threads)] =
        make_uint4(made[0], made[1], made[2], made[3]);
}

template <bool BF16, bool BY_OUTPUT>
static void dequantize_launch(const struct cuda_launch *launch, const struct op_dequantize *op)
{
    const struct matrix *in = &op->in;
    int64_t panels = (BY_OUTPUT ? in->rows : in->columns) / PACK_BLOCK;
    int64_t panel_tiles = (BY_OUTPUT ? in->columns : in->rows) / PACK_BLOCK;
    int64_t per_block = THREADS / (BF16 ? TILE_THREADS : 2 * TILE_THREADS);
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

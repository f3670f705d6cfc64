/* Causal attention with matrix instructions: keys and values of bf16, heads of an even number of
 * dimensions up to 128, from sm_80 on.
 *
 * A page is summed by itself, then added to those of its chunk in their order, and chunks as in
 * attention.cuh. Here are many rows (prefill): a block of eight warps with 16 rows each goes
 * through all pages, which stand in shared memory for all of them. attention_one.cu has one token
 * of each segment (decode). */
#include "kernels/cuda/attention_page.cuh"

#define WARPS      8
#define THREADS    (WARPS * WARP)
#define BLOCK_ROWS (WARPS * WARP_ROWS)

/* The 16 rows of a warp; a lane has two of them, g and g + 8. Positions fit 32 bits here, which
 * attention_mma_takes has looked at. */
template <int DIM> struct warp_rows {
    uint32_t queries[DIM / 16][4];
    int position[2]; /* -1: no such row */
    int first[2];    /* position that is seen */
};

template <int DIM>
__device__ static void rows_load(struct warp_rows<DIM> *rows, const struct op_attention &op,
                                 const struct row_block &block, int first_row)
{
    const struct qkv &qkv = op.qkv;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = first_row + lane_group() + 8 * i;
        bool is_row = row < block.row_count;
        rows->position[i] = is_row ? (int)row_position(block, row) : -1;
        rows->first[i] = is_row ? (int)window_first(rows->position[i], op.window) : 0;
        const float *from = NULL;
        if (is_row)
            from = qkv.values + (block.segment.first_row + row_token(block, row)) * qkv.stride +
                   row_head(block, row) * qkv.head_dim;
        query_load<DIM>(rows->queries, i, from, qkv.head_dim);
    }
}

/* What a warp has of a chunk: of rows g and g + 8. */
template <int DIM> struct warp_sums {
    struct row_sums rows[2];
    float out[DIM / 8][4];
};

template <int DIM> __device__ static void warp_sums_clear(struct warp_sums<DIM> *sums)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sums->rows[i].most = -INFINITY;
        sums->rows[i].sum = 0;
    }
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
        sums->out[n][0] = sums->out[n][1] = sums->out[n][2] = sums->out[n][3] = 0;
}

/* The weights of a page and what they add up to. `page_first` is the position of its first token.
 */
template <int DIM>
__device__ static void page_weights(struct row_sums sums[2], uint32_t weights[PAGE_STEPS][4],
                                    const struct warp_rows<DIM> &rows, const uint16_t *keys,
                                    int page_first, float scale)
{
    float scores[PAGE_TILES][4] = {};
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
        tiles_mma<KEY_UNITS, PAGE_TILES>(scores, rows.queries[k], keys, 16 * k, 0);
#pragma unroll
    for (int i = 0; i < 2; i++)
        sums[i] = row_softmax<true>(weights, scores, i, rows.first[i] - page_first,
                                    rows.position[i] - page_first, scale);
}

/* Adds what comes after to what was before. */
__device__ static void out_add(float before[4], const float after[4],
                               const struct row_factors factors[2])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        before[i] = row_out_add(before[i], after[i], factors[i / 2]);
}

/* Four tiles of output at a time: so few that they stand beside a chunk's outputs in registers. */
template <int DIM>
__device__ static void page_add(struct warp_sums<DIM> *chunk, const struct row_sums rows[2],
                                const uint32_t weights[PAGE_STEPS][4], const uint16_t *values)
{
    struct row_factors factors[2] = {row_sums_add(&chunk->rows[0], rows[0]),
                                     row_sums_add(&chunk->rows[1], rows[1])};
#pragma unroll
    for (int q = 0; q < DIM / 8; q += 4) {
        float out[4][4] = {};
#pragma unroll
        for (int step = 0; step < PAGE_STEPS; step++)
            tiles_mma<DIM / STAGE_VALUES, 4>(out, weights[step], values, 16 * step, q);
#pragma unroll
        for (int n = 0; n < 4; n++)
            out_add(chunk->out[q + n], out[n], factors);
    }
}

/* The outputs of all chunks so far, in shared memory, each thread its own: [DIM / 8][THREADS]. */
template <int DIM>
__device__ static void totals_add(float4 *totals, struct row_sums rows[2],
                                  const struct warp_sums<DIM> &chunk, bool is_first)
{
    struct row_factors factors[2] = {row_sums_add(&rows[0], chunk.rows[0]),
                                     row_sums_add(&rows[1], chunk.rows[1])};
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
        float4 *at = totals + n * THREADS + threadIdx.x;
        float4 total = is_first ? make_float4(0, 0, 0, 0) : *at;
        float of[4] = {total.x, total.y, total.z, total.w};
        out_add(of, chunk.out[n], factors);
        *at = make_float4(of[0], of[1], of[2], of[3]);
    }
}

/* Row g + 8i of a warp whose rows begin at `first_row`. */
__device__ static float *row_output(const struct op_attention &op, const struct row_block &block,
                                    int first_row, int i)
{
    int row = first_row + lane_group() + 8 * i;
    if (row >= block.row_count)
        return NULL;
    return op.out + (block.segment.first_row + row_token(block, row)) * op.out_stride +
           row_head(block, row) * op.kv.head_dim;
}

/* Blocks [blocks of rows][kv heads]; those of later rows, which see more, come first. While the
 * keys are multiplied the values are on their way, and the other way round. */
template <int DIM>
__global__ void __launch_bounds__(THREADS, 1) attention_many_kernel(const struct op_attention op)
{
    KERNEL_SHARED(uint16_t, keys);
    uint16_t *values = keys + DIM * KV_PAGE_TOKENS;
    float4 *totals = (float4 *)(values + DIM * KV_PAGE_TOKENS);
    int64_t index = gridDim.x - 1 - blockIdx.x;
    struct row_block block;
    if (!row_block_find<BLOCK_ROWS>(&block, op, index, blockIdx.y))
        return;
    int first_row = warp_id() * WARP_ROWS, thread = (int)threadIdx.x;
    int last_row = min(first_row + WARP_ROWS, block.row_count) - 1;
    int positions = (int)row_position(block, block.row_count - 1) + 1;
    int page = (int)window_first(row_position(block, 0), op.window) / KV_PAGE_TOKENS;
    int end = (positions - 1) / KV_PAGE_TOKENS + 1;
    int seen_first = (int)window_first(row_position(block, first_row), op.window) / KV_PAGE_TOKENS;
    int seen_end =
        last_row >= first_row ? (int)row_position(block, last_row) / KV_PAGE_TOKENS + 1 : 0;
    float scale = 1.0f / sqrtf((float)op.kv.head_dim);
    struct warp_rows<DIM> rows;
    struct warp_sums<DIM> chunk;
    struct row_sums total[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
    bool is_first = true;
    struct page_memory from = page_find(op, block.segment.pages[page], (int)blockIdx.y);
    keys_copy<DIM, THREADS>(keys, from, op, 0, thread);
    stage_commit();
    rows_load<DIM>(&rows, op, block, first_row);
    warp_sums_clear(&chunk);
    for (; page < end; page++) {
        bool is_seen = page >= seen_first && page < seen_end;
        struct row_sums of_page[2];
        uint32_t weights[PAGE_STEPS][4];
        stage_wait<0>();
        __syncthreads(); /* the keys are there; all are done with the values before */
        values_copy<DIM, KV_PAGE_TOKENS, THREADS>(values, from, op, 0,
                                                  positions - page * KV_PAGE_TOKENS, thread);
        stage_commit();
        if (is_seen)
            page_weights<DIM>(of_page, weights, rows, keys, page * KV_PAGE_TOKENS, scale);
        for (int i = 0; i < 2 && !is_seen; i++)
            of_page[i] = row_unseen(weights, i);
        stage_wait<0>();
        __syncthreads(); /* the values are there; all are done with the keys */
        if (page + 1 < end) {
            from = page_find(op, block.segment.pages[page + 1], (int)blockIdx.y);
            keys_copy<DIM, THREADS>(keys, from, op, 0, thread);
            stage_commit();
        }
        if (is_seen)
            page_add<DIM>(&chunk, of_page, weights, values);
        if ((page + 1) % CHUNK_PAGES == 0 || page + 1 == end) {
            totals_add<DIM>(totals, total, chunk, is_first);
            warp_sums_clear(&chunk);
            is_first = false;
        }
    }
    struct row_block again = {}; /* found a second time, as its registers were others' meanwhile */
    row_block_find<BLOCK_ROWS>(&again, op, index, blockIdx.y);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *to = row_output(op, again, first_row, i);
        float factor = 1.0f / total[i].sum;
        for (int n = 0; n < DIM / 8 && to != NULL; n++) {
            float4 of = totals[n * THREADS + threadIdx.x];
            float value[2] = {i == 0 ? of.x : of.z, i == 0 ? of.y : of.w};
            for (int c = 0; c < 2; c++) {
                if (out_dimension(n, c) < op.kv.head_dim)
                    to[out_dimension(n, c)] = value[c] * factor;
            }
        }
    }
}

/* ---- Launchers ------------------------------------------------------------------------------- */

template <int DIM> static size_t many_bytes()
{
    return sizeof(uint16_t) * 2 * DIM * KV_PAGE_TOKENS + sizeof(float4) * DIM / 8 * THREADS;
}

template <int DIM>
static cudaError_t many_launch(const struct cuda_launch *launch, const struct op_attention *op,
                               const struct cuda_segments *segments)
{
    cudaError_t failure =
        cudaFuncSetAttribute(attention_many_kernel<DIM>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)many_bytes<DIM>());
    int64_t group = op->qkv.head_count / op->qkv.kv_head_count;
    dim3 grid((unsigned)(segments->token_count * group / BLOCK_ROWS + op->segment_count),
              (unsigned)op->kv.kv_head_count);
    if (failure != cudaSuccess)
        return failure;
    KERNEL_LAUNCH((attention_many_kernel<DIM>), grid, THREADS, many_bytes<DIM>(), launch->stream,
                  *op);
    return cudaGetLastError();
}

bool attention_mma_takes(const struct cuda_launch *launch, const struct op_attention *op,
                         const struct cuda_segments *segments)
{
    return launch->capability >= CUDA_BF16_CAPABILITY && op->kv.dtype == DTYPE_BF16 &&
           op->kv.head_dim <= 128 && op->kv.head_dim % 2 == 0 &&
           segments->positions_max <= INT32_MAX &&
           many_bytes<128>() <= (size_t)launch->shared_bytes_max;
}

cudaError_t attention_mma(const struct cuda_launch *launch, const struct op_attention *op,
                          const struct cuda_segments *segments)
{
    if (attention_wgmma_takes(launch, op, segments))
        return attention_wgmma(launch, op, segments);
    return op->kv.head_dim <= 64 ? many_launch<64>(launch, op, segments)
                                 : many_launch<128>(launch, op, segments);
}

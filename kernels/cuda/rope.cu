/* Rotary position embedding, query and key norms, and the append to the KV cache. */
#include "kernels/cuda/segments.cuh"

#define FEW_WARPS   4
#define FEW_THREADS (FEW_WARPS * WARP)

#define MANY_WARPS   8
#define MANY_THREADS (MANY_WARPS * WARP)
#define TILE_TOKENS  WARP /* of a block: a lane has one where keys are written */
#define WARP_TOKENS  (TILE_TOKENS / MANY_WARPS) /* neighbours */
#define MANY_PAIRS   4 /* of a lane, at most: a tile's keys have to fit shared memory */
#define BLOCK_HEADS  4 /* queries of a token, which share its angles */

/* What a lane has of a head: the values lane + 32j and half a head behind them; and the same of
 * what a head is multiplied by. */
template <int PAIRS> struct head_pairs {
    float2 of[PAIRS];
};

template <int PAIRS>
__device__ static void pairs_load(struct head_pairs<PAIRS> *pairs, const float *head, int dim)
{
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        int i = lane_id() + j * WARP;
        pairs->of[j] = i < dim / 2 ? make_float2(head[i], head[i + dim / 2]) : make_float2(0, 0);
    }
}

/* RMSNorm with the weights `norm`. Here and below the order of operations is spelled out: a head
 * has the same bits whichever kernel it is in. */
template <int PAIRS>
__device__ static void pairs_norm(struct head_pairs<PAIRS> *pairs,
                                  const struct head_pairs<PAIRS> &norm, int dim, float epsilon)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < PAIRS; j++)
        sum = fmaf(pairs->of[j].y, pairs->of[j].y, fmaf(pairs->of[j].x, pairs->of[j].x, sum));
    float scale = 1.0f / sqrtf(warp_sum(sum) / (float)dim + epsilon);
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        pairs->of[j].x = pairs->of[j].x * scale * norm.of[j].x;
        pairs->of[j].y = pairs->of[j].y * scale * norm.of[j].y;
    }
}

/* By the angles whose cosines and sines are `rope`. */
template <int PAIRS>
__device__ static void pairs_rotate(struct head_pairs<PAIRS> *pairs,
                                    const struct head_pairs<PAIRS> &rope)
{
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        float2 from = pairs->of[j], angle = rope.of[j];
        pairs->of[j].x = fmaf(-from.y, angle.y, __fmul_rn(from.x, angle.x));
        pairs->of[j].y = fmaf(from.x, angle.y, __fmul_rn(from.y, angle.x));
    }
}

/* The query or key head at `head` behind norm (where there is one) and rotation. */
template <int PAIRS>
__device__ static void
pairs_finish(struct head_pairs<PAIRS> *pairs, const struct head_pairs<PAIRS> &norm, bool has_norm,
             const struct head_pairs<PAIRS> &rope, const struct op_rope_append &op)
{
    if (has_norm)
        pairs_norm(pairs, norm, (int)op.qkv.head_dim, op.norm_epsilon);
    pairs_rotate(pairs, rope);
}

template <int PAIRS>
__device__ static void norm_load(struct head_pairs<PAIRS> *norm, const float *weights, int dim)
{
    if (weights != NULL)
        pairs_load(norm, weights, dim);
    else
        *norm = {};
}

template <int PAIRS>
__device__ static void query_store(float *head, const struct head_pairs<PAIRS> &pairs, int dim)
{
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        int i = lane_id() + j * WARP;
        if (i >= dim / 2)
            continue;
        head[i] = pairs.of[j].x;
        head[i + dim / 2] = pairs.of[j].y;
    }
}

/* Where the page of kv head `head` begins that has `position`. */
__device__ static int64_t page_base(const struct op_rope_append &op, const struct segment &segment,
                                    int64_t position, int head)
{
    int64_t page = segment.pages[position / KV_PAGE_TOKENS];
    return (page * op.kv.kv_head_count + head) * device_round_up(op.kv.head_dim, PACK_BLOCK) *
           KV_PAGE_TOKENS;
}

/* The values of a head of tokens first .. first + TOKENS - 1 of a segment, of which those behind
 * `count` are none: all are read before any is written. */
template <bool BF16, int PAIRS, int TOKENS>
__device__ static void values_run(const struct op_rope_append &op, const struct segment &segment,
                                  int first, int count, int head)
{
    int dim = (int)op.qkv.head_dim, dim_stride = (int)device_round_up(op.kv.head_dim, PACK_BLOCK);
    float values[TOKENS][2 * PAIRS];
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        const float *from = op.qkv.values + (segment.first_row + first + t) * op.qkv.stride +
                            op.qkv.v_offset + head * dim;
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j++) {
            int d = lane_id() + j * WARP;
            values[t][j] = t < count && d < dim ? from[d] : 0.0f;
        }
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        if (t >= count)
            continue;
        int64_t position = segment.first_position + first + t;
        int64_t to =
            page_base(op, segment, position, head) + position % KV_PAGE_TOKENS * dim_stride;
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j++) {
            int d = lane_id() + j * WARP;
            if (d < dim_stride)
                value_store<BF16>(op.kv.values, to + d, values[t][j]);
        }
    }
}

/* ---- Few tokens of each segment ---------------------------------------------------------------
 */

/* Blocks [tokens][heads / FEW_WARPS]; a warp has a query, a key or a value head of a token. Keys go
 * down a column of the page, 2 or 4 bytes to each of head_dim places. */
template <bool BF16, int PAIRS>
__global__ void __launch_bounds__(FEW_THREADS)
    rope_few_kernel(const struct op_rope_append op, bool one_each)
{
    const struct qkv &qkv = op.qkv;
    int query_heads = (int)qkv.head_count, kv_heads = (int)qkv.kv_head_count;
    int head = (int)blockIdx.y * FEW_WARPS + warp_id(), dim = (int)qkv.head_dim;
    int64_t s = blockIdx.x, t = 0;
    if (head >= query_heads + 2 * kv_heads)
        return;
    if (!one_each)
        segment_find(&s, &t, op.segments, op.segment_count, blockIdx.x, 1,
                     1); /* a block, a token */
    const struct segment &segment = op.segments[s];
    int64_t row = segment.first_row + t, position = segment.first_position + t;
    float *values = qkv.values + row * qkv.stride;
    bool is_query = head < query_heads;
    if (head >= query_heads + kv_heads) {
        values_run<BF16, PAIRS, 1>(op, segment, (int)t, 1, head - query_heads - kv_heads);
        return;
    }
    const float *weights = is_query ? op.q_norm : op.k_norm;
    float *from = values + (is_query ? head * dim : qkv.k_offset + (head - query_heads) * dim);
    struct head_pairs<PAIRS> pairs, rope, norm;
    pairs_load(&pairs, from, dim);
    pairs_load(&rope, op.rope + row * dim, dim);
    norm_load(&norm, weights, dim);
    pairs_finish(&pairs, norm, weights != NULL, rope, op);
    if (is_query) {
        query_store(from, pairs, dim);
        return;
    }
    int64_t to = page_base(op, segment, position, head - query_heads) + position % KV_PAGE_TOKENS;
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        int i = lane_id() + j * WARP;
        if (i >= dim / 2)
            continue;
        value_store<BF16>(op.kv.keys, to + i * KV_PAGE_TOKENS, pairs.of[j].x);
        value_store<BF16>(op.kv.keys, to + (i + dim / 2) * KV_PAGE_TOKENS, pairs.of[j].y);
    }
}

/* ---- Many tokens ------------------------------------------------------------------------------
 */

/* Tokens first .. first + count - 1 of a segment. */
struct token_tile {
    struct segment segment;
    int first, count;
};

/* BLOCK_HEADS query heads from `head` on. */
template <int PAIRS>
__device__ static void queries_run(const struct op_rope_append &op, const struct token_tile &tile,
                                   int head)
{
    int dim = (int)op.qkv.head_dim, count = min((int)op.qkv.head_count - head, BLOCK_HEADS);
    struct head_pairs<PAIRS> norm;
    norm_load(&norm, op.q_norm, dim);
    for (int t = warp_id(); t < tile.count; t += MANY_WARPS) {
        int64_t row = tile.segment.first_row + tile.first + t;
        float *from = op.qkv.values + row * op.qkv.stride + head * dim;
        struct head_pairs<PAIRS> rope, pairs[BLOCK_HEADS];
        pairs_load(&rope, op.rope + row * dim, dim);
#pragma unroll
        for (int h = 0; h < BLOCK_HEADS; h++)
            pairs_load(&pairs[h], from + (h < count ? h : 0) * dim, dim);
#pragma unroll
        for (int h = 0; h < BLOCK_HEADS; h++) {
            pairs_finish(&pairs[h], norm, op.q_norm != NULL, rope, op);
            if (h < count)
                query_store(from + h * dim, pairs[h], dim);
        }
    }
}

/* A key head: to shared memory, [head_dim][TILE_TOKENS + 1], then down the lines of the pages, in
 * which neighbouring tokens are neighbours. */
template <bool BF16, int PAIRS>
__device__ static void keys_run(float *keys, const struct op_rope_append &op,
                                const struct token_tile &tile, int head)
{
    int dim = (int)op.qkv.head_dim, first = warp_id() * WARP_TOKENS;
    struct head_pairs<PAIRS> norm, rope[WARP_TOKENS], pairs[WARP_TOKENS];
    norm_load(&norm, op.k_norm, dim);
#pragma unroll
    for (int t = 0; t < WARP_TOKENS; t++) {
        int64_t row = tile.segment.first_row + tile.first + min(first + t, tile.count - 1);
        pairs_load(&rope[t], op.rope + row * dim, dim);
        pairs_load(&pairs[t], op.qkv.values + row * op.qkv.stride + op.qkv.k_offset + head * dim,
                   dim);
    }
#pragma unroll
    for (int t = 0; t < WARP_TOKENS; t++) {
        pairs_finish(&pairs[t], norm, op.k_norm != NULL, rope[t], op);
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            int i = lane_id() + j * WARP;
            if (i >= dim / 2)
                continue;
            keys[i * (TILE_TOKENS + 1) + first + t] = pairs[t].of[j].x;
            keys[(i + dim / 2) * (TILE_TOKENS + 1) + first + t] = pairs[t].of[j].y;
        }
    }
    __syncthreads(); /* the keys are there */
    if (lane_id() >= tile.count)
        return;
    int64_t position = tile.segment.first_position + tile.first + lane_id();
    int64_t to = page_base(op, tile.segment, position, head) + position % KV_PAGE_TOKENS;
#pragma unroll 8
    for (int d = warp_id(); d < dim; d += MANY_WARPS)
        value_store<BF16>(op.kv.keys, to + d * KV_PAGE_TOKENS,
                          keys[d * (TILE_TOKENS + 1) + lane_id()]);
}

/* Blocks [tiles of tokens][query heads / BLOCK_HEADS, then key heads, then value heads]. */
template <bool BF16, int PAIRS>
__global__ void __launch_bounds__(MANY_THREADS) rope_many_kernel(const struct op_rope_append op)
{
    KERNEL_SHARED(float, keys);
    const struct qkv &qkv = op.qkv;
    int kv_heads = (int)qkv.kv_head_count;
    int query_blocks = ((int)qkv.head_count + BLOCK_HEADS - 1) / BLOCK_HEADS;
    int64_t s, piece;
    if (!segment_find(&s, &piece, op.segments, op.segment_count, blockIdx.x, 1, TILE_TOKENS))
        return;
    struct token_tile tile = {op.segments[s], (int)piece * TILE_TOKENS, 0};
    tile.count = min((int)tile.segment.token_count - tile.first, TILE_TOKENS);
    int head = (int)blockIdx.y - query_blocks;
    if (head < 0) {
        queries_run<PAIRS>(op, tile, (int)blockIdx.y * BLOCK_HEADS);
        return;
    }
    if (head < kv_heads) {
        keys_run<BF16, PAIRS>(keys, op, tile, head);
        return;
    }
    int first = warp_id() * WARP_TOKENS;
    values_run<BF16, PAIRS, WARP_TOKENS>(op, tile.segment, tile.first + first, tile.count - first,
                                         head - kv_heads);
}

/* ---- Launchers ------------------------------------------------------------------------------- */

template <bool BF16, int PAIRS>
static cudaError_t rope_launch(const struct cuda_launch *launch, const struct op_rope_append *op,
                               const struct cuda_segments *segments)
{
    int64_t heads = op->qkv.head_count + 2 * op->qkv.kv_head_count;
    int64_t tiles = segments->token_count / TILE_TOKENS + op->segment_count;
    size_t bytes = sizeof(float) * (size_t)op->qkv.head_dim * (TILE_TOKENS + 1);
    dim3 few((unsigned)segments->token_count, grid_for(heads, FEW_WARPS));
    dim3 many((unsigned)tiles,
              grid_for(op->qkv.head_count, BLOCK_HEADS) + 2 * (unsigned)op->qkv.kv_head_count);
    if constexpr (PAIRS <= MANY_PAIRS) {
        if (segments->tokens_max >= TILE_TOKENS / 2) {
            KERNEL_LAUNCH((rope_many_kernel<BF16, PAIRS>), many, MANY_THREADS, bytes,
                          launch->stream, *op);
            return cudaGetLastError();
        }
    }
    KERNEL_LAUNCH((rope_few_kernel<BF16, PAIRS>), few, FEW_THREADS, 0, launch->stream, *op,
                  segments->tokens_max == 1);
    return cudaGetLastError();
}

template <bool BF16>
static cudaError_t rope_run(const struct cuda_launch *launch, const struct op_rope_append *op,
                            const struct cuda_segments *segments)
{
    if (op->qkv.head_dim <= 2 * WARP)
        return rope_launch<BF16, 1>(launch, op, segments);
    if (op->qkv.head_dim <= 4 * WARP)
        return rope_launch<BF16, 2>(launch, op, segments);
    if (op->qkv.head_dim <= 8 * WARP)
        return rope_launch<BF16, 4>(launch, op, segments);
    if (op->qkv.head_dim <= 16 * WARP)
        return rope_launch<BF16, 8>(launch, op, segments);
    return cudaErrorInvalidValue;
}

cudaError_t cuda_rope_append(const struct cuda_launch *launch, const struct op_rope_append *op,
                             const struct cuda_segments *segments)
{
    if (segments->token_count == 0)
        return cudaSuccess;
    return op->kv.dtype == DTYPE_BF16 ? rope_run<true>(launch, op, segments)
                                      : rope_run<false>(launch, op, segments);
}

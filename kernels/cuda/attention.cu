/* Causal attention over paged keys and values on any GPU: no matrix instructions. One kernel is for
 * many rows (prefill) and for few (decode): see attention.cuh. Bytes: keys and values once for each
 * ROWS rows of a segment and kv head; in decode those are the query heads of a kv head. */
#include "kernels/cuda/attention.cuh"

#define ROWS       16
#define THREADS    128
#define SCORE_ROWS (ROWS * KV_PAGE_TOKENS / THREADS) /* of a thread: it has one token */
#define ROW_STRIDE                                                                                 \
    (ROWS + 4) /* of scores: [token][row], 16 bytes aligned, fewer bank conflicts                  \
                */
#define HEAD_DIM_MAX 512

/* A thread's part of the output: COLUMNS dimensions, THREADS apart, of `rows` rows. */
template <int DIM> struct out_shape {
    static const int threads = DIM < THREADS ? DIM : THREADS; /* that have a dimension each */
    static const int columns = DIM / threads;
    static const int rows = ROWS * threads / THREADS;
};

struct shared_rows {
    float scores[KV_PAGE_TOKENS * ROW_STRIDE]; /* then weights */
    float scale[ROWS];                         /* what the page does to the output before */
    struct row_sums chunk[ROWS];               /* of the chunk so far */
    struct row_sums total[ROWS];               /* of the chunks before */
    struct row_factors factors[ROWS];
    struct row_block block; /* what each thread would need registers for */
};

/* Queries, scaled, [head_dim][ROWS]; rows that are none are zero. */
__device__ static void queries_stage(float *out, const struct op_attention &op,
                                     const struct row_block &block)
{
    const struct qkv &qkv = op.qkv;
    float scale = 1.0f / sqrtf((float)qkv.head_dim);
    for (int64_t i = threadIdx.x; i < ROWS * qkv.head_dim; i += THREADS) {
        int row = (int)(i / qkv.head_dim);
        int64_t d = i % qkv.head_dim;
        float value = 0;
        if (row < block.row_count) {
            int64_t token = block.segment.first_row + row_token(block, row);
            value = qkv.values[token * qkv.stride + row_head(block, row) * qkv.head_dim + d];
        }
        out[d * ROWS + row] = value * scale;
    }
}

/* Scores of one token of the page and SCORE_ROWS rows. Neighbouring threads read neighbouring
 * tokens. */
template <bool BF16>
__device__ static void page_scores(struct shared_rows *shared, const float *queries,
                                   const struct op_attention &op, int64_t page)
{
    int token = (int)threadIdx.x % KV_PAGE_TOKENS;
    int first = (int)threadIdx.x / KV_PAGE_TOKENS * SCORE_ROWS;
    float sum[SCORE_ROWS] = {};
    int dim = (int)op.kv.head_dim;
#pragma unroll 8
    for (int d = 0; d < dim; d++) {
        float key = value_load<BF16>(op.kv.keys, page + d * KV_PAGE_TOKENS + token);
        const float4 *q = (const float4 *)(queries + d * ROWS + first);
#pragma unroll
        for (int r = 0; r < SCORE_ROWS; r += 4) {
            float4 four = q[r / 4];
            sum[r] = fmaf(four.x, key, sum[r]);
            sum[r + 1] = fmaf(four.y, key, sum[r + 1]);
            sum[r + 2] = fmaf(four.z, key, sum[r + 2]);
            sum[r + 3] = fmaf(four.w, key, sum[r + 3]);
        }
    }
    float4 *to = (float4 *)(shared->scores + token * ROW_STRIDE + first);
#pragma unroll
    for (int r = 0; r < SCORE_ROWS; r += 4)
        to[r / 4] = make_float4(sum[r], sum[r + 1], sum[r + 2], sum[r + 3]);
}

/* Scores to weights. A warp has a row at a time, a lane two of its tokens. */
__device__ static void page_softmax(struct shared_rows *shared, const struct op_attention &op,
                                    const struct row_block &block, int64_t page_first)
{
    for (int row = warp_id(); row < ROWS; row += THREADS / WARP) {
        int64_t position = row_position(block, min(row, block.row_count - 1));
        int64_t first = window_first(position, op.window) - page_first;
        struct row_sums sums = shared->chunk[row];
        float most = -INFINITY, base, sum = 0;
        for (int token = lane_id(); token < KV_PAGE_TOKENS; token += WARP) {
            if (token >= first && token <= position - page_first)
                most = fmaxf(most, shared->scores[token * ROW_STRIDE + row]);
        }
        float scale = row_page_begin(&sums, &base, warp_max(most));
        for (int token = lane_id(); token < KV_PAGE_TOKENS; token += WARP) {
            float *score = &shared->scores[token * ROW_STRIDE + row], weight = 0;
            if (token >= first && token <= position - page_first)
                weight = expf(*score - base);
            *score = weight;
            sum += weight;
        }
        sums.sum += warp_sum(sum);
        if (lane_id() == 0) {
            shared->chunk[row] = sums;
            shared->scale[row] = scale;
        }
    }
}

/* out = out x scale + weights x values of `count` tokens. What lies behind them may not even be
 * finite. */
template <bool BF16, int DIM>
__device__ static void page_values(float out[][out_shape<DIM>::rows],
                                   const struct shared_rows *shared, const struct op_attention &op,
                                   int64_t page, int count)
{
    using shape = out_shape<DIM>;
    int d = (int)threadIdx.x % shape::threads,
        dim_stride = (int)device_round_up(op.kv.head_dim, 16);
    int first = (int)threadIdx.x / shape::threads * shape::rows;
#pragma unroll
    for (int r = 0; r < shape::rows; r++) {
#pragma unroll
        for (int c = 0; c < shape::columns; c++)
            out[c][r] *= shared->scale[first + r];
    }
#pragma unroll 4
    for (int t = 0; t < count; t++) {
        float value[shape::columns];
#pragma unroll
        for (int c = 0; c < shape::columns; c++) {
            int column = d + c * THREADS;
            value[c] = column < dim_stride
                           ? value_load<BF16>(op.kv.values, page + t * dim_stride + column)
                           : 0.0f;
        }
#pragma unroll
        for (int r = 0; r < shape::rows; r += 4) {
            float4 weight = *(const float4 *)(shared->scores + t * ROW_STRIDE + first + r);
#pragma unroll
            for (int c = 0; c < shape::columns; c++) {
                out[c][r] = fmaf(weight.x, value[c], out[c][r]);
                out[c][r + 1] = fmaf(weight.y, value[c], out[c][r + 1]);
                out[c][r + 2] = fmaf(weight.z, value[c], out[c][r + 2]);
                out[c][r + 3] = fmaf(weight.w, value[c], out[c][r + 3]);
            }
        }
    }
}

/* The pages [first, end) of one chunk, to `out` and shared->chunk, which all threads may read then:
 * behind the last barrier it does not change. */
template <bool BF16, int DIM>
__device__ static void chunk_run(float out[][out_shape<DIM>::rows], struct shared_rows *shared,
                                 const float *queries, const struct op_attention &op,
                                 const struct row_block &block, int64_t first, int64_t end)
{
    int64_t last = row_position(block, block.row_count - 1);
    for (int c = 0; c < out_shape<DIM>::columns; c++) {
        for (int r = 0; r < out_shape<DIM>::rows; r++)
            out[c][r] = 0;
    }
    for (int row = (int)threadIdx.x; row < ROWS; row += THREADS) {
        struct row_sums none = {-INFINITY, 0};
        shared->chunk[row] = none;
    }
    for (int64_t page = first; page < end; page++) {
        int64_t offset = page_offset(op, block, page), page_first = page * KV_PAGE_TOKENS;
        __syncthreads(); /* the queries are there; all have used the weights before */
        page_scores<BF16>(shared, queries, op, offset);
        __syncthreads();
        page_softmax(shared, op, block, page_first);
        __syncthreads();
        page_values<BF16, DIM>(out, shared, op, offset,
                               (int)min(last + 1 - page_first, (int64_t)KV_PAGE_TOKENS));
    }
}

/* What the launch's chunk `chunk` has, where it has a block of its own. */
template <int DIM>
__device__ static void chunk_write(const struct chunk_results &results,
                                   const float out[][out_shape<DIM>::rows],
                                   const struct shared_rows *shared, const struct op_attention &op,
                                   const struct row_block &block, int64_t chunk)
{
    using shape = out_shape<DIM>;
    int first = (int)threadIdx.x / shape::threads * shape::rows;
    for (int r = 0; r < shape::rows; r++) {
        int row = first + r;
        if (row >= block.row_count)
            continue;
        int64_t at = chunk_index(results, row_head(block, row), chunk);
        for (int c = 0; c < shape::columns; c++) {
            int d = (int)threadIdx.x % shape::threads + c * THREADS;
            if (d < op.kv.head_dim)
                results.out[at * results.out_stride + d] = out[c][r];
        }
        if (threadIdx.x % shape::threads == 0)
            results.sums[at] = shared->chunk[row];
    }
}

template <int DIM>
__device__ static void rows_write(const struct op_attention &op,
                                  const float out[][out_shape<DIM>::rows],
                                  const struct shared_rows *shared, const struct row_block &block)
{
    using shape = out_shape<DIM>;
    int first = (int)threadIdx.x / shape::threads * shape::rows;
    for (int r = 0; r < shape::rows; r++) {
        int row = first + r;
        if (row >= block.row_count)
            continue;
        int64_t token = block.segment.first_row + row_token(block, row);
        float *to = op.out + token * op.out_stride + row_head(block, row) * op.kv.head_dim;
        float scale = 1.0f / shared->total[row].sum;
        for (int c = 0; c < shape::columns; c++) {
            int d = (int)threadIdx.x % shape::threads + c * THREADS;
            if (d < op.kv.head_dim)
                to[d] = out[c][r] * scale;
        }
    }
}

/* Adds a chunk to what was before. */
template <int DIM>
__device__ static void chunk_add(float total[][out_shape<DIM>::rows],
                                 const float out[][out_shape<DIM>::rows],
                                 struct shared_rows *shared)
{
    using shape = out_shape<DIM>;
    int first = (int)threadIdx.x / shape::threads * shape::rows;
    for (int row = (int)threadIdx.x; row < ROWS; row += THREADS)
        shared->factors[row] = row_sums_add(&shared->total[row], shared->chunk[row]);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < shape::rows; r++) {
#pragma unroll
        for (int c = 0; c < shape::columns; c++)
            total[c][r] = row_out_add(total[c][r], out[c][r], shared->factors[first + r]);
    }
}

/* The rows of a chunk's block; *chunk is which of its segment's. */
__device__ static bool chunk_rows_find(struct row_block *block, int64_t *chunk,
                                       const struct op_attention &op,
                                       const struct chunk_results &results, int index, int pieces)
{
    int group = (int)(op.qkv.head_count / op.qkv.kv_head_count);
    struct chunk_place place;
    if (!chunk_find(&place, results, index / pieces))
        return false;
    block->segment = op.segments[place.segment];
    block->kv_head = blockIdx.y;
    block->first_row = index % pieces * ROWS;
    block->row_count = min(group - (int)block->first_row, ROWS);
    block->group = group;
    *chunk = place.chunk;
    return true;
}

/* Blocks [blocks of rows, or those of a chunk x chunks][kv heads]; dynamic shared memory: queries,
 * [head_dim][ROWS]. Blocks of later rows, which see more, come first. */
template <bool BF16, int DIM>
__global__ void __launch_bounds__(THREADS, DIM > 256 ? 2 : 4)
    attention_kernel(const struct op_attention op, const struct chunk_results results)
{
    KERNEL_SHARED(float, queries);
    __shared__ __align__(16) struct shared_rows shared;
    const struct row_block &block = shared.block;
    struct row_block found;
    int pieces = ((int)op.qkv.head_count / (int)op.qkv.kv_head_count + ROWS - 1) / ROWS;
    int64_t chunk = 0;
    if (results.sums != NULL) {
        if (!chunk_rows_find(&found, &chunk, op, results, (int)blockIdx.x, pieces))
            return;
    } else if (!row_block_find<ROWS>(&found, op, gridDim.x - 1 - blockIdx.x, blockIdx.y))
        return;
    if (threadIdx.x == 0)
        shared.block = found;
    __syncthreads();
    int64_t first = window_first(row_position(block, 0), op.window) / KV_PAGE_TOKENS;
    int64_t end = row_position(block, block.row_count - 1) / KV_PAGE_TOKENS + 1;
    float out[out_shape<DIM>::columns][out_shape<DIM>::rows];
    if (results.sums != NULL) {
        first = max(first, chunk * CHUNK_PAGES);
        end = min(end, (chunk + 1) * CHUNK_PAGES);
        if (first >= end)
            return;
        queries_stage(queries, op, block);
        chunk_run<BF16, DIM>(out, &shared, queries, op, block, first, end);
        chunk_write<DIM>(results, out, &shared, op, block, (int)blockIdx.x / pieces);
        return;
    }
    float total[out_shape<DIM>::columns][out_shape<DIM>::rows] = {};
    for (int row = (int)threadIdx.x; row < ROWS; row += THREADS) {
        struct row_sums none = {-INFINITY, 0};
        shared.total[row] = none;
    }
    queries_stage(queries, op, block);
    while (first < end) {
        int64_t chunk_end = min(end, (first / CHUNK_PAGES + 1) * CHUNK_PAGES);
        chunk_run<BF16, DIM>(out, &shared, queries, op, block, first, chunk_end);
        chunk_add<DIM>(total, out, &shared);
        first = chunk_end;
    }
    rows_write<DIM>(op, total, &shared, block);
}

/* ---- Chunks that had a block each ------------------------------------------------------------ */

#define ADD_THREADS 128 /* each has a column of the output, and the sums of a chunk */
#define ADD_AHEAD   16  /* chunks whose outputs are under way together */

/* The factors by which chunks are added, as row_sums_add has them, but for all at once: the largest
 * score before a chunk does not depend on the order. */
struct chunk_factors {
    struct row_factors row;
    float sum; /* of the chunk */
};

/* The largest of the values of the threads before this one and of `before`; *before becomes that of
 * all. `kept` is [WARP] of shared memory, that the block does not read before its next barrier. */
__device__ static float block_max_before(float value, float *before, float *kept)
{
    float most = value;
    for (int step = 1; step < WARP; step *= 2) {
        float other = __shfl_up_sync(ALL_LANES, most, step);
        if (lane_id() >= step)
            most = fmaxf(most, other);
    }
    if (lane_id() == WARP - 1)
        kept[warp_id()] = most;
    most = __shfl_up_sync(ALL_LANES, most, 1);
    float result = lane_id() == 0 ? *before : fmaxf(*before, most);
    __syncthreads();
    for (int warp = 0; warp < ADD_THREADS / WARP; warp++) {
        if (warp < warp_id())
            result = fmaxf(result, kept[warp]);
        *before = fmaxf(*before, kept[warp]);
    }
    return result;
}

/* Adds up the chunks of one query head of a segment, in their order. Blocks
 * [segments of the launch][heads][columns / ADD_THREADS]. */
__global__ void __launch_bounds__(ADD_THREADS)
    chunks_add_kernel(const struct op_attention op, const struct chunk_results results)
{
    __shared__ struct chunk_factors factors[ADD_THREADS];
    __shared__ float kept[WARP];
    int own, first_chunk;
    if (!chunk_segment_find(&own, &first_chunk, op, results, (int)blockIdx.x))
        return;
    const struct segment *segment = &op.segments[own];
    int64_t head = blockIdx.y, position = segment->first_position;
    int64_t d = (int64_t)blockIdx.z * ADD_THREADS + threadIdx.x;
    int64_t chunk = window_first(position, op.window) / CHUNK_TOKENS;
    int64_t at = chunk_index(results, head, first_chunk + chunk);
    const float *from = results.out + at * results.out_stride + d;
    float most = -INFINITY, sum = 0, out = 0;
    for (int64_t left = position / CHUNK_TOKENS + 1 - chunk; left > 0; left -= ADD_THREADS) {
        struct row_sums own = {-INFINITY, 0};
        if (threadIdx.x < left)
            own = results.sums[at + threadIdx.x];
        struct chunk_factors of = {row_factors_of(block_max_before(own.most, &most, kept), own),
                                   own.sum};
        factors[threadIdx.x] = of; /* block_max_before has a barrier: those before have been used */
        __syncthreads();           /* the factors are there */
        int count = (int)min(left, (int64_t)ADD_THREADS);
        for (int first = 0; first < count; first += ADD_AHEAD) {
            float after[ADD_AHEAD];
#pragma unroll
            for (int i = 0; i < ADD_AHEAD; i++) {
                bool is_here = first + i < count && d < op.kv.head_dim;
                after[i] = is_here ? from[(first + i) * results.out_stride] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < ADD_AHEAD; i++) { /* those behind the last change nothing */
                struct chunk_factors add = factors[first + i];
                sum = fmaf(sum, add.row.before, add.sum * add.row.after);
                out = row_out_add(out, after[i], add.row);
            }
        }
        at += ADD_THREADS;
        from += ADD_THREADS * results.out_stride;
    }
    if (d < op.kv.head_dim)
        op.out[segment->first_row * op.out_stride + head * op.kv.head_dim + d] = out * (1.0f / sum);
}

cudaError_t attention_chunks_add(const struct cuda_launch *launch, const struct op_attention *op,
                                 const struct chunk_results *results)
{
    dim3 heads(chunk_segments_max(op, results), (unsigned)op->qkv.head_count,
               grid_for(op->kv.head_dim, ADD_THREADS));
    KERNEL_LAUNCH((chunks_add_kernel), heads, ADD_THREADS, 0, launch->stream, *op, *results);
    return cudaGetLastError();
}

/* ---- Slices ---------------------------------------------------------------------------------- */

/* Of scratch memory: where the parts of all segments take more, some are launched at a time, so
 * that no plan needs to know of it. A GPU is occupied all the same: it holds 8 thousand parts and
 * more. Where one kv head's of the longest context take as much, as of half a million positions and
 * 32 query heads, a launch has up to a quarter more than those. */
#define SLICE_BYTES ((int64_t)16 << 20)

/* How launches are cut: kv heads that one has, the chunks at which its segments begin, and those
 * that these may reach over. */
struct slices {
    int64_t kv_heads, step, room;
};

/* As few launches as there may be; `bytes` are those of a chunk and kv head. */
static struct slices slices_find(const struct op_attention *op,
                                 const struct cuda_segments *segments, int64_t bytes)
{
    int64_t all = op->qkv.kv_head_count, chunks = segments->chunk_count, fewest = INT64_MAX;
    int64_t longest = segments->positions_max / CHUNK_TOKENS, least = ceil_div(longest, (int64_t)4);
    struct slices found = {0, 0, 0};
    for (int64_t cut = 1; cut <= all; cut++) {
        int64_t kv_heads = ceil_div(all, cut), room = SLICE_BYTES / (kv_heads * bytes);
        if (room < min(chunks, longest + least - 1) && kv_heads > 1)
            continue;
        int64_t pieces = room < chunks ? ceil_div(chunks, max(room - longest + 1, least)) : 1;
        if (ceil_div(all, kv_heads) * pieces < fewest) {
            int64_t step = ceil_div(chunks, pieces); /* as even as can be */
            fewest = ceil_div(all, kv_heads) * pieces;
            found = {kv_heads, step, min(chunks, step + longest - 1)};
        }
        if (pieces == 1)
            break;
    }
    return found;
}

/* Whether parts are given to blocks: where each segment has one token, and one several chunks. */
static bool has_parts(const struct cuda_segments *segments)
{
    return segments->tokens_max == 1 && segments->positions_max > CHUNK_TOKENS;
}

/* What all slices have in common. */
static struct chunk_results results_of(const struct cuda_launch *launch,
                                       const struct op_attention *op,
                                       const struct cuda_segments *segments)
{
    struct chunk_results results = {};
    results.out_stride = round_up(op->kv.head_dim, PACK_BLOCK);
    results.segment_chunks = cuda_segment_chunks(op->segments, op->segment_count);
    results.chunk_segments = cuda_chunk_segments(op->segments, op->segment_count);
    results.count = results.end = (int)op->segment_count;
    results.by_page =
        attention_mma_takes(launch, op, segments) && attention_one_by_page(launch, op, segments);
    return results;
}

static int64_t part_bytes(const struct chunk_results &results)
{
    return results.out_stride * (int64_t)sizeof(float) + (int64_t)sizeof(struct row_sums);
}

/* Of a kv head. */
static int64_t chunk_bytes(const struct chunk_results &results, const struct op_attention *op)
{
    int64_t group = op->qkv.head_count / op->qkv.kv_head_count;
    return group * (results.by_page ? CHUNK_PAGES : 1) * part_bytes(results);
}

/* The chunks from `first` on. */
static void results_cut(struct chunk_results *results, const struct slices &slices,
                        const struct cuda_launch *launch, const struct op_attention *op,
                        const struct cuda_segments *segments, int64_t first)
{
    results->first = (int)first;
    results->end = (int)min(first + slices.step, segments->chunk_count);
    results->count = (int)min(slices.room, segments->chunk_count - first);
    results->part_count = results->count * (results->by_page ? CHUNK_PAGES : 1);
    results->out = (float *)launch->scratch;
    results->sums = (struct row_sums *)(results->out + op->qkv.head_count * results->part_count *
                                                           results->out_stride);
}

/* The operation of `count` kv heads from `first` on. */
static struct op_attention heads_of(const struct op_attention *op, int64_t first, int64_t count)
{
    struct op_attention of = *op;
    int64_t group = op->qkv.head_count / op->qkv.kv_head_count;
    int64_t page_values = round_up(op->kv.head_dim, PACK_BLOCK) * KV_PAGE_TOKENS;
    int64_t page_bytes = page_values * dtype_bytes(op->kv.dtype);
    of.qkv.kv_head_count = min(count, op->qkv.kv_head_count - first);
    of.qkv.head_count = of.qkv.kv_head_count * group;
    of.qkv.values += first * group * op->qkv.head_dim;
    of.out += first * group * op->kv.head_dim;
    of.kv.keys = (char *)op->kv.keys + first * page_bytes;
    of.kv.values = (char *)op->kv.values + first * page_bytes;
    return of;
}

size_t cuda_attention_scratch(const struct cuda_launch *launch, const struct op_attention *op,
                              const struct cuda_segments *segments)
{
    if (!has_parts(segments))
        return 0;
    int64_t bytes = chunk_bytes(results_of(launch, op, segments), op);
    struct slices slices = slices_find(op, segments, bytes);
    return (size_t)(slices.kv_heads * slices.room * bytes);
}

/* ---- Launchers ------------------------------------------------------------------------------- */

template <bool BF16, int DIM>
static cudaError_t attention_launch(const struct cuda_launch *launch, const struct op_attention *op,
                                    const struct cuda_segments *segments,
                                    const struct chunk_results *results)
{
    int64_t group = op->qkv.head_count / op->qkv.kv_head_count;
    bool is_split = results->sums != NULL;
    int64_t blocks = is_split ? results->count * ceil_div(group, ROWS)
                              : segments->token_count * group / ROWS + op->segment_count;
    dim3 grid((unsigned)blocks, (unsigned)op->qkv.kv_head_count);
    size_t bytes = (size_t)op->kv.head_dim * ROWS * sizeof(float);
    KERNEL_LAUNCH((attention_kernel<BF16, DIM>), grid, THREADS, bytes, launch->stream, *op,
                  *results);
    cudaError_t failure = cudaGetLastError();
    if (!is_split || failure != cudaSuccess)
        return failure;
    return attention_chunks_add(launch, op, results);
}

template <bool BF16>
static cudaError_t attention_run(const struct cuda_launch *launch, const struct op_attention *op,
                                 const struct cuda_segments *segments,
                                 const struct chunk_results *results)
{
    if (op->kv.head_dim <= 64)
        return attention_launch<BF16, 64>(launch, op, segments, results);
    if (op->kv.head_dim <= 128)
        return attention_launch<BF16, 128>(launch, op, segments, results);
    if (op->kv.head_dim <= 256)
        return attention_launch<BF16, 256>(launch, op, segments, results);
    if (op->kv.head_dim <= HEAD_DIM_MAX)
        return attention_launch<BF16, HEAD_DIM_MAX>(launch, op, segments, results);
    return cudaErrorInvalidValue;
}

static cudaError_t slice_run(const struct cuda_launch *launch, const struct op_attention *op,
                             const struct cuda_segments *segments,
                             const struct chunk_results *results)
{
    if (attention_mma_takes(launch, op, segments))
        return segments->tokens_max == 1 ? attention_one(launch, op, results)
                                         : attention_mma(launch, op, segments);
    if (op->kv.dtype == DTYPE_BF16)
        return attention_run<true>(launch, op, segments, results);
    return attention_run<false>(launch, op, segments, results);
}

cudaError_t cuda_attention(const struct cuda_launch *launch, const struct op_attention *op,
                           const struct cuda_segments *segments)
{
    if (op->segment_count == 0)
        return cudaSuccess;
    struct chunk_results results = results_of(launch, op, segments);
    if (!has_parts(segments))
        return slice_run(launch, op, segments, &results);
    struct slices slices = slices_find(op, segments, chunk_bytes(results, op));
    cudaError_t failure = cudaSuccess;
    for (int64_t kv = 0; kv < op->qkv.kv_head_count; kv += slices.kv_heads) {
        struct op_attention of = heads_of(op, kv, slices.kv_heads);
        for (int64_t first = 0; first < segments->chunk_count && failure == cudaSuccess;
             first += slices.step) {
            results_cut(&results, slices, launch, &of, segments, first);
            failure = slice_run(launch, &of, segments, &results);
        }
    }
    return failure;
}

/* Causal attention with matrix instructions: keys and values of bf16, heads of an even number of
 * dimensions up to 128, from sm_80 on.
 *
 * Queries and weights are rounded to bf16; sums are f32. A warp has 16 rows, the left operand. The
 * right operands are pairs: of neighbouring dimensions of a key, of two tokens of the values. In
 * the cache the two of a pair lie apart, so they are put together on the way. Which token of a page
 * is which column of the scores is free, if only the values' rows agree: with g and t as in
 * mma.cuh, column c of tile 4h + j is token 32h + 4c + j, so that a lane's four tiles lie side by
 * side; and column c of output tile 4q + i is dimension 32q + 4c + i.
 *
 * A page is summed by itself, then added to those of its chunk in their order, and chunks as in
 * attention.cuh. Many rows (prefill): a block of eight warps with 16 rows each goes through all
 * pages, which stand in shared memory for all of them. One token of each segment (decode): the rows
 * are the query heads of a kv head, and a block has a chunk, each warp a page, from memory to
 * registers. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

#define WARPS      8
#define THREADS    (WARPS * WARP)
#define WARP_ROWS  16
#define BLOCK_ROWS (WARPS * WARP_ROWS)
#define PAGE_TILES (KV_PAGE_TOKENS / 8)  /* of scores */
#define PAGE_STEPS (KV_PAGE_TOKENS / 16) /* of the product with values */
#define KEY_STRIDE (KV_PAGE_TOKENS + 8)  /* words of a pair of dimensions: no bank conflicts */
#define LOG2_E     1.44269504f

__device__ static int lane_group()
{
    return lane_id() / 4;
}

__device__ static int lane_in_group()
{
    return lane_id() % 4;
}

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
        const float *from = qkv.values;
        if (is_row)
            from += (block.segment.first_row + row_token(block, row)) * qkv.stride +
                    row_head(block, row) * qkv.head_dim;
#pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            int d = 8 * j + 2 * lane_in_group();
            bool is_here = is_row && d < qkv.head_dim;
            rows->queries[j / 2][i + j % 2 * 2] = is_here ? bf16_pair(from[d], from[d + 1]) : 0;
        }
    }
}

/* ---- Where a lane takes its right operands: four tiles at once ----------------------------------
 */

/* Puts four values of one line and four of another together as pairs. */
__device__ static uint4 pairs_of(uint2 low, uint2 high)
{
    return make_uint4((low.x & 0xFFFFu) | high.x << 16, low.x >> 16 | (high.x & 0xFFFF0000u),
                      (low.y & 0xFFFFu) | high.y << 16, low.y >> 16 | (high.y & 0xFFFF0000u));
}

/* The token of the first of the lines `line` of pairs of values, 0 .. 31: line (2 x step + high) x
 * 4
 * + t; the second is 4 tokens on. */
__device__ static int line_token(int line)
{
    int t = line % 4, step = line / 8;
    return step / 2 * 32 + 8 * t + step % 2 * 2 + line / 4 % 2;
}

/* A page in memory. */
struct page_memory {
    const uint16_t *keys, *values;
    int head_dim, dim_stride;
    int count; /* tokens whose values may be read, or more than a page has */

    /* Pair `pair` of dimensions, tokens 32 x half + 4g .. + 3. */
    __device__ uint4 key_pairs(int pair, int half) const
    {
        if (2 * pair >= head_dim)
            return make_uint4(0, 0, 0, 0);
        const uint16_t *at = keys + 2 * pair * KV_PAGE_TOKENS + half * 32 + lane_group() * 4;
        return pairs_of(*(const uint2 *)at, *(const uint2 *)(at + KV_PAGE_TOKENS));
    }

    __device__ uint2 four_values(int token, int column) const
    {
        if (token >= count || column >= dim_stride)
            return make_uint2(0, 0);
        return *(const uint2 *)(values + token * dim_stride + column);
    }

    /* Line `line` of pairs of tokens, dimensions 32q + 4g .. + 3. */
    __device__ uint4 value_pairs(int line, int q) const
    {
        int token = line_token(line), column = 32 * q + 4 * lane_group();
        return pairs_of(four_values(token, column), four_values(token + 4, column));
    }
};

/* A page in shared memory: pairs, [DIM / 2][KEY_STRIDE] of keys, [32][DIM + 8] of values. */
template <int DIM> struct page_shared {
    const uint32_t *keys, *values;

    __device__ uint4 key_pairs(int pair, int half) const
    {
        return *(const uint4 *)(keys + pair * KEY_STRIDE + half * 32 + lane_group() * 4);
    }

    __device__ uint4 value_pairs(int line, int q) const
    {
        return *(const uint4 *)(values + line * (DIM + 8) + 32 * q + 4 * lane_group());
    }
};

/* ---- A page ---------------------------------------------------------------------------------- */

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

__device__ static void four_mma(float sum[][4], const uint32_t a[4], uint4 low, uint4 high)
{
    uint32_t b[4][2] = {{low.x, high.x}, {low.y, high.y}, {low.z, high.z}, {low.w, high.w}};
#pragma unroll
    for (int i = 0; i < 4; i++)
        mma_bf16(sum[i], a, b[i]);
}

/* Over the four lanes that have a row. */
__device__ static float row_max(float value)
{
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

__device__ static float row_sum(float value)
{
    value += __shfl_xor_sync(ALL_LANES, value, 1);
    return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

/* Scores of a page to weights, as left operands of the product with values. `page_first` is the
 * position of its first token. */
template <int DIM>
__device__ static void page_softmax(struct row_sums sums[2], uint32_t weights[PAGE_STEPS][4],
                                    float scores[PAGE_TILES][4], const struct warp_rows<DIM> &rows,
                                    int page_first, float scale)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int first = rows.first[i] - page_first, last = rows.position[i] - page_first;
        float most = -INFINITY, sum = 0;
#pragma unroll
        for (int n = 0; n < PAGE_TILES; n++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                int token = n / 4 * 32 + 8 * lane_in_group() + 4 * c + n % 4;
                if (token >= first && token <= last)
                    most = fmaxf(most, scores[n][2 * i + c]);
            }
        }
        most = row_max(most);
        sums[i].most = most * scale;
        if (most == -INFINITY)
            most = 0; /* none is seen, or all are damaged: let that be seen */
#pragma unroll
        for (int n = 0; n < PAGE_TILES; n++) {
            float weight[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                int token = n / 4 * 32 + 8 * lane_in_group() + 4 * c + n % 4;
                float power = (scores[n][2 * i + c] - most) * (scale * LOG2_E);
                weight[c] = token >= first && token <= last ? exp2f(power) : 0.0f;
            }
            uint32_t pair = bf16_pair(weight[0], weight[1]);
            weights[n / 2][i + n % 2 * 2] = pair;
            sum += pair_low(pair) + pair_high(pair);
        }
        sums[i].sum = row_sum(sum);
    }
}

/* The weights of a page and what they add up to. */
template <int DIM, typename PAGE>
__device__ static void page_weights(struct row_sums sums[2], uint32_t weights[PAGE_STEPS][4],
                                    const struct warp_rows<DIM> &rows, const PAGE &page,
                                    int page_first, float scale)
{
    float scores[PAGE_TILES][4] = {};
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 low = page.key_pairs(8 * k + lane_in_group(), half);
            uint4 high = page.key_pairs(8 * k + 4 + lane_in_group(), half);
            four_mma(scores + 4 * half, rows.queries[k], low, high);
        }
    }
    page_softmax<DIM>(sums, weights, scores, rows, page_first, scale);
}

/* Those of a page that no row sees. */
__device__ static void page_weights_clear(struct row_sums sums[2], uint32_t weights[PAGE_STEPS][4])
{
    sums[0].most = sums[1].most = -INFINITY;
    sums[0].sum = sums[1].sum = 0;
#pragma unroll
    for (int step = 0; step < PAGE_STEPS; step++)
        weights[step][0] = weights[step][1] = weights[step][2] = weights[step][3] = 0;
}

/* out = weights x values, of output tiles 4q .. 4q + 3: so few at a time that they stand beside a
 * chunk's outputs in registers. */
template <typename PAGE>
__device__ static void page_outputs(float out[4][4], const uint32_t weights[PAGE_STEPS][4],
                                    const PAGE &page, int q)
{
#pragma unroll
    for (int n = 0; n < 4; n++)
        out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
#pragma unroll
    for (int step = 0; step < PAGE_STEPS; step++) {
        uint4 low = page.value_pairs(8 * step + lane_in_group(), q);
        uint4 high = page.value_pairs(8 * step + 4 + lane_in_group(), q);
        four_mma(out, weights[step], low, high);
    }
}

/* Adds what comes after to what was before. */
__device__ static void out_add(float before[4], const float after[4],
                               const struct row_factors factors[2])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        before[i] = row_out_add(before[i], after[i], factors[i / 2]);
}

template <int DIM, typename PAGE>
__device__ static void page_add(struct warp_sums<DIM> *chunk, const struct row_sums rows[2],
                                const uint32_t weights[PAGE_STEPS][4], const PAGE &page)
{
    struct row_factors factors[2] = {row_sums_add(&chunk->rows[0], rows[0]),
                                     row_sums_add(&chunk->rows[1], rows[1])};
#pragma unroll
    for (int q = 0; q < DIM / 32; q++) {
        float out[4][4];
        page_outputs(out, weights, page, q);
#pragma unroll
        for (int n = 0; n < 4; n++)
            out_add(chunk->out[4 * q + n], out[n], factors);
    }
}

/* Dimension of the lane's value `i` of output tile `n`. */
__device__ static int out_dimension(int n, int i)
{
    return n / 4 * 32 + 8 * lane_in_group() + 4 * (i % 2) + n % 4;
}

/* ---- Many rows ------------------------------------------------------------------------------- */

/* Eight tokens of a pair of dimensions, or eight dimensions of a pair of tokens: what a thread
 * brings at a time, from two lines of a page. */
struct line_pair {
    uint4 low, high;
};

__device__ static void line_store(uint32_t *to, struct line_pair line)
{
    ((uint4 *)to)[0] =
        pairs_of(make_uint2(line.low.x, line.low.y), make_uint2(line.high.x, line.high.y));
    ((uint4 *)to)[1] =
        pairs_of(make_uint2(line.low.z, line.low.w), make_uint2(line.high.z, line.high.w));
}

template <int DIM> struct page_stage {
    static const int lines = DIM * KV_PAGE_TOKENS / 16 / THREADS; /* that a thread brings */
    static const int key_words = DIM / 2 * KEY_STRIDE;
    static const int value_words = 32 * (DIM + 8);
};

template <int DIM>
__device__ static void keys_load(struct line_pair lines[], const struct page_memory &page)
{
    int pair = (int)threadIdx.x / 8, token = (int)threadIdx.x % 8 * 8;
    const uint16_t *from = page.keys + 2 * pair * KV_PAGE_TOKENS + token;
#pragma unroll
    for (int i = 0; i < page_stage<DIM>::lines; i++, from += 2 * (THREADS / 8) * KV_PAGE_TOKENS) {
        lines[i].low = lines[i].high = make_uint4(0, 0, 0, 0);
        if (2 * (pair + i * (THREADS / 8)) >= page.head_dim)
            continue;
        lines[i].low = *(const uint4 *)from;
        lines[i].high = *(const uint4 *)(from + KV_PAGE_TOKENS);
    }
}

template <int DIM> __device__ static void keys_store(uint32_t *to, const struct line_pair lines[])
{
#pragma unroll
    for (int i = 0; i < page_stage<DIM>::lines; i++) {
        int at = i * THREADS + (int)threadIdx.x;
        line_store(to + at / 8 * KEY_STRIDE + at % 8 * 8, lines[i]);
    }
}

template <int DIM>
__device__ static void values_load(struct line_pair lines[], const struct page_memory &page)
{
    int column = (int)threadIdx.x % (DIM / 8) * 8, first = line_token((int)threadIdx.x / (DIM / 8));
    const uint16_t *from = page.values + first * page.dim_stride + column;
#pragma unroll
    for (int i = 0; i < page_stage<DIM>::lines; i++, from += 32 * page.dim_stride) {
        int token = first + 32 * i; /* as line_token(line + 16) is line_token(line) + 32 */
        lines[i].low = lines[i].high = make_uint4(0, 0, 0, 0);
        if (column >= page.dim_stride)
            continue;
        if (token < page.count)
            lines[i].low = *(const uint4 *)from;
        if (token + 4 < page.count)
            lines[i].high = *(const uint4 *)(from + 4 * page.dim_stride);
    }
}

template <int DIM> __device__ static void values_store(uint32_t *to, const struct line_pair lines[])
{
#pragma unroll
    for (int i = 0; i < page_stage<DIM>::lines; i++) {
        int at = i * THREADS + (int)threadIdx.x;
        line_store(to + at / (DIM / 8) * (DIM + 8) + at % (DIM / 8) * 8, lines[i]);
    }
}

/* Page `page` of a segment, of which `end` positions may be read. */
__device__ static struct page_memory page_find(const struct op_attention &op,
                                               const struct row_block &block, int page, int end)
{
    struct page_memory of;
    of.head_dim = (int)op.kv.head_dim;
    of.dim_stride = (of.head_dim + PACK_BLOCK - 1) / PACK_BLOCK * PACK_BLOCK;
    int64_t head = (int64_t)block.segment.pages[page] * (int)op.kv.kv_head_count + blockIdx.y;
    int64_t offset = head * (of.dim_stride * KV_PAGE_TOKENS);
    of.keys = (const uint16_t *)op.kv.keys + offset;
    of.values = (const uint16_t *)op.kv.values + offset;
    of.count = end - page * KV_PAGE_TOKENS;
    return of;
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
 * keys are multiplied the values are on their way to registers, and the other way round. */
template <int DIM>
__global__ void __launch_bounds__(THREADS, 1) attention_many_kernel(const struct op_attention op)
{
    KERNEL_SHARED(uint32_t, shared);
    uint32_t *keys = shared, *values = keys + page_stage<DIM>::key_words;
    float4 *totals = (float4 *)(values + page_stage<DIM>::value_words);
    int64_t index = gridDim.x - 1 - blockIdx.x;
    struct row_block block;
    if (!row_block_find<BLOCK_ROWS>(&block, op, index, blockIdx.y))
        return;
    int first_row = warp_id() * WARP_ROWS;
    int last_row = min(first_row + WARP_ROWS, block.row_count) - 1;
    int positions = (int)row_position(block, block.row_count - 1) + 1;
    int page = (int)window_first(row_position(block, 0), op.window) / KV_PAGE_TOKENS;
    int end = (positions - 1) / KV_PAGE_TOKENS + 1;
    int seen_first = (int)window_first(row_position(block, first_row), op.window) / KV_PAGE_TOKENS;
    int seen_end =
        last_row >= first_row ? (int)row_position(block, last_row) / KV_PAGE_TOKENS + 1 : 0;
    float scale = 1.0f / sqrtf((float)op.kv.head_dim);
    struct line_pair lines[page_stage<DIM>::lines];
    struct warp_rows<DIM> rows;
    struct warp_sums<DIM> chunk;
    struct row_sums total[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
    bool is_first = true;
    rows_load<DIM>(&rows, op, block, first_row);
    warp_sums_clear(&chunk);
    keys_load<DIM>(lines, page_find(op, block, page, positions));
    for (; page < end; page++) {
        bool is_seen = page >= seen_first && page < seen_end;
        struct page_shared<DIM> from = {
            keys, values
        };
        struct row_sums of_page[2];
        uint32_t weights[PAGE_STEPS][4];
        keys_store<DIM>(keys, lines);
        values_load<DIM>(lines, page_find(op, block, page, positions));
        __syncthreads(); /* the keys are there; all are done with the values before */
        if (!is_seen)
            page_weights_clear(of_page, weights);
        else
            page_weights<DIM>(of_page, weights, rows, from, page * KV_PAGE_TOKENS, scale);
        values_store<DIM>(values, lines);
        if (page + 1 < end)
            keys_load<DIM>(lines, page_find(op, block, page + 1, positions));
        __syncthreads(); /* the values are there; all are done with the keys */
        if (is_seen)
            page_add<DIM>(&chunk, of_page, weights, from);
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

/* ---- One token of each segment --------------------------------------------------------------- */

/* Blocks [segments x blocks of heads][kv heads][chunks]. The pages' sums stand in shared memory,
 * [page of the chunk][DIM / 8][lane], until all are there; then each warp adds up other tiles of
 * the output. */
template <int DIM>
__global__ void __launch_bounds__(THREADS, DIM > 64 ? 1 : 2)
    attention_one_kernel(const struct op_attention op, const struct chunk_results results)
{
    KERNEL_SHARED(float4, outs);
    __shared__ struct row_sums sums[CHUNK_PAGES][WARP_ROWS];
    struct row_block block;
    if (!row_block_find<WARP_ROWS>(&block, op, blockIdx.x, blockIdx.y))
        return;
    int position = (int)block.segment.first_position, chunk = (int)blockIdx.z;
    int first = max((int)window_first(position, op.window) / KV_PAGE_TOKENS, chunk * CHUNK_PAGES);
    int end = min(position / KV_PAGE_TOKENS + 1, (chunk + 1) * CHUNK_PAGES);
    if (first >= end)
        return;
    int page = chunk * CHUNK_PAGES + warp_id();
    if (page >= first && page < end) {
        struct warp_rows<DIM> rows;
        struct row_sums of_page[2];
        rows_load<DIM>(&rows, op, block, 0);
        uint32_t weights[PAGE_STEPS][4];
        struct page_memory from = page_find(op, block, page, position + 1);
        page_weights<DIM>(of_page, weights, rows, from, page * KV_PAGE_TOKENS,
                          1.0f / sqrtf((float)op.kv.head_dim));
#pragma unroll
        for (int q = 0; q < DIM / 32; q++) {
            float out[4][4];
            page_outputs(out, weights, from, q);
#pragma unroll
            for (int n = 0; n < 4; n++)
                outs[(warp_id() * (DIM / 8) + 4 * q + n) * WARP + lane_id()] =
                    make_float4(out[n][0], out[n][1], out[n][2], out[n][3]);
        }
        for (int i = 0; i < 2; i++) {
            if (lane_in_group() == 0)
                sums[warp_id()][lane_group() + 8 * i] = of_page[i];
        }
    }
    __syncthreads();
    struct row_block again = {}; /* found a second time, as its registers were others' meanwhile */
    row_block_find<WARP_ROWS>(&again, op, blockIdx.x, blockIdx.y);
    for (int n = warp_id(); n < DIM / 8; n += WARPS) {
        struct row_sums total[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
        float out[4] = {0, 0, 0, 0};
        for (int p = first % CHUNK_PAGES; p <= (end - 1) % CHUNK_PAGES; p++) {
            struct row_factors factors[2];
            for (int i = 0; i < 2; i++)
                factors[i] = row_sums_add(&total[i], sums[p][lane_group() + 8 * i]);
            float4 of = outs[(p * (DIM / 8) + n) * WARP + lane_id()];
            float after[4] = {of.x, of.y, of.z, of.w};
            out_add(out, after, factors);
        }
        for (int i = 0; i < 4; i++) {
            int row = lane_group() + i / 2 * 8, d = out_dimension(n, i);
            if (row >= again.row_count || d >= op.kv.head_dim)
                continue;
            if (results.sums == NULL) {
                row_output(op, again, 0, i / 2)[d] = out[i] * (1.0f / total[i / 2].sum);
                continue;
            }
            int64_t segment = blockIdx.x / device_ceil_div(again.group, WARP_ROWS);
            int64_t at = chunk_index(results, op, segment, row_head(again, row), chunk);
            results.out[at * results.out_stride + d] = out[i];
            if (n == 0 && i % 2 == 0 && lane_in_group() == 0)
                results.sums[at] = total[i / 2];
        }
    }
}

/* ---- Launchers ------------------------------------------------------------------------------- */

template <int DIM> static size_t many_bytes()
{
    return sizeof(uint32_t) * (page_stage<DIM>::key_words + page_stage<DIM>::value_words) +
           sizeof(float4) * DIM / 8 * THREADS;
}

template <int DIM> static size_t one_bytes()
{
    return sizeof(float4) * CHUNK_PAGES * DIM / 8 * WARP;
}

static cudaError_t shared_allow(const void *kernel, size_t bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

template <int DIM>
static cudaError_t many_launch(const struct cuda_launch *launch, const struct op_attention *op,
                               const struct cuda_segments *segments)
{
    cudaError_t failure = shared_allow((const void *)attention_many_kernel<DIM>, many_bytes<DIM>());
    int64_t group = op->qkv.head_count / op->qkv.kv_head_count;
    dim3 grid((unsigned)(segments->token_count * group / BLOCK_ROWS + op->segment_count),
              (unsigned)op->kv.kv_head_count);
    if (failure != cudaSuccess)
        return failure;
    KERNEL_LAUNCH((attention_many_kernel<DIM>), grid, THREADS, many_bytes<DIM>(), launch->stream,
                  *op);
    return cudaGetLastError();
}

template <int DIM>
static cudaError_t one_launch(const struct cuda_launch *launch, const struct op_attention *op,
                              const struct cuda_segments *segments)
{
    size_t scratch_bytes;
    struct chunk_results results = chunk_results_in(launch, op, segments, &scratch_bytes);
    cudaError_t failure = shared_allow((const void *)attention_one_kernel<DIM>, one_bytes<DIM>());
    int64_t group = op->qkv.head_count / op->qkv.kv_head_count;
    dim3 grid((unsigned)(segments->token_count * ceil_div(group, WARP_ROWS)),
              (unsigned)op->kv.kv_head_count, (unsigned)results.chunk_count);
    if (failure != cudaSuccess)
        return failure;
    KERNEL_LAUNCH((attention_one_kernel<DIM>), grid, THREADS, one_bytes<DIM>(), launch->stream, *op,
                  results);
    failure = cudaGetLastError();
    if (results.sums == NULL || failure != cudaSuccess)
        return failure;
    return attention_chunks_add(launch, op, segments, &results);
}

bool attention_mma_takes(const struct cuda_launch *launch, const struct op_attention *op,
                         const struct cuda_segments *segments)
{
    return launch->capability >= CUDA_BF16_CAPABILITY && op->kv.dtype == DTYPE_BF16 &&
           op->kv.head_dim <= 128 && op->kv.head_dim % 2 == 0 && segments->positions_max <= INT32_MAX &&
           many_bytes<128>() <= (size_t)launch->shared_bytes_max;
}

cudaError_t attention_mma(const struct cuda_launch *launch, const struct op_attention *op,
                          const struct cuda_segments *segments)
{
    bool is_one = segments->tokens_max == 1, is_small = op->kv.head_dim <= 64;
    if (is_one)
        return is_small ? one_launch<64>(launch, op, segments)
                        : one_launch<128>(launch, op, segments);
    return is_small ? many_launch<64>(launch, op, segments)
                    : many_launch<128>(launch, op, segments);
}

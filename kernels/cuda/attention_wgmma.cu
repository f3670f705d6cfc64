/* Causal attention of many rows (prefill) by Hopper's matrix instruction: keys and values of bf16,
 * heads of an even number of dimensions up to 128.
 *
 * A block has 128 rows of a segment and kv head, 64 for each of two warpgroups, and a third
 * warpgroup that brings pages to shared memory: as they lie in the cache, so that keys are lines of
 * a dimension each and values lines of a token each, which both are right operands as they are.
 * Queries and weights are left operands, in registers. The products of a page with the queries and
 * of the page before with its weights begin together; then exponentials and the addition of outputs
 * stand side by side, for no other warp fills the time that either waits. All is added up as in
 * attention_mma.cu, to the bit. */
#include "kernels/cuda/attention_page.cuh"
#include "kernels/cuda/attention_wgmma.cuh"

#define GROUPS     2
#define THREADS    (GROUPS * WARPGROUP) /* that have rows */
#define GROUP_ROWS 64
#define BLOCK_ROWS (GROUPS * GROUP_ROWS)
#define STAGES     4   /* pages in shared memory */
#define LINE_BYTES 128 /* in shared memory */

/* Pages behind one that are on their way when it is handed over. With two, page n would not be
 * handed over before page n + 2 has a stage, that of page n - 2, which may be in use that long. */
#define AHEAD 1

/* ---- Pages ------------------------------------------------------------------------------------
 */

/* A page in shared memory: keys [DIM][64 tokens], then values [DIM / 64][64 tokens][64]. */
template <int DIM> struct page_stage {
    static const int value_bytes = KV_PAGE_TOKENS * DIM * (int)sizeof(uint16_t);
    static const int bytes = 2 * value_bytes;
    static const int block_bytes = KV_PAGE_TOKENS * LINE_BYTES; /* 64 dimensions of values */
};

/* Which of a block's pages a warpgroup sees, and which of them all its rows see whole. */
struct group_pages {
    int first, end, whole_first, whole_end;
};

#define MEMORY_ALIGN 1024 /* of what the instruction reads: which bits of addresses it swaps */

/* A block's shared memory; what its threads need now and then stands here, too, so that it takes no
 * registers. */
template <int DIM> struct block_memory {
    unsigned char stages[STAGES][page_stage<DIM>::bytes];
    float4 totals[DIM / 8][THREADS]; /* outputs of the chunks before, each thread its own */
    struct row_sums sums[2][THREADS];
    int first[BLOCK_ROWS], last[BLOCK_ROWS]; /* positions that a row sees; no such row: none */
    struct phase_barrier full[STAGES], empty[STAGES];
    struct group_pages pages[GROUPS];
    int page_first, page_count;
};

/* Begins to copy a page. What is behind `count` tokens may not even be finite, and neither may keys
 * behind the head's dimensions: zeros. */
template <int DIM>
__device__ static void page_copy(unsigned char *to, const struct op_attention &op,
                                 const struct page_memory &page, int count)
{
    const int units = DIM / STAGE_VALUES; /* of a token */
    int thread = (int)threadIdx.x % WARPGROUP, stride = cache_stride(op);
    int line = thread / KEY_UNITS, unit = thread % KEY_UNITS;
    unsigned char *at = to + line * LINE_BYTES + (unit ^ line % 8) * STAGE_UNIT;
    const uint16_t *from = page.keys + line * KV_PAGE_TOKENS + unit * STAGE_VALUES;
#pragma unroll 4 /* so that fewer registers are taken */
    for (int i = 0; i < DIM * KEY_UNITS / WARPGROUP; i++) {
        const int lines = i * (WARPGROUP / KEY_UNITS);
        stage_copy(at + lines * LINE_BYTES, from + lines * KV_PAGE_TOKENS,
                   lines < (int)op.kv.head_dim - line);
    }
    line = thread / units;
    unit = thread % units;
    at = to + page_stage<DIM>::value_bytes + unit / 8 * page_stage<DIM>::block_bytes +
         line * LINE_BYTES + (unit % 8 ^ line % 8) * STAGE_UNIT;
    from = page.values + line * stride + unit * STAGE_VALUES;
    count = unit * STAGE_VALUES < stride ? count - line : 0;
#pragma unroll 4
    for (int i = 0; i < KV_PAGE_TOKENS * units / WARPGROUP; i++) {
        const int lines = i * (WARPGROUP / units);
        stage_copy(at + lines * LINE_BYTES, from, lines < count);
        from += WARPGROUP / units * stride;
    }
}

/* Hands over page n of the block's, behind which LEFT pages are on their way. */
template <int LEFT, int DIM>
__device__ static void page_tell(struct block_memory<DIM> *memory, int n)
{
    stage_wait<LEFT>();
    wgmma_show();
    __syncwarp();
    if (lane_id() == 0)
        phase_arrive(&memory->full[n % STAGES]);
}

/* Brings all pages of a block, of which positions up to `end` may be read. */
template <int DIM>
__device__ static void pages_bring(struct block_memory<DIM> *memory, const struct op_attention &op,
                                   const int32_t *pages, int end)
{
    pages += memory->page_first;
    end -= memory->page_first * KV_PAGE_TOKENS;
    int where = pages[0], n = 0;
    for (; n < memory->page_count; n++, end -= KV_PAGE_TOKENS) {
        phase_wait(&memory->empty[n % STAGES], (n / STAGES + 1) % 2);
        page_copy<DIM>(memory->stages[n % STAGES], op, page_find(op, where, (int)blockIdx.x), end);
        stage_commit();
        if (n + 1 < memory->page_count)
            where = pages[n + 1];
        if (n >= AHEAD)
            page_tell<AHEAD>(memory, n - AHEAD);
    }
    page_tell<0>(memory, n - 1);
}

/* Until page n of the block's is there. */
template <int DIM> __device__ static void page_await(struct block_memory<DIM> *memory, int n)
{
    phase_wait(&memory->full[n % STAGES], n / STAGES % 2);
}

/* The warp is done with it. */
template <int DIM> __device__ static void page_leave(struct block_memory<DIM> *memory, int n)
{
    if (lane_id() == 0)
        phase_arrive(&memory->empty[n % STAGES]);
}

/* ---- A page's scores, weights and outputs ------------------------------------------------------
 */

template <int DIM>
__device__ static void scores_begin(float (&scores)[32], const uint32_t (&queries)[DIM / 16][4],
                                    const unsigned char *page)
{
    struct wgmma_right keys = wgmma_right_at(page, 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
        wgmma_bf16(scores, queries[k], wgmma_right_step(keys, k), k > 0);
    wgmma_commit();
}

template <int DIM>
__device__ static void outputs_begin(float (&out)[DIM / 2],
                                     const uint32_t (&weights)[PAGE_STEPS][4],
                                     const unsigned char *page)
{
    struct wgmma_right values =
        wgmma_right_at(page + page_stage<DIM>::value_bytes, page_stage<DIM>::block_bytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < PAGE_STEPS; step++)
        wgmma_bf16(out, weights[step], wgmma_right_step(values, step), step > 0);
    wgmma_commit();
}

/* Takes away the scores of page `page` that the lane's rows, the first is `row`, do not see. */
template <int DIM>
__device__ static void scores_mask(float (&scores)[32], const struct block_memory<DIM> *memory,
                                   int row, int page)
{
    int lane_first = (memory->page_first + page) * KV_PAGE_TOKENS + 2 * lane_in_group();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int first = memory->first[row + 8 * i] - lane_first;
        int last = memory->last[row + 8 * i] - lane_first;
#pragma unroll
        for (int n = 0; n < 16; n++) {
            int token = n / 2 * 8 + n % 2, at = n / 2 * 4 + 2 * i + n % 2;
            if (token < first || token > last)
                scores[at] = -INFINITY;
        }
    }
}

/* Scores to the exponents of their weights, powers of two; and the rows' largest scores. */
__device__ static void scores_scale(struct row_sums rows[2], float (&scores)[32], float scale)
{
    float most[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
#pragma unroll
    for (int n = 0; n < 32; n++)
        most[n / 2 % 2][n % 2] = fmaxf(most[n / 2 % 2][n % 2], scores[n]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        most[i][0] = row_max(fmaxf(most[i][0], most[i][1]));
        rows[i].most = __fmul_rn(most[i][0], scale); /* as row_softmax: never a part of an fma */
        if (most[i][0] == -INFINITY)
            most[i][0] = 0; /* none is seen, or all are damaged: let that be seen */
    }
#pragma unroll
    for (int n = 0; n < 32; n++)
        scores[n] = (scores[n] - most[n / 2 % 2][0]) * (scale * LOG2_E);
}

__device__ static void scores_power(float (&scores)[32])
{
#pragma unroll
    for (int n = 0; n < 32; n++)
        scores[n] = power_of_two(scores[n]);
}

/* Rounds weights to left operands. */
__device__ static void weights_round(uint32_t (&weights)[PAGE_STEPS][4], const float (&powers)[32])
{
#pragma unroll
    for (int n = 0; n < 16; n++)
        weights[n / 4][n % 4] = bf16_pair(powers[2 * n], powers[2 * n + 1]);
}

/* Adds them up. */
__device__ static void weights_sum(struct row_sums rows[2],
                                   const uint32_t (&weights)[PAGE_STEPS][4])
{
    float sum[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < 16; n++)
        sum[n % 2] += pair_low(weights[n / 4][n % 4]) + pair_high(weights[n / 4][n % 4]);
    rows[0].sum = row_sum(sum[0]);
    rows[1].sum = row_sum(sum[1]);
}

/* ---- What is added up -------------------------------------------------------------------------
 */

/* What a lane has of a chunk. */
template <int DIM> struct lane_sums {
    struct row_sums rows[2];
    float out[DIM / 2];
};

template <int DIM> __device__ static void lane_sums_clear(struct lane_sums<DIM> *sums)
{
    for (int i = 0; i < 2; i++) {
        sums->rows[i].most = -INFINITY;
        sums->rows[i].sum = 0;
    }
#pragma unroll
    for (int n = 0; n < DIM / 2; n++)
        sums->out[n] = 0;
}

template <int DIM>
__device__ static void page_add(struct lane_sums<DIM> *chunk, const struct row_sums rows[2],
                                const float (&out)[DIM / 2])
{
    struct row_factors factors[2] = {row_sums_add(&chunk->rows[0], rows[0]),
                                     row_sums_add(&chunk->rows[1], rows[1])};
#pragma unroll
    for (int n = 0; n < DIM / 2; n++)
        chunk->out[n] = row_out_add(chunk->out[n], out[n], factors[n / 2 % 2]);
}

/* Adds a chunk to those before, and clears it. */
template <int DIM>
__device__ static void chunk_add(struct block_memory<DIM> *memory, struct lane_sums<DIM> *chunk)
{
    struct row_factors factors[2] = {row_sums_add(&memory->sums[0][threadIdx.x], chunk->rows[0]),
                                     row_sums_add(&memory->sums[1][threadIdx.x], chunk->rows[1])};
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
        float4 total = memory->totals[n][threadIdx.x];
        total.x = row_out_add(total.x, chunk->out[4 * n], factors[0]);
        total.y = row_out_add(total.y, chunk->out[4 * n + 1], factors[0]);
        total.z = row_out_add(total.z, chunk->out[4 * n + 2], factors[1]);
        total.w = row_out_add(total.w, chunk->out[4 * n + 3], factors[1]);
        memory->totals[n][threadIdx.x] = total;
    }
    lane_sums_clear(chunk);
}

template <int DIM> __device__ static void totals_clear(struct block_memory<DIM> *memory)
{
    struct row_sums none = {-INFINITY, 0};
    for (int i = 0; i < 2; i++)
        memory->sums[i][threadIdx.x] = none;
    for (int n = 0; n < DIM / 8; n++)
        memory->totals[n][threadIdx.x] = make_float4(0, 0, 0, 0);
}

/* ---- Rows -------------------------------------------------------------------------------------
 */

template <int DIM>
__device__ static void queries_load(uint32_t (&queries)[DIM / 16][4], const struct op_attention &op,
                                    const struct row_block &block, int row)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float *from = NULL;
        if (row + 8 * i < block.row_count)
            from = op.qkv.values +
                   (block.segment.first_row + row_token(block, row + 8 * i)) * op.qkv.stride +
                   row_head(block, row + 8 * i) * op.qkv.head_dim;
        query_load<DIM>(queries, i, from, op.qkv.head_dim);
    }
}

template <int DIM>
__device__ static void rows_write(const struct op_attention &op, const struct row_block &block,
                                  int row, const struct block_memory<DIM> *memory)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (row + 8 * i >= block.row_count)
            continue;
        float *to = op.out +
                    (block.segment.first_row + row_token(block, row + 8 * i)) * op.out_stride +
                    row_head(block, row + 8 * i) * op.kv.head_dim;
        float factor = 1.0f / memory->sums[i][threadIdx.x].sum;
        for (int n = 0; n < DIM / 8 && out_dimension(n, 0) < op.kv.head_dim; n++) {
            float4 of = memory->totals[n][threadIdx.x];
            to[out_dimension(n, 0)] = (i == 0 ? of.x : of.z) * factor;
            to[out_dimension(n, 1)] = (i == 0 ? of.y : of.w) * factor;
        }
    }
}

__device__ static struct group_pages group_pages_of(const struct op_attention &op,
                                                    const struct row_block &block, int first_row,
                                                    int page_first)
{
    struct group_pages pages = {0, 0, 0, 0};
    int last_row = min(first_row + GROUP_ROWS, block.row_count) - 1;
    if (last_row < first_row)
        return pages;
    int first = (int)row_position(block, first_row), last = (int)row_position(block, last_row);
    int window_end = (int)window_first(last, op.window) + KV_PAGE_TOKENS - 1;
    pages.first = (int)window_first(first, op.window) / KV_PAGE_TOKENS - page_first;
    pages.end = last / KV_PAGE_TOKENS + 1 - page_first;
    pages.whole_first = window_end / KV_PAGE_TOKENS - page_first;
    pages.whole_end = (first + 1) / KV_PAGE_TOKENS - page_first;
    return pages;
}

template <int DIM>
__device__ static void block_begin(struct block_memory<DIM> *memory, const struct op_attention &op,
                                   const struct row_block &block)
{
    int page_first = (int)window_first(row_position(block, 0), op.window) / KV_PAGE_TOKENS;
    int last = (int)row_position(block, block.row_count - 1);
    if (threadIdx.x == 0) {
        memory->page_first = page_first;
        memory->page_count = last / KV_PAGE_TOKENS + 1 - page_first;
        for (int i = 0; i < STAGES; i++) {
            phase_init(&memory->full[i], WARPGROUP / WARP);
            phase_init(&memory->empty[i], THREADS / WARP);
        }
    }
    if (threadIdx.x < GROUPS)
        memory->pages[threadIdx.x] =
            group_pages_of(op, block, (int)threadIdx.x * GROUP_ROWS, page_first);
    if (threadIdx.x < BLOCK_ROWS) {
        int row = (int)threadIdx.x;
        int position = row < block.row_count ? (int)row_position(block, row) : -1;
        memory->last[row] = position;
        memory->first[row] = (int)window_first(position, op.window);
    }
    __syncthreads();
}

/* Whether all rows of a warpgroup see page n whole. */
__device__ static bool is_whole(const struct group_pages &pages, int n)
{
    return n >= pages.whole_first && n < pages.whole_end;
}

/* Pages n .. end - 1 of the block's, which the warpgroup does not see. One lane goes through them:
 * it must not get ahead of others that wait for them. */
template <int DIM>
__device__ static void pages_pass(struct block_memory<DIM> *memory, int n, int end)
{
    for (; lane_id() == 0 && n < end; n++) {
        page_await(memory, n);
        page_leave(memory, n);
    }
    __syncwarp();
}

/* The pages that a warpgroup sees, one at least. What it knows of them stays in shared memory, as
 * registers are few. */
template <int DIM>
__device__ static void pages_run(const uint32_t (&queries)[DIM / 16][4],
                                 struct block_memory<DIM> *memory, const struct group_pages &pages,
                                 int row, float scale)
{
    struct lane_sums<DIM> chunk;
    struct row_sums rows[2];
    float scores[32], out[DIM / 2];
    uint32_t weights[PAGE_STEPS][4];
    int n = pages.first;
    lane_sums_clear(&chunk);
    page_await(memory, n);
    scores_begin<DIM>(scores, queries, memory->stages[n % STAGES]);
    wgmma_wait_for<0>(scores);
    if (!is_whole(pages, n))
        scores_mask(scores, memory, row, n);
    scores_scale(rows, scores, scale);
    scores_power(scores);
    weights_round(weights, scores);
    weights_sum(rows, weights);
    for (; n + 1 < pages.end; n++) {
        struct row_sums next[2];
        page_await(memory, n + 1);
        scores_begin<DIM>(scores, queries, memory->stages[(n + 1) % STAGES]);
        outputs_begin<DIM>(out, weights, memory->stages[n % STAGES]);
        wgmma_wait_for<1>(scores);
        if (!is_whole(pages, n + 1))
            scores_mask(scores, memory, row, n + 1);
        scores_scale(next, scores, scale);
        wgmma_wait_for<0>(out);
        page_leave(memory, n);
        scores_power(scores);
        page_add<DIM>(&chunk, rows, out);
        weights_round(weights, scores);
        weights_sum(next, weights);
        if ((memory->page_first + n + 1) % CHUNK_PAGES == 0)
            chunk_add<DIM>(memory, &chunk);
        rows[0] = next[0];
        rows[1] = next[1];
    }
    outputs_begin<DIM>(out, weights, memory->stages[n % STAGES]);
    wgmma_wait_for<0>(out);
    page_leave(memory, n);
    page_add<DIM>(&chunk, rows, out);
    chunk_add<DIM>(memory, &chunk);
}

/* A warpgroup's way through the block's pages. */
template <int DIM>
__device__ static void group_run(const uint32_t (&queries)[DIM / 16][4],
                                 struct block_memory<DIM> *memory, int row, float scale)
{
    const struct group_pages &pages = memory->pages[(int)threadIdx.x / WARPGROUP];
    pages_pass(memory, 0, pages.first);
    if (pages.first < pages.end)
        pages_run<DIM>(queries, memory, pages, row, scale);
    pages_pass(memory, pages.end, memory->page_count);
}

/* Blocks [kv heads][blocks of rows]; those of later rows, which see more, come first. */
template <int DIM>
__global__ void __launch_bounds__(THREADS + WARPGROUP, 1)
    attention_wgmma_kernel(const struct op_attention op)
{
    KERNEL_SHARED_ALIGNED(struct block_memory<DIM>, memory, MEMORY_ALIGN);
    struct row_block block;
    int64_t index = gridDim.y - 1 - blockIdx.y;
    if (!row_block_find<BLOCK_ROWS>(&block, op, index, blockIdx.x))
        return;
    block_begin(memory, op, block);
    if (threadIdx.x >= THREADS) {
        registers_give<(DIM > 64 ? 24 : 40)>();
        pages_bring<DIM>(memory, op, block.segment.pages,
                         (int)row_position(block, block.row_count - 1) + 1);
        return;
    }
    registers_take<(DIM > 64 ? 240 : 232)>();
    int row = warp_id() * WARP_ROWS + lane_group();
    uint32_t queries[DIM / 16][4];
    queries_load<DIM>(queries, op, block, row);
    totals_clear(memory);
    group_run<DIM>(queries, memory, row, 1.0f / sqrtf((float)op.kv.head_dim));
    struct row_block again = {}; /* found a second time, as its registers were others' meanwhile */
    row_block_find<BLOCK_ROWS>(&again, op, index, blockIdx.x);
    rows_write<DIM>(op, again, row, memory);
}

/* ---- Launchers --------------------------------------------------------------------------------
 */

#define GRID_Y_MAX 65535

template <int DIM> static size_t memory_bytes()
{
    return sizeof(struct block_memory<DIM>) + SHARED_SLACK(MEMORY_ALIGN);
}

static int64_t row_blocks(const struct op_attention *op, const struct cuda_segments *segments)
{
    int64_t group = op->qkv.head_count / op->qkv.kv_head_count;
    return segments->token_count * group / BLOCK_ROWS + op->segment_count;
}

template <int DIM>
static cudaError_t wgmma_launch(const struct cuda_launch *launch, const struct op_attention *op,
                                const struct cuda_segments *segments)
{
    cudaError_t failure =
        cudaFuncSetAttribute((const void *)attention_wgmma_kernel<DIM>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)memory_bytes<DIM>());
    dim3 grid((unsigned)op->kv.kv_head_count, (unsigned)row_blocks(op, segments));
    if (failure != cudaSuccess)
        return failure;
    KERNEL_LAUNCH((attention_wgmma_kernel<DIM>), grid, THREADS + WARPGROUP, memory_bytes<DIM>(),
                  launch->stream, *op);
    return cudaGetLastError();
}

/* Later GPUs do not have the instruction. */
bool attention_wgmma_takes(const struct cuda_launch *launch, const struct op_attention *op,
                           const struct cuda_segments *segments)
{
    return launch->capability == 90 && memory_bytes<128>() <= (size_t)launch->shared_bytes_max &&
           row_blocks(op, segments) <= GRID_Y_MAX;
}

cudaError_t attention_wgmma(const struct cuda_launch *launch, const struct op_attention *op,
                            const struct cuda_segments *segments)
{
    return op->kv.head_dim <= 64 ? wgmma_launch<64>(launch, op, segments)
                                 : wgmma_launch<128>(launch, op, segments);
}

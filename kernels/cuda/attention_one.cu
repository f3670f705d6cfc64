/* Attention of one token of each segment (decode) with matrix instructions: what attention_mma.cu
 * takes, where no segment has more. Bytes: keys and values once; nothing else counts.
 *
 * The rows are the query heads of a kv head. A warp has a page at a time, all by itself. The page
 * comes in tiles of 8 KiB, keys first; each warp has room for some of them, and when one has been
 * multiplied, the next that goes there is sent for, be it of the warp's next page. So bytes are
 * always under way.
 *
 * A block has a part of a context: a chunk, whose pages it adds up; or, where chunks would occupy
 * but a quarter of the GPU, as many pages as it has warps, and another kernel adds up pages and chunks,
 * in the same order. */
#include "kernels/cuda/attention_page.cuh"

#define WARPS       4
#define THREADS     (WARPS * WARP)
#define STAGES      2    /* tiles that a warp has room for */
#define TILE_VALUES 4096 /* 16 bits each */
#define TILE_DIMS   (TILE_VALUES / KV_PAGE_TOKENS)

#define STATIC_BYTES (sizeof(struct row_sums) * (WARPS + 2) * WARP_ROWS)

template <int DIM> struct tile_shape {
    static const int side = DIM / TILE_DIMS; /* tiles of a page's keys; then as many of values */
    static const int tokens = TILE_VALUES / DIM;
    static const int units = DIM / STAGE_VALUES; /* of a token's values */
    static const int out_stride = DIM + 8;       /* of a row in shared memory: no bank conflicts */
};

/* What a block has to do. */
struct part {
    struct segment segment;
    int index; /* of the launch's chunks */
    int first_head, row_count;
    int first, end; /* pages */
};

/* False where the segment sees none of the part's pages, or is not the launch's. */
template <int PAGES>
__device__ static bool part_find(struct part *part, const struct op_attention &op,
                                 const struct chunk_results &results, int block_rows)
{
    int group = (int)op.qkv.head_count / (int)op.qkv.kv_head_count;
    int head_blocks = (group + block_rows - 1) / block_rows;
    int first_row = (int)blockIdx.x % head_blocks * block_rows;
    struct chunk_place place;
    part->index = (int)blockIdx.x / head_blocks;
    if (!chunk_find(&place, results, part->index))
        return false;
    int begin = place.chunk * CHUNK_PAGES + (int)blockIdx.z * PAGES;
    part->segment = op.segments[place.segment];
    part->first_head = (int)blockIdx.y * group + first_row;
    part->row_count = min(group - first_row, block_rows);
    int position = (int)part->segment.first_position;
    part->first = max((int)window_first(position, op.window) / KV_PAGE_TOKENS, begin);
    part->end = min(position / KV_PAGE_TOKENS + 1, begin + PAGES);
    return part->first < part->end;
}

/* A page that tiles are copied from. */
struct page_source {
    struct page_memory page;
    int count; /* tokens whose values may be read, or more than a page has; 0: there is no page */
};

__device__ static struct page_source source_find(const struct op_attention &op,
                                                 const struct part &part, int page)
{
    struct page_source from = {{NULL, NULL}, 0};
    if (page < part.end) {
        from.page = page_find(op, part.segment.pages[page], (int)blockIdx.y);
        from.count = (int)part.segment.first_position + 1 - page * KV_PAGE_TOKENS;
    }
    return from;
}

/* Sends for tile `tile` of a page. */
template <int DIM>
__device__ static void tile_copy(uint16_t *to, const struct page_source &from, int tile,
                                 const struct op_attention &op)
{
    using shape = tile_shape<DIM>;
    if (tile < shape::side)
        keys_copy<TILE_DIMS, WARP>(to, from.page, op, tile * TILE_DIMS, lane_id());
    else
        values_copy<DIM, shape::tokens, WARP>(
            to, from.page, op, (tile - shape::side) * shape::tokens, from.count, lane_id());
}

/* What a warp has of a page: of rows g and g + 8. */
template <int DIM> struct page_sums {
    struct row_sums rows[2];
    float out[DIM / 8][4];
};

/* Adds a tile of keys to the scores. */
template <int DIM>
__device__ static void keys_multiply(float scores[PAGE_TILES][4], const uint16_t *lines, int tile,
                                     const uint32_t queries[DIM / 16][4])
{
#pragma unroll
    for (int k = 0; k < TILE_DIMS / 16; k++)
        tiles_mma<KEY_UNITS, PAGE_TILES>(scores, queries[tile * (TILE_DIMS / 16) + k], lines,
                                         16 * k, 0);
}

/* Adds tile `tile` of the values to the outputs. */
template <int DIM>
__device__ static void values_multiply(float out[DIM / 8][4], const uint16_t *lines, int tile,
                                       const uint32_t weights[PAGE_STEPS][4])
{
    using shape = tile_shape<DIM>;
#pragma unroll
    for (int step = 0; step < shape::tokens / 16; step++)
        tiles_mma<shape::units, DIM / 8>(out, weights[tile * (shape::tokens / 16) + step], lines,
                                         16 * step, 0);
}

/* `page_first` is the position of the page's first token. */
__device__ static void page_softmax(struct row_sums sums[2], uint32_t weights[PAGE_STEPS][4],
                                    const float scores[PAGE_TILES][4],
                                    const struct op_attention &op, const struct part &part,
                                    int page_first)
{
    float scale = 1.0f / sqrtf((float)op.kv.head_dim);
    int position = (int)part.segment.first_position;
    int first = (int)window_first(position, op.window) - page_first, last = position - page_first;
    bool is_whole = first <= 0 && last >= KV_PAGE_TOKENS - 1;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (i == 1 && part.row_count <= 8)
            sums[i] = row_unseen(weights, i);
        else if (is_whole)
            sums[i] = row_softmax<false>(weights, scores, i, first, last, scale);
        else
            sums[i] = row_softmax<true>(weights, scores, i, first, last, scale);
    }
}

/* Page `page`, whose first tiles are on their way to `room`; sends for its others, and for the
 * first ones of `next`. */
template <int DIM>
__device__ static void page_run(struct page_sums<DIM> *sums, uint16_t *room,
                                const struct op_attention &op, const struct page_source &from,
                                const struct page_source &next, const uint32_t queries[DIM / 16][4],
                                const struct part &part, int page)
{
    using shape = tile_shape<DIM>;
    static_assert(2 * shape::side % STAGES == 0, "a tile's place is known at compile time");
    float scores[PAGE_TILES][4] = {};
    uint32_t weights[PAGE_STEPS][4];
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
        sums->out[n][0] = sums->out[n][1] = sums->out[n][2] = sums->out[n][3] = 0;
#pragma unroll
    for (int tile = 0; tile < 2 * shape::side; tile++) {
        uint16_t *lines = room + tile % STAGES * TILE_VALUES;
        stage_wait<STAGES - 1>();
        __syncwarp(); /* all lanes' copies are there */
        if (tile < shape::side)
            keys_multiply<DIM>(scores, lines, tile, queries);
        else
            values_multiply<DIM>(sums->out, lines, tile - shape::side, weights);
        __syncwarp(); /* all lanes have read the tile */
        int ahead = tile + STAGES;
        if (ahead < 2 * shape::side)
            tile_copy<DIM>(lines, from, ahead, op);
        else if (next.count > 0)
            tile_copy<DIM>(lines, next, ahead - 2 * shape::side, op);
        stage_commit();
        if (tile == shape::side - 1)
            page_softmax(sums->rows, weights, scores, op, part, page * KV_PAGE_TOKENS);
    }
}

/* Where the pages of a round, one of each warp, are added to those of the chunk before. */
struct round_pages {
    float *outs;                         /* [WARPS, then the chunk before][row][out_stride] */
    struct row_sums (*sums)[WARP_ROWS];  /* [WARPS] */
    struct row_sums (*chunk)[WARP_ROWS]; /* [2]: before this round, and behind it */
};

template <int DIM>
__device__ static float *round_row(const struct round_pages &pages, const struct part &part,
                                   int page, int row)
{
    return pages.outs + (page * part.row_count + row) * tile_shape<DIM>::out_stride;
}

template <int DIM>
__device__ static void page_keep(const struct round_pages &pages, const struct part &part,
                                 const struct page_sums<DIM> &of)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = lane_group() + 8 * i;
        if (row >= part.row_count)
            continue;
        float *to = round_row<DIM>(pages, part, warp_id(), row);
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            *(float2 *)(to + out_dimension(n, 0)) =
                make_float2(of.out[n][2 * i], of.out[n][2 * i + 1]);
        if (lane_in_group() == 0)
            pages.sums[warp_id()][row] = of.rows[i];
    }
}

/* Where a page is a part. */
template <int DIM>
__device__ static void page_write(const struct chunk_results &results,
                                  const struct op_attention &op, const struct part &part,
                                  const struct page_sums<DIM> &of, int page)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = lane_group() + 8 * i;
        if (row >= part.row_count)
            continue;
        int64_t at = chunk_index(results, part.first_head + row,
                                 part.index * CHUNK_PAGES + page % CHUNK_PAGES);
        float *to = results.out + at * results.out_stride;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            if (out_dimension(n, 0) < op.kv.head_dim)
                *(float2 *)(to + out_dimension(n, 0)) =
                    make_float2(of.out[n][2 * i], of.out[n][2 * i + 1]);
        }
        if (lane_in_group() == 0)
            results.sums[at] = of.rows[i];
    }
}

/* What a chunk has made of dimensions d and d + 1 of row `row`. */
__device__ static void chunk_write(const struct chunk_results &results,
                                   const struct op_attention &op, const struct part &part, int row,
                                   int d, struct row_sums total, float2 out)
{
    if (d >= op.kv.head_dim)
        return;
    int64_t at = chunk_index(results, part.first_head + row, part.index);
    float *to = results.out + at * results.out_stride;
    if (results.sums == NULL) {
        float factor = 1.0f / total.sum;
        out.x *= factor;
        out.y *= factor;
        to = op.out + part.segment.first_row * op.out_stride +
             (part.first_head + row) * op.kv.head_dim;
    } else if (d == 0)
        results.sums[at] = total;
    to[d] = out.x;
    to[d + 1] = out.y;
}

/* Adds pages first .. end - 1 of a round to the chunk: round number `round`, after which no other
 * comes where is_last. As many threads as there are have a row each time, so that its factors are
 * found but once by a thread. */
template <int DIM>
__device__ static void round_add(const struct round_pages &pages,
                                 const struct chunk_results &results, const struct op_attention &op,
                                 const struct part &part, int round, int first, int end,
                                 bool is_last)
{
    int width = part.row_count > 8 ? THREADS / 16 : part.row_count > 4 ? THREADS / 8 : THREADS / 4;
    int row = (int)threadIdx.x / width;
    if (row >= part.row_count)
        return;
    struct row_factors factors[WARPS];
    struct row_sums total = {-INFINITY, 0};
    if (round > 0)
        total = pages.chunk[round % 2][row];
#pragma unroll
    for (int page = 0; page < WARPS; page++) {
        struct row_sums none = {-INFINITY, 0};
        bool is_there = page >= first && page < end;
        factors[page] = row_sums_add(&total, is_there ? pages.sums[page][row] : none);
    }
    for (int d = (int)threadIdx.x % width * 2; d < DIM; d += 2 * width) {
        float2 *chunk = (float2 *)(round_row<DIM>(pages, part, WARPS, row) + d);
        float2 out = round > 0 ? *chunk : make_float2(0, 0);
#pragma unroll
        for (int page = 0; page < WARPS; page++) {
            if (page < first || page >= end)
                continue;
            float2 of = *(const float2 *)(round_row<DIM>(pages, part, page, row) + d);
            out.x = row_out_add(out.x, of.x, factors[page]);
            out.y = row_out_add(out.y, of.y, factors[page]);
        }
        if (is_last)
            chunk_write(results, op, part, row, d, total, out);
        else
            *chunk = out;
    }
    if (threadIdx.x % width == 0)
        pages.chunk[(round + 1) % 2][row] = total;
}

/* The queries of a block's rows. */
template <int DIM>
__device__ static void queries_load(uint32_t queries[DIM / 16][4], const struct op_attention &op,
                                    const struct part &part)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = lane_group() + 8 * i;
        const float *from = op.qkv.values + part.segment.first_row * op.qkv.stride +
                            (part.first_head + row) * op.qkv.head_dim;
        query_load<DIM>(queries, i, row < part.row_count ? from : NULL, op.qkv.head_dim);
    }
}

/* Blocks [chunks x blocks of heads][kv heads][parts of a chunk]. */
template <int DIM, bool BY_PAGE>
__global__ void __launch_bounds__(THREADS, BY_PAGE ? 2 : 3)
    attention_one_kernel(const struct op_attention op, const struct chunk_results results,
                         int block_rows)
{
    KERNEL_SHARED(uint16_t, shared);
    __shared__ struct row_sums sums[WARPS][WARP_ROWS], chunk[2][WARP_ROWS]; /* STATIC_BYTES */
    struct part part;
    if (!part_find < BY_PAGE ? WARPS : CHUNK_PAGES > (&part, op, results, block_rows))
        return;
    struct round_pages pages = {(float *)(shared + WARPS * STAGES * TILE_VALUES), sums, chunk};
    uint16_t *room = shared + warp_id() * STAGES * TILE_VALUES;
    int base = part.first / WARPS * WARPS, page = base + warp_id();
    struct page_source from =
        source_find(op, part, page < part.first ? page + WARPS : page); /* the warp's next page */
    uint32_t queries[DIM / 16][4];
#pragma unroll
    for (int tile = 0; tile < STAGES && from.count > 0; tile++) {
        tile_copy<DIM>(room + tile * TILE_VALUES, from, tile, op);
        stage_commit();
    }
    queries_load<DIM>(queries, op, part);
    for (int round = 0; base < part.end; round++, base += WARPS, page += WARPS) {
        struct page_sums<DIM> of_page;
        bool is_own = page >= part.first && page < part.end;
        if (is_own) {
            struct page_source next = source_find(op, part, page + WARPS);
            page_run<DIM>(&of_page, room, op, from, next, queries, part, page);
            from = next;
        }
        if (BY_PAGE) {
            if (is_own)
                page_write<DIM>(results, op, part, of_page, page);
            continue;
        }
        if (round > 0)
            __syncthreads(); /* the pages before have been added */
        if (is_own)
            page_keep<DIM>(pages, part, of_page);
        __syncthreads(); /* the pages are there */
        round_add<DIM>(pages, results, op, part, round, part.first - base, part.end - base,
                       base + WARPS >= part.end);
    }
}

/* Adds up the pages of a query head of a segment, chunk by chunk, and the chunks. Blocks
 * [segments of the launch][heads]: each ADD_COLUMNS threads have a chunk of ADD_CHUNKS, and the
 * first of them add those up. */
#define ADD_COLUMNS 128 /* as many as a head has at most */
#define ADD_CHUNKS  8

/* Chunk `chunk`, of pages first .. end - 1, column `d`; `sums` becomes the chunk's. */
__device__ static float pages_add(struct row_sums *sums, const struct chunk_results &results,
                                  int64_t at, int d, int first, int end)
{
    struct row_sums of_page[CHUNK_PAGES];
    float out[CHUNK_PAGES], total = 0;
#pragma unroll
    for (int p = 0; p < CHUNK_PAGES; p++) {
        struct row_sums none = {-INFINITY, 0};
        of_page[p] = first + p < end ? results.sums[at + first + p] : none;
        out[p] = first + p < end ? results.out[(at + first + p) * results.out_stride + d] : 0.0f;
    }
#pragma unroll
    for (int p = 0; p < CHUNK_PAGES; p++)
        total = row_out_add(total, out[p], row_sums_add(sums, of_page[p]));
    return total;
}

__global__ void __launch_bounds__(ADD_COLUMNS *ADD_CHUNKS)
    pages_add_kernel(const struct op_attention op, const struct chunk_results results)
{
    __shared__ float outs[ADD_CHUNKS][ADD_COLUMNS];
    __shared__ struct row_sums sums[ADD_CHUNKS];
    int index, first_of_chunks;
    if (!chunk_segment_find(&index, &first_of_chunks, op, results, (int)blockIdx.x))
        return;
    const struct segment *segment = &op.segments[index];
    int position = (int)segment->first_position, head = (int)blockIdx.y;
    int page = (int)window_first(position, op.window) / KV_PAGE_TOKENS;
    int end = position / KV_PAGE_TOKENS + 1, first_chunk = page / CHUNK_PAGES;
    int own = (int)threadIdx.x / ADD_COLUMNS, d = (int)threadIdx.x % ADD_COLUMNS;
    int64_t at = chunk_index(results, head, first_of_chunks * CHUNK_PAGES);
    struct row_sums total = {-INFINITY, 0};
    float out = 0;
    for (int chunk = first_chunk; chunk * CHUNK_PAGES < end; chunk += ADD_CHUNKS) {
        int first = max(page, (chunk + own) * CHUNK_PAGES);
        int last = min(end, (chunk + own + 1) * CHUNK_PAGES);
        struct row_sums of_chunk = {-INFINITY, 0};
        if (d < op.kv.head_dim)
            outs[own][d] = pages_add(&of_chunk, results, at, d, first, last);
        if (d == 0)
            sums[own] = of_chunk;
        __syncthreads(); /* the chunks are there */
        for (int c = 0; c < ADD_CHUNKS && own == 0; c++)
            out = row_out_add(out, outs[c][d], row_sums_add(&total, sums[c]));
        __syncthreads(); /* they have been added */
    }
    if (own == 0 && d < op.kv.head_dim)
        op.out[segment->first_row * op.out_stride + head * op.kv.head_dim + d] =
            out * (1.0f / total.sum);
}

/* ---- Launchers ------------------------------------------------------------------------------- */

/* Of shared memory, for a block that has so many rows of a chunk, or pages (0). */
template <int DIM> static size_t part_bytes(int64_t rows)
{
    return sizeof(uint16_t) * WARPS * STAGES * TILE_VALUES +
           sizeof(float) * (WARPS + 1) * (size_t)rows * tile_shape<DIM>::out_stride;
}

/* With 99 KiB (sm_86, 89) a block has no room for more than 12 rows of 128 dimensions: then two
 * have a chunk's rows, side by side, and what one reads of the cache the other finds in the L2. By
 * pages there would be room, but eight times as many results in scratch memory. */
template <int DIM>
static int64_t block_rows_max(const struct cuda_launch *launch, const struct op_attention *op)
{
    int64_t group = op->qkv.head_count / op->qkv.kv_head_count;
    size_t bytes = part_bytes<DIM>(min(group, (int64_t)WARP_ROWS)) + STATIC_BYTES;
    return bytes <= (size_t)launch->shared_bytes_max ? WARP_ROWS : WARP_ROWS / 2;
}

/* Where chunks would occupy but a quarter of the GPU; on an H100 that takes an eighth to a tenth
 * less time, with half of it occupied as long or longer (bench/results/gpu-hopper.md). */
bool attention_one_by_page(const struct cuda_launch *launch, const struct op_attention *op,
                           const struct cuda_segments *segments)
{
    return segments->positions_max > CHUNK_TOKENS &&
           segments->chunk_count * op->qkv.kv_head_count <= max(launch->multiprocessors / 4, 2);
}

template <int DIM, bool BY_PAGE>
static cudaError_t parts_launch(const struct cuda_launch *launch, const struct op_attention *op,
                                const struct chunk_results &results)
{
    int64_t group = op->qkv.head_count / op->qkv.kv_head_count;
    int64_t block_rows = BY_PAGE ? WARP_ROWS : block_rows_max<DIM>(launch, op);
    size_t bytes = part_bytes<DIM>(BY_PAGE ? 0 : min(group, block_rows));
    /* One number for all models, as those that share a GPU share what is set for its kernels. */
    cudaError_t failure = cudaFuncSetAttribute(attention_one_kernel<DIM, BY_PAGE>,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               launch->shared_bytes_max - (int)STATIC_BYTES);
    dim3 grid((unsigned)(results.count * ceil_div(group, block_rows)),
              (unsigned)op->qkv.kv_head_count, BY_PAGE ? CHUNK_PAGES / WARPS : 1);
    if (failure != cudaSuccess)
        return failure;
    KERNEL_LAUNCH((attention_one_kernel<DIM, BY_PAGE>), grid, THREADS, bytes, launch->stream, *op,
                  results, (int)block_rows);
    return cudaGetLastError();
}

template <int DIM>
static cudaError_t one_launch(const struct cuda_launch *launch, const struct op_attention *op,
                              const struct chunk_results *results)
{
    cudaError_t failure = results->by_page ? parts_launch<DIM, true>(launch, op, *results)
                                           : parts_launch<DIM, false>(launch, op, *results);
    if (results->sums == NULL || failure != cudaSuccess)
        return failure;
    if (!results->by_page)
        return attention_chunks_add(launch, op, results);
    dim3 heads(chunk_segments_max(op, results), (unsigned)op->qkv.head_count);
    KERNEL_LAUNCH((pages_add_kernel), heads, ADD_COLUMNS * ADD_CHUNKS, 0, launch->stream, *op,
                  *results);
    return cudaGetLastError();
}

cudaError_t attention_one(const struct cuda_launch *launch, const struct op_attention *op,
                          const struct chunk_results *results)
{
    return op->kv.head_dim <= 64 ? one_launch<64>(launch, op, results)
                                 : one_launch<128>(launch, op, results);
}

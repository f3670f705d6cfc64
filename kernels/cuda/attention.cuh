/* What the paths of attention share: rows, chunks of the context, and how their results are put
 * together.
 *
 * The rows of a segment and kv head are its (token, query head) pairs, token by token, over the
 * query heads that share the kv head. A row's context is cut into chunks of CHUNK_PAGES pages,
 * counted from position 0. Within a chunk softmax is online (Milakov and Gimelshein, "Online
 * normalizer calculation for softmax", 2018), page by page; then chunks are added up in their
 * order. So one block may go through all chunks of its rows (prefill), or each chunk may have a
 * block of its own, whose results a second kernel adds up (decode): a row's bits are the same. */
#ifndef PHASOR_KERNELS_CUDA_ATTENTION_CUH
#define PHASOR_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/segments.cuh"

#define CHUNK_PAGES  8
#define CHUNK_TOKENS (CHUNK_PAGES * KV_PAGE_TOKENS)
static_assert(CUDA_POSITIONS_STEP == CHUNK_TOKENS,
              "rounded up, there are as many chunks as before");

/* What one row has of some positions: beside the sum of exp(score - most) x value, the largest
 * score and the sum of the exponentials. Where no position is seen that is -infinity and 0; where
 * no score is a number, -infinity and NaN. */
struct row_sums {
    float most, sum;
};

/* The factors by which the two sides' outputs (and sums) are multiplied before they are added. */
struct row_factors {
    float before, after;
};

/* Where `before` is the largest score before. The factor of the larger side is 1. No branches: a
 * page's outputs are added meanwhile. */
__device__ inline struct row_factors row_factors_of(float before, struct row_sums after)
{
    float less = expf(-fabsf(before - after.most));
    bool rises = after.most >= before, is_none = after.most == -INFINITY && after.sum == 0;
    struct row_factors factors = {rises ? less : 1.0f, rises ? 1.0f : less};
    factors.before = is_none ? 1.0f : before == -INFINITY ? 0.0f : factors.before;
    factors.after = is_none ? 0.0f : factors.after;
    return factors;
}

/* Puts the sums of what comes after to those of what was before. */
__device__ inline struct row_factors row_sums_add(struct row_sums *before, struct row_sums after)
{
    struct row_factors factors = row_factors_of(before->most, after);
    before->sum = fmaf(before->sum, factors.before, after.sum * factors.after);
    before->most = fmaxf(before->most, after.most);
    return factors;
}

/* The output before and after, with the factors of row_sums_add. */
__device__ inline float row_out_add(float before, float after, struct row_factors factors)
{
    return fmaf(before, factors.before, after * factors.after);
}

/* What a row has of a page: the largest of its scores there, -infinity where it sees none. Returns
 * by what everything before is multiplied; *base is what scores are reduced by. */
__device__ inline float row_page_begin(struct row_sums *row, float *base, float page_most)
{
    float most = fmaxf(row->most, page_most);
    float scale = row->most == -INFINITY ? 0.0f : expf(row->most - most);
    *base = most == -INFINITY ? 0.0f : most; /* all scores damaged: let that be seen */
    row->most = most;
    row->sum *= scale;
    return scale;
}

/* ---- Which rows, which pages ----------------------------------------------------------------- */

/* Some neighbouring rows of a segment and kv head. */
struct row_block {
    struct segment segment;
    int64_t kv_head;
    int64_t first_row; /* among those of the segment and kv head */
    int row_count;
    int group; /* query heads of a kv head */
};

__device__ inline int64_t row_token(const struct row_block &block, int row)
{
    return (block.first_row + row) / block.group;
}

__device__ inline int64_t row_position(const struct row_block &block, int row)
{
    return block.segment.first_position + row_token(block, row);
}

__device__ inline int64_t row_head(const struct row_block &block, int row)
{
    return block.kv_head * block.group + (block.first_row + row) % block.group;
}

/* The first position that a row at `position` sees. */
__device__ inline int64_t window_first(int64_t position, int64_t window)
{
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* Block `index` of ROWS rows. False behind the last; all lanes of a warp call it. */
template <int ROWS>
__device__ inline bool row_block_find(struct row_block *block, const struct op_attention &op,
                                      int64_t index, int64_t kv_head)
{
    int64_t segment, piece, group = op.qkv.head_count / op.qkv.kv_head_count;
    if (!segment_find(&segment, &piece, op.segments, op.segment_count, index, group, ROWS))
        return false;
    block->segment = op.segments[segment];
    block->kv_head = kv_head;
    block->first_row = piece * ROWS;
    block->group = (int)group;
    block->row_count =
        (int)min(block->segment.token_count * group - block->first_row, (int64_t)ROWS);
    return true;
}

/* A page of a kv head, in values. */
__device__ inline int64_t page_offset(const struct op_attention &op, const struct row_block &block,
                                      int64_t page)
{
    int64_t dim_stride = device_round_up(op.kv.head_dim, PACK_BLOCK);
    return (block.segment.pages[page] * op.kv.kv_head_count + block.kv_head) * dim_stride *
           KV_PAGE_TOKENS;
}

/* ---- Chunks that have a block each ----------------------------------------------------------- */

/* What a launch does where each segment has one token: of the chunks of all segments (launch.h)
 * those from `first` on, of the segments that begin before `end`. So a context is never cut between
 * two launches, and how much each does does not depend on how contexts grow.
 *
 * Where the results of parts stand, which are chunks or pages: of query head h and chunk
 * first + c, at h x part_count + c; where pages are parts, CHUNK_PAGES x as much, and the page. */
struct chunk_results {
    struct row_sums *sums; /* NULL: each segment has but one chunk, or blocks go through all */
    float *out;            /* [..][out_stride] */
    int64_t part_count;    /* of a head */
    int64_t out_stride;    /* dim_stride of the cache */
    const int32_t *segment_chunks, *chunk_segments;
    int first, end, count; /* first + count: behind the last chunk that may be theirs */
    bool by_page;          /* only where attention_mma_takes */
};

__device__ inline int64_t chunk_index(const struct chunk_results &results, int64_t head,
                                      int64_t part)
{
    return head * results.part_count + part;
}

/* A chunk's segment, and which of the segment's it is. */
struct chunk_place {
    int segment, chunk;
};

/* Of the launch's chunk `index`. False: it is another launch's, or there is none. */
__device__ inline bool chunk_find(struct chunk_place *place, const struct chunk_results &results,
                                  int index)
{
    place->segment = index;
    place->chunk = 0;
    if (results.sums == NULL)
        return true;
    place->segment = results.chunk_segments[results.first + index];
    if (place->segment < 0)
        return false;
    int begin = results.segment_chunks[place->segment];
    place->chunk = results.first + index - begin;
    return begin >= results.first && begin < results.end;
}

/* The launch's segment `index`, and which of its chunks is that one's first. False behind the last.
 */
__device__ inline bool chunk_segment_find(int *segment, int *first_chunk,
                                          const struct op_attention &op,
                                          const struct chunk_results &results, int index)
{
    *segment = index;
    if (results.first > 0) {
        int owner = results.chunk_segments[results.first];
        if (owner < 0)
            return false;
        *segment += owner + (results.segment_chunks[owner] < results.first);
    }
    if (*segment >= (int)op.segment_count)
        return false;
    int begin = results.segment_chunks[*segment];
    *first_chunk = begin - results.first;
    return begin < results.end;
}

/* How many blocks have a segment each. */
static inline unsigned chunk_segments_max(const struct op_attention *op,
                                          const struct chunk_results *results)
{
    int64_t begin = results->end - results->first;
    return (unsigned)(begin < op->segment_count ? begin : op->segment_count);
}

/* With matrix instructions (attention_mma.cu): a cache of bf16, from sm_80 on. */
bool attention_mma_takes(const struct cuda_launch *launch, const struct op_attention *op,
                         const struct cuda_segments *segments);
cudaError_t attention_mma(const struct cuda_launch *launch, const struct op_attention *op,
                          const struct cuda_segments *segments);

/* The same where each segment has one token (attention_one.cu); and whether its parts are pages:
 * where chunks would leave three quarters of the multiprocessors without work. */
cudaError_t attention_one(const struct cuda_launch *launch, const struct op_attention *op,
                          const struct chunk_results *results);
bool attention_one_by_page(const struct cuda_launch *launch, const struct op_attention *op,
                           const struct cuda_segments *segments);

/* Adds the chunks up (attention.cu). */
cudaError_t attention_chunks_add(const struct cuda_launch *launch, const struct op_attention *op,
                                 const struct chunk_results *results);

/* With Hopper's matrix instruction, where attention_mma_takes and segments have many tokens
 * (attention_wgmma.cu). */
bool attention_wgmma_takes(const struct cuda_launch *launch, const struct op_attention *op,
                           const struct cuda_segments *segments);
cudaError_t attention_wgmma(const struct cuda_launch *launch, const struct op_attention *op,
                            const struct cuda_segments *segments);

#endif

/* What the paths of attention with matrix instructions share: the rows of a warp, and what a page
 * gives them.
 *
 * Queries and weights are rounded to bf16; sums are f32. A warp has 16 rows, the left operand. The
 * right operands are pairs: of neighbouring dimensions of a key, of two tokens of the values. In
 * the cache the two of a pair lie in different lines, so a page stands in shared memory as it lies
 * in the cache and is turned on the way to registers (stage.cuh). With g and t as in mma.cuh,
 * column c of score tile n is token 8n + c, and column c of output tile n is dimension 8n + c. */
#ifndef PHASOR_KERNELS_CUDA_ATTENTION_PAGE_CUH
#define PHASOR_KERNELS_CUDA_ATTENTION_PAGE_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/stage.cuh"

#define WARP_ROWS  16
#define PAGE_TILES (KV_PAGE_TOKENS / 8)  /* of scores */
#define PAGE_STEPS (KV_PAGE_TOKENS / 16) /* of the product with values */
#define KEY_UNITS  (KV_PAGE_TOKENS / STAGE_VALUES)
#define LOG2_E     1.44269504f

/* Dimension of the lane's value `i` of output tile `n`. */
__device__ inline int out_dimension(int n, int i)
{
    return 8 * n + 2 * lane_in_group() + i % 2;
}

/* Rounds a query, which stands at `from` (NULL: there is none), as row g + 8i of left operands. */
template <int DIM>
__device__ inline void query_load(uint32_t queries[DIM / 16][4], int i, const float *from,
                                  int64_t head_dim)
{
#pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
        int d = out_dimension(j, 0);
        bool is_here = from != NULL && d < head_dim;
        queries[j / 2][i + j % 2 * 2] = is_here ? bf16_pair(from[d], from[d + 1]) : 0;
    }
}

/* A page of a kv head in memory. */
struct page_memory {
    const uint16_t *keys, *values;
};

__device__ inline int cache_stride(const struct op_attention &op)
{
    return ((int)op.kv.head_dim + PACK_BLOCK - 1) / PACK_BLOCK * PACK_BLOCK;
}

__device__ inline struct page_memory page_find(const struct op_attention &op, int page, int kv_head)
{
    int64_t head = (int64_t)page * (int)op.kv.kv_head_count + kv_head;
    int64_t offset = head * (cache_stride(op) * KV_PAGE_TOKENS);
    struct page_memory of = {(const uint16_t *)op.kv.keys + offset,
                             (const uint16_t *)op.kv.values + offset};
    return of;
}

/* Begins to copy dimensions first .. first + LINES - 1 of a page's keys, with THREADS threads. */
template <int LINES, int THREADS>
__device__ inline void keys_copy(uint16_t *to, const struct page_memory &page,
                                 const struct op_attention &op, int first, int thread)
{
    stage_lines<KEY_UNITS, LINES, THREADS>(to, page.keys + first * KV_PAGE_TOKENS, KV_PAGE_TOKENS,
                                           (int)op.kv.head_dim - first, KEY_UNITS, thread);
}

/* The same of tokens, whose values must not be read from token `count` on. */
template <int DIM, int LINES, int THREADS>
__device__ inline void values_copy(uint16_t *to, const struct page_memory &page,
                                   const struct op_attention &op, int first, int count, int thread)
{
    int stride = cache_stride(op);
    stage_lines<DIM / STAGE_VALUES, LINES, THREADS>(to, page.values + first * stride, stride,
                                                    count - first, stride / STAGE_VALUES, thread);
}

/* Over the four lanes that have a row. */
__device__ inline float row_max(float value)
{
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

__device__ inline float row_sum(float value)
{
    value += __shfl_xor_sync(ALL_LANES, value, 1);
    return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

/* 2^power in one instruction: what is below 2^-126 is zero. */
__device__ inline float power_of_two(float power)
{
#if defined(SIMT_HOST)
    return exp2f(power);
#else
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(power));
    return value;
#endif
}

/* Scores of row g + 8i in a page to weights, as left operands of the product with values; returns
 * the row's sums. It sees tokens first .. last of the page, which only counts where some warp's row
 * does not see all (MASKED). */
template <bool MASKED>
__device__ inline struct row_sums row_softmax(uint32_t weights[PAGE_STEPS][4],
                                              const float scores[PAGE_TILES][4], int i, int first,
                                              int last, float scale)
{
    float most = -INFINITY, sum = 0;
    first -= 2 * lane_in_group();
    last -= 2 * lane_in_group();
#pragma unroll
    for (int n = 0; n < PAGE_TILES; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            if (!MASKED || (8 * n + c >= first && 8 * n + c <= last))
                most = fmaxf(most, scores[n][2 * i + c]);
        }
    }
    most = row_max(most);
    struct row_sums sums = {__fmul_rn(most, scale), 0}; /* never a part of an fma: same bits */
    if (most == -INFINITY)
        most = 0; /* none is seen, or all are damaged: let that be seen */
#pragma unroll
    for (int n = 0; n < PAGE_TILES; n++) {
        float weight[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            weight[c] = power_of_two((scores[n][2 * i + c] - most) * (scale * LOG2_E));
            if (MASKED && (8 * n + c < first || 8 * n + c > last))
                weight[c] = 0;
        }
        uint32_t pair = bf16_pair(weight[0], weight[1]);
        weights[n / 2][i + n % 2 * 2] = pair;
        sum += pair_low(pair) + pair_high(pair);
    }
    sums.sum = row_sum(sum);
    return sums;
}

/* Row g + 8i where no row of the warp sees anything. */
__device__ inline struct row_sums row_unseen(uint32_t weights[PAGE_STEPS][4], int i)
{
    struct row_sums sums = {-INFINITY, 0};
#pragma unroll
    for (int step = 0; step < PAGE_STEPS; step++)
        weights[step][i] = weights[step][i + 2] = 0;
    return sums;
}

/* sum += a x right operands of COUNT tiles from tile `tile` on: lines `first` .. + 15, of UNITS
 * units each. */
template <int UNITS, int COUNT>
__device__ inline void tiles_mma(float sum[COUNT][4], const uint32_t a[4], const uint16_t *lines,
                                 int first, int tile)
{
#pragma unroll
    for (int n = 0; n < COUNT; n += 2) {
        uint32_t b[4];
        stage_operands<UNITS>(b, lines, first, tile + n);
        mma_bf16(sum[n], a, b);
        mma_bf16(sum[n + 1], a, b + 2);
    }
}

#endif

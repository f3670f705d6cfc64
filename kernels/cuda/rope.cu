/* Rotary position embedding, query and key norms, and the append to the KV cache. */
#include "kernels/cuda/segments.cuh"

#define ROPE_WARPS   4
#define ROPE_THREADS (ROPE_WARPS * WARP)

/* Where the key and the value of a head of one token go. */
struct kv_place {
    int64_t key;   /* of dimension 0; the next is KV_PAGE_TOKENS on */
    int64_t value; /* of dimension 0; the next is 1 on */
    int64_t dim_stride;
};

__device__ static struct kv_place kv_place_of(const struct kv_layer *kv,
                                              const struct segment *segment, int64_t position,
                                              int64_t head)
{
    int64_t page = segment->pages[position / KV_PAGE_TOKENS], slot = position % KV_PAGE_TOKENS;
    int64_t dim_stride = device_round_up(kv->head_dim, PACK_BLOCK);
    int64_t base = (page * kv->kv_head_count + head) * dim_stride * KV_PAGE_TOKENS;
    struct kv_place place = {base + slot, base + slot * dim_stride, dim_stride};
    return place;
}

/* What the norm multiplies all values of a head with. A lane has the pairs lane, lane + 32, .. here
 * and below. */
__device__ static float norm_scale(const float *head, int64_t dim, float epsilon)
{
    float sum = 0;
    for (int64_t i = lane_id(); i < dim / 2; i += WARP)
        sum += head[i] * head[i] + head[i + dim / 2] * head[i + dim / 2];
    return 1.0f / sqrtf(warp_sum(sum) / (float)dim + epsilon);
}

/* The pair i after norm (where `norm` is not NULL) and rotation. */
__device__ static float2 pair_rotated(const float *head, const float *norm, float scale,
                                      const float *rope, int64_t i, int64_t dim)
{
    int64_t half = dim / 2;
    float a = head[i], b = head[i + half], cosine = rope[i], sine = rope[i + half];
    if (norm != NULL) {
        a = a * scale * norm[i];
        b = b * scale * norm[i + half];
    }
    return make_float2(a * cosine - b * sine, b * cosine + a * sine);
}

__device__ static void query_run(float *head, const struct op_rope_append *op, const float *rope)
{
    int64_t dim = op->qkv.head_dim;
    float scale = op->q_norm != NULL ? norm_scale(head, dim, op->norm_epsilon) : 1.0f;
    for (int64_t i = lane_id(); i < dim / 2; i += WARP) {
        float2 pair = pair_rotated(head, op->q_norm, scale, rope, i, dim);
        head[i] = pair.x;
        head[i + dim / 2] = pair.y;
    }
}

template <bool BF16>
__device__ static void key_run(const float *head, const struct op_rope_append *op,
                               const float *rope, struct kv_place place)
{
    int64_t dim = op->qkv.head_dim;
    float scale = op->k_norm != NULL ? norm_scale(head, dim, op->norm_epsilon) : 1.0f;
    for (int64_t i = lane_id(); i < dim / 2; i += WARP) {
        float2 pair = pair_rotated(head, op->k_norm, scale, rope, i, dim);
        value_store<BF16>(op->kv.keys, place.key + i * KV_PAGE_TOKENS, pair.x);
        value_store<BF16>(op->kv.keys, place.key + (i + dim / 2) * KV_PAGE_TOKENS, pair.y);
    }
}

template <bool BF16>
__device__ static void value_run(const float *head, const struct op_rope_append *op,
                                 struct kv_place place)
{
    for (int64_t d = lane_id(); d < place.dim_stride; d += WARP)
        value_store<BF16>(op->kv.values, place.value + d, d < op->qkv.head_dim ? head[d] : 0.0f);
}

/* Blocks [tokens][heads / ROPE_WARPS]; a warp has a query, a key or a value head of a token. Keys
 * go down a column of the page, 2 or 4 bytes to each of head_dim places: the second-level cache
 * puts those of neighbouring tokens together. */
template <bool BF16> __global__ void rope_append_kernel(const struct op_rope_append op)
{
    const struct qkv *qkv = &op.qkv;
    int64_t head = (int64_t)blockIdx.y * ROPE_WARPS + warp_id(), s = 0, t = 0;
    if (head >= qkv->head_count + 2 * qkv->kv_head_count)
        return;
    segment_find(&s, &t, op.segments, op.segment_count, blockIdx.x, 1, 1); /* a block, a token */
    const struct segment *segment = &op.segments[s];
    int64_t row = segment->first_row + t, position = segment->first_position + t;
    float *values = qkv->values + row * qkv->stride;
    const float *rope = op.rope + row * qkv->head_dim;
    if (head < qkv->head_count) {
        query_run(values + head * qkv->head_dim, &op, rope);
        return;
    }
    head -= qkv->head_count;
    bool is_key = head < qkv->kv_head_count;
    if (!is_key)
        head -= qkv->kv_head_count;
    struct kv_place place = kv_place_of(&op.kv, segment, position, head);
    if (is_key)
        key_run<BF16>(values + qkv->k_offset + head * qkv->head_dim, &op, rope, place);
    else
        value_run<BF16>(values + qkv->v_offset + head * qkv->head_dim, &op, place);
}

cudaError_t cuda_rope_append(const struct cuda_launch *launch, const struct op_rope_append *op,
                             const struct cuda_segments *segments)
{
    int64_t heads = op->qkv.head_count + 2 * op->qkv.kv_head_count;
    if (segments->token_count == 0)
        return cudaSuccess;
    dim3 grid((unsigned)segments->token_count, grid_for(heads, ROPE_WARPS));
    if (op->kv.dtype == DTYPE_BF16)
        KERNEL_LAUNCH((rope_append_kernel<true>), grid, ROPE_THREADS, 0, launch->stream, *op);
    else
        KERNEL_LAUNCH((rope_append_kernel<false>), grid, ROPE_THREADS, 0, launch->stream, *op);
    return cudaGetLastError();
}

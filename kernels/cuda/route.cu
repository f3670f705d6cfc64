/* The router's choice of experts, and where its choices send tokens. */
#include "kernels/cuda/parts.cuh"

/* ---- Softmax and the likeliest experts ------------------------------------------------------- */

#define ROUTE_WARPS   4
#define ROUTE_THREADS (ROUTE_WARPS * WARP)

/* An expert that may be the next choice; id -1: none. */
struct scored {
    float score;
    int id;
};

/* Larger scores first, of equal ones the lower id. Where one of a token's is no number all are: the
 * softmax has divided them by its sum. */
__device__ static bool is_better(struct scored a, struct scored b)
{
    if (a.id < 0 || b.id < 0)
        return a.id >= 0;
    bool is_damaged = a.score != a.score;
    return is_damaged || a.score == b.score ? a.id < b.id : a.score > b.score;
}

__device__ static struct scored warp_best(struct scored best)
{
    for (int step = WARP / 2; step > 0; step /= 2) {
        struct scored other = {__shfl_xor_sync(ALL_LANES, best.score, step),
                               __shfl_xor_sync(ALL_LANES, best.id, step)};
        if (is_better(other, best))
            best = other;
    }
    return best;
}

/* Probabilities in place of logits. A lane has the experts lane, lane + 32, .. from here on. */
__device__ static void softmax(float *scores, int64_t count)
{
    float most = -INFINITY, sum = 0;
    for (int64_t e = lane_id(); e < count; e += WARP)
        most = fmaxf(most, scores[e]);
    most = warp_max(most);
    for (int64_t e = lane_id(); e < count; e += WARP) {
        scores[e] = expf(scores[e] - most);
        sum += scores[e];
    }
    sum = warp_sum(sum);
    for (int64_t e = lane_id(); e < count; e += WARP)
        scores[e] /= sum;
}

/* A warp has a token. A chosen expert's score becomes -1, which no probability is. */
__global__ void route_kernel(const struct op_route op)
{
    int64_t t = (int64_t)blockIdx.x * ROUTE_WARPS + warp_id();
    if (t >= op.token_count)
        return;
    float *scores = op.logits + t * op.logit_stride;
    float *weights = op.weights + t * op.choice_stride;
    float chosen = 0;
    softmax(scores, op.expert_count);
    for (int64_t c = 0; c < op.top_k; c++) {
        struct scored best = {0, -1};
        for (int64_t e = lane_id(); e < op.expert_count; e += WARP) {
            struct scored next = {scores[e], (int)e};
            if (next.score != -1.0f && is_better(next, best))
                best = next;
        }
        best = warp_best(best);
        chosen += best.score;
        if (best.id % WARP == lane_id())
            scores[best.id] = -1.0f;
        if (lane_id() == 0) {
            op.ids[t * op.choice_stride + c] = best.id;
            weights[c] = best.score;
        }
    }
    if (op.normalize && lane_id() == 0) {
        for (int64_t c = 0; c < op.top_k; c++)
            weights[c] /= chosen;
    }
}

cudaError_t cuda_route(const struct cuda_launch *launch, const struct op_route *op)
{
    if (op->token_count == 0)
        return cudaSuccess;
    KERNEL_LAUNCH((route_kernel), grid_for(op->token_count, ROUTE_WARPS), ROUTE_THREADS, 0,
                  launch->stream, *op);
    return cudaGetLastError();
}

/* ---- Lists, in the order of what is listed ----------------------------------------------------
 */

/* A list of what goes to one place stands behind those of all places before it. Each block makes
 * one list, alone: it counts what goes to the places before, then goes over everything a second
 * time. That reads the choices (4 bytes each, soon in the second-level cache) twice for each place,
 * and needs neither scratch nor a second launch. */
#define LIST_THREADS 512

/* Where in the experts here pair `p` goes; -1: nowhere. */
__device__ static int pair_expert(const struct op_group *op, int64_t p)
{
    int32_t id = op->ids[p / op->top_k * op->choice_stride + p % op->top_k];
    return id < 0 || op->local_of == NULL ? id : op->local_of[id];
}

/* Block e lists the pairs of expert e; the block behind the last expert those that are not here. */
__global__ void group_kernel(const struct op_group op)
{
    __shared__ int kept[WARP];
    int64_t pairs = op.token_count * op.top_k;
    int expert = (int)blockIdx.x;
    bool is_nowhere = expert == op.expert_count;
    int before = 0;
    for (int64_t p = threadIdx.x; p < pairs; p += blockDim.x) {
        int to = pair_expert(&op, p);
        before += to >= 0 && to < expert;
        if (is_nowhere && to < 0)
            op.position_of[p] = -1;
    }
    int next = block_sum(before, kept);
    if (threadIdx.x == 0)
        op.offsets[expert] = next;
    if (is_nowhere)
        return;
    for (int64_t first = 0; first < pairs; first += blockDim.x) {
        int64_t p = first + threadIdx.x;
        int all;
        bool is_mine = p < pairs && pair_expert(&op, p) == expert;
        int position = next + block_rank(is_mine, &all, kept);
        if (is_mine) {
            op.position_of[p] = position;
            op.token_of[position] = (int32_t)(p / op.top_k);
        }
        next += all;
    }
}

cudaError_t cuda_group(const struct cuda_launch *launch, const struct op_group *op)
{
    KERNEL_LAUNCH((group_kernel), (unsigned)op->expert_count + 1, LIST_THREADS, 0, launch->stream,
                  *op);
    return cudaGetLastError();
}

/* The group of choice c of token t, -1 for none or where an earlier choice goes there too. */
__device__ static int choice_group(const struct op_dispatch *op, int64_t t, int64_t c)
{
    const int32_t *ids = op->ids + t * op->choice_stride;
    int group = ids[c] < 0 ? -1 : op->group_of[ids[c]];
    for (int64_t i = 0; i < c && group >= 0; i++) {
        if (ids[i] >= 0 && op->group_of[ids[i]] == group)
            return -1;
    }
    return group;
}

/* Block g lists the tokens of group g. */
__global__ void dispatch_kernel(const struct op_dispatch op)
{
    __shared__ int kept[WARP];
    int group = (int)blockIdx.x, before = 0;
    for (int64_t t = threadIdx.x; t < op.token_count; t += blockDim.x) {
        for (int64_t c = 0; c < op.top_k; c++) {
            int to = choice_group(&op, t, c);
            before += to >= 0 && to < group;
        }
    }
    int start = block_sum(before, kept), next = start;
    for (int64_t first = 0; first < op.token_count; first += blockDim.x) {
        int64_t t = first + threadIdx.x;
        int all;
        bool is_mine = false;
        for (int64_t c = 0; c < op.top_k && t < op.token_count; c++)
            is_mine = is_mine || choice_group(&op, t, c) == group;
        int slot = next + block_rank(is_mine, &all, kept);
        if (is_mine)
            op.token_of[slot] = (int32_t)t;
        if (t < op.token_count)
            op.slot_of[t * op.group_count + group] = is_mine ? slot : -1;
        next += all;
    }
    if (threadIdx.x == 0)
        op.counts[group] = next - start;
}

cudaError_t cuda_dispatch(const struct cuda_launch *launch, const struct op_dispatch *op)
{
    if (op->group_count == 0)
        return cudaSuccess;
    KERNEL_LAUNCH((dispatch_kernel), (unsigned)op->group_count, LIST_THREADS, 0, launch->stream,
                  *op);
    return cudaGetLastError();
}

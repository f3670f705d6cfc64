/* The router's choice of experts, and where its choices send tokens. */
#include "kernels/cuda/parts.cuh"

/* ---- Softmax and the likeliest experts ------------------------------------------------------- */

#define ROUTE_WARPS   4
#define ROUTE_THREADS (ROUTE_WARPS * WARP)

/* Probabilities in place of a token's logits. A lane has the experts lane, lane + 32, .. in
 * registers; -infinity where there is none. */
template <int PER_LANE> __device__ static void softmax(float *scores)
{
    float most = scores[0], sum = 0;
#pragma unroll
    for (int i = 1; i < PER_LANE; i++)
        most = fmaxf(most, scores[i]);
    most = warp_max(most);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        scores[i] = expf(scores[i] - most);
        sum += scores[i];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        scores[i] /= sum;
}

/* Probabilities as whole numbers in the same order. Where one of a token's is no number all are,
 * for the softmax has divided them by its sum: they are equal. */
#define KEY_NONE   0u /* of what is chosen */
#define KEY_BROKEN 0x7FC00001u

__device__ static uint32_t key_of(float score)
{
    return score != score ? KEY_BROKEN : __float_as_uint(score) + 1;
}

__device__ static float key_score(uint32_t key)
{
    return __uint_as_float(key - 1);
}

/* The likeliest expert, of equal ones the lowest id; its key, returned, is none from here on. */
template <int PER_LANE> __device__ static uint32_t expert_take(int *id, uint32_t *keys)
{
    uint32_t most = keys[0];
    int slot = PER_LANE;
#pragma unroll
    for (int i = 1; i < PER_LANE; i++)
        most = max(most, keys[i]);
    most = warp_largest(most);
#pragma unroll
    for (int i = PER_LANE - 1; i >= 0; i--)
        slot = keys[i] == most ? i : slot;
    *id = (int)warp_least((uint32_t)(slot * WARP + lane_id()));
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        keys[i] = *id == i * WARP + lane_id() ? KEY_NONE : keys[i];
    return most;
}

/* A warp has a token, of up to PER_LANE x 32 experts; lane c % 32 has its choice c. */
template <int PER_LANE>
__global__ void __launch_bounds__(ROUTE_THREADS) route_kernel(const struct op_route op)
{
    int64_t t = (int64_t)blockIdx.x * ROUTE_WARPS + warp_id();
    if (t >= op.token_count)
        return;
    const float *logits = op.logits + t * op.logit_stride;
    int32_t *ids = op.ids + t * op.choice_stride + lane_id();
    float *weights = op.weights + t * op.choice_stride + lane_id();
    const int top_k = (int)op.top_k, last = (top_k - 1) / WARP * WARP;
    float scores[PER_LANE], chosen = 0, weight = 0;
    uint32_t keys[PER_LANE];
    int id = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        scores[i] =
            i * WARP + lane_id() < op.expert_count ? logits[i * WARP + lane_id()] : -INFINITY;
    softmax<PER_LANE>(scores);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        keys[i] = key_of(scores[i]); /* what is no expert is behind all that are as unlikely */
    for (int c = 0; c < top_k; c++) {
        int next;
        float score = key_score(expert_take<PER_LANE>(&next, keys));
        chosen += score;
        if (c % WARP == lane_id()) {
            id = next;
            weight = score;
        }
        if (c % WARP == WARP - 1 && c < last) {
            ids[c / WARP * WARP] = id;
            weights[c / WARP * WARP] = weight;
        }
    }
    const float divisor = op.normalize ? chosen : 1.0f;
    for (int c = 0; c < last; c += WARP)
        weights[c] /= divisor;
    if (last + lane_id() < top_k) {
        ids[last] = id;
        weights[last] = weight / divisor;
    }
}

cudaError_t cuda_route(const struct cuda_launch *launch, const struct op_route *op)
{
    unsigned grid = grid_for(op->token_count, ROUTE_WARPS);
    int64_t per_lane = ceil_div(op->expert_count, WARP);
    if (op->token_count == 0)
        return cudaSuccess;
    if (per_lane <= 2)
        KERNEL_LAUNCH((route_kernel<2>), grid, ROUTE_THREADS, 0, launch->stream, *op);
    else if (per_lane <= 4)
        KERNEL_LAUNCH((route_kernel<4>), grid, ROUTE_THREADS, 0, launch->stream, *op);
    else if (per_lane <= 8)
        KERNEL_LAUNCH((route_kernel<8>), grid, ROUTE_THREADS, 0, launch->stream, *op);
    else if (per_lane <= 16)
        KERNEL_LAUNCH((route_kernel<16>), grid, ROUTE_THREADS, 0, launch->stream, *op);
    else
        KERNEL_LAUNCH((route_kernel<128>), grid, ROUTE_THREADS, 0, launch->stream, *op);
    return cudaGetLastError();
}

/* ---- Lists, in the order of what is listed ----------------------------------------------------
 *
 * (Token, choice) pairs go to lists that stand one behind another, each in the order of its pairs.
 * Some tokens are a block's: it counts how many of their pairs go to each list, first of each
 * warp's alone, so that a pair's place is known from the lists before its own, the blocks before
 * this one, the warps before its own and the lanes before it. Where there are several blocks a
 * kernel of its own counts for each of them first, into scratch memory. */
#define LIST_WARPS 16
#define LIST_PAIRS 1024 /* of a block, about */

/* ---- What a list of experts and one of groups differ in -------------------------------------- */

__host__ __device__ static int64_t list_count(const struct op_group *op)
{
    return op->expert_count;
}

/* The list of choice c of token t: the expert among those here; -1: none. */
__device__ static int list_of(const struct op_group *op, int64_t t, int64_t c)
{
    int32_t id = op->ids[t * op->choice_stride + c];
    return id < 0 || op->local_of == NULL ? id : op->local_of[id];
}

/* Before the first of these tokens is put. */
__device__ static void tokens_begin(const struct op_group *, int64_t, int64_t)
{
}

__device__ static void choice_put(const struct op_group *op, int64_t t, int64_t c, int, int place)
{
    op->position_of[t * op->top_k + c] = place;
    if (place >= 0)
        op->token_of[place] = (int32_t)t;
}

__device__ static void list_put(const struct op_group *op, int list, int first, int)
{
    op->offsets[list] = first;
}

/* Of all lists. */
__device__ static void end_put(const struct op_group *op, int end)
{
    op->offsets[op->expert_count] = end;
}

__host__ __device__ static int64_t list_count(const struct op_dispatch *op)
{
    return op->group_count;
}

/* The choice's group; -1 too where an earlier choice goes there. */
__device__ static int list_of(const struct op_dispatch *op, int64_t t, int64_t c)
{
    const int32_t *ids = op->ids + t * op->choice_stride;
    int group = ids[c] < 0 ? -1 : op->group_of[ids[c]];
    for (int64_t i = 0; i < c && group >= 0; i++) {
        if (ids[i] >= 0 && op->group_of[ids[i]] == group)
            return -1;
    }
    return group;
}

__device__ static void tokens_begin(const struct op_dispatch *op, int64_t first, int64_t end)
{
    for (int64_t i = first * op->group_count + threadIdx.x; i < end * op->group_count;
         i += blockDim.x)
        op->slot_of[i] = -1;
}

__device__ static void choice_put(const struct op_dispatch *op, int64_t t, int64_t, int list,
                                  int place)
{
    if (place < 0)
        return;
    op->slot_of[t * op->group_count + list] = place;
    op->token_of[place] = (int32_t)t;
}

__device__ static void list_put(const struct op_dispatch *op, int list, int, int count)
{
    op->counts[list] = count;
}

__device__ static void end_put(const struct op_dispatch *, int)
{
}

/* ---- And what they have in common ------------------------------------------------------------ */

/* The tokens of this block, and its pairs. */
struct own {
    int64_t first, end;
    int pairs;
};

template <class OP> __device__ static struct own own_of(const OP *op, int block_tokens)
{
    int64_t first = (int64_t)blockIdx.x * block_tokens, end = first + block_tokens;
    end = end < op->token_count ? end : op->token_count;
    return (struct own){first, end, (int)((end - first) * op->top_k)};
}

/* counts[block][list] */
template <class OP> __global__ void list_count_kernel(const OP op, int *counts, int block_tokens)
{
    KERNEL_SHARED(int, here);
    const struct own own = own_of(&op, block_tokens);
    const int lists = (int)list_count(&op), top_k = (int)op.top_k;
    for (int i = (int)threadIdx.x; i < lists; i += (int)blockDim.x)
        here[i] = 0;
    __syncthreads();
    for (int p = (int)threadIdx.x; p < own.pairs; p += (int)blockDim.x) {
        int list = list_of(&op, own.first + p / top_k, p % top_k);
        if (list >= 0)
            atomicAdd(&here[list], 1);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < lists; i += (int)blockDim.x)
        counts[(int)blockIdx.x * lists + i] = here[i];
}

/* Pairs begin .. end - 1 of the block, by a warp, 32 at a time. `next` has each list's next place,
 * and goes on; where nothing is put, how many there are so far. */
template <bool PUTS, class OP>
__device__ static void warp_pairs(const OP *op, int64_t first_token, int begin, int end, int *next)
{
    const int top_k = (int)op->top_k;
    for (int p = begin + lane_id(); p - lane_id() < end; p += WARP) {
        int64_t t = first_token + p / top_k, c = p % top_k;
        int list = p < end ? list_of(op, t, c) : -1;
        unsigned equals = warp_equals(list);
        int before = __popc(equals & ((1u << lane_id()) - 1));
        int place = list >= 0 ? next[list] + before : -1;
        __syncwarp();
        if (list >= 0 && before == 0)
            next[list] += __popc(equals);
        __syncwarp();
        if (PUTS && p < end)
            choice_put(op, t, c, list, place);
    }
}

/* What all blocks have of each list, and what those before this one have. A thread adds up what
 * some of the blocks have of one list. */
__device__ static void counts_add(int *all, int *before, const int *counts, int lists)
{
    const int threads = (int)blockDim.x, blocks = (int)gridDim.x;
    const int parts = lists < threads ? threads / lists : 1, part = (int)threadIdx.x / lists;
    for (int i = lists < threads ? (int)threadIdx.x % lists : (int)threadIdx.x;
         i < lists && part < parts; i += threads) {
        int sum = 0, sum_before = 0;
#pragma unroll 8
        for (int b = part; b < blocks; b += parts) {
            int count = counts[b * lists + i];
            sum += count;
            sum_before += b < (int)blockIdx.x ? count : 0;
        }
        atomicAdd(&all[i], sum);
        atomicAdd(&before[i], sum_before);
    }
}

/* From what each warp has of each list, next[warp][list], to how many stand before that: those of
 * the blocks before this one, and of the warps before. */
__device__ static void warps_add(int *next, int *all, const int *before, int lists)
{
    for (int i = (int)threadIdx.x; i < lists; i += (int)blockDim.x) {
        int sum = before[i];
        for (int w = 0; w < (int)(blockDim.x / WARP); w++) {
            int count = next[w * lists + i];
            next[w * lists + i] = sum;
            sum += count;
        }
        if (gridDim.x == 1)
            all[i] = sum;
    }
}

/* From how many a list has to where it begins, by a warp; the first block tells. */
template <class OP> __device__ static void lists_place(const OP *op, int *all, int lists)
{
    const int per_lane = (lists + WARP - 1) / WARP, first = lane_id() * per_lane;
    const int end = first + per_lane < lists ? first + per_lane : lists;
    int sum = 0;
    for (int i = first; i < end; i++)
        sum += all[i];
    int place = warp_prefix(sum) - sum;
    for (int i = first; i < end; i++) {
        int count = all[i];
        if (blockIdx.x == 0)
            list_put(op, i, place, count);
        all[i] = place;
        place += count;
    }
    if (blockIdx.x == 0 && lane_id() == WARP - 1)
        end_put(op, place);
}

template <class OP>
__global__ void __launch_bounds__(LIST_WARPS *WARP)
    list_kernel(const OP op, const int *counts, int block_tokens)
{
    KERNEL_SHARED(int, all); /* [lists]; behind it [lists] and [warps][lists] */
    const struct own own = own_of(&op, block_tokens);
    const int lists = (int)list_count(&op), warps = (int)(blockDim.x / WARP);
    const int warp_pairs_max = (own.pairs + warps * WARP - 1) / (warps * WARP) * WARP;
    const int begin = warp_id() * warp_pairs_max;
    const int end = begin + warp_pairs_max < own.pairs ? begin + warp_pairs_max : own.pairs;
    int *before = all + lists, *next = before + lists, *mine = next + warp_id() * lists;
    for (int i = (int)threadIdx.x; i < (2 + warps) * lists; i += (int)blockDim.x)
        all[i] = 0;
    tokens_begin(&op, own.first, own.end);
    __syncthreads();
    if (gridDim.x > 1 && lists > 0)
        counts_add(all, before, counts, lists);
    warp_pairs<false>(&op, own.first, begin, end, mine);
    __syncthreads();
    warps_add(next, all, before, lists);
    __syncthreads();
    if (warp_id() == 0)
        lists_place(&op, all, lists);
    __syncthreads();
    for (int i = lane_id(); i < lists; i += WARP)
        mine[i] += all[i];
    __syncwarp();
    warp_pairs<true>(&op, own.first, begin, end, mine);
}

/* ---- Launches -------------------------------------------------------------------------------- */

#define LIST_SHARED_MAX (48 * 1024) /* bytes that any kernel may have */

/* Tokens of a block. */
static int64_t list_tokens(int64_t top_k)
{
    return top_k > 0 && top_k < LIST_PAIRS ? LIST_PAIRS / top_k : 1;
}

/* Of a block, for so many pairs: as few as they and their lists have use for, and no more than
 * there is room to count for. */
static int64_t list_warps(int64_t pairs, int64_t lists)
{
    int64_t wanted = ceil_div(pairs > lists ? pairs : lists, WARP);
    int64_t room = LIST_SHARED_MAX / (int64_t)sizeof(int) / (lists > 0 ? lists : 1) - 2;
    wanted = wanted < LIST_WARPS ? wanted : LIST_WARPS;
    wanted = wanted < room ? wanted : room;
    return wanted > 1 ? wanted : 1;
}

template <class OP> static cudaError_t list_launch(const struct cuda_launch *launch, const OP *op)
{
    const int64_t lists = list_count(op), tokens = list_tokens(op->top_k);
    const unsigned blocks = op->token_count > tokens ? grid_for(op->token_count, tokens) : 1;
    const int64_t block_tokens = blocks > 1 ? tokens : op->token_count;
    const int64_t warps = list_warps(block_tokens * op->top_k, lists);
    const unsigned threads = (unsigned)(warps * WARP);
    int *counts = (int *)launch->scratch;
    if (blocks > 1)
        KERNEL_LAUNCH((list_count_kernel<OP>), blocks, threads, (size_t)lists * sizeof(int),
                      launch->stream, *op, counts, (int)block_tokens);
    KERNEL_LAUNCH((list_kernel<OP>), blocks, threads, (size_t)(lists * (2 + warps)) * sizeof(int),
                  launch->stream, *op, counts, (int)block_tokens);
    return cudaGetLastError();
}

template <class OP> static size_t list_scratch(const OP *op)
{
    int64_t tokens = list_tokens(op->top_k);
    if (op->token_count <= tokens)
        return 0;
    return (size_t)(ceil_div(op->token_count, tokens) * list_count(op)) * sizeof(int);
}

size_t cuda_group_scratch(const struct op_group *op)
{
    return list_scratch(op);
}

size_t cuda_dispatch_scratch(const struct op_dispatch *op)
{
    return list_scratch(op);
}

cudaError_t cuda_group(const struct cuda_launch *launch, const struct op_group *op)
{
    return list_launch(launch, op);
}

cudaError_t cuda_dispatch(const struct cuda_launch *launch, const struct op_dispatch *op)
{
    if (op->group_count == 0)
        return cudaSuccess;
    return list_launch(launch, op);
}

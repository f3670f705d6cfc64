/* A token of each row of logits: the largest, or a draw among all (device/draw.h). A block has a
 * piece of a row in its registers and finds the piece's token; a warp for each row then finds the
 * first of its pieces'. */
#include "kernels/cuda/logits.cuh"

#define PIECE_THREADS 256
#define PIECE_KEPT    4 /* float4 of a thread */
#define PIECE_VALUES  (PIECE_THREADS * PIECE_KEPT * 4)
#define PIECE_WARPS   (PIECE_THREADS / WARP)

/* ---- A draw --------------------------------------------------------------------------------- */

/* random_mix of base/random.h. */
__device__ static uint64_t device_random_mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* -log(u) of the token with this hash, which is u's digits. */
__device__ static double wait_of(uint64_t hash)
{
    double u = ((double)(hash >> 12) + 0.5) * 0x1p-52;
    return -log(u);
}

/* draw_score of device/draw.h; `hash` is that of the token. */
__device__ static double device_draw_score(const struct draw *draw, float logit, uint64_t hash)
{
    return (double)logit / draw->temperature - log(wait_of(hash));
}

#define WAIT_MARGIN 1.002f  /* more than twice what waits are off by */
#define WAIT_EXACT  65536u  /* of 2^32: closer to 0 or 1 u is taken with all of its digits */
#define WAIT_SMALL  0x1p-6f /* of 1 - u: -log(u) as a series from there on */

/* wait_of, off by up to 2^-11 of itself. */
__device__ static float wait_about(uint64_t hash)
{
    uint32_t digits = (uint32_t)(hash >> 32);
    float u = ((float)digits + 0.5f) * 0x1p-32f, rest = ((float)~digits + 0.5f) * 0x1p-32f;
    if (digits < WAIT_EXACT || ~digits < WAIT_EXACT)
        return (float)wait_of(hash);
    return rest < WAIT_SMALL ? fmaf(rest * rest, fmaf(rest, 1.0f / 3, 0.5f), rest) : -__logf(u);
}

/* ---- Pieces --------------------------------------------------------------------------------- */

/* What a block's threads share. */
struct piece_shared {
    float most[PIECE_WARPS], waits[PIECE_WARPS];
    int flags[PIECE_WARPS];
    struct chosen first[PIECE_WARPS];
};

__device__ static float warp_min(float value)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        value = fminf(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

/* A thread's values, 4 x PIECE_KEPT; -infinity behind the row's end. */
__device__ static void piece_load(float *values, const float *in, int64_t first, int64_t dim)
{
#pragma unroll
    for (int k = 0; k < PIECE_KEPT; k++) {
        int64_t at = first + 4 * (threadIdx.x + k * PIECE_THREADS);
        float4 four = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (at + 4 <= dim) {
            four = *(const float4 *)(in + at);
        } else {
            four.x = at < dim ? in[at] : -INFINITY;
            four.y = at + 1 < dim ? in[at + 1] : -INFINITY;
            four.z = at + 2 < dim ? in[at + 2] : -INFINITY;
        }
        values[4 * k] = four.x;
        values[4 * k + 1] = four.y;
        values[4 * k + 2] = four.z;
        values[4 * k + 3] = four.w;
    }
}

/* Where in the row value `v` of the thread stands. */
__device__ static int64_t place_of(int64_t first, int v)
{
    return first + 4 * (int64_t)(threadIdx.x + v / 4 * PIECE_THREADS) + v % 4;
}

/* The largest of a block's; the first of equal ones is not sought. Whether one is no number goes to
 * *is_broken. */
__device__ static float piece_most(const float *values, bool *is_broken,
                                   struct piece_shared *shared)
{
    float most = values[0];
    bool broken = !(values[0] < INFINITY);
#pragma unroll
    for (int v = 1; v < 4 * PIECE_KEPT; v++) {
        most = fmaxf(most, values[v]);
        broken = broken || !(values[v] < INFINITY);
    }
    most = warp_max(most);
    broken = __any_sync(ALL_LANES, broken);
    if (lane_id() == 0) {
        shared->most[warp_id()] = most;
        shared->flags[warp_id()] = broken;
    }
    __syncthreads();
    for (int w = 0; w < PIECE_WARPS; w++) {
        most = fmaxf(most, shared->most[w]);
        broken = broken || shared->flags[w];
    }
    *is_broken = broken;
    return most;
}

/* A thread's first value that equals the piece's largest. */
__device__ static struct chosen thread_largest(const float *values, float most, int64_t first)
{
    struct chosen best = chosen_of(-INFINITY, 0);
#pragma unroll
    for (int v = 4 * PIECE_KEPT - 1; v >= 0; v--) {
        if (values[v] == most)
            best = chosen_of(values[v], place_of(first, v));
    }
    return best;
}

/* A thread's part of the piece's race. In f32 a token's time is its wait, longer by what it is less
 * likely than the largest; tokens whose time may be the shortest are scored in f64. */
__device__ static struct chosen thread_draw(const struct op_choose *op, const struct draw *draw,
                                            const float *in, const float *values, float most,
                                            int64_t first, struct piece_shared *shared)
{
    const float inverse = (float)(1 / draw->temperature);
    float times[4 * PIECE_KEPT], least = INFINITY;
#pragma unroll
    for (int v = 0; v < 4 * PIECE_KEPT; v++) {
        uint64_t hash =
            device_random_mix(draw->key ^ (uint64_t)(op->first_token + place_of(first, v)));
        times[v] = wait_about(hash) * __expf((most - values[v]) * inverse);
        least = fminf(least, times[v]);
    }
    least = warp_min(least);
    if (lane_id() == 0)
        shared->waits[warp_id()] = least;
    __syncthreads();
    for (int w = 0; w < PIECE_WARPS; w++)
        least = fminf(least, shared->waits[w]);
    unsigned may_win = 0; /* of value v at bit v */
#pragma unroll
    for (int v = 0; v < 4 * PIECE_KEPT; v++)
        may_win |= (unsigned)(!(times[v] > least * WAIT_MARGIN) && values[v] > -INFINITY) << v;
    struct chosen best = chosen_of(-INFINITY, 0);
    for (; may_win != 0; may_win &= may_win - 1) {
        int64_t at = place_of(first, __ffs((int)may_win) - 1);
        uint64_t hash = device_random_mix(draw->key ^ (uint64_t)(op->first_token + at));
        struct chosen here = {device_draw_score(draw, in[at], hash), (int32_t)at, in[at]};
        if (is_before(here, best))
            best = here;
    }
    return best;
}

/* Blocks [rows][pieces]; out[row][piece]. */
__global__ void __launch_bounds__(PIECE_THREADS)
    choose_kernel(const struct op_choose op, struct chosen *out)
{
    __shared__ struct piece_shared shared;
    const float *in = op.in + blockIdx.x * op.stride;
    const int64_t first = (int64_t)blockIdx.y * PIECE_VALUES;
    float values[4 * PIECE_KEPT];
    bool is_broken;
    piece_load(values, in, first, op.dim);
    float most = piece_most(values, &is_broken, &shared);
    struct chosen best = chosen_of(is_broken ? INFINITY : -INFINITY, 0);
    if (!is_broken && most > -INFINITY) {
        if (op.draws != NULL && op.draws[blockIdx.x].temperature > 0)
            best = thread_draw(&op, &op.draws[blockIdx.x], in, values, most, first, &shared);
        else
            best = thread_largest(values, most, first);
        best = block_first(best, shared.first);
    }
    if (threadIdx.x == 0)
        out[(int64_t)blockIdx.x * gridDim.y + blockIdx.y] = best;
}

/* A warp has a row: the first of its pieces' tokens. */
__global__ void choose_row_kernel(struct chosen *out, const struct chosen *pieces, int count)
{
    struct chosen best = chosen_of(-INFINITY, 0);
    for (int i = lane_id(); i < count; i += WARP) {
        struct chosen here = pieces[(int64_t)blockIdx.x * count + i];
        if (is_before(here, best))
            best = here;
    }
    best = warp_first(best);
    if (lane_id() == 0)
        out[blockIdx.x] = best;
}

size_t cuda_choose_scratch(const struct op_choose *op)
{
    int64_t pieces = ceil_div(op->dim, PIECE_VALUES);
    return pieces > 1 ? (size_t)(pieces * op->row_count) * sizeof(struct chosen) : 0;
}

cudaError_t cuda_choose(const struct cuda_launch *launch, const struct op_choose *op)
{
    if (op->row_count == 0)
        return cudaSuccess;
    const unsigned pieces = grid_for(op->dim, PIECE_VALUES);
    struct chosen *found = pieces > 1 ? (struct chosen *)launch->scratch : op->out;
    KERNEL_LAUNCH((choose_kernel), dim3((unsigned)op->row_count, pieces), PIECE_THREADS, 0,
                  launch->stream, *op, found);
    if (pieces > 1)
        KERNEL_LAUNCH((choose_row_kernel), (unsigned)op->row_count, WARP, 0, launch->stream,
                      op->out, found, (int)pieces);
    return cudaGetLastError();
}

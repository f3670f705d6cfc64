/* The highest logits of each row, and sums over all of them. A block has a piece of a row; then
 * another for each row merges what its pieces have.
 *
 * The lowest of the highest is found digit by digit (radix select): of the logits as whole numbers
 * in the same order, each pass counts how many have which next 8 bits, among those that agree with
 * what is known of it. So that few are counted, which else would wait for each other, the same is
 * done first with the highest of each thread's: the lowest of those is no higher. Then all above it
 * are gathered, and of its equals as many as there is room for, the first ones; each finds its
 * place by how many stand before it. */
#include "kernels/cuda/logits.cuh"

#define PIECE_LEAST   4096 /* values */
#define PIECE_THREADS 512

#define MERGE_THREADS 256

#define DIGIT_BITS  8
#define DIGITS      (1 << DIGIT_BITS)
#define KEY_BITS    32
#define LANE_DIGITS (DIGITS / WARP)

/* In the order of the numbers; -0 and 0 are one. */
__device__ static uint32_t key_of(float logit)
{
    uint32_t bits = __float_as_uint(logit + 0.0f);
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

#define INVERSE_MAX 1e300 /* times 0 that is 0 */

/* Of exp(logit - most), and of exp((logit - most) / temperature), in f64, so that a sum of all is
 * that of its parts, wherever a vocabulary is cut, up to the last bits of f64. */
struct sums {
    double sum, mass;
};

__device__ static struct sums sums_find(const float *in, int64_t dim, float most,
                                        double temperature, double (*kept)[WARP])
{
    const bool is_other = temperature > 0 && temperature != 1;
    const double inverse = is_other ? fmin(1 / temperature, INVERSE_MAX) : 1;
    struct sums sums = {0, 0};
    for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) {
        double behind = (double)in[i] - (double)most;
        sums.sum += exp(behind);
        if (is_other)
            sums.mass += exp(behind * inverse);
    }
    sums.sum = block_sum(sums.sum, kept[0]);
    sums.mass = is_other ? block_sum(sums.mass, kept[1]) : sums.sum;
    return sums;
}

/* What is known of the lowest of the highest: bits of its key, and how many of those that agree
 * with it are among the highest. */
struct bound {
    uint32_t key, mask;
    int wanted;
};

/* The next digit of the bound: the first, from the highest on, with which there are enough. By a
 * warp, of which a lane has some digits, the first lane the highest. */
__device__ static void bound_step(struct bound *bound, const int *counts, int shift)
{
    const int highest = DIGITS - 1 - lane_id() * LANE_DIGITS;
    const int wanted = bound->wanted;
    int here = 0;
#pragma unroll
    for (int i = 0; i < LANE_DIGITS; i++)
        here += counts[highest - i];
    int above = warp_prefix(here) - here;
    __syncwarp();
    if (above >= wanted || above + here < wanted)
        return;
    int digit = highest;
    for (; above + counts[digit] < wanted; digit--)
        above += counts[digit];
    bound->wanted = wanted - above;
    bound->key |= (uint32_t)digit << shift;
    bound->mask |= (uint32_t)(DIGITS - 1) << shift;
}

/* Of a block's shared memory. */
struct search {
    struct bound bounds[2]; /* of the highest of each thread's, of all */
    int counts[DIGITS];
    float firsts[PIECE_THREADS]; /* the highest of each thread's */
};

/* The lowest of the `count` highest, none of which is below `least`, a key. */
__device__ static void bound_find(struct bound *bound, int *counts, int count, uint32_t least,
                                  const float *in, int64_t dim)
{
    if (threadIdx.x == 0)
        *bound = (struct bound){0, 0, count};
    for (int shift = KEY_BITS - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        for (int digit = (int)threadIdx.x; digit < DIGITS; digit += (int)blockDim.x)
            counts[digit] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) {
            uint32_t key = key_of(in[i]);
            if (key >= least && (key & bound->mask) == bound->key)
                atomicAdd(&counts[key >> shift & (DIGITS - 1)], 1);
        }
        __syncthreads();
        if (warp_id() == 0)
            bound_step(bound, counts, shift);
        __syncthreads();
    }
}

/* No higher than the lowest of the `count` highest. */
__device__ static uint32_t least_find(struct search *search, int count, const float *in,
                                      int64_t dim)
{
    float first = -INFINITY;
    for (int64_t i = threadIdx.x; i < dim; i += blockDim.x)
        first = fmaxf(first, in[i]);
    search->firsts[threadIdx.x] = first;
    bound_find(&search->bounds[0], search->counts, count, 0, search->firsts, blockDim.x);
    return search->bounds[0].key;
}

/* The highest, in any order; `top` has as many as are wanted. */
__device__ static void top_gather(struct candidate *top, const struct bound *bound, int *kept,
                                  int *above_count, int count, const float *in, int64_t dim)
{
    int equals = 0; /* so far */
    for (int64_t first = 0; first < dim; first += blockDim.x) {
        int64_t i = first + threadIdx.x;
        uint32_t key = i < dim ? key_of(in[i]) : 0;
        bool is_equal = i < dim && key == bound->key;
        int here, at = equals + block_rank(is_equal, &here, kept);
        if (is_equal && at < bound->wanted)
            top[count - bound->wanted + at] = (struct candidate){in[i], (int32_t)i};
        if (i < dim && key > bound->key)
            top[atomicAdd(above_count, 1)] = (struct candidate){in[i], (int32_t)i};
        equals += here;
    }
    __syncthreads();
}

__device__ static bool ranks_before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.at < b.at);
}

/* Of a piece that begins at place `first`, to `out`; sums are those beside its own highest. */
__device__ static void piece_find(struct candidates *out, const float *in, int64_t dim,
                                  int64_t first, double temperature)
{
    __shared__ struct chosen kept_chosen[WARP];
    __shared__ double kept_sums[2][WARP];
    __shared__ int kept[WARP], above_count;
    __shared__ struct candidate top[CANDIDATES_MAX];
    __shared__ struct search search;
    const int count = dim < CANDIDATES_MAX ? (int)dim : CANDIDATES_MAX;
    if (threadIdx.x == 0)
        above_count = 0;
    struct chosen most = row_largest(in, dim, kept_chosen);
    bool is_usable = most.at >= 0;
    struct sums sums = {0, 0};
    if (is_usable) {
        sums = sums_find(in, dim, most.logit, temperature, kept_sums);
        uint32_t least = dim > blockDim.x ? least_find(&search, count, in, dim) : 0;
        bound_find(&search.bounds[1], search.counts, count, least, in, dim);
        top_gather(top, &search.bounds[1], kept, &above_count, count, in, dim);
    }
    for (int i = (int)threadIdx.x; i < CANDIDATES_MAX; i += (int)blockDim.x) {
        int place = i;
        if (is_usable && i < count) {
            place = 0;
            for (int other = 0; other < count; other++)
                place += ranks_before(top[other], top[i]);
        }
        out->top[place] = is_usable && i < count
                              ? (struct candidate){top[i].logit, (int32_t)(first + top[i].at)}
                              : (struct candidate){0, 0};
    }
    if (threadIdx.x == 0) {
        out->sum = sums.sum;
        out->mass = sums.mass;
        out->count = is_usable ? count : most.at;
    }
}

/* Blocks [rows][pieces]; out[row][piece]. */
__global__ void candidates_kernel(const struct op_candidates op, struct candidates *out,
                                  int piece_values)
{
    const int64_t first = (int64_t)blockIdx.y * piece_values, left = op.dim - first;
    piece_find(&out[(int64_t)blockIdx.x * gridDim.y + blockIdx.y],
               op.in + blockIdx.x * op.stride + first, left < piece_values ? left : piece_values,
               first, op.draws != NULL ? op.draws[blockIdx.x].temperature : 0);
}

/* ---- Pieces merged --------------------------------------------------------------------------- */

/* Candidates of a piece of `values` from place `first` on, to shared memory by a warp; behind its
 * last -infinity at no place. A piece of nothing but -infinity has named none. */
__device__ static void piece_copy(struct candidate *to, const struct candidates *piece,
                                  int64_t first, int64_t values)
{
    const int64_t count = piece->count;
    for (int i = lane_id(); i < CANDIDATES_MAX; i += WARP) {
        struct candidate next = piece->top[i];
        if (count == CHOSEN_NONE && i < values)
            next = (struct candidate){-INFINITY, (int32_t)(first + i)};
        else if (i >= count)
            next = (struct candidate){-INFINITY, INT32_MAX};
        to[i] = next;
    }
}

/* The highest of the lanes', of equal ones the first, to all of them; returns whose it is. */
__device__ static int highest_find(struct candidate *out, struct candidate mine)
{
    uint32_t key = key_of(mine.logit), most = warp_largest(key);
    uint32_t at = warp_least(key == most ? (uint32_t)mine.at : UINT32_MAX);
    int owner = __ffs((int)__ballot_sync(ALL_LANES, key == most && (uint32_t)mine.at == at)) - 1;
    *out = (struct candidate){__shfl_sync(ALL_LANES, mine.logit, owner), (int32_t)at};
    return owner;
}

/* Of a lane's piece, as a part of the sum of all, whose highest logit is `most`. */
__device__ static double part_of(double sum, float highest, float most, double inverse)
{
    return highest > -INFINITY ? sum * exp(((double)highest - (double)most) * inverse) : 0;
}

/* The first `count` candidates of the pieces, which are lists in falling order; by a warp, of which
 * a lane has a piece. */
__device__ static void pieces_merge(struct candidate *out, int count,
                                    const struct candidate (*tops)[CANDIDATES_MAX])
{
    struct candidate mine = tops[lane_id()][0], best;
    int next = 1;
    for (int i = 0; i < count; i++) {
        if (highest_find(&best, mine) == lane_id() && next < CANDIDATES_MAX)
            mine = tops[lane_id()][next++];
        if (lane_id() == i % WARP)
            out[i] = best;
    }
}

/* A block has a row; its warps fetch the pieces, and one merges them. */
__global__ void __launch_bounds__(MERGE_THREADS)
    candidates_merge_kernel(const struct op_candidates op, const struct candidates *pieces,
                            int piece_count, int piece_values)
{
    __shared__ struct candidate tops[WARP][CANDIDATES_MAX];
    struct candidates *out = &op.out[blockIdx.x];
    pieces += (int64_t)blockIdx.x * piece_count;
    for (int p = warp_id(); p < WARP; p += MERGE_THREADS / WARP) {
        if (p < piece_count)
            piece_copy(tops[p], &pieces[p], (int64_t)p * piece_values,
                       op.dim - (int64_t)p * piece_values);
        else
            tops[p][0] = tops[p][CANDIDATES_MAX - 1] = (struct candidate){-INFINITY, INT32_MAX};
    }
    __syncthreads();
    if (warp_id() > 0)
        return;
    const bool is_here = lane_id() < piece_count;
    const struct candidates *piece = &pieces[is_here ? lane_id() : 0];
    const double given = op.draws != NULL ? op.draws[blockIdx.x].temperature : 0;
    const bool is_broken = __any_sync(ALL_LANES, piece->count == CHOSEN_BROKEN);
    const bool is_usable = !is_broken && __any_sync(ALL_LANES, piece->count > 0);
    const int count = !is_usable ? 0 : op.dim < CANDIDATES_MAX ? (int)op.dim : CANDIDATES_MAX;
    struct sums sums = {0, 0};
    if (is_usable) {
        const float highest = tops[lane_id()][0].logit, most = warp_max(highest);
        const double inverse = given > 0 ? fmin(1 / given, INVERSE_MAX) : 1;
        sums.sum = warp_sum(is_here ? part_of(piece->sum, highest, most, 1) : 0);
        sums.mass = warp_sum(is_here ? part_of(piece->mass, highest, most, inverse) : 0);
        pieces_merge(out->top, count, tops);
    }
    for (int i = count + lane_id(); i < CANDIDATES_MAX; i += WARP)
        out->top[i] = (struct candidate){0, 0};
    if (lane_id() == 0) {
        out->sum = sums.sum;
        out->mass = sums.mass;
        out->count = is_broken ? CHOSEN_BROKEN : is_usable ? count : CHOSEN_NONE;
    }
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* At most WARP pieces are a row. */
static int64_t piece_values_of(int64_t dim)
{
    int64_t values = ceil_div(dim, WARP);
    return values > PIECE_LEAST ? values : PIECE_LEAST;
}

size_t cuda_candidates_scratch(const struct op_candidates *op)
{
    int64_t pieces = ceil_div(op->dim, piece_values_of(op->dim));
    return pieces > 1 ? (size_t)(pieces * op->row_count) * sizeof(struct candidates) : 0;
}

cudaError_t cuda_candidates(const struct cuda_launch *launch, const struct op_candidates *op)
{
    if (op->row_count == 0)
        return cudaSuccess;
    const int64_t values = piece_values_of(op->dim), threads = round_up(op->dim, WARP);
    const dim3 grid((unsigned)op->row_count, grid_for(op->dim, values));
    struct candidates *found = grid.y > 1 ? (struct candidates *)launch->scratch : op->out;
    KERNEL_LAUNCH((candidates_kernel), grid,
                  (unsigned)(threads < PIECE_THREADS ? threads : PIECE_THREADS), 0, launch->stream,
                  *op, found, (int)values);
    if (grid.y > 1)
        KERNEL_LAUNCH((candidates_merge_kernel), grid.x, MERGE_THREADS, 0, launch->stream, *op,
                      found, (int)grid.y, (int)values);
    return cudaGetLastError();
}

/* The highest logits of each row, and sums over all of them. A block has a row.
 *
 * The lowest of the highest is found digit by digit (radix select): of the logits as whole numbers
 * in the same order, each pass counts how many have which next 8 bits, among those that agree with
 * what is known of it. So that few are counted, which else would wait for each other, the same is
 * done first with the highest of each thread's: the lowest of those is no higher. Then all above it
 * are gathered, and of its equals as many as there is room for, the first ones; each finds its
 * place by how many stand before it. */
#include "kernels/cuda/logits.cuh"

#define DIGIT_BITS 8
#define DIGITS     (1 << DIGIT_BITS)
#define KEY_BITS   32

/* In the order of the numbers; -0 and 0 are one. */
__device__ static uint32_t key_of(float logit)
{
    uint32_t bits = __float_as_uint(logit + 0.0f);
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

/* Of exp((logit - most) / temperature), in f64, so that a sum of all is that of its parts, wherever
 * a vocabulary is cut, up to the last bits of f64. */
__device__ static double exp_sum(const float *in, int64_t dim, float most, double temperature,
                                 double *kept)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < dim; i += blockDim.x)
        sum += exp(((double)in[i] - (double)most) / temperature);
    return block_sum(sum, kept);
}

/* What is known of the lowest of the highest: bits of its key, and how many of those that agree
 * with it are among the highest. */
struct bound {
    uint32_t key, mask;
    int wanted;
};

/* The next digit of the bound: the first, from the highest on, with which there are enough. By one
 * thread. */
__device__ static void bound_step(struct bound *bound, const int *counts, int shift)
{
    int digit = DIGITS - 1;
    while (digit > 0 && counts[digit] < bound->wanted)
        bound->wanted -= counts[digit--];
    bound->key |= (uint32_t)digit << shift;
    bound->mask |= (uint32_t)(DIGITS - 1) << shift;
}

/* Of a block's shared memory. */
struct search {
    struct bound bounds[2]; /* of the highest of each thread's, of all */
    int counts[DIGITS];
    float firsts[LOGITS_THREADS]; /* the highest of each thread's */
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
        if (threadIdx.x == 0)
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

__global__ void candidates_kernel(const struct op_candidates op)
{
    __shared__ struct chosen kept_chosen[WARP];
    __shared__ double kept_sums[2][WARP];
    __shared__ int kept[WARP], above_count;
    __shared__ struct candidate top[CANDIDATES_MAX];
    __shared__ struct search search;
    const float *in = op.in + (int64_t)blockIdx.x * op.stride;
    struct candidates *out = &op.out[blockIdx.x];
    const int count = op.dim < CANDIDATES_MAX ? (int)op.dim : CANDIDATES_MAX;
    const double temperature = op.draws != NULL ? op.draws[blockIdx.x].temperature : 0;
    if (threadIdx.x == 0)
        above_count = 0;
    struct chosen most = row_largest(in, op.dim, kept_chosen);
    bool is_usable = most.at >= 0;
    double sum = 0, mass = 0;
    if (is_usable) {
        sum = mass = exp_sum(in, op.dim, most.logit, 1, kept_sums[0]);
        if (temperature > 0 && temperature != 1)
            mass = exp_sum(in, op.dim, most.logit, temperature, kept_sums[1]);
        uint32_t least = op.dim > blockDim.x ? least_find(&search, count, in, op.dim) : 0;
        bound_find(&search.bounds[1], search.counts, count, least, in, op.dim);
        top_gather(top, &search.bounds[1], kept, &above_count, count, in, op.dim);
    }
    for (int i = (int)threadIdx.x; i < CANDIDATES_MAX; i += (int)blockDim.x) {
        int place = i;
        if (is_usable && i < count) {
            place = 0;
            for (int other = 0; other < count; other++)
                place += ranks_before(top[other], top[i]);
        }
        out->top[place] = is_usable && i < count ? top[i] : (struct candidate){0, 0};
    }
    if (threadIdx.x == 0) {
        out->sum = sum;
        out->mass = mass;
        out->count = is_usable ? count : most.at;
    }
}

cudaError_t cuda_candidates(const struct cuda_launch *launch, const struct op_candidates *op)
{
    if (op->row_count == 0)
        return cudaSuccess;
    KERNEL_LAUNCH((candidates_kernel), (unsigned)op->row_count, logits_threads(op->dim), 0,
                  launch->stream, *op);
    return cudaGetLastError();
}

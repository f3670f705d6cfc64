/* A token of each row of logits: the largest, or a draw among all (device/draw.h). A block has a
 * row. */
#include "kernels/cuda/logits.cuh"

#define REST_BITS   24 /* of 1 - u, rounded down: what f32 has exactly */
#define REST_MARGIN 1.001f

/* ---- A draw --------------------------------------------------------------------------------- */

/* random_mix of base/random.h. */
__device__ static uint64_t device_random_mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* draw_score of device/draw.h; `hash` is that of the token. */
__device__ static double device_draw_score(const struct draw *draw, float logit, uint64_t hash)
{
    double u = ((double)(hash >> 12) + 0.5) * 0x1p-52;
    return (double)logit / draw->temperature - log(-log(u));
}

/* A thread's part of a row's race, which `largest` begins: kernels/cpu/choose.c says why only few
 * tokens are scored in f64, of which most cards do little. */
__device__ static struct chosen thread_draw(const struct op_choose *op, const struct draw *draw,
                                            const float *in, struct chosen largest)
{
    const float most = largest.logit, inverse = (float)(1 / draw->temperature);
    const double scaled = (double)most / draw->temperature;
    struct chosen best = largest;
    best.score = device_draw_score(
        draw, most, device_random_mix(draw->key ^ (uint64_t)(op->first_token + best.at)));
    float behind = (float)(scaled - best.score);
    for (int64_t i = threadIdx.x; i < op->dim; i += blockDim.x) {
        uint64_t hash = device_random_mix(draw->key ^ (uint64_t)(op->first_token + i));
        float rest = (float)(uint32_t)(~hash >> (64 - REST_BITS));
        float odds = expf((in[i] - most) * inverse + behind);
        if (!(rest < odds * (REST_MARGIN * (1 << REST_BITS))))
            continue;
        struct chosen here = {device_draw_score(draw, in[i], hash), (int32_t)i, in[i]};
        if (is_before(here, best)) {
            best = here;
            behind = (float)(scaled - here.score);
        }
    }
    return best;
}

__global__ void choose_kernel(const struct op_choose op)
{
    __shared__ struct chosen kept[2][WARP];
    const float *in = op.in + (int64_t)blockIdx.x * op.stride;
    struct chosen best = row_largest(in, op.dim, kept[0]);
    if (op.draws != NULL && op.draws[blockIdx.x].temperature > 0 && best.at >= 0)
        best = block_first(thread_draw(&op, &op.draws[blockIdx.x], in, best), kept[1]);
    if (threadIdx.x == 0)
        op.out[blockIdx.x] = best;
}

cudaError_t cuda_choose(const struct cuda_launch *launch, const struct op_choose *op)
{
    if (op->row_count == 0)
        return cudaSuccess;
    KERNEL_LAUNCH((choose_kernel), (unsigned)op->row_count, logits_threads(op->dim), 0,
                  launch->stream, *op);
    return cudaGetLastError();
}

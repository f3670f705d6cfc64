/* Operations that work row by row: embedding, norm, sums, gathers. All are bound by memory: 16
 * bytes a thread, neighbouring threads at neighbouring places, each value read from memory once;
 * what is needed twice stays in registers. */
#include "kernels/cuda/parts.cuh"

#define ROW_THREADS     256
#define ROW_THREADS_MAX 512
#define FLOAT4S         4 /* values in a float4 */

/* Threads of a block that has a row of which each thread keeps `kept` float4: by its length alone,
 * so that a row's sum is always taken in the same order. */
static unsigned row_threads(int64_t stride, int kept)
{
    int64_t threads = round_up(ceil_div(stride, kept * FLOAT4S), WARP);
    return (unsigned)(threads < ROW_THREADS_MAX ? threads : ROW_THREADS_MAX);
}

__device__ static float4 float4_load(const float *row, int64_t i)
{
    return ((const float4 *)row)[i];
}

/* Values i x 4 .. of an array of `dim`, that may begin anywhere; zeros behind its end. */
__device__ static float4 weights_load(const float *weights, int i, int dim)
{
    int left = dim - i * FLOAT4S;
    if (left >= FLOAT4S && (uintptr_t)weights % sizeof(float4) == 0)
        return float4_load(weights, i);
    weights += i * FLOAT4S;
    return make_float4(left > 0 ? weights[0] : 0.0f, left > 1 ? weights[1] : 0.0f,
                       left > 2 ? weights[2] : 0.0f, left > 3 ? weights[3] : 0.0f);
}

/* A thread's place in a row that its block has: unit `k` of the first, which it keeps in registers,
 * is threadIdx.x + k x blockDim.x. */
__device__ static int kept_unit(int k)
{
    return (int)(threadIdx.x + k * blockDim.x);
}

/* Of the block's threads, to all of them; few warps are added up faster one by one than by lanes.
 */
__device__ static float row_sum(float value, float *kept)
{
    value = warp_sum(value);
    if (lane_id() == 0)
        kept[warp_id()] = value;
    __syncthreads();
    float sum = kept[0];
    for (int w = 1; w < (int)(blockDim.x / WARP); w++)
        sum += kept[w];
    return sum;
}

/* ---- Embedding ------------------------------------------------------------------------------ */

#define EMBED_WARPS   8
#define EMBED_COLUMNS (2 * WARP) /* of a warp */

/* Blocks [tokens / EMBED_WARPS][columns / EMBED_COLUMNS]; a warp has some columns of a token, a
 * lane two that are neighbours. A row of the table lies in pieces of 4 bytes, and a sector that is
 * read for one has those of seven others: blocks that run at once have the same columns of many
 * tokens, so that such sectors, and the table's part that they are from, are in the second-level
 * cache. */
template <bool BF16> __global__ void embed_kernel(const struct op_embed op)
{
    const struct matrix *table = &op.table;
    int64_t t = (int64_t)blockIdx.x * EMBED_WARPS + warp_id();
    if (t >= op.token_count)
        return;
    int64_t columns = device_round_up(table->columns, PACK_BLOCK);
    int64_t id = op.ids[t];
    int64_t panel = id / PACK_BLOCK * PACK_BLOCK * columns, row = id % PACK_BLOCK;
    int64_t c = (int64_t)blockIdx.y * EMBED_COLUMNS + 2 * lane_id();
    float2 value = make_float2(0, 0); /* the table's own padding is zero too */
    if (c >= op.out_stride)
        return;
    if (c < columns && BF16) {
        uint32_t pair = ((const uint32_t *)table->data)[(panel + c * PACK_BLOCK) / 2 + row];
        value = make_float2(pair_low(pair), pair_high(pair));
    } else if (c < columns) {
        const float *from = (const float *)table->data + panel + c * PACK_BLOCK + row;
        value = make_float2(from[0], from[PACK_BLOCK]);
    }
    *(float2 *)(op.out + t * op.out_stride + c) = value;
}

cudaError_t cuda_embed(const struct cuda_launch *launch, const struct op_embed *op)
{
    if (op->token_count == 0)
        return cudaSuccess;
    dim3 grid(grid_for(op->token_count, EMBED_WARPS), grid_for(op->out_stride, EMBED_COLUMNS));
    if (op->table.dtype == DTYPE_BF16)
        KERNEL_LAUNCH((embed_kernel<true>), grid, EMBED_WARPS * WARP, 0, launch->stream, *op);
    else
        KERNEL_LAUNCH((embed_kernel<false>), grid, EMBED_WARPS * WARP, 0, launch->stream, *op);
    return cudaGetLastError();
}

/* ---- Norm ----------------------------------------------------------------------------------- */

#define NORM_KEPT 4

/* The squares of values i x 4 .. of a row that has `dim`. */
__device__ static float squares(float4 v, int i, int dim)
{
    int left = dim - i * FLOAT4S;
    float sum = left > 0 ? v.x * v.x : 0.0f;
    sum += left > 1 ? v.y * v.y : 0.0f;
    sum += left > 2 ? v.z * v.z : 0.0f;
    return sum + (left > 3 ? v.w * v.w : 0.0f);
}

/* Values i x 4 .. of a row that has `dim`, which may be no numbers. */
__device__ static float4 normed(float4 v, float scale, float4 weight, int i, int dim)
{
    int left = dim - i * FLOAT4S;
    return make_float4(
        left > 0 ? v.x * scale * weight.x : 0.0f, left > 1 ? v.y * scale * weight.y : 0.0f,
        left > 2 ? v.z * scale * weight.z : 0.0f, left > 3 ? v.w * scale * weight.w : 0.0f);
}

__device__ static float4 sum_of(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* A block has a row, of which each thread keeps NORM_KEPT float4 between its sum and its scaling;
 * of a row that is longer the rest is read twice. A thread writes only what it alone has read: out
 * may be in. With ADDS `in` += `added` first, and the norm is that of the sum. */
template <bool ADDS>
__global__ void __launch_bounds__(ROW_THREADS_MAX)
    rms_norm_kernel(const struct op_rms_norm op, float *in, const float *added)
{
    __shared__ float kept[WARP];
    float *out = op.out + (int64_t)blockIdx.x * op.stride;
    const int units = (int)(op.stride / FLOAT4S), dim = (int)op.dim, threads = (int)blockDim.x;
    const float4 zero = make_float4(0, 0, 0, 0);
    float4 v[NORM_KEPT], more[NORM_KEPT], weight[NORM_KEPT];
    float sum = 0;
    in += (int64_t)blockIdx.x * op.stride;
    added += ADDS ? (int64_t)blockIdx.x * op.stride : 0;
#pragma unroll
    for (int k = 0; k < NORM_KEPT; k++) {
        v[k] = kept_unit(k) < units ? float4_load(in, kept_unit(k)) : zero;
        if (ADDS)
            more[k] = kept_unit(k) < units ? float4_load(added, kept_unit(k)) : zero;
    }
#pragma unroll
    for (int k = 0; k < NORM_KEPT; k++) {
        if (ADDS && kept_unit(k) < units)
            ((float4 *)in)[kept_unit(k)] = v[k] = sum_of(v[k], more[k]);
        weight[k] = weights_load(op.weight, kept_unit(k), dim);
    }
#pragma unroll
    for (int k = 0; k < NORM_KEPT; k++)
        sum += squares(v[k], kept_unit(k), dim);
    for (int i = kept_unit(NORM_KEPT); i < units; i += threads) {
        float4 next = float4_load(in, i);
        if (ADDS)
            ((float4 *)in)[i] = next = sum_of(next, float4_load(added, i));
        sum += squares(next, i, dim);
    }
    float scale = 1.0f / sqrtf(row_sum(sum, kept) / (float)dim + op.epsilon);
#pragma unroll
    for (int k = 0; k < NORM_KEPT; k++) {
        if (kept_unit(k) < units)
            ((float4 *)out)[kept_unit(k)] = normed(v[k], scale, weight[k], kept_unit(k), dim);
    }
    for (int i = kept_unit(NORM_KEPT); i < units; i += threads)
        ((float4 *)out)[i] =
            normed(float4_load(in, i), scale, weights_load(op.weight, i, dim), i, dim);
}

cudaError_t cuda_rms_norm(const struct cuda_launch *launch, const struct op_rms_norm *op)
{
    if (op->row_count == 0)
        return cudaSuccess;
    KERNEL_LAUNCH((rms_norm_kernel<false>), (unsigned)op->row_count,
                  row_threads(op->stride, NORM_KEPT), 0, launch->stream, *op, (float *)op->in,
                  nullptr);
    return cudaGetLastError();
}

cudaError_t cuda_add_norm(const struct cuda_launch *launch, const struct op_add *add,
                          const struct op_rms_norm *norm)
{
    if (norm->row_count == 0)
        return cudaSuccess;
    KERNEL_LAUNCH((rms_norm_kernel<true>), (unsigned)norm->row_count,
                  row_threads(norm->stride, NORM_KEPT), 0, launch->stream, *norm, add->out,
                  add->in);
    return cudaGetLastError();
}

/* ---- Sums ----------------------------------------------------------------------------------- */

__global__ void add_kernel(float4 *out, const float4 *in, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    out[i] = sum_of(out[i], in[i]);
}

cudaError_t cuda_add(const struct cuda_launch *launch, const struct op_add *op)
{
    int64_t count = op->row_count * op->stride / FLOAT4S;
    if (count == 0)
        return cudaSuccess;
    KERNEL_LAUNCH((add_kernel), grid_for(count, ROW_THREADS), ROW_THREADS, 0, launch->stream,
                  (float4 *)op->out, (const float4 *)op->in, count);
    return cudaGetLastError();
}

__device__ static void add_weighted(float4 *sum, float4 v, float weight)
{
    sum->x = fmaf(v.x, weight, sum->x);
    sum->y = fmaf(v.y, weight, sum->y);
    sum->z = fmaf(v.z, weight, sum->z);
    sum->w = fmaf(v.w, weight, sum->w);
}

/* Blocks [tokens][pieces of a row]; choices four at a time, so that their loads overlap. */
__global__ void combine_kernel(const struct op_combine op)
{
    int64_t t = blockIdx.x, i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= op.stride / FLOAT4S)
        return;
    const int32_t *positions = op.position_of + t * op.top_k;
    const float *weights = op.weights != NULL ? op.weights + t * op.choice_stride : NULL;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int64_t first = 0; first < op.top_k; first += 4) {
        float4 values[4];
        float factors[4];
        bool is_here[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int32_t position = first + c < op.top_k ? positions[first + c] : -1;
            is_here[c] = position >= 0;
            if (!is_here[c])
                continue;
            values[c] = float4_load(op.in + position * op.stride, i);
            factors[c] = weights != NULL ? weights[first + c] : 1.0f;
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (is_here[c])
                add_weighted(&sum, values[c], factors[c]);
        }
    }
    ((float4 *)(op.out + t * op.stride))[i] = sum;
}

cudaError_t cuda_combine(const struct cuda_launch *launch, const struct op_combine *op)
{
    if (op->token_count == 0)
        return cudaSuccess;
    dim3 grid((unsigned)op->token_count, grid_for(op->stride / FLOAT4S, ROW_THREADS));
    KERNEL_LAUNCH((combine_kernel), grid, ROW_THREADS, 0, launch->stream, *op);
    return cudaGetLastError();
}

#define SHARED_KEPT 2

__device__ static float dot(float4 a, float4 b)
{
    return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, a.w * b.w)));
}

/* A block has a token; what is added to and what is added are on their way while the gate's product
 * is made. A row's padding meets zeros. */
__global__ void __launch_bounds__(ROW_THREADS_MAX) shared_add_kernel(const struct op_shared_add op)
{
    __shared__ float kept[WARP];
    int64_t t = blockIdx.x;
    const float *in = op.in + t * op.stride, *shared = op.shared + t * op.stride;
    float *out = op.out + t * op.stride;
    const int units = (int)(op.stride / FLOAT4S), dim = (int)op.dim, threads = (int)blockDim.x;
    const float4 zero = make_float4(0, 0, 0, 0);
    float4 factor[SHARED_KEPT], gate[SHARED_KEPT], to[SHARED_KEPT], from[SHARED_KEPT];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < SHARED_KEPT; k++) {
        bool is_here = kept_unit(k) < units;
        factor[k] = is_here ? float4_load(in, kept_unit(k)) : zero;
        gate[k] = weights_load(op.gate, kept_unit(k), dim);
        to[k] = is_here ? float4_load(out, kept_unit(k)) : zero;
        from[k] = is_here ? float4_load(shared, kept_unit(k)) : zero;
    }
#pragma unroll
    for (int k = 0; k < SHARED_KEPT; k++)
        sum += dot(factor[k], gate[k]);
    for (int i = kept_unit(SHARED_KEPT); i < units; i += threads)
        sum += dot(float4_load(in, i), weights_load(op.gate, i, dim));
    float weight = 1.0f / (1.0f + expf(-row_sum(sum, kept)));
#pragma unroll
    for (int k = 0; k < SHARED_KEPT; k++) {
        add_weighted(&to[k], from[k], weight);
        if (kept_unit(k) < units)
            ((float4 *)out)[kept_unit(k)] = to[k];
    }
    for (int i = kept_unit(SHARED_KEPT); i < units; i += threads) {
        float4 more = float4_load(out, i);
        add_weighted(&more, float4_load(shared, i), weight);
        ((float4 *)out)[i] = more;
    }
}

cudaError_t cuda_shared_add(const struct cuda_launch *launch, const struct op_shared_add *op)
{
    if (op->token_count == 0)
        return cudaSuccess;
    KERNEL_LAUNCH((shared_add_kernel), (unsigned)op->token_count,
                  row_threads(op->stride, SHARED_KEPT), 0, launch->stream, *op);
    return cudaGetLastError();
}

/* ---- Gather --------------------------------------------------------------------------------- */

/* Blocks [rows][pieces of a row]; `units` of T are a row. */
template <typename T>
__global__ void gather_kernel(T *out, const T *in, const int32_t *rows, int64_t units)
{
    int64_t i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (i < units)
        out[(int64_t)blockIdx.x * units + i] = in[rows[blockIdx.x] * units + i];
}

template <typename T>
static void gather_launch(const struct cuda_launch *launch, const struct op_gather *op)
{
    int64_t units = op->row_bytes / (int64_t)sizeof(T);
    dim3 grid((unsigned)op->row_count, grid_for(units, ROW_THREADS));
    KERNEL_LAUNCH((gather_kernel<T>), grid, ROW_THREADS, 0, launch->stream, (T *)op->out,
                  (const T *)op->in, op->rows, units);
}

cudaError_t cuda_gather(const struct cuda_launch *launch, const struct op_gather *op)
{
    if (op->row_count == 0 || op->row_bytes == 0)
        return cudaSuccess;
    uintptr_t places = (uintptr_t)op->out | (uintptr_t)op->in | (uintptr_t)op->row_bytes;
    if (places % sizeof(uint4) == 0)
        gather_launch<uint4>(launch, op);
    else if (places % sizeof(uint32_t) == 0)
        gather_launch<uint32_t>(launch, op);
    else
        gather_launch<uint8_t>(launch, op);
    return cudaGetLastError();
}

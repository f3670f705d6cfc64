/* Operations that work row by row: embedding, norm, sums, gathers. All are bound by memory: 16
 * bytes a thread, neighbouring threads at neighbouring places, each value read from memory once
 * (what is read twice stands in the first-level cache the second time). */
#include "kernels/cuda/parts.cuh"

#define ROW_THREADS     256
#define ROW_THREADS_MAX 1024
#define FLOAT4S         4 /* values in a float4 */

/* Threads of a block that has a row: by its length alone, so that a row's sum is always taken in
 * the same order. */
static unsigned row_threads(int64_t stride)
{
    int64_t threads = round_up(ceil_div(stride, FLOAT4S), WARP);
    return (unsigned)(threads < ROW_THREADS_MAX ? threads : ROW_THREADS_MAX);
}

__device__ static float4 float4_load(const float *row, int64_t i)
{
    return ((const float4 *)row)[i];
}

/* ---- Embedding ------------------------------------------------------------------------------ */

/* A block has a token, a thread two neighbouring columns at a time. A row of the table lies in
 * pieces of 4 bytes. */
template <bool BF16> __global__ void embed_kernel(const struct op_embed op)
{
    const struct matrix *table = &op.table;
    int64_t columns = device_round_up(table->columns, PACK_BLOCK);
    int64_t id = op.ids[blockIdx.x];
    int64_t panel = id / PACK_BLOCK * PACK_BLOCK * columns, row = id % PACK_BLOCK;
    float *out = op.out + (int64_t)blockIdx.x * op.out_stride;
    for (int64_t c = 2 * (int64_t)threadIdx.x; c < op.out_stride; c += 2 * (int64_t)blockDim.x) {
        float2 value = make_float2(0, 0); /* the table's own padding is zero too */
        if (c < columns && BF16) {
            uint32_t pair = ((const uint32_t *)table->data)[(panel + c * PACK_BLOCK) / 2 + row];
            value = make_float2(pair_low(pair), pair_high(pair));
        } else if (c < columns) {
            const float *from = (const float *)table->data + panel + c * PACK_BLOCK + row;
            value = make_float2(from[0], from[PACK_BLOCK]);
        }
        *(float2 *)(out + c) = value;
    }
}

cudaError_t cuda_embed(const struct cuda_launch *launch, const struct op_embed *op)
{
    if (op->token_count == 0)
        return cudaSuccess;
    unsigned grid = (unsigned)op->token_count;
    if (op->table.dtype == DTYPE_BF16)
        KERNEL_LAUNCH((embed_kernel<true>), grid, ROW_THREADS, 0, launch->stream, *op);
    else
        KERNEL_LAUNCH((embed_kernel<false>), grid, ROW_THREADS, 0, launch->stream, *op);
    return cudaGetLastError();
}

/* ---- Norm ----------------------------------------------------------------------------------- */

/* The squares of values i x 4 .. of a row that has `dim`. */
__device__ static float squares(float4 v, int64_t i, int64_t dim)
{
    int64_t left = dim - i * FLOAT4S;
    float sum = left > 0 ? v.x * v.x : 0.0f;
    sum += left > 1 ? v.y * v.y : 0.0f;
    sum += left > 2 ? v.z * v.z : 0.0f;
    return sum + (left > 3 ? v.w * v.w : 0.0f);
}

__device__ static float normed(float value, float scale, const float *weight, int64_t i,
                               int64_t dim)
{
    return i < dim ? value * scale * weight[i] : 0.0f;
}

/* A block has a row. A thread writes only what it alone has read: out may be in. */
__global__ void rms_norm_kernel(const struct op_rms_norm op)
{
    __shared__ float kept[WARP];
    const float *in = op.in + (int64_t)blockIdx.x * op.stride;
    float *out = op.out + (int64_t)blockIdx.x * op.stride;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < op.stride / FLOAT4S; i += blockDim.x)
        sum += squares(float4_load(in, i), i, op.dim);
    sum = block_sum(sum, kept);
    float scale = 1.0f / sqrtf(sum / (float)op.dim + op.epsilon);
    for (int64_t i = threadIdx.x; i < op.stride / FLOAT4S; i += blockDim.x) {
        float4 v = float4_load(in, i);
        int64_t c = i * FLOAT4S;
        v.x = normed(v.x, scale, op.weight, c, op.dim);
        v.y = normed(v.y, scale, op.weight, c + 1, op.dim);
        v.z = normed(v.z, scale, op.weight, c + 2, op.dim);
        v.w = normed(v.w, scale, op.weight, c + 3, op.dim);
        ((float4 *)out)[i] = v;
    }
}

cudaError_t cuda_rms_norm(const struct cuda_launch *launch, const struct op_rms_norm *op)
{
    if (op->row_count == 0)
        return cudaSuccess;
    KERNEL_LAUNCH((rms_norm_kernel), (unsigned)op->row_count, row_threads(op->stride), 0,
                  launch->stream, *op);
    return cudaGetLastError();
}

/* ---- Sums ----------------------------------------------------------------------------------- */

__global__ void add_kernel(float4 *out, const float4 *in, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    float4 a = out[i], b = in[i];
    out[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
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

cudaError_t cuda_add_norm(const struct cuda_launch *launch, const struct op_add *add,
                          const struct op_rms_norm *norm)
{
    cudaError_t failure = cuda_add(launch, add);
    return failure != cudaSuccess ? failure : cuda_rms_norm(launch, norm);
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

/* A block has a token. */
__global__ void shared_add_kernel(const struct op_shared_add op)
{
    __shared__ float kept[WARP];
    int64_t t = blockIdx.x;
    const float *in = op.in + t * op.stride, *shared = op.shared + t * op.stride;
    float *out = op.out + t * op.stride;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < op.dim; i += blockDim.x)
        sum = fmaf(in[i], op.gate[i], sum);
    float weight = 1.0f / (1.0f + expf(-block_sum(sum, kept)));
    for (int64_t i = threadIdx.x; i < op.stride / FLOAT4S; i += blockDim.x) {
        float4 to = float4_load(out, i);
        add_weighted(&to, float4_load(shared, i), weight);
        ((float4 *)out)[i] = to;
    }
}

cudaError_t cuda_shared_add(const struct cuda_launch *launch, const struct op_shared_add *op)
{
    if (op->token_count == 0)
        return cudaSuccess;
    KERNEL_LAUNCH((shared_add_kernel), (unsigned)op->token_count, row_threads(op->stride), 0,
                  launch->stream, *op);
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

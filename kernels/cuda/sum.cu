/* The sum of several ranks' values, in their order: what reductions between ranks on GPUs are made
 * of. Bound by memory: a thread has 16 bytes of each rank where all arrays begin at a multiple of
 * that. */
#include "kernels/cuda/parts.cuh"

#define SUM_THREADS 256
#define FLOAT4S     4 /* values in a float4 */

__device__ static float plus(float a, float b)
{
    return a + b;
}

__device__ static float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* A thread has one T, and has read it from all before it writes: out may be one of them. */
template <typename T> __global__ void sum_kernel(const struct cuda_sum op, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    T sum = ((const T *)op.in[0])[i];
#pragma unroll 4
    for (int k = 1; k < op.in_count; k++)
        sum = plus(sum, ((const T *)op.in[k])[i]);
    ((T *)op.out)[i] = sum;
}

cudaError_t cuda_sum(const struct cuda_launch *launch, const struct cuda_sum *op)
{
    if (op->count == 0)
        return cudaSuccess;
    uintptr_t places = (uintptr_t)op->out | (uintptr_t)(op->count * (int64_t)sizeof(float));
    for (int k = 0; k < op->in_count; k++)
        places |= (uintptr_t)op->in[k];
    if (places % sizeof(float4) == 0)
        KERNEL_LAUNCH((sum_kernel<float4>), grid_for(op->count / FLOAT4S, SUM_THREADS), SUM_THREADS,
                      0, launch->stream, *op, op->count / FLOAT4S);
    else
        KERNEL_LAUNCH((sum_kernel<float>), grid_for(op->count, SUM_THREADS), SUM_THREADS, 0,
                      launch->stream, *op, op->count);
    return cudaGetLastError();
}

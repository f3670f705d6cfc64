/* What every .cu of this folder includes first. nvcc builds it for GPUs; g++ with -DSIMT_HOST
 * builds the same source for the host, where tests/simt/simt.h gives it a meaning (one fiber for
 * each thread). So a kernel keeps to what both know:
 *   - it is launched by KERNEL_LAUNCH, and dynamic shared memory is KERNEL_SHARED;
 *   - bf16 and fp16 are storage: they are converted to float to be computed with;
 *   - no warp-synchronous code without __syncwarp; a warp is left only as a whole before a shuffle;
 *   - in a loop over pieces of work, what is loaded under a condition is set to zero otherwise:
 *     ptxas keeps a register for what may be undefined from the kernel's beginning on;
 *   - inline PTX, cp.async, mma stand between #if !defined(SIMT_HOST), and have a plain twin.
 */
#ifndef PHASOR_KERNELS_CUDA_KERNEL_CUH
#define PHASOR_KERNELS_CUDA_KERNEL_CUH

#if defined(SIMT_HOST)
#include <simt.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* The kernel stands in parentheses: KERNEL_LAUNCH((rows<float, 4>), grid, block, 0, stream, op).
 * Arguments are copied when it is called. */
#define KERNEL_PLAIN(...) __VA_ARGS__
#define KERNEL_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                              \
    KERNEL_PLAIN kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)

/* The block's dynamic shared memory, aligned to 16. One symbol for all kernels: nvcc refuses one of
 * several types. */
#define KERNEL_SHARED(type, name)                                                                  \
    extern __shared__ __align__(16) unsigned char kernel_shared[];                                 \
    type *name = reinterpret_cast<type *>(kernel_shared)
#endif

#include "kernels/cuda/launch.h"

/* From Hopper on a kernel may begin while the one before still runs, and read what no kernel
 * writes: weights. It is launched by KERNEL_LAUNCH_EARLY, and all its threads call
 * kernel_awaits_last before they read or write anything else; behind that all that was launched
 * before has run. The one before lets it begin, once all its blocks have called
 * kernel_lets_next_begin, or ended. Elsewhere, and on the host, kernels run one behind the other.
 */
__device__ inline void kernel_lets_next_begin()
{
#if !defined(SIMT_HOST) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void kernel_awaits_last()
{
#if !defined(SIMT_HOST) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#define KERNEL_EARLY_CAPABILITY 90

#if defined(SIMT_HOST)
#define KERNEL_LAUNCH_EARLY KERNEL_LAUNCH
static inline bool kernel_knows_early(const void *)
{
    return true;
}
#else
/* Not where a driver has made it of what was compiled for earlier GPUs. */
static inline bool kernel_knows_early(const void *kernel)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
           attributes.ptxVersion >= KERNEL_EARLY_CAPABILITY;
}

template <class... P, class... A>
static inline void kernel_launch_early(void (*kernel)(P...), dim3 grid, dim3 block,
                                       size_t shared_bytes, cudaStream_t stream,
                                       const A &...arguments)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    (void)cudaLaunchKernelEx(&config, kernel, P(arguments)...); /* cudaGetLastError has it, too */
}
#define KERNEL_LAUNCH_EARLY(kernel, grid, block, shared_bytes, stream, ...)                        \
    kernel_launch_early(KERNEL_PLAIN kernel, (grid), (block), (shared_bytes), (stream), __VA_ARGS__)
#endif

#endif

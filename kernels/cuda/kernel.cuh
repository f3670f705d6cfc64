/* What every .cu of this folder includes first. nvcc builds it for GPUs; g++ with -DSIMT_HOST
 * builds the same source for the host, where tests/simt/simt.h gives it a meaning (one fiber for
 * each thread). So a kernel keeps to what both know:
 *   - it is launched by KERNEL_LAUNCH, and dynamic shared memory is KERNEL_SHARED;
 *   - bf16 and fp16 are storage: they are converted to float to be computed with;
 *   - no warp-synchronous code without __syncwarp; a warp is left only as a whole before a shuffle;
 *   - in a loop over pieces of work, what is loaded under a condition is set to zero otherwise:
 *     ptxas keeps a register for what may be undefined from the kernel's beginning on;
 *   - inline PTX, cp.async, mma stand between #if !defined(SIMT_HOST), and have a plain twin; fences
 *     and what else means nothing where all is there at once have none.
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

#endif

/* Errors of the CUDA runtime as statuses. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_ERROR_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_ERROR_H

#include <cuda_runtime_api.h>

#include "base/status.h"

/* "cudaMalloc on cuda:0: out of memory (cudaErrorMemoryAllocation)"; `call` ends at its
 * parenthesis. It is no longer the thread's last error. STATUS_IO, and STATUS_NO_MEMORY where
 * memory lacks. */
enum status cuda_error_set(struct error *err, int ordinal, const char *call, cudaError_t error);

/* Forwards the failure of a call on the GPU of that number. */
#define CUDA_TRY(ordinal, call, err)                                                               \
    do {                                                                                           \
        cudaError_t cuda_try_error_ = (call);                                                      \
        if (cuda_try_error_ != cudaSuccess)                                                        \
            return cuda_error_set(err, ordinal, #call, cuda_try_error_);                           \
    } while (0)

#endif

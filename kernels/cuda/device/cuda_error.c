#include "kernels/cuda/device/cuda_error.h"

#include <string.h>

enum status cuda_error_set(struct error *err, int ordinal, const char *call, cudaError_t error)
{
    (void)cudaGetLastError();
    return error_set(err, error == cudaErrorMemoryAllocation ? STATUS_NO_MEMORY : STATUS_IO,
                     "%.*s on cuda:%d: %s (%s)", (int)strcspn(call, "("), call, ordinal,
                     cudaGetErrorString(error), cudaGetErrorName(error));
}

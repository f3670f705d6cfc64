/* Copies: on a stream, and from the host's threads. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_COPY_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_COPY_H

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "device/ops.h"

/* Puts a copy on a stream of the GPU. */
enum status cuda_copy_put(int ordinal, cudaStream_t stream, const struct op_copy *op,
                          struct error *err) MUST_CHECK;

/* What all threads of the host upload by. */
struct cuda_upload {
    int ordinal;
    cudaStream_t stream;
};

/* One that is zero; what a failure leaves, deinit frees. */
enum status cuda_upload_init(struct cuda_upload *upload, int ordinal, struct error *err) MUST_CHECK;
void cuda_upload_deinit(struct cuda_upload *upload); /* nothing is uploaded; zero is allowed */

/* As `upload` of device_ops. */
enum status cuda_upload(const struct cuda_upload *upload, const struct op_copy *op,
                        struct error *err) MUST_CHECK;

#endif

#include "kernels/cuda/device/cuda_copy.h"

#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_reach.h"

enum status cuda_copy_put(int ordinal, cudaStream_t stream, const struct op_copy *op,
                          struct error *err)
{
    if (op->bytes == 0 || op->more_rows < 0)
        return STATUS_OK;
    size_t bytes = (size_t)op->bytes;
    if (op->more_rows == 0)
        CUDA_TRY(ordinal, cudaMemcpyAsync(op->out, op->in, bytes, cudaMemcpyDefault, stream), err);
    else
        CUDA_TRY(ordinal,
                 cudaMemcpy2DAsync(op->out, (size_t)op->out_stride, op->in, (size_t)op->in_stride,
                                   bytes, (size_t)(1 + op->more_rows), cudaMemcpyDefault, stream),
                 err);
    return STATUS_OK;
}

enum status cuda_upload_init(struct cuda_upload *upload, int ordinal, struct error *err)
{
    int least, greatest;
    upload->ordinal = ordinal;
    CUDA_TRY(ordinal, cudaSetDevice(ordinal), err);
    CUDA_TRY(ordinal, cudaDeviceGetStreamPriorityRange(&least, &greatest), err);
    CUDA_TRY(ordinal,
             cudaStreamCreateWithPriority(&upload->stream, cudaStreamNonBlocking, greatest), err);
    return STATUS_OK;
}

void cuda_upload_deinit(struct cuda_upload *upload)
{
    if (upload->stream == NULL || cuda_is_stuck())
        return;
    (void)cudaSetDevice(upload->ordinal);
    (void)cudaStreamDestroy(upload->stream);
    (void)cudaGetLastError();
}

/* A thread waits for its own copy, and for those that others have put before: little beside packing,
 * if a link has ten times the rate of a thread that packs. Not measured yet. */
enum status cuda_upload(const struct cuda_upload *upload, const struct op_copy *op,
                        struct error *err)
{
    CUDA_TRY(upload->ordinal, cudaSetDevice(upload->ordinal), err);
    TRY(cuda_copy_put(upload->ordinal, upload->stream, op, err));
    CUDA_TRY(upload->ordinal, cudaStreamSynchronize(upload->stream), err);
    return STATUS_OK;
}

/* The operations of a CUDA device, each put on a stream. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_OPERATIONS_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_OPERATIONS_H

#include "device/device.h"
#include "kernels/cuda/device/cuda_work.h"

void cuda_put_embed(struct stream *stream, const struct op_embed *op);
void cuda_put_rms_norm(struct stream *stream, const struct op_rms_norm *op);
void cuda_put_add(struct stream *stream, const struct op_add *op);
void cuda_put_matmul(struct stream *stream, const struct op_matmul *op);
void cuda_put_rope_append(struct stream *stream, const struct op_rope_append *op);
void cuda_put_attention(struct stream *stream, const struct op_attention *op);
void cuda_put_route(struct stream *stream, const struct op_route *op);
void cuda_put_dispatch(struct stream *stream, const struct op_dispatch *op);
void cuda_put_group(struct stream *stream, const struct op_group *op);
void cuda_put_ffn_up(struct stream *stream, const struct op_ffn_up *op);
void cuda_put_ffn_down(struct stream *stream, const struct op_ffn_down *op);
void cuda_put_combine(struct stream *stream, const struct op_combine *op);
void cuda_put_shared_add(struct stream *stream, const struct op_shared_add *op);
void cuda_put_choose(struct stream *stream, const struct op_choose *op);
void cuda_put_candidates(struct stream *stream, const struct op_candidates *op);
void cuda_put_gather(struct stream *stream, const struct op_gather *op);
void cuda_put_dequantize(struct stream *stream, const struct op_dequantize *op);
void cuda_put_copy(struct stream *stream, const struct op_copy *op);
void cuda_put_fill(struct stream *stream, const struct op_fill *op);

/* Whether one kernel does both of two launches, of which the second comes next on the stream but
 * for changes of the stage: *out is its launch. What it makes is theirs to the bit. */
bool cuda_operations_join(struct cuda_launch_once *out, const struct cuda_launch_once *first,
                          const struct cuda_launch_once *second);

#endif

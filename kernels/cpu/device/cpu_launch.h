/* The operations of the CPU device, each put on a stream. */
#ifndef PHASOR_KERNELS_CPU_DEVICE_CPU_LAUNCH_H
#define PHASOR_KERNELS_CPU_DEVICE_CPU_LAUNCH_H

#include "device/device.h"

void cpu_embed(struct stream *stream, const struct op_embed *op);
void cpu_rms_norm(struct stream *stream, const struct op_rms_norm *op);
void cpu_add(struct stream *stream, const struct op_add *op);
void cpu_matmul(struct stream *stream, const struct op_matmul *op);
void cpu_rope_append(struct stream *stream, const struct op_rope_append *op);
void cpu_attention(struct stream *stream, const struct op_attention *op);
void cpu_route(struct stream *stream, const struct op_route *op);
void cpu_dispatch(struct stream *stream, const struct op_dispatch *op);
void cpu_group(struct stream *stream, const struct op_group *op);
void cpu_ffn_up(struct stream *stream, const struct op_ffn_up *op);
void cpu_ffn_down(struct stream *stream, const struct op_ffn_down *op);
void cpu_combine(struct stream *stream, const struct op_combine *op);
void cpu_shared_add(struct stream *stream, const struct op_shared_add *op);
void cpu_choose(struct stream *stream, const struct op_choose *op);
void cpu_candidates(struct stream *stream, const struct op_candidates *op);
void cpu_gather(struct stream *stream, const struct op_gather *op);
void cpu_dequantize(struct stream *stream, const struct op_dequantize *op);
void cpu_copy(struct stream *stream, const struct op_copy *op);
void cpu_fill(struct stream *stream, const struct op_fill *op);

#endif

/* What an operation is in a recording: its work (layout/work.h), from its arguments. For commands,
 * on the stream's thread, where something is recorded (record_is_on). */
#ifndef PHASOR_KERNELS_CPU_DEVICE_CPU_RECORD_H
#define PHASOR_KERNELS_CPU_DEVICE_CPU_RECORD_H

#include "device/ops.h"
#include "kernels/cpu/device/cpu_pool.h"

void cpu_record_embed(const struct op_embed *op);
void cpu_record_rms_norm(const struct op_rms_norm *op);
void cpu_record_add(const struct op_add *op);
void cpu_record_matmul(const struct op_matmul *op);
void cpu_record_rope_append(const struct op_rope_append *op);
void cpu_record_attention(const struct op_attention *op);
void cpu_record_route(const struct op_route *op);
void cpu_record_dispatch(const struct op_dispatch *op);
void cpu_record_group(const struct op_group *op);
void cpu_record_ffn_up(const struct op_ffn_up *op);
void cpu_record_ffn_down(const struct op_ffn_down *op);
void cpu_record_combine(const struct op_combine *op);
void cpu_record_shared_add(const struct op_shared_add *op);
void cpu_record_choose(const struct op_choose *op);
void cpu_record_candidates(const struct op_candidates *op);
void cpu_record_gather(const struct op_gather *op);
void cpu_record_dequantize(const struct op_dequantize *op);
void cpu_record_fill(const struct op_fill *op);

/* Between host and device where one end of it is not the device's. */
void cpu_record_copy(const struct op_copy *op, struct cpu_pool *pool);

#endif

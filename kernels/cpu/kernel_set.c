#include "kernels/cpu/kernels.h"

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

const struct cpu_kernels KERNEL(cpu_kernels) = {
    .name = "cpu (" TEXT(KERNEL_ISA) ")",
    .takes_pairs = KERNEL_PAIRS,
    .embed = KERNEL(embed),
    .rms_norm = KERNEL(rms_norm),
    .add = KERNEL(add),
    .matmul = KERNEL(matmul),
    .rope_append = KERNEL(rope_append),
    .attention = KERNEL(attention),
    .route = KERNEL(route),
    .ffn_up = KERNEL(ffn_up),
    .ffn_down = KERNEL(ffn_down),
    .combine = KERNEL(combine),
    .shared_add = KERNEL(shared_add),
    .choose = KERNEL(choose),
    .candidates = KERNEL(candidates),
    .gather = KERNEL(gather),
    .dequantize = KERNEL(dequantize),
    .copy = KERNEL(copy),
};

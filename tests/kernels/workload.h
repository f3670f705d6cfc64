/* A case of the shared table with its data: seeded inputs, poisoned outputs, ready to launch on any
 * CPU device. What an operation must not write, and KV memory that it must not read, holds NaN. */
#ifndef PHASOR_TESTS_KERNELS_WORKLOAD_H
#define PHASOR_TESTS_KERNELS_WORKLOAD_H

#include "cases.h"
#include "device/device.h"

#define POISON_F32  0x7FC0DEADu
#define POISON_BF16 0x7FDEu

/* Memory that an operation writes, with what stands in it before. */
struct output {
    void *data;
    void *initial;
    size_t bytes;
};

struct workload {
    enum kernel_op op;
    const struct kernel_case *from;
    union {
        struct op_embed embed;
        struct op_rms_norm rms_norm;
        struct op_add add;
        struct op_matmul matmul;
        struct op_rope_append rope_append;
        struct op_attention attention;
        struct op_route route;
        struct op_dispatch dispatch;
        struct op_group group;
        struct op_ffn_up ffn_up;
        struct op_ffn_down ffn_down;
        struct op_combine combine;
        struct op_shared_add shared_add;
        struct op_choose choose;
        struct op_candidates candidates;
        struct op_gather gather;
        struct op_dequantize dequantize;
        struct op_copy copy;
        struct op_fill fill;
    };
    int64_t row_count;   /* rows that can be computed alone; 0: none can (group) */
    int64_t page_count;  /* of the KV cache, unused pages included */
    bool takes_pairs;    /* the kernels round what they multiply with bf16 weights to bf16 */
    bool takes_halves;   /* or both to fp16, as kernels/cuda/product_mma.cu says */
    bool widens_int4;    /* and take INT4 weights as the bf16 that dequantize makes of them */
    int head_dim_pairs;  /* and with a cache of bf16, of heads up to so large; 0: of none */
    double flops, bytes; /* what the operation must do and move at least (device/ops.h) */

    struct output outputs[4];
    int output_count;
    void **owned;
    size_t owned_count, owned_capacity;
};

/* Aborts when memory cannot be had. */
void workload_create(struct workload *out, enum kernel_op op, const struct kernel_case *from);
void workload_destroy(struct workload *workload);

/* Puts the outputs back to what they were before the first launch. */
void workload_reset(struct workload *workload);

/* Values [rows][stride] rounded to bf16, in a copy that is the workload's. */
const float *workload_rounded(struct workload *workload, const float *in, int64_t rows,
                              int64_t stride);

/* The inputs [rows][stride] of a product as the kernels take them: as they are, or rounded in a
 * copy that is the workload's. And its weights, and those of groups. */
const float *workload_factors(struct workload *workload, const float *in, int64_t rows,
                              int64_t stride);
struct matrix workload_weights(struct workload *workload, const struct matrix *weights);
const struct ffn_weights *workload_groups(struct workload *workload,
                                          const struct ffn_weights *groups, int64_t count);

/* Puts the operation on the device's stream; workload_launch waits until it has run. */
void workload_put(const struct workload *workload, struct device *device);
void workload_launch(struct workload *workload, struct device *device);

/* The same for one row of `row_count` alone: a token, or a sorted position of a group. */
void workload_launch_row(struct workload *workload, struct device *device, int64_t row);

#endif

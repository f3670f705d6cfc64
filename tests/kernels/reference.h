/* What every operation of device/ops.h means: slow, in double precision, from the contract alone.
 *
 * Each value comes with a bound on the error of an f32 computation. u = 2^-24 is the rounding unit
 * of f32. A sum of n products in f32 is off by at most about sqrt(n) u times the sum of the
 * products' absolute values, but with a tiny probability. Source: Higham and Mary, "A new approach
 * to probabilistic rounding error analysis", 2019, theorem 2.4, here with lambda = 4:
 * SUM_ERROR(n) = (4 sqrt(n) + 8) u. */
#ifndef PHASOR_TESTS_KERNELS_REFERENCE_H
#define PHASOR_TESTS_KERNELS_REFERENCE_H

#include "device/ops.h"

/* [rows][columns] without padding. */
struct reference {
    int64_t rows, columns;
    double *value;
    double *bound; /* 0: exact */
};

void reference_deinit(struct reference *reference);

/* Each reads the operation's inputs before it is launched; `*out` is the caller's. */
void reference_embed(struct reference *out, const struct op_embed *op);
void reference_rms_norm(struct reference *out, const struct op_rms_norm *op);
void reference_add(struct reference *out, const struct op_add *op);
void reference_matmul(struct reference *out, const struct op_matmul *op);
/* `weight_error`: by how much an exponential may be rounded, relative to it. */
void reference_attention(struct reference *out, const struct op_attention *op, double weight_error);
void reference_ffn_up(struct reference *out, const struct op_ffn_up *op);
void reference_ffn_down(struct reference *out, const struct op_ffn_down *op);
void reference_combine(struct reference *out, const struct op_combine *op);
void reference_shared_add(struct reference *out, const struct op_shared_add *op);

/* Numbers of the operation's type, in f32: to the bit. */
void reference_dequantize(struct reference *out, const struct op_dequantize *op);

/* Heads after norm and rotation: q [token][head x dim], k and v [token][kv_head x dim]. */
struct reference_qkv {
    struct reference q, k, v;
};
void reference_rope_append(struct reference_qkv *out, const struct op_rope_append *op);

/* `ids` is [token_count][top_k]. */
void reference_route(struct reference *weights, int32_t *ids, const struct op_route *op);

/* The same arrays as in the operations. Both return how many places of token_of there are. */
int32_t reference_dispatch(int32_t *counts, int32_t *token_of, int32_t *slot_of,
                           const struct op_dispatch *op);
int32_t reference_group(int32_t *offsets, int32_t *token_of, int32_t *position_of,
                        const struct op_group *op);

#endif

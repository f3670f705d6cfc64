/* Each launches a workload on a device and holds every byte that it wrote, and what it must leave
 * alone, against the reference; `name` begins each complaint. */
#ifndef PHASOR_TESTS_KERNELS_CHECKS_H
#define PHASOR_TESTS_KERNELS_CHECKS_H

#include "reference.h"
#include "workload.h"

typedef void check_fn(struct workload *w, struct device *device, const char *name);

check_fn check_embed, check_rms_norm, check_add, check_matmul, check_shared_add, check_choose,
    check_candidates, check_gather, check_dequantize, check_copy, check_fill;
check_fn check_rope_append, check_attention;
check_fn check_route, check_dispatch, check_group, check_ffn_up, check_ffn_down, check_combine;

/* ---- Beyond the table: values that random data does not have ----------------------------------
 */

/* Inputs beside int4 weights are rounded to 14 significant bits, to nearest even; the smallest to a
 * multiple of 2^-113; what is no number, or as large as none should be, is seen. */
void check_fixed_point(struct device *device, const char *name);

/* By input the product with the scale is what is rounded. It may come to 2^15 - 2^7 units, which is
 * one more than two bytes with signs hold. */
void check_fixed_point_ends(struct device *device, const char *name);

/* Rows beside bf16 weights whose values are very large, very small, both, zeros, or no numbers: few
 * rows and many. And weights beyond what fp16 has, where that is what the kernels take. */
void check_rows_of_any_size(struct device *device, bool takes_halves, const char *name);
void check_weights_of_any_size(struct device *device, bool takes_halves, const char *name);

/* A damaged checkpoint makes logits that are no numbers. Whatever they are, a token's experts are
 * distinct, and its weights show the damage. */
void check_damaged_logits(struct device *device, const char *name);

/* ---- What they share ------------------------------------------------------------------------- */

/* `out` holds the reference's columns, then zeros to `padded`, then poison to `stride`. */
void check_values(const struct reference *expected, const float *out, int64_t padded,
                  int64_t stride, const char *name);

/* The row behind the last is as it was. */
void check_guard(const float *out, int64_t rows, int64_t stride, const char *name);

/* `written` numbers as expected, the others up to `count` and one behind as they were. */
void check_ints(const int32_t *found, const int32_t *expected, int64_t written, int64_t count,
                const char *what, const char *name);

#endif

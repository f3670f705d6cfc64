/* The lists of cases.c, by families of operations. */
#ifndef PHASOR_TESTS_KERNELS_CASE_LISTS_H
#define PHASOR_TESTS_KERNELS_CASE_LISTS_H

#include "cases.h"

/* Of an array of cases. */
#define CASE_LIST(op, array)                                                                       \
    {                                                                                              \
        op, array, sizeof(array) / sizeof(array)[0]                                                \
    }

/* cases_rows.c */
extern const struct case_list embed_list, rms_norm_list, add_list, combine_list, shared_add_list,
    choose_list, candidates_list, gather_list, copy_list, fill_list;

/* cases_matrices.c */
extern const struct case_list matmul_list, dequantize_list;

/* cases_attention.c */
extern const struct case_list rope_append_list, attention_list;

/* cases_experts.c */
extern const struct case_list route_list, dispatch_list, group_list, ffn_up_list, ffn_down_list;

#endif

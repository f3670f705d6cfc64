/* The shared table of cases: shapes of every operation in device/ops.h. The tests run those marked
 * FOR_TEST on every set of kernels, bench/kernels.c times those marked FOR_BENCH, on a GPU those
 * marked FOR_GPU_BENCH, which are larger than its caches where their counterparts in a model are. A
 * new operation lands in cases_*.c, in workload_*.c (its data), in reference.c (its meaning) and in
 * checks_*.c.
 */
#ifndef PHASOR_TESTS_KERNELS_CASES_H
#define PHASOR_TESTS_KERNELS_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout/packing.h"

enum kernel_op {
    OP_EMBED,
    OP_RMS_NORM,
    OP_ADD,
    OP_MATMUL,
    OP_ROPE_APPEND,
    OP_ATTENTION,
    OP_ROUTE,
    OP_DISPATCH,
    OP_GROUP,
    OP_FFN_UP,
    OP_FFN_DOWN,
    OP_COMBINE,
    OP_SHARED_ADD,
    OP_CHOOSE,
    OP_CANDIDATES,
    OP_GATHER,
    OP_DEQUANTIZE,
    OP_COPY,
    OP_FILL,
    OP_COUNT
};

enum case_use { FOR_TEST, FOR_BENCH, FOR_GPU_BENCH };

/* Where the (token, choice) pairs of a case go. */
enum expert_spread {
    SPREAD_RANDOM, /* any experts */
    SPREAD_FEW,    /* the even experts only: the others have no rows */
    SPREAD_LAST,   /* every token's first choice is the last expert */
    SPREAD_DENSE,  /* one group of all rows, token_of is NULL */
};

/* Which of the experts are here. */
enum expert_local {
    LOCAL_IDS,  /* all, by their ids: local_of is NULL */
    LOCAL_ALL,  /* all, in another order */
    LOCAL_SOME, /* every third */
    LOCAL_NONE
};

#define CASE_SEGMENTS_MAX 8

struct case_segment {
    int64_t token_count, first_position;
};

/* What an operation has no use for stays 0. */
struct kernel_case {
    enum case_use use;
    enum dtype dtype;      /* of weights or KV cache; of what dequantize makes */
    enum packing packing;  /* of what it takes */
    int64_t token_count;   /* rows of activations; for attention the segments tell */
    int64_t rows, columns; /* of the matrix or table; columns is the dim of row operations; for
                              feed-forward networks rows is the width, columns hidden_dim */
    int64_t group;         /* int4: weights that have one scale; 0: 48, or 64 of benchmarks */
    int64_t expert_count, top_k, group_count;
    enum expert_spread spread;
    enum expert_local local;
    bool absent;          /* some choices are no expert, or at no position */
    int64_t choice_extra; /* values in a row of choices beyond what the operation needs */
    int64_t row_bytes;    /* of a gather; of a copy, which has `rows` (0: one), and of a fill */
    int64_t head_count, kv_head_count, head_dim, window;
    struct case_segment segments[CASE_SEGMENTS_MAX];
    int64_t stride_extra; /* beyond the dimension rounded up to 16 */
    bool draws;  /* choose: at random; candidates too: each row at a temperature of its own */
    bool option; /* rms_norm: in place; matmul: bias; rope_append: norms; route: normalize; combine:
                    without weights; int4: with minima; choose, candidates: with values that are no
                    numbers */
};

struct case_list {
    const char *name; /* of the operation */
    const struct kernel_case *cases;
    size_t count;
};

/* By enum kernel_op. */
extern const struct case_list *const case_lists[OP_COUNT];

/* "matmul bf16 40x24, 3 tokens" into `out`. */
void case_describe(char *out, size_t capacity, enum kernel_op op, const struct kernel_case *c);

#endif

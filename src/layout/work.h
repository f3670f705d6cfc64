/* What an operation computes, and what that takes at least: the one definition of flops and bytes
 * for recordings, the planner, benchmarks and counters. Pure functions of shapes and number types.
 *
 * A multiplication and an addition are two flops. Weights are those of a packed matrix, padding,
 * scales and minima included (layout/packing.h); activations are f32. Each byte counts once for an
 * operation, however often it is read.
 */
#ifndef PHASOR_LAYOUT_WORK_H
#define PHASOR_LAYOUT_WORK_H

#include <stdint.h>

#include "layout/packing.h"

#define WORK_DIMS 5

/* Of flops and of either kind of bytes; what is more, of sizes that no machine has, is told as
 * this.
 */
#define WORK_COUNT_MOST (INT64_MAX / 2)

/* With the dimensions of each. */
enum work_kind {
    WORK_OTHER,      /* host work, small things */
    WORK_MATMUL,     /* rows of input, outputs, inputs */
    WORK_ATTENTION,  /* tokens; pairs of a query's and a seen position; positions whose keys and
                      * values are seen, once for each segment; heads x head_dim; key-value heads x
                      * head_dim */
    WORK_FFN_UP,     /* rows, experts that have rows, width, hidden */
    WORK_FFN_DOWN,   /* the same */
    WORK_ROWS,       /* rows, values of a row, rows read and written for each row: norms, sums,
                      * gathers, routing: bound by the bytes of activations */
    WORK_DEQUANTIZE, /* outputs, inputs */
    WORK_KIND_COUNT
};

struct work {
    enum work_kind kind;
    int64_t dims[WORK_DIMS];
    int64_t flops;
    int64_t held_bytes;       /* of weights, or of keys and values in the cache */
    int64_t activation_bytes; /* read and written; of WORK_DEQUANTIZE the result's */
};

static inline int64_t work_bytes(const struct work *work)
{
    return work->held_bytes + work->activation_bytes;
}

/* The data of the matrix is not looked at, here and below; of its pointers only whether it has
 * minima. */
struct work work_matmul(int64_t row_count, const struct matrix *weight);

/* Attention over no segments, to which segments are added: token_count tokens from first_position
 * on of one sequence, each seeing the positions up to its own, the last `window` of them (0: all).
 */
struct work work_attention(int64_t head_count, int64_t kv_head_count, int64_t head_dim);
void work_attention_add(struct work *work, int64_t token_count, int64_t first_position,
                        int64_t window, enum dtype kv_dtype);

/* What one segment adds to dims: pairs, and positions that any of its tokens sees. */
int64_t work_attention_pairs(int64_t token_count, int64_t first_position, int64_t window);
int64_t work_attention_positions(int64_t token_count, int64_t first_position, int64_t window);

/* The same of many segments at once: their tokens, pairs and positions, as in dims. */
void work_attention_sum(struct work *work, int64_t tokens, int64_t pairs, int64_t positions,
                        enum dtype kv_dtype);

/* `row_count` rows, of all `expert_count` networks that have any; one network's gate (up is as
 * large), or down. */
struct work work_ffn_up(int64_t row_count, int64_t expert_count, const struct matrix *gate);
struct work work_ffn_down(int64_t row_count, int64_t expert_count, const struct matrix *down);

/* Of `value_bytes` each, `passes` rows read or written for each of row_count. */
struct work work_rows(int64_t row_count, int64_t value_count, int64_t passes, int64_t value_bytes);

struct work work_dequantize(const struct matrix *in, enum dtype out);

#endif

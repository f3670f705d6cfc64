/* The work of an operation by sizes alone, for who has no matrices and no segments: the planner,
 * and what measures for it. Its flops and bytes are those of layout/work.h. */
#ifndef PHASOR_LAYOUT_WORK_SHAPE_H
#define PHASOR_LAYOUT_WORK_SHAPE_H

#include "layout/work.h"

#define WORK_SHAPE_DIMS 6

/* dims, of each kind:
 *   WORK_MATMUL               rows, outputs, inputs
 *   WORK_ATTENTION            query rows, pairs of a query and a key it sees, tokens of the cache
 *                             that are read, query heads, kv heads, head_dim
 *   WORK_FFN_UP, _FFN_DOWN    rows, experts that have any, width, hidden
 *   WORK_ROWS                 rows, values of each: read once and written once
 *   WORK_DEQUANTIZE           values, to bf16 */
struct work_shape {
    enum work_kind kind;
    enum dtype dtype; /* of the weights, or of the cache; of WORK_ROWS f32. int4 is in groups of 64,
                       * without minima */
    int64_t dims[WORK_SHAPE_DIMS];
};

/* A size of a shape: one of its dims, or for WORK_ATTENTION, in their stead, how many rows of
 * scores a cached token has in one kv head: pairs x query heads / (tokens x kv heads). Decode has
 * as many as query heads share a kv head. It tells, before all else, what attention is bound by. */
#define WORK_SIZE_SCORE_ROWS WORK_SHAPE_DIMS
/* Or the bytes of any: of few of them caches still have what the operation before has left. */
#define WORK_SIZE_BYTES (WORK_SHAPE_DIMS + 1)
#define WORK_SIZE_COUNT (WORK_SHAPE_DIMS + 2)

/* 0 where there is none. */
double work_shape_size(const struct work_shape *shape, int size);

struct work work_of(const struct work_shape *shape);

static inline double work_shape_flops(const struct work_shape *shape)
{
    return (double)work_of(shape).flops;
}

static inline double work_shape_bytes(const struct work_shape *shape)
{
    struct work work = work_of(shape);
    return (double)work_bytes(&work);
}

#endif

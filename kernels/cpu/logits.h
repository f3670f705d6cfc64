/* What is asked of a row of logits first: its largest, and whether all are numbers. */
#ifndef PHASOR_KERNELS_CPU_LOGITS_H
#define PHASOR_KERNELS_CPU_LOGITS_H

#include <math.h>

#include "device/ops.h"
#include "kernels/cpu/simd.h"

/* The lanes' best, of equal values the first. */
static inline struct chosen lanes_best(vec best, veci at)
{
    float value = vec_max_lane(best);
    veci is_best = best == vec_all(value);
    int32_t first = -veci_max_lane((is_best & -at) | (~is_best & INT32_MIN));
    return (struct chosen){(double)value, value > -INFINITY ? first : CHOSEN_NONE, value};
}

/* Values from `at` on; behind the last, where a vector has more, -infinity. */
INLINE vec load_some(const float *row, int64_t at, int64_t dim)
{
    float last[LANES];
    if (dim - at >= LANES)
        return vec_load(row + at);
    for (int64_t i = 0; i < LANES; i++)
        last[i] = at + i < dim ? row[at + i] : -INFINITY;
    return vec_load(last);
}

static inline struct chosen row_largest(const float *row, int64_t dim)
{
    vec best = vec_all(-INFINITY);
    veci at = {0}, here = lane_numbers(), broken = {0};
    for (int64_t i = 0; i < dim; i += LANES, here += LANES) {
        vec values = load_some(row, i, dim);
        veci is_larger = values > best;
        broken |= ~(values < vec_all(INFINITY));
        best = vec_max(values, best);
        at = (is_larger & here) | (~is_larger & at);
    }
    if (veci_max_lane(-broken) != 0)
        return (struct chosen){(double)NAN, CHOSEN_BROKEN, NAN};
    return lanes_best(best, at);
}

#endif

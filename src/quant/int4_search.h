/* The search for scales, sixteen groups at a time: one in each lane of a vector.
 *
 * A group of n weights w becomes scale x nibble + minimum. Of some ranges, each gives every weight
 * a nibble; with q given (the nibble, or nibble - 8 where groups are symmetric), scale and minimum
 * are those of least squares, and what is left of the weights' squares is less by
 *
 *   symmetric, minimum = -8 x scale:  sum(w q)^2 / sum(q q)
 *   asymmetric:                       n cov(w, q)^2 / var(q)   beside what the mean alone takes
 *
 * so the range with the largest such gain is taken. Scale and minimum are then rounded to bf16, and
 * nibbles are chosen again for them. Symmetric ranges: -8 .. 7 is not even, so the weight of the
 * largest magnitude goes to -8 (or beyond, and is cut), and its sign decides the scale's.
 * Asymmetric ones: from the smallest to the largest weight, both moved to their middle.
 *
 * No product is fused with a sum: every processor finds the same nibbles. */
#ifndef PHASOR_QUANT_INT4_SEARCH_H
#define PHASOR_QUANT_INT4_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/packing.h"

#define INT4_LANES PACK_BLOCK

/* Sums of squares of a group stay finite. */
#define INT4_VALUE_MAX 1e15f

/* Value k of group i is values[k * stride + i]. */
struct int4_groups {
    const float *values;
    int64_t stride, count;
};

/* Each a bf16 number. Symmetric groups have no minimum: it stays 0. */
struct int4_scales {
    float scale[INT4_LANES], minimum[INT4_LANES];
};

/* Sums over weights w and what became of them, v, of each lane. */
struct int4_moments {
    double product[INT4_LANES], before[INT4_LANES], after[INT4_LANES]; /* w v, w w, v v */
};

/* False when a value is not a number up to INT4_VALUE_MAX. */
bool int4_search(struct int4_scales *out, const struct int4_groups *groups, bool is_asymmetric);

/* One scale for all groups of a matrix. Start with {.is_asymmetric = ...}; give all groups to
 * int4_common_extend, then all again to int4_common_weigh, then find (the same in all lanes). */
#define INT4_PLACES_MAX 16
struct int4_common {
    bool is_asymmetric;
    float least, most;
    double weights, count;
    double products[INT4_PLACES_MAX], nibbles[INT4_PLACES_MAX], squares[INT4_PLACES_MAX];
};
bool int4_common_extend(struct int4_common *common, const struct int4_groups *groups);
void int4_common_weigh(struct int4_common *common, const struct int4_groups *groups);
void int4_common_find(struct int4_scales *out, const struct int4_common *common);

/* The nibbles, one in a byte: nibbles[k * INT4_LANES + i]. Adds to `moments` unless it is NULL. */
void int4_round(uint8_t *nibbles, const struct int4_groups *groups,
                const struct int4_scales *scales, bool is_asymmetric, struct int4_moments *moments);

#endif

/* From numbers to 4 bits: an int4 matrix as layout/packing.h has it.
 *
 * Symmetric groups: a weight w becomes scale x (nibble - 8). The scale is not simply that of the
 * largest magnitude: of SEARCH_STEPS nibble roundings around it, in both signs (the range -8 to 7
 * is not even), the one whose least-squares scale leaves the smallest sum of squared errors is
 * taken. With q given, the best scale is sum(w q) / sum(q q), and what is left of sum(w w) is less
 * by sum(w q)^2 / sum(q q): so that quotient is made as large as can be. The scale is then rounded
 * to bf16, and the nibbles are chosen again for it. */
#ifndef PHASOR_QUANT_INT4_H
#define PHASOR_QUANT_INT4_H

#include "base/status.h"
#include "layout/packing.h"

#define INT4_GROUP_MAX 256

/* Sums of squares of a group stay finite. */
#define INT4_VALUE_MAX 1e15f

/* Of the default scheme: 4.125 bits a weight, a cosine of 0.9952 on Gaussian weights. */
#define INT4_GROUP 128

/* A matrix of int4 that is being filled in. */
struct int4_target {
    uint8_t *data;    /* packed_bytes */
    uint16_t *scales; /* packed_scale_count, bf16 */
    enum packing packing;
    int64_t rows, columns; /* multiples of 16 */
    int64_t group;         /* a multiple of 16, at most INT4_GROUP_MAX */
};

/* Rows [first_row, first_row + row_count) of the matrix, given as f32 values in `in`, row-major
 * [row_count][columns]. first_row is a multiple of 16, with PACK_INPUT of the group; so is
 * row_count, or the rows are the last. Any split into row ranges gives the same bytes; ranges that
 * do not overlap can be filled by several threads at once.
 *
 * False when a value is not a number up to INT4_VALUE_MAX: its row and column are in *bad_row,
 * *bad_column. */
bool int4_pack_rows(const struct int4_target *target, const float *in, int64_t first_row,
                    int64_t row_count, int64_t *bad_row, int64_t *bad_column) MUST_CHECK;

#endif

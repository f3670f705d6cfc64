/* From numbers to 4 bits: an int4 matrix as layout/packing.h has it. How scales are found is in
 * int4_search.h. */
#ifndef PHASOR_QUANT_INT4_H
#define PHASOR_QUANT_INT4_H

#include "base/status.h"
#include "layout/packing.h"
#include "quant/int4_search.h"

/* Of a matrix for which no panel is given. */
#define INT4_GROUP_MAX 256

/* Of experts that are rounded while they load: 4.125 bits a weight, a cosine of 0.9953 on Gaussian
 * weights. */
#define INT4_GROUP 128

/* A matrix of int4 that is being filled in. */
struct int4_target {
    uint8_t *data;     /* packed_bytes */
    uint16_t *scales;  /* packed_scale_count, bf16 */
    uint16_t *minima;  /* the same; NULL: symmetric */
    enum dtype source; /* of the values to round: f32 or bf16 */
    enum packing packing;
    int64_t rows, columns; /* multiples of 16 */
    int64_t stride;        /* values from one row of the source to the next; 0: columns */
    int64_t group;         /* a multiple of 16 */
    float *panel;          /* room for 16 groups; NULL: the group is at most INT4_GROUP_MAX */
    const struct int4_scales *common; /* the scales of all groups; NULL: of each its own */
    struct int4_moments *moments;     /* or NULL: what was rounded is added */
};

/* Rows [first_row, first_row + row_count) of the matrix, given as values of the source's type in
 * `in`, row-major [row_count][columns]. first_row is a multiple of 16, with PACK_INPUT of the group
 * (unless the scales are common); so is row_count, or the rows are the last. Any split into row
 * ranges gives the same bytes; ranges that do not overlap can be filled by several threads at once
 * (with moments of their own).
 *
 * False when a value is not a number up to INT4_VALUE_MAX: its row and column are in *bad_row,
 * *bad_column. With common scales all values are known to be such numbers. */
bool int4_pack_rows(const struct int4_target *target, const void *in, int64_t first_row,
                    int64_t row_count, int64_t *bad_row, int64_t *bad_column) MUST_CHECK;

/* For one scale for all groups: gives the rows to int4_common_extend (`pass` 0) or to
 * int4_common_weigh (1). Any multiple of 16 rows at a time. False as above, in pass 0. */
bool int4_common_rows(struct int4_common *common, int pass, const struct int4_target *target,
                      const void *in, int64_t row_count, int64_t *bad_row,
                      int64_t *bad_column) MUST_CHECK;

#endif

/* What the references are made of. */
#ifndef PHASOR_TESTS_KERNELS_REFERENCE_PARTS_H
#define PHASOR_TESTS_KERNELS_REFERENCE_PARTS_H

#include <math.h>

#include "reference.h"

#define U         0x1p-24
#define U_BF16    0x1p-8  /* 8 significant bits, round to nearest: half a unit in the last place */
#define EXP_ERROR 0x1p-22 /* relative, as kernels/cpu/simd.h promises */
#define TINY      1e-30   /* what underflow may lose */

static inline double sum_error(int64_t count)
{
    return (4 * sqrt((double)count) + 8) * U;
}

void reference_init(struct reference *out, int64_t rows, int64_t columns);

/* Inner product of row n of a matrix with `in`, and its bound. */
double reference_product(double *bound, const struct matrix *matrix, int64_t n, const float *in);

#endif

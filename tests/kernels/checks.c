#include "checks.h"

#include <criterion/criterion.h>
#include <math.h>

static bool is_poison(float value)
{
    return f32_bits(value) == POISON_F32;
}

void check_values(const struct reference *expected, const float *out, int64_t padded,
                  int64_t stride, const char *name)
{
    for (int64_t r = 0; r < expected->rows; r++) {
        const float *row = out + r * stride;
        for (int64_t c = 0; c < expected->columns; c++) {
            double value = expected->value[r * expected->columns + c];
            double bound = expected->bound[r * expected->columns + c];
            cr_assert(fabs(row[c] - value) <= bound,
                      "%s: row %lld, column %lld is %.9g instead of %.9g (bound %.2g)", name,
                      (long long)r, (long long)c, (double)row[c], value, bound);
        }
        for (int64_t c = expected->columns; c < stride; c++)
            cr_assert(c < padded ? row[c] == 0 : is_poison(row[c]),
                      "%s: row %lld, column %lld of the padding is %g", name, (long long)r,
                      (long long)c, (double)row[c]);
    }
}

void check_guard(const float *out, int64_t rows, int64_t stride, const char *name)
{
    for (int64_t c = 0; c < stride; c++)
        cr_assert(is_poison(out[rows * stride + c]), "%s: wrote behind the last row", name);
}

void check_ints(const int32_t *found, const int32_t *expected, int64_t written, int64_t count,
                const char *what, const char *name)
{
    for (int64_t i = 0; i <= count; i++) {
        int32_t value = i < written ? expected[i] : (int32_t)POISON_F32;
        cr_assert_eq(found[i], value, "%s: %s[%lld] is %d instead of %d", name, what, (long long)i,
                     found[i], value);
    }
}

/* INT4: what is packed against a slow quantizer that looks at one group alone. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/numeric.h"
#include "base/random.h"
#include "quant/int4.h"

struct packed {
    struct int4_target target;
    struct matrix matrix;
};

static struct packed packed_new(enum packing packing, int64_t rows, int64_t columns, int64_t group)
{
    struct packed packed = {
        .target = {.packing = packing, .rows = rows, .columns = columns, .group = group}};
    struct int4_target *target = &packed.target;
    target->data = memory_alloc((size_t)packed_bytes(rows, columns, DTYPE_INT4), 1);
    target->scales = memory_alloc((size_t)packed_scale_count(packing, rows, columns, group),
                                  sizeof *target->scales);
    cr_assert(target->data != NULL && target->scales != NULL);
    packed.matrix = (struct matrix){.data = target->data,
                                    .dtype = DTYPE_INT4,
                                    .packing = packing,
                                    .rows = rows,
                                    .columns = columns,
                                    .scales = target->scales,
                                    .group = group};
    return packed;
}

static void packed_free(struct packed *packed)
{
    memory_free(packed->target.data);
    memory_free(packed->target.scales);
}

static void pack_all(struct packed *packed, const float *in)
{
    int64_t row, column;
    cr_assert(int4_pack_rows(&packed->target, in, 0, packed->target.rows, &row, &column));
}

/* By the words of layout/packing.h. */
static double weight_at(const struct packed *packed, int64_t row, int64_t column)
{
    const struct matrix *m = &packed->matrix;
    int64_t at = packed_index(m->packing, DTYPE_INT4, m->rows, m->columns, row, column);
    int nibble = packed->target.data[at / 2] >> at % 2 * 4 & 15;
    return bf16_to_f32(packed->target.scales[packed_scale_index(m, row, column)]) *
           (double)(nibble - 8);
}

/* Of a normal distribution, by the method of Box and Muller. */
static float *gaussian_new(int64_t count, uint64_t seed)
{
    struct random random = {.seed = seed};
    float *values = memory_alloc((size_t)count, sizeof *values);
    cr_assert_not_null(values);
    for (int64_t i = 0; i < count; i++) {
        double radius = sqrt(-2 * log(random_unit(random_next(&random))));
        values[i] = (float)(0.02 * radius * cos(2 * M_PI * random_unit(random_next(&random))));
    }
    return values;
}

/* Squared error of one group under the scale that its largest magnitude alone would give. */
static double simple_error(const float *values, int64_t step, int64_t count)
{
    double most = 0, error = 0;
    for (int64_t k = 0; k < count; k++)
        most = fabs((double)values[k * step]) > most ? fabs((double)values[k * step]) : most;
    double scale = most / 7;
    for (int64_t k = 0; k < count && scale > 0; k++) {
        double off = values[k * step] - scale * round(values[k * step] / scale);
        error += off * off;
    }
    return error;
}

static const struct shape {
    enum packing packing;
    int64_t rows, columns, group;
} shapes[] = {
    {PACK_OUTPUT, 16, 16, 128},  {PACK_INPUT, 16, 16, 128},  {PACK_OUTPUT, 32, 128, 128},
    {PACK_INPUT, 128, 32, 128},  {PACK_OUTPUT, 48, 304, 64}, {PACK_INPUT, 304, 48, 64},
    {PACK_OUTPUT, 16, 272, 256}, {PACK_INPUT, 272, 16, 256}, {PACK_OUTPUT, 16, 48, 16},
    {PACK_INPUT, 48, 16, 16},
};
#define SHAPE_COUNT (sizeof shapes / sizeof shapes[0])

Test(int4, every_group_is_at_least_as_near_as_by_its_largest_magnitude)
{
    for (size_t s = 0; s < SHAPE_COUNT; s++) {
        const struct shape *shape = &shapes[s];
        struct packed packed =
            packed_new(shape->packing, shape->rows, shape->columns, shape->group);
        float *in = gaussian_new(shape->rows * shape->columns, 7 + s);
        pack_all(&packed, in);
        bool by_output = shape->packing == PACK_OUTPUT;
        int64_t across = by_output ? shape->rows : shape->columns;
        int64_t along = by_output ? shape->columns : shape->rows;
        for (int64_t a = 0; a < across; a++) {
            for (int64_t first = 0; first < along; first += shape->group) {
                int64_t count = along - first < shape->group ? along - first : shape->group;
                double error = 0;
                for (int64_t k = first; k < first + count; k++) {
                    int64_t row = by_output ? a : k, column = by_output ? k : a;
                    double off =
                        in[row * shape->columns + column] - weight_at(&packed, row, column);
                    error += off * off;
                }
                int64_t at = by_output ? a * along + first : first * across + a;
                double simple = simple_error(in + at, by_output ? 1 : across, count);
                cr_assert_leq(error, simple * 1.02, "shape %d, group %d, %d: %g against %g", (int)s,
                              (int)a, (int)first, error, simple);
            }
        }
        memory_free(in);
        packed_free(&packed);
    }
}

/* The figure that docs and headers name. */
Test(int4, gaussian_weights_keep_their_direction)
{
    const int64_t rows = 256, columns = 1024;
    float *in = gaussian_new(rows * columns, 1);
    for (int packing = PACK_OUTPUT; packing <= PACK_INPUT; packing++) {
        struct packed packed = packed_new((enum packing)packing, rows, columns, INT4_GROUP);
        double product = 0, before = 0, after = 0;
        pack_all(&packed, in);
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < columns; c++) {
                double x = in[r * columns + c], y = weight_at(&packed, r, c);
                product += x * y;
                before += x * x;
                after += y * y;
            }
        }
        double cosine = product / sqrt(before * after);
        printf("packing %d: cosine %.5f\n", packing, cosine);
        cr_assert_gt(cosine, 0.9950);
        packed_free(&packed);
    }
    memory_free(in);
}

Test(int4, any_split_into_rows_gives_the_same_bytes)
{
    for (size_t s = 0; s < SHAPE_COUNT; s++) {
        const struct shape *shape = &shapes[s];
        int64_t step = shape->packing == PACK_OUTPUT ? PACK_BLOCK : shape->group, row, column;
        struct packed whole = packed_new(shape->packing, shape->rows, shape->columns, shape->group);
        struct packed parts = packed_new(shape->packing, shape->rows, shape->columns, shape->group);
        float *in = gaussian_new(shape->rows * shape->columns, s);
        pack_all(&whole, in);
        for (int64_t first = 0; first < shape->rows; first += step) {
            int64_t count = shape->rows - first < step ? shape->rows - first : step;
            cr_assert(int4_pack_rows(&parts.target, in + first * shape->columns, first, count, &row,
                                     &column));
        }
        cr_assert_eq(memcmp(whole.target.data, parts.target.data,
                            (size_t)packed_bytes(shape->rows, shape->columns, DTYPE_INT4)),
                     0);
        cr_assert_eq(memcmp(whole.target.scales, parts.target.scales,
                            2 * (size_t)packed_scale_count(shape->packing, shape->rows,
                                                           shape->columns, shape->group)),
                     0);
        memory_free(in);
        packed_free(&whole);
        packed_free(&parts);
    }
}

/* Weights that 4 bits can hold come back as they were: -8 to 7 times a power of two. */
Test(int4, what_fits_is_exact)
{
    const int64_t rows = 32, columns = 128;
    struct packed packed = packed_new(PACK_OUTPUT, rows, columns, 64);
    float *in = gaussian_new(rows * columns, 3);
    for (int64_t i = 0; i < rows * columns; i++)
        in[i] = 0.125f * (float)(i % 16 - 8) * (i / columns % 2 == 0 ? 1 : -1);
    pack_all(&packed, in);
    for (int64_t i = 0; i < rows * columns; i++)
        cr_assert_eq((float)weight_at(&packed, i / columns, i % columns), in[i], "value %d",
                     (int)i);
    memory_free(in);
    packed_free(&packed);
}

Test(int4, zeros_and_the_smallest_numbers)
{
    const int64_t rows = 16, columns = 64;
    struct packed packed = packed_new(PACK_OUTPUT, rows, columns, 64);
    float in[16 * 64] = {0};
    for (int i = 0; i < 64; i++) {
        in[64 + i] = 1e-45f; /* below what squares can tell from zero */
        in[128 + i] = INT4_VALUE_MAX;
    }
    pack_all(&packed, in);
    for (int64_t c = 0; c < columns; c++) {
        cr_assert_eq(weight_at(&packed, 0, c), 0);
        cr_assert(isfinite(weight_at(&packed, 1, c)) && fabs(weight_at(&packed, 1, c)) < 1e-37);
        cr_assert(isfinite(weight_at(&packed, 2, c)));
    }
    packed_free(&packed);
}

Test(int4, what_is_too_large_or_no_number_is_named)
{
    const int64_t rows = 32, columns = 16;
    struct packed packed = packed_new(PACK_INPUT, rows, columns, 16);
    float *in = gaussian_new(rows * columns, 3);
    int64_t row = -1, column = -1;
    in[5 * columns + 3] = NAN;
    cr_assert(!int4_pack_rows(&packed.target, in, 16, 16, &row, &column));
    cr_assert(row == 21 && column == 3, "row %d, column %d", (int)row, (int)column);
    in[5 * columns + 3] = 2 * INT4_VALUE_MAX;
    cr_assert(!int4_pack_rows(&packed.target, in, 0, 16, &row, &column));
    in[5 * columns + 3] = -INFINITY;
    cr_assert(!int4_pack_rows(&packed.target, in, 0, 16, &row, &column));
    cr_assert(row == 5 && column == 3);
    memory_free(in);
    packed_free(&packed);
}

#include "workload_data.h"

#include <string.h>

#include "base/memory.h"
#include "workload_memory.h"

void *own(struct workload *w, size_t count, size_t size)
{
    struct error err;
    enum status status = memory_reserve(&w->owned, &w->owned_capacity, w->owned_count + 1,
                                        sizeof *w->owned, "a workload", &err);
    ASSERT(status == STATUS_OK && count <= SIZE_MAX / size);
    return w->owned[w->owned_count++] = workload_memory_get(count * size);
}

void *output_add(struct workload *w, void *data, size_t bytes)
{
    struct output *output = &w->outputs[w->output_count++];
    *output = (struct output){data, own(w, bytes, 1), bytes};
    memcpy(output->initial, data, bytes);
    return data;
}

float uniform(struct random *random)
{
    return (float)(2 * random_unit(random_next(random)) - 1);
}

float *values_new(struct workload *w, struct random *random, int64_t count, float scale)
{
    float *values = own(w, (size_t)count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = uniform(random) * scale;
    return values;
}

float *rows_new(struct workload *w, struct random *random, int64_t rows, int64_t dim,
                int64_t stride)
{
    float *values = values_new(w, random, rows * stride, 1);
    for (int64_t r = 0; r < rows; r++)
        memset(values + r * stride + dim, 0, (size_t)(stride - dim) * sizeof *values);
    return values;
}

float *output_new(struct workload *w, int64_t rows, int64_t stride)
{
    int64_t count = (rows + 1) * stride;
    float *values = own(w, (size_t)count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = f32_from_bits(POISON_F32);
    return output_add(w, values, (size_t)count * sizeof *values);
}

float *output_rows_new(struct workload *w, struct random *random, int64_t rows, int64_t dim,
                       int64_t stride)
{
    float *values = rows_new(w, random, rows, dim, stride);
    return output_add(w, values, (size_t)(rows * stride) * sizeof *values);
}

int32_t *output_ints_new(struct workload *w, int64_t count)
{
    int32_t *values = own(w, (size_t)count + 1, sizeof *values);
    for (int64_t i = 0; i <= count; i++)
        values[i] = (int32_t)POISON_F32;
    return output_add(w, values, (size_t)(count + 1) * sizeof *values);
}

/* A multiple of 16 below 64, so that small matrices have some groups; benchmarks take 64. */
static int64_t group_of_case(const struct workload *w)
{
    if (w->from->group != 0)
        return w->from->group;
    return w->from->use == FOR_TEST ? 48 : 64;
}

static uint16_t *scales_new(struct workload *w, struct random *random, int64_t count, float scale)
{
    uint16_t *scales = own(w, (size_t)count, sizeof *scales);
    for (int64_t i = 0; i < count; i++)
        scales[i] = bf16_from_f32(uniform(random) * scale);
    return scales;
}

/* Any nibbles; with `option`, minima. */
static struct matrix int4_new(struct workload *w, struct random *random, enum packing packing,
                              int64_t rows, int64_t columns)
{
    int64_t bytes = packed_bytes(rows, columns, DTYPE_INT4), group = group_of_case(w);
    int64_t scale_count = packed_scale_count(packing, rows, columns, group);
    uint8_t *data = own(w, (size_t)bytes, 1);
    for (int64_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)random_below(random, 256);
    struct matrix matrix = {.data = data,
                            .dtype = DTYPE_INT4,
                            .packing = packing,
                            .rows = rows,
                            .columns = columns,
                            .group = group};
    matrix.scales = scales_new(w, random, scale_count, 0.1f);
    matrix.minima = w->from->option ? scales_new(w, random, scale_count, 1) : NULL;
    return matrix;
}

struct matrix matrix_new(struct workload *w, struct random *random, enum packing packing,
                         enum dtype dtype, int64_t rows, int64_t columns)
{
    if (dtype == DTYPE_INT4)
        return int4_new(w, random, packing, rows, columns);
    void *data = own(w, (size_t)packed_count(rows, columns), (size_t)dtype_bytes(dtype));
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column++) {
            int64_t at = packed_index(packing, dtype, rows, columns, row, column);
            float value = uniform(random);
            if (dtype == DTYPE_BF16)
                ((uint16_t *)data)[at] = bf16_from_f32(value);
            else
                ((float *)data)[at] = value;
        }
    }
    return (struct matrix){
        .data = data, .dtype = dtype, .packing = packing, .rows = rows, .columns = columns};
}

int64_t stride_of(const struct workload *w, int64_t dim)
{
    return round_up(dim, PACK_BLOCK) + w->from->stride_extra;
}

/* By inside-out shuffling. */
int32_t *shuffled_new(struct workload *w, struct random *random, int64_t count)
{
    int32_t *values = own(w, (size_t)count, sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = (int64_t)random_below(random, (uint64_t)i + 1);
        values[i] = values[at];
        values[at] = (int32_t)i;
    }
    return values;
}

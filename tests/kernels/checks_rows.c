#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "checks.h"

void check_embed(struct workload *w, struct device *device, const char *name)
{
    struct reference expected;
    reference_embed(&expected, &w->embed);
    workload_launch(w, device);
    check_values(&expected, w->embed.out, w->embed.out_stride, w->embed.out_stride, name);
    check_guard(w->embed.out, w->embed.token_count, w->embed.out_stride, name);
    reference_deinit(&expected);
}

void check_rms_norm(struct workload *w, struct device *device, const char *name)
{
    const struct op_rms_norm *op = &w->rms_norm;
    struct reference expected;
    reference_rms_norm(&expected, op);
    workload_launch(w, device);
    check_values(&expected, op->out, op->stride, op->stride, name);
    if (op->in != op->out)
        check_guard(op->out, op->row_count, op->stride, name);
    reference_deinit(&expected);
}

void check_add(struct workload *w, struct device *device, const char *name)
{
    struct reference expected;
    reference_add(&expected, &w->add);
    workload_launch(w, device);
    check_values(&expected, w->add.out, w->add.stride, w->add.stride, name);
    reference_deinit(&expected);
}

void check_matmul(struct workload *w, struct device *device, const char *name)
{
    const struct op_matmul *op = &w->matmul;
    struct op_matmul taken = *op;
    struct reference expected;
    taken.in = workload_factors(w, op->in, op->row_count, op->in_stride);
    taken.weight = workload_weights(w, &op->weight);
    reference_matmul(&expected, &taken);
    workload_launch(w, device);
    check_values(&expected, op->out, round_up(op->weight.rows, 16), op->out_stride, name);
    check_guard(op->out, op->row_count, op->out_stride, name);
    reference_deinit(&expected);
}

void check_shared_add(struct workload *w, struct device *device, const char *name)
{
    struct reference expected;
    reference_shared_add(&expected, &w->shared_add);
    workload_launch(w, device);
    check_values(&expected, w->shared_add.out, w->shared_add.stride, w->shared_add.stride, name);
    reference_deinit(&expected);
}

/* By looking at one value after another. */
static struct largest largest_of(const float *row, int64_t dim)
{
    struct largest best = {-INFINITY, LARGEST_NONE};
    for (int64_t i = 0; i < dim; i++) {
        if (isnan(row[i]) || row[i] == INFINITY)
            return (struct largest){NAN, LARGEST_BROKEN};
        if (row[i] > best.value)
            best = (struct largest){row[i], (int32_t)i};
    }
    return best;
}

void check_largest(struct workload *w, struct device *device, const char *name)
{
    const struct op_largest *op = &w->largest;
    workload_launch(w, device);
    for (int64_t r = 0; r < op->row_count; r++) {
        struct largest expected = largest_of(op->in + r * op->stride, op->dim);
        cr_assert(op->out[r].at == expected.at &&
                      (op->out[r].value == expected.value || isnan(expected.value)),
                  "%s: row %lld: %d, not %d", name, (long long)r, op->out[r].at, expected.at);
        cr_assert_eq(isnan(op->out[r].value) != 0, isnan(expected.value) != 0, "%s", name);
    }
    check_guard((const float *)op->out, op->row_count, 2, name);
}

void check_gather(struct workload *w, struct device *device, const char *name)
{
    const struct op_gather *op = &w->gather;
    const char *out = op->out, *in = op->in, *initial = w->outputs[0].initial;
    workload_launch(w, device);
    for (int64_t r = 0; r < op->row_count; r++)
        cr_assert(memcmp(out + r * op->row_bytes, in + op->rows[r] * op->row_bytes,
                         (size_t)op->row_bytes) == 0,
                  "%s: row %lld", name, (long long)r);
    int64_t end = op->row_count * op->row_bytes;
    cr_assert(memcmp(out + end, initial + end, w->outputs[0].bytes - (size_t)end) == 0,
              "%s: wrote behind the last row", name);
}

/* Value by value, wherever the packing has it; then nothing behind the end. */
void check_dequantize(struct workload *w, struct device *device, const char *name)
{
    const struct op_dequantize *op = &w->dequantize;
    const char *initial = w->outputs[0].initial;
    int64_t rows = op->in.rows, columns = op->in.columns;
    size_t end = (size_t)packed_bytes(rows, columns, op->dtype);
    struct reference expected;
    reference_dequantize(&expected, op);
    workload_launch(w, device);
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t at =
            packed_index(op->in.packing, op->dtype, rows, columns, i / columns, i % columns);
        float found = op->dtype == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)op->out)[at])
                                              : ((const float *)op->out)[at];
        cr_assert_eq(found, expected.value[i], "%s: row %lld, column %lld: %.9g, not %.9g", name,
                     (long long)(i / columns), (long long)(i % columns), (double)found,
                     expected.value[i]);
    }
    cr_assert(memcmp((const char *)op->out + end, initial + end, w->outputs[0].bytes - end) == 0,
              "%s: wrote behind the end", name);
    reference_deinit(&expected);
}

void check_copy(struct workload *w, struct device *device, const char *name)
{
    const struct op_copy *op = &w->copy;
    size_t bytes = (size_t)op->bytes, end = w->outputs[0].bytes;
    const char *initial = w->outputs[0].initial, *out = op->out, *in = op->in;
    workload_launch(w, device);
    for (int64_t row = 0; row <= op->more_rows; row++) {
        size_t at = (size_t)(row * op->out_stride);
        size_t next = row < op->more_rows ? at + (size_t)op->out_stride : end;
        cr_assert(memcmp(out + at, in + row * op->in_stride, bytes) == 0, "%s, row %lld", name,
                  (long long)row);
        cr_assert(memcmp(out + at + bytes, initial + at + bytes, next - at - bytes) == 0,
                  "%s: wrote behind the end of row %lld", name, (long long)row);
    }
}

void check_fill(struct workload *w, struct device *device, const char *name)
{
    const struct op_fill *op = &w->fill;
    const char *out = op->out, *initial = w->outputs[0].initial;
    size_t bytes = (size_t)op->bytes;
    workload_launch(w, device);
    for (size_t i = 0; i < bytes; i++)
        cr_assert((uint8_t)out[i] == op->byte, "%s, byte %zu", name, i);
    cr_assert(memcmp(out + bytes, initial + bytes, w->outputs[0].bytes - bytes) == 0,
              "%s: wrote behind the end", name);
}

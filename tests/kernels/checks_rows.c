#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "checks.h"
#include "device/draw.h"

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

/* By scoring one token after another. */
static struct chosen chosen_of(const struct op_choose *op, int64_t row)
{
    const struct draw *draw = op->draws != NULL ? &op->draws[row] : NULL;
    const float *in = op->in + row * op->stride;
    struct chosen best = {-INFINITY, CHOSEN_NONE, -INFINITY};
    for (int64_t i = 0; i < op->dim; i++) {
        if (isnan(in[i]) || in[i] == INFINITY)
            return (struct chosen){NAN, CHOSEN_BROKEN, NAN};
        double score = draw != NULL && draw->temperature > 0
                           ? draw_score(draw, in[i], op->first_token + i)
                           : (double)in[i];
        if (score > best.score)
            best = (struct chosen){score, (int32_t)i, in[i]};
    }
    return best;
}

/* Logarithms may differ in their last bits. */
static bool is_same_score(double a, double b)
{
    return a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-14 * (4 + fabs(b));
}

void check_choose(struct workload *w, struct device *device, const char *name)
{
    const struct op_choose *op = &w->choose;
    workload_launch(w, device);
    for (int64_t r = 0; r < op->row_count; r++) {
        struct chosen expected = chosen_of(op, r);
        cr_assert_eq(op->out[r].at, expected.at, "%s: row %lld: %d, not %d", name, (long long)r,
                     op->out[r].at, expected.at);
        cr_assert(is_same_score(op->out[r].score, expected.score), "%s: row %lld: %a, not %a", name,
                  (long long)r, op->out[r].score, expected.score);
        cr_assert(is_same_score((double)op->out[r].logit, (double)expected.logit), "%s: row %lld",
                  name, (long long)r);
    }
    check_guard((const float *)op->out, op->row_count, sizeof *op->out / 4, name);
}

/* Whether the first of two is behind the second; of equal logits the one with the higher place. */
static bool is_behind(struct candidate a, struct candidate b)
{
    return a.logit < b.logit || (a.logit == b.logit && a.at > b.at);
}

static double exp_sum(const float *in, int64_t dim, double most, double temperature)
{
    double sum = 0;
    for (int64_t i = 0; i < dim; i++)
        sum += exp(((double)in[i] - most) / temperature);
    return sum;
}

/* One row: all that is not among the candidates is behind the last of them. */
static void candidates_check(const struct op_candidates *op, int64_t r, const char *name)
{
    const struct candidates *out = &op->out[r];
    const float *in = op->in + r * op->stride;
    const double temperature = op->draws != NULL ? op->draws[r].temperature : 0;
    const double slack = 0x1p-30;
    int64_t count = op->dim < CANDIDATES_MAX ? op->dim : CANDIDATES_MAX, before = 0;
    cr_assert_eq(out->count, count, "%s: row %lld: %lld, not %lld", name, (long long)r,
                 (long long)out->count, (long long)count);
    for (int64_t i = 0; i < count; i++) {
        cr_assert(out->top[i].at >= 0 && out->top[i].at < op->dim, "%s", name);
        cr_assert_eq(out->top[i].logit, in[out->top[i].at], "%s: row %lld", name, (long long)r);
        cr_assert(i == 0 || is_behind(out->top[i], out->top[i - 1]), "%s: row %lld, candidate %lld",
                  name, (long long)r, (long long)i);
    }
    for (int64_t i = 0; i < op->dim; i++)
        before += !is_behind((struct candidate){in[i], (int32_t)i}, out->top[count - 1]);
    cr_assert_eq(before, count, "%s: row %lld: %lld are not behind the last", name, (long long)r,
                 (long long)before);
    double most = (double)out->top[0].logit, sum = exp_sum(in, op->dim, most, 1);
    double mass = temperature > 0 ? exp_sum(in, op->dim, most, temperature) : sum;
    cr_assert(fabs(out->sum - sum) <= slack * sum, "%s: row %lld: %.9g, not %.9g", name,
              (long long)r, out->sum, sum);
    cr_assert(fabs(out->mass - mass) <= slack * mass, "%s: row %lld: %.9g, not %.9g", name,
              (long long)r, out->mass, mass);
}

void check_candidates(struct workload *w, struct device *device, const char *name)
{
    const struct op_candidates *op = &w->candidates;
    const struct candidates none = {0};
    workload_launch(w, device);
    for (int64_t r = 0; r < op->row_count; r++) {
        struct op_choose one = {
            .in = op->in + r * op->stride, .row_count = 1, .dim = op->dim, .stride = op->stride};
        struct chosen largest = chosen_of(&one, 0);
        if (largest.at >= 0) {
            candidates_check(op, r, name);
            continue;
        }
        cr_assert_eq(op->out[r].count, largest.at, "%s: row %lld", name, (long long)r);
        cr_assert(op->out[r].sum == 0 && op->out[r].mass == 0, "%s: row %lld", name, (long long)r);
        cr_assert_arr_eq(op->out[r].top, none.top, sizeof none.top, "%s", name);
    }
    check_guard((const float *)op->out, op->row_count, sizeof *op->out / 4, name);
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

/* Data of the operations on rows. */
#include <math.h>
#include <string.h>

#include "workload_data.h"

#define EPSILON 1e-5f

void workload_embed(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int32_t *ids = own(w, (size_t)c->token_count, sizeof *ids);
    for (int64_t t = 0; t < c->token_count; t++)
        ids[t] = (int32_t)random_below(random, (uint64_t)c->rows);
    if (c->token_count > 0)
        ids[c->token_count - 1] = (int32_t)c->rows - 1;
    w->embed = (struct op_embed){
        .out = output_new(w, c->token_count, stride_of(w, c->columns)),
        .table = matrix_new(w, random, PACK_OUTPUT, c->dtype, c->rows, c->columns),
        .ids = ids,
        .token_count = c->token_count,
        .out_stride = stride_of(w, c->columns),
    };
    w->bytes = (double)(c->token_count * c->columns * (dtype_bytes(c->dtype) + 4));
}

void workload_rms_norm(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->columns);
    w->rms_norm = (struct op_rms_norm){
        .weight = values_new(w, random, c->columns, 2),
        .row_count = c->token_count,
        .dim = c->columns,
        .stride = stride,
        .epsilon = EPSILON,
    };
    if (c->option) {
        w->rms_norm.out = output_rows_new(w, random, c->token_count, c->columns, stride);
        w->rms_norm.in = w->rms_norm.out;
    } else {
        w->rms_norm.out = output_new(w, c->token_count, stride);
        w->rms_norm.in = rows_new(w, random, c->token_count, c->columns, stride);
    }
    w->bytes = (double)(c->token_count * c->columns * 8);
    w->flops = (double)(c->token_count * c->columns * 4);
}

void workload_add(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->columns);
    w->add = (struct op_add){
        .out = output_rows_new(w, random, c->token_count, c->columns, stride),
        .in = rows_new(w, random, c->token_count, c->columns, stride),
        .row_count = c->token_count,
        .stride = stride,
    };
    w->bytes = (double)(c->token_count * stride * 12);
    w->flops = (double)(c->token_count * stride);
}

void workload_matmul(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    float *bias = NULL;
    if (c->option)
        bias = rows_new(w, random, 1, c->rows, round_up(c->rows, PACK_BLOCK));
    w->matmul = (struct op_matmul){
        .out = output_new(w, c->token_count, stride_of(w, c->rows)),
        .in = rows_new(w, random, c->token_count, c->columns, stride_of(w, c->columns)),
        .weight = matrix_new(w, random, c->packing, c->dtype, c->rows, c->columns),
        .bias = bias,
        .row_count = c->token_count,
        .out_stride = stride_of(w, c->rows),
        .in_stride = stride_of(w, c->columns),
    };
    w->bytes = (double)packed_bytes(c->rows, c->columns, c->dtype);
    w->flops = 2.0 * (double)(c->token_count * c->rows * c->columns);
}

void workload_shared_add(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->columns);
    w->shared_add = (struct op_shared_add){
        .out = output_rows_new(w, random, c->token_count, c->columns, stride),
        .shared = rows_new(w, random, c->token_count, c->columns, stride),
        .in = rows_new(w, random, c->token_count, c->columns, stride),
        .gate = values_new(w, random, c->columns, 1),
        .token_count = c->token_count,
        .dim = c->columns,
        .stride = stride,
    };
    w->bytes = (double)(c->token_count * stride * 16);
    w->flops = 4.0 * (double)(c->token_count * stride);
}

/* Steps of 1/4 in a short range, so that some are equal. Of four rows, one has NaN in it, one
 * infinity, one nothing but -infinity, and one that here and there, with zeros of both signs in
 * every second of these, if wanted: among them one that has it nearly everywhere, and one of few
 * values. */
static void row_spoil(float *row, int64_t dim, int64_t number, struct random *random)
{
    int64_t at = (int64_t)random_below(random, (uint64_t)dim);
    if (number % 4 == 1)
        row[number % 8 == 1 ? at : dim - 1] = NAN;
    if (number % 4 == 2)
        row[number % 8 == 2 ? at : 0] = INFINITY;
    for (int64_t i = 0; number % 8 == 4 && i < dim; i++)
        row[i] = i % 6 == 1 || i % 6 == 5 ? 0.0f : -0.0f;
    for (int64_t i = 0; number % 16 == 8 && i < dim; i++)
        row[i] = (float)random_below(random, 50);
    for (int64_t i = 0; i < dim; i++) {
        if (number % 4 == 3 || (number % 4 == 0 && i % 3 == 0) ||
            (number % 16 == 12 && i < dim - 40))
            row[i] = -INFINITY;
    }
}

/* Among them no draw, all tokens nearly alike, and all but the largest without a chance. */
static const struct draw *draws_new(struct workload *w, struct random *random)
{
    static const double temperatures[] = {1, 0.7, 0, 3, 1e6, 1e-5};
    int64_t count = w->from->token_count;
    struct draw *draws = own(w, (size_t)(count > 0 ? count : 1), sizeof *draws);
    for (int64_t t = 0; t < count; t++)
        draws[t] = (struct draw){
            .temperature = temperatures[(size_t)t % (sizeof temperatures / sizeof *temperatures)],
            .key = random_next(random),
        };
    return draws;
}

static float *logits_new(struct workload *w, struct random *random, int64_t stride)
{
    const struct kernel_case *c = w->from;
    const float scale = c->draws ? 0.02f : 1; /* of draws as of a model's logits, -12 to 8 */
    float *in = rows_new(w, random, c->token_count, c->columns, stride);
    for (int64_t t = 0; t < c->token_count; t++) {
        for (int64_t i = 0; i < stride; i++)
            in[t * stride + i] =
                i < c->columns ? ((float)random_below(random, 4000) / 4 - 600) * scale : INFINITY;
        if (c->option)
            row_spoil(in + t * stride, c->columns, t, random);
    }
    w->bytes = (double)(c->token_count * c->columns * 4);
    return in;
}

void workload_choose(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->columns);
    float *in = logits_new(w, random, stride);
    w->choose = (struct op_choose){
        .out = (struct chosen *)output_new(w, c->token_count, sizeof(struct chosen) / 4),
        .in = in,
        .draws = c->draws ? draws_new(w, random) : NULL,
        .row_count = c->token_count,
        .dim = c->columns,
        .stride = stride,
        .first_token = c->draws ? 1234 : 0,
    };
}

void workload_candidates(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->columns);
    float *in = logits_new(w, random, stride);
    w->candidates = (struct op_candidates){
        .out = (struct candidates *)output_new(w, c->token_count, sizeof(struct candidates) / 4),
        .in = in,
        .draws = c->draws ? draws_new(w, random) : NULL,
        .row_count = c->token_count,
        .dim = c->columns,
        .stride = stride,
    };
}

static uint8_t *bytes_new(struct workload *w, struct random *random, int64_t count)
{
    uint8_t *bytes = own(w, (size_t)count, 1);
    for (int64_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)random_below(random, 256);
    return bytes;
}

/* Bytes to write, and `guard` more that stay as they are. */
static uint8_t *output_bytes_new(struct workload *w, int64_t count, int64_t guard)
{
    uint8_t *bytes = own(w, (size_t)(count + guard), 1);
    memset(bytes, 0xA5, (size_t)(count + guard));
    return output_add(w, bytes, (size_t)(count + guard));
}

void workload_gather(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t in_rows = 2 * c->token_count;
    int32_t *rows = own(w, (size_t)c->token_count, sizeof *rows);
    for (int64_t r = 0; r < c->token_count; r++)
        rows[r] = (int32_t)random_below(random, (uint64_t)in_rows);
    w->gather = (struct op_gather){
        .out = output_bytes_new(w, c->token_count * c->row_bytes, c->row_bytes),
        .in = bytes_new(w, random, in_rows * c->row_bytes),
        .rows = rows,
        .row_count = c->token_count,
        .row_bytes = c->row_bytes,
    };
    w->bytes = 2.0 * (double)(c->token_count * c->row_bytes);
}

void workload_dequantize(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t bytes = packed_bytes(c->rows, c->columns, c->dtype);
    w->dequantize = (struct op_dequantize){
        .out = output_bytes_new(w, bytes, 64),
        .dtype = c->dtype,
        .in = matrix_new(w, random, c->packing, DTYPE_INT4, c->rows, c->columns),
    };
    w->bytes = (double)(matrix_bytes(&w->dequantize.in) + bytes);
}

void workload_copy(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t more = c->rows > 0 ? c->rows - 1 : 0;
    int64_t out_stride = c->row_bytes + 2 * c->stride_extra;
    int64_t in_stride = c->row_bytes + c->stride_extra;
    w->copy = (struct op_copy){
        .out = output_bytes_new(w, c->row_bytes + more * out_stride, 64),
        .in = bytes_new(w, random, c->row_bytes + more * in_stride),
        .bytes = c->row_bytes,
        .more_rows = more,
        .out_stride = out_stride,
        .in_stride = in_stride,
    };
    w->bytes = 2.0 * (double)(c->row_bytes * (1 + more));
}

void workload_fill(struct workload *w, struct random *random)
{
    int64_t bytes = w->from->row_bytes;
    w->fill = (struct op_fill){
        .out = output_bytes_new(w, bytes, 64),
        .bytes = bytes,
        .byte = (uint8_t)(1 + random_below(random, 255)),
    };
    w->bytes = (double)bytes;
}

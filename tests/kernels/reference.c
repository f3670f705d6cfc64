#include "reference.h"

#include <string.h>

#include "base/memory.h"
#include "reference_parts.h"

void reference_init(struct reference *out, int64_t rows, int64_t columns)
{
    *out = (struct reference){.rows = rows, .columns = columns};
    out->value = memory_alloc((size_t)(rows * columns), sizeof *out->value);
    out->bound = memory_alloc((size_t)(rows * columns), sizeof *out->bound);
    ASSERT(out->value != NULL && out->bound != NULL);
}

void reference_deinit(struct reference *reference)
{
    memory_free(reference->value);
    memory_free(reference->bound);
    *reference = (struct reference){0};
}

static double number_at(const void *data, enum dtype dtype, int64_t index)
{
    return dtype == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)data)[index])
                               : ((const float *)data)[index];
}

static int nibble_at(const struct matrix *matrix, int64_t index)
{
    return ((const uint8_t *)matrix->data)[index / 2] >> index % 2 * 4 & 15;
}

static double nibble_weight(const struct matrix *matrix, int64_t index, int64_t group)
{
    double scale = bf16_to_f32(matrix->scales[group]);
    return scale * nibble_at(matrix, index) +
           (matrix->minima != NULL ? (double)bf16_to_f32(matrix->minima[group]) : -8 * scale);
}

/* tests/layout holds packed_index against the prose of its header. */
static double weight_at(const struct matrix *matrix, int64_t row, int64_t column)
{
    int64_t index =
        packed_index(matrix->packing, matrix->dtype, matrix->rows, matrix->columns, row, column);
    if (matrix->dtype == DTYPE_INT4)
        return nibble_weight(matrix, index, packed_scale_index(matrix, row, column));
    return number_at(matrix->data, matrix->dtype, index);
}

/* Inputs beside int4 weights, times their own scales where they have such, are whole numbers of a
 * unit that neighbours have in common: up to 128 from a multiple of 128 on, and of one group. It is
 * 2^(e - 13), with e the exponent of the largest of them. */
struct fixed {
    int64_t first, end;
    double unit;
};

static float fixed_scale(const struct matrix *matrix, int64_t n, int64_t k)
{
    return matrix->packing == PACK_OUTPUT
               ? 1
               : bf16_to_f32(matrix->scales[packed_scale_index(matrix, n, k)]);
}

static struct fixed fixed_from(const struct matrix *matrix, const float *in, int64_t n, int64_t k)
{
    struct fixed fixed = {.first = k, .end = k / 128 * 128 + 128};
    float most = 0;
    int exponent;
    if (matrix->packing == PACK_OUTPUT)
        fixed.end = fmin(fixed.end, k / matrix->group * matrix->group + matrix->group);
    fixed.end = fmin(fixed.end, matrix->columns);
    for (int64_t i = k; i < fixed.end; i++)
        most = fmaxf(most, fabsf(in[i] * fixed_scale(matrix, n, i)));
    frexpf(most, &exponent);
    fixed.unit = ldexp(1, (most == 0 ? -100 : (int)fmax(exponent - 1, -100)) - 13);
    return fixed;
}

/* What the columns of one unit add. */
static void fixed_add(double *sum, double *magnitude, const struct fixed *fixed,
                      const struct matrix *matrix, int64_t n, const float *in)
{
    for (int64_t k = fixed->first; k < fixed->end; k++) {
        int64_t index =
            packed_index(matrix->packing, matrix->dtype, matrix->rows, matrix->columns, n, k);
        int64_t group = packed_scale_index(matrix, n, k);
        double scale = bf16_to_f32(matrix->scales[group]);
        float factor = in[k] * fixed_scale(matrix, n, k);
        double rounded = rint((double)factor / fixed->unit) * fixed->unit;
        double minimum = matrix->minima != NULL ? bf16_to_f32(matrix->minima[group]) : -8 * scale;
        bool by_output = matrix->packing == PACK_OUTPUT;
        double term = rounded * (nibble_at(matrix, index) - 8) * (by_output ? scale : 1);
        double more = (double)in[k] * (minimum + 8 * scale);
        *sum += term + more;
        *magnitude += fabs(term) + fabs(more);
    }
}

double reference_product(double *bound, const struct matrix *matrix, int64_t n, const float *in)
{
    double sum = 0, magnitude = 0;
    for (int64_t k = 0; k < matrix->columns; k++) {
        if (matrix->dtype == DTYPE_INT4) {
            struct fixed fixed = fixed_from(matrix, in, n, k);
            fixed_add(&sum, &magnitude, &fixed, matrix, n, in);
            k = fixed.end - 1;
            continue;
        }
        double term = (double)in[k] * weight_at(matrix, n, k);
        sum += term;
        magnitude += fabs(term);
    }
    *bound = sum_error(matrix->columns) * magnitude;
    return sum;
}

void reference_embed(struct reference *out, const struct op_embed *op)
{
    reference_init(out, op->token_count, op->table.columns);
    for (int64_t t = 0; t < out->rows; t++) {
        for (int64_t c = 0; c < out->columns; c++)
            out->value[t * out->columns + c] = weight_at(&op->table, op->ids[t], c);
    }
}

void reference_rms_norm(struct reference *out, const struct op_rms_norm *op)
{
    reference_init(out, op->row_count, op->dim);
    for (int64_t r = 0; r < op->row_count; r++) {
        const float *in = op->in + r * op->stride;
        double squares = 0;
        for (int64_t i = 0; i < op->dim; i++)
            squares += (double)in[i] * in[i];
        double scale = 1 / sqrt(squares / (double)op->dim + (double)op->epsilon);
        for (int64_t i = 0; i < op->dim; i++) {
            double value = in[i] * scale * op->weight[i];
            out->value[r * op->dim + i] = value;
            /* The root halves the error of the sum; quotient, root and two products follow. */
            out->bound[r * op->dim + i] = fabs(value) * (sum_error(op->dim) / 2 + 6 * U);
        }
    }
}

void reference_add(struct reference *out, const struct op_add *op)
{
    reference_init(out, op->row_count, op->stride);
    for (int64_t i = 0; i < op->row_count * op->stride; i++) {
        out->value[i] = (double)op->out[i] + op->in[i];
        out->bound[i] = fabs(out->value[i]) * U;
    }
}

void reference_matmul(struct reference *out, const struct op_matmul *op)
{
    reference_init(out, op->row_count, op->weight.rows);
    for (int64_t m = 0; m < out->rows; m++) {
        for (int64_t n = 0; n < out->columns; n++) {
            double bound, bias = op->bias != NULL ? op->bias[n] : 0;
            double sum = reference_product(&bound, &op->weight, n, op->in + m * op->in_stride);
            out->value[m * out->columns + n] = sum + bias;
            out->bound[m * out->columns + n] = bound + fabs(sum + bias) * U;
        }
    }
}

/* ---- Attention ----------------------------------------------------------------------------- */

static int64_t kv_base(const struct kv_layer *kv, const struct segment *segment, int64_t position,
                       int64_t kv_head)
{
    int64_t block = round_up(kv->head_dim, 16) * KV_PAGE_TOKENS;
    return (segment->pages[position / KV_PAGE_TOKENS] * kv->kv_head_count + kv_head) * block;
}

static double key_at(const struct kv_layer *kv, const struct segment *segment, int64_t position,
                     int64_t kv_head, int64_t d)
{
    return number_at(kv->keys, kv->dtype,
                     kv_base(kv, segment, position, kv_head) + d * KV_PAGE_TOKENS +
                         position % KV_PAGE_TOKENS);
}

static double value_at(const struct kv_layer *kv, const struct segment *segment, int64_t position,
                       int64_t kv_head, int64_t d)
{
    return number_at(kv->values, kv->dtype,
                     kv_base(kv, segment, position, kv_head) +
                         position % KV_PAGE_TOKENS * round_up(kv->head_dim, 16) + d);
}

/* Scores of one query head against positions first .. first + count - 1, their largest magnitude
 * and the largest bound. */
static void scores_of(double *scores, double *largest, double *bound, const struct op_attention *op,
                      const struct segment *segment, const float *q, int64_t kv_head, int64_t first,
                      int64_t count)
{
    *largest = *bound = 0;
    for (int64_t i = 0; i < count; i++) {
        double sum = 0, magnitude = 0;
        for (int64_t d = 0; d < op->qkv.head_dim; d++) {
            double term = q[d] * key_at(&op->kv, segment, first + i, kv_head, d) /
                          sqrt((double)op->qkv.head_dim);
            sum += term;
            magnitude += fabs(term);
        }
        scores[i] = sum;
        *largest = fmax(*largest, fabs(sum));
        *bound = fmax(*bound, magnitude * (sum_error(op->qkv.head_dim) + 3 * U));
    }
}

static void attend_head(double *value, double *bound, const struct op_attention *op,
                        double weight_error, const struct segment *segment, int64_t token,
                        int64_t head)
{
    const struct qkv *qkv = &op->qkv;
    int64_t kv_head = head / (qkv->head_count / qkv->kv_head_count);
    int64_t position = segment->first_position + token;
    int64_t first = op->window > 0 && position - op->window + 1 > 0 ? position - op->window + 1 : 0;
    int64_t count = position - first + 1;
    const float *q =
        qkv->values + (segment->first_row + token) * qkv->stride + head * qkv->head_dim;
    double *weights = memory_alloc((size_t)count, sizeof *weights);
    double largest, score_bound, most = -INFINITY, sum = 0;
    ASSERT(weights != NULL);
    scores_of(weights, &largest, &score_bound, op, segment, q, kv_head, first, count);
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, weights[i]);
    for (int64_t i = 0; i < count; i++)
        sum += weights[i] = exp(weights[i] - most);
    /* A shift of a score by e changes weights and their sum by e each; score - most is rounded;
     * each page may rescale what was summed before. */
    double relative = 2 * (score_bound + 2 * largest * U) + weight_error + 2 * sum_error(count) +
                      2 * EXP_ERROR + (double)ceil_div(count, KV_PAGE_TOKENS) * 4 * U;
    for (int64_t d = 0; d < qkv->head_dim; d++) {
        double magnitude = 0;
        value[d] = 0;
        for (int64_t i = 0; i < count; i++) {
            double term = weights[i] / sum * value_at(&op->kv, segment, first + i, kv_head, d);
            value[d] += term;
            magnitude += fabs(term);
        }
        bound[d] = magnitude * relative + TINY;
    }
    memory_free(weights);
}

static int64_t segments_rows(const struct segment *segments, int64_t count)
{
    return count == 0 ? 0 : segments[count - 1].first_row + segments[count - 1].token_count;
}

void reference_attention(struct reference *out, const struct op_attention *op, double weight_error)
{
    int64_t dim = op->qkv.head_dim;
    reference_init(out, segments_rows(op->segments, op->segment_count), op->qkv.head_count * dim);
    for (int64_t s = 0; s < op->segment_count; s++) {
        for (int64_t t = 0; t < op->segments[s].token_count; t++) {
            for (int64_t h = 0; h < op->qkv.head_count; h++) {
                int64_t at = (op->segments[s].first_row + t) * out->columns + h * dim;
                attend_head(out->value + at, out->bound + at, op, weight_error, &op->segments[s], t,
                            h);
            }
        }
    }
}

/* ---- RoPE and the cache -------------------------------------------------------------------- */

static void rotate_head(double *value, double *bound, const float *head, const float *norm,
                        double epsilon, const float *rope, int64_t dim)
{
    double squares = 0, normed[512], relative = 3 * U;
    for (int64_t d = 0; d < dim; d++)
        squares += (double)head[d] * head[d];
    double scale = 1 / sqrt(squares / (double)dim + epsilon);
    if (norm != NULL)
        relative += sum_error(dim) / 2 + 6 * U;
    for (int64_t d = 0; d < dim; d++)
        normed[d] = norm != NULL ? head[d] * scale * norm[d] : head[d];
    for (int64_t i = 0; i < dim / 2; i++) {
        double a = normed[i], b = normed[i + dim / 2];
        double cosine = rope[i], sine = rope[i + dim / 2];
        value[i] = a * cosine - b * sine;
        value[i + dim / 2] = b * cosine + a * sine;
        bound[i] = relative * (fabs(a * cosine) + fabs(b * sine));
        bound[i + dim / 2] = relative * (fabs(b * cosine) + fabs(a * sine));
    }
}

/* What rounding to the type of the cache adds. */
static void round_to_cache(struct reference *reference, enum dtype dtype)
{
    for (int64_t i = 0; dtype == DTYPE_BF16 && i < reference->rows * reference->columns; i++)
        reference->bound[i] += (fabs(reference->value[i]) + reference->bound[i]) * U_BF16;
}

void reference_rope_append(struct reference_qkv *out, const struct op_rope_append *op)
{
    const struct qkv *qkv = &op->qkv;
    int64_t rows = segments_rows(op->segments, op->segment_count), dim = qkv->head_dim;
    reference_init(&out->q, rows, qkv->head_count * dim);
    reference_init(&out->k, rows, qkv->kv_head_count * dim);
    reference_init(&out->v, rows, qkv->kv_head_count * dim);
    for (int64_t t = 0; t < rows; t++) {
        const float *q = qkv->values + t * qkv->stride, *rope = op->rope + t * dim;
        for (int64_t h = 0; h < qkv->head_count; h++) {
            int64_t at = t * out->q.columns + h * dim;
            rotate_head(out->q.value + at, out->q.bound + at, q + h * dim, op->q_norm,
                        (double)op->norm_epsilon, rope, dim);
        }
        for (int64_t h = 0; h < qkv->kv_head_count; h++) {
            int64_t at = t * out->k.columns + h * dim;
            rotate_head(out->k.value + at, out->k.bound + at, q + qkv->k_offset + h * dim,
                        op->k_norm, (double)op->norm_epsilon, rope, dim);
            for (int64_t d = 0; d < dim; d++)
                out->v.value[at + d] = q[qkv->v_offset + h * dim + d];
        }
    }
    round_to_cache(&out->k, op->kv.dtype);
    round_to_cache(&out->v, op->kv.dtype);
}

void reference_dequantize(struct reference *out, const struct op_dequantize *op)
{
    reference_init(out, op->in.rows, op->in.columns);
    for (int64_t row = 0; row < out->rows; row++) {
        for (int64_t column = 0; column < out->columns; column++) {
            float rounded = (float)weight_at(&op->in, row, column);
            out->value[row * out->columns + column] =
                op->dtype == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(rounded)) : rounded;
        }
    }
}

#include "reference.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

#define U         0x1p-24
#define U_BF16    0x1p-8  /* 8 significant bits, round to nearest: half a unit in the last place */
#define EXP_ERROR 0x1p-22 /* relative, as kernels/cpu/simd.h promises */
#define TINY      1e-30   /* what underflow may lose */

static double sum_error(int64_t count)
{
    return (4 * sqrt((double)count) + 8) * U;
}

static void reference_init(struct reference *out, int64_t rows, int64_t columns)
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

/* tests/layout holds packed_index against the prose of its header. */
static double weight_at(const struct matrix *matrix, int64_t row, int64_t column)
{
    return number_at(
        matrix->data, matrix->dtype,
        packed_index(matrix->packing, matrix->dtype, matrix->rows, matrix->columns, row, column));
}

/* Inner product of row n of a matrix with `in`, and its bound. */
static double product(double *bound, const struct matrix *matrix, int64_t n, const float *in)
{
    double sum = 0, magnitude = 0;
    for (int64_t k = 0; k < matrix->columns; k++) {
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
            double sum = product(&bound, &op->weight, n, op->in + m * op->in_stride);
            out->value[m * out->columns + n] = sum + bias;
            out->bound[m * out->columns + n] = bound + fabs(sum + bias) * U;
        }
    }
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

void reference_ffn_up(struct reference *out, const struct op_ffn_up *op)
{
    reference_init(out, op->offsets[op->group_count], op->groups[0].gate.rows);
    for (int64_t g = 0; g < op->group_count; g++) {
        for (int64_t s = op->offsets[g]; s < op->offsets[g + 1]; s++) {
            const float *in = op->in + (op->token_of != NULL ? op->token_of[s] : s) * op->in_stride;
            for (int64_t n = 0; n < out->columns; n++) {
                double gate_bound, up_bound;
                double gate = product(&gate_bound, &op->groups[g].gate, n, in);
                double up = product(&up_bound, &op->groups[g].up, n, in);
                double value = silu(gate) * up;
                out->value[s * out->columns + n] = value;
                /* The slope of silu is below 1.1; then the exponential and four roundings. */
                out->bound[s * out->columns + n] = 1.1 * gate_bound * (fabs(up) + up_bound) +
                                                   fabs(silu(gate)) * up_bound +
                                                   fabs(value) * (EXP_ERROR + 4 * U) + TINY;
            }
        }
    }
}

void reference_ffn_down(struct reference *out, const struct op_ffn_down *op)
{
    reference_init(out, op->offsets[op->group_count], op->groups[0].down.rows);
    for (int64_t g = 0; g < op->group_count; g++) {
        for (int64_t s = op->offsets[g]; s < op->offsets[g + 1]; s++) {
            for (int64_t n = 0; n < out->columns; n++)
                out->value[s * out->columns + n] =
                    product(&out->bound[s * out->columns + n], &op->groups[g].down, n,
                            op->in + s * op->in_stride);
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
                        const struct segment *segment, int64_t token, int64_t head)
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
    double relative = 2 * (score_bound + 2 * largest * U) + 2 * sum_error(count) + 2 * EXP_ERROR +
                      (double)ceil_div(count, KV_PAGE_TOKENS) * 4 * U;
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
    return segments[count - 1].first_row + segments[count - 1].token_count;
}

void reference_attention(struct reference *out, const struct op_attention *op)
{
    int64_t dim = op->qkv.head_dim;
    reference_init(out, segments_rows(op->segments, op->segment_count), op->qkv.head_count * dim);
    for (int64_t s = 0; s < op->segment_count; s++) {
        for (int64_t t = 0; t < op->segments[s].token_count; t++) {
            for (int64_t h = 0; h < op->qkv.head_count; h++) {
                int64_t at = (op->segments[s].first_row + t) * out->columns + h * dim;
                attend_head(out->value + at, out->bound + at, op, &op->segments[s], t, h);
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

/* ---- Experts ------------------------------------------------------------------------------- */

static bool is_chosen(const int32_t *ids, int64_t count, int64_t id)
{
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] == id)
            return true;
    }
    return false;
}

void reference_route(struct reference *weights, int32_t *ids, const struct op_route *op)
{
    reference_init(weights, op->token_count, op->top_k);
    for (int64_t t = 0; t < op->token_count; t++) {
        const float *logits = op->logits + t * op->logit_stride;
        double most = -INFINITY, least = INFINITY, sum = 0, chosen = 0;
        for (int64_t e = 0; e < op->expert_count; e++) {
            most = fmax(most, logits[e]);
            least = fmin(least, logits[e]);
        }
        for (int64_t e = 0; e < op->expert_count; e++)
            sum += exp(logits[e] - most);
        for (int64_t c = 0; c < op->top_k; c++) {
            int64_t best = -1;
            for (int64_t e = 0; e < op->expert_count; e++) {
                if (!is_chosen(ids + t * op->top_k, c, e) && (best < 0 || logits[e] > logits[best]))
                    best = e;
            }
            ids[t * op->top_k + c] = (int32_t)best;
            weights->value[t * op->top_k + c] = exp(logits[best] - most) / sum;
            chosen += weights->value[t * op->top_k + c];
        }
        /* logit - most is rounded; exp, a sum of positives, a quotient; the same again. */
        double relative = 2 * ((most - least) * U + sum_error(op->expert_count) + 6 * U);
        for (int64_t c = 0; c < op->top_k; c++) {
            double *value = &weights->value[t * op->top_k + c];
            if (op->normalize)
                *value /= chosen;
            weights->bound[t * op->top_k + c] = *value * relative;
        }
    }
}

void reference_group(uint64_t *loads, int32_t *offsets, int32_t *token_of, int32_t *position_of,
                     const struct op_group *op)
{
    int32_t next = 0;
    for (int64_t e = 0; e < op->expert_count; e++) {
        offsets[e] = next;
        for (int64_t t = 0; t < op->token_count; t++) {
            for (int64_t c = 0; c < op->top_k; c++) {
                if (op->ids[t * op->top_k + c] != e)
                    continue;
                token_of[next] = (int32_t)t;
                position_of[t * op->top_k + c] = next++;
            }
        }
        loads[e] = (uint64_t)(next - offsets[e]);
    }
    offsets[op->expert_count] = next;
}

void reference_combine(struct reference *out, const struct op_combine *op)
{
    reference_init(out, op->token_count, op->stride);
    for (int64_t t = 0; t < out->rows; t++) {
        for (int64_t i = 0; i < out->columns; i++) {
            double sum = 0, magnitude = 0;
            for (int64_t c = 0; c < op->top_k; c++) {
                double term = (double)op->weights[t * op->top_k + c] *
                              op->in[op->position_of[t * op->top_k + c] * op->stride + i];
                sum += term;
                magnitude += fabs(term);
            }
            out->value[t * out->columns + i] = sum;
            out->bound[t * out->columns + i] = magnitude * (double)(op->top_k + 1) * U;
        }
    }
}

void reference_shared_add(struct reference *out, const struct op_shared_add *op)
{
    reference_init(out, op->token_count, op->stride);
    for (int64_t t = 0; t < out->rows; t++) {
        double logit = 0, magnitude = 0;
        for (int64_t i = 0; i < op->dim; i++) {
            double term = (double)op->in[t * op->stride + i] * op->gate[i];
            logit += term;
            magnitude += fabs(term);
        }
        double weight = 1 / (1 + exp(-logit));
        /* The slope of the sigmoid is at most 1/4. */
        double weight_bound = magnitude * sum_error(op->dim) / 4 + 4 * U * weight;
        for (int64_t i = 0; i < op->stride; i++) {
            int64_t at = t * op->stride + i;
            double value = op->out[at] + op->shared[at] * weight;
            out->value[at] = value;
            out->bound[at] = fabs(op->shared[at]) * (weight_bound + U) + fabs(value) * U;
        }
    }
}

void reference_gather(struct reference *out, const struct op_gather *op)
{
    reference_init(out, op->row_count, op->stride);
    for (int64_t r = 0; r < out->rows; r++) {
        for (int64_t i = 0; i < out->columns; i++)
            out->value[r * out->columns + i] = op->in[op->rows[r] * op->stride + i];
    }
}

/* Operations that work row by row: embedding, norm, sums, gathers, and the
 * router. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

/* Rows of a piece: enough that taking one costs nothing, few enough to spread a batch. */
#define PIECE_ROWS 8

struct row_range {
    int64_t first, end;
};

static bool rows_take(struct row_range *out, struct share *share, int64_t row_count)
{
    int64_t first = share_take(share) * PIECE_ROWS;
    out->first = first;
    out->end = first + PIECE_ROWS < row_count ? first + PIECE_ROWS : row_count;
    return first < row_count;
}

void KERNEL(embed)(const struct op_embed *op, struct share *share)
{
    const struct matrix *table = &op->table;
    struct row_range rows;
    while (rows_take(&rows, share, op->token_count)) {
        for (int64_t t = rows.first; t < rows.end; t++) {
            float *out = op->out + t * op->out_stride;
            for (int64_t c = 0; c < table->columns; c++) {
                int64_t at = packed_index(PACK_OUTPUT, table->dtype, table->rows, table->columns,
                                          op->ids[t], c);
                out[c] = table->dtype == DTYPE_BF16
                             ? bf16_to_f32(((const uint16_t *)table->data)[at])
                             : ((const float *)table->data)[at];
            }
            for (int64_t c = table->columns; c < op->out_stride; c++)
                out[c] = 0;
        }
    }
}

/* Sum of a[i] x b[i]; whole vectors first, then what is left, always in the same order. */
static float dot(const float *a, const float *b, int64_t count)
{
    v16 sum = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        sum += v16_load(a + i) * v16_load(b + i);
    float total = v16_sum(sum);
    for (; i < count; i++)
        total += a[i] * b[i];
    return total;
}

void KERNEL(rms_norm)(const struct op_rms_norm *op, struct share *share)
{
    struct row_range rows;
    while (rows_take(&rows, share, op->row_count)) {
        for (int64_t r = rows.first; r < rows.end; r++) {
            const float *in = op->in + r * op->stride;
            float *out = op->out + r * op->stride;
            float scale = 1.0f / sqrtf(dot(in, in, op->dim) / (float)op->dim + op->epsilon);
            for (int64_t i = 0; i < op->dim; i++)
                out[i] = in[i] * scale * op->weight[i];
            for (int64_t i = op->dim; i < op->stride; i++)
                out[i] = 0;
        }
    }
}

void KERNEL(add)(const struct op_add *op, struct share *share)
{
    struct row_range rows;
    while (rows_take(&rows, share, op->row_count)) {
        for (int64_t i = rows.first * op->stride; i < rows.end * op->stride; i += LANES)
            v16_store(op->out + i, v16_load(op->out + i) + v16_load(op->in + i));
    }
}

void KERNEL(combine)(const struct op_combine *op, struct share *share)
{
    struct row_range rows;
    while (rows_take(&rows, share, op->token_count)) {
        for (int64_t t = rows.first; t < rows.end; t++) {
            float *out = op->out + t * op->stride;
            memset(out, 0, (size_t)op->stride * sizeof(float));
            for (int64_t c = 0; c < op->top_k; c++) {
                int64_t position = op->position_of[t * op->top_k + c];
                if (position < 0)
                    continue;
                const float *in = op->in + position * op->stride;
                float weight = op->weights != NULL ? op->weights[t * op->choice_stride + c] : 1;
                for (int64_t i = 0; i < op->stride; i += LANES)
                    v16_store(out + i, v16_load(out + i) + v16_load(in + i) * weight);
            }
        }
    }
}

void KERNEL(shared_add)(const struct op_shared_add *op, struct share *share)
{
    struct row_range rows;
    while (rows_take(&rows, share, op->token_count)) {
        for (int64_t t = rows.first; t < rows.end; t++) {
            float logit = dot(op->in + t * op->stride, op->gate, op->dim);
            float weight = 1.0f / (1.0f + expf(-logit));
            float *out = op->out + t * op->stride;
            const float *shared = op->shared + t * op->stride;
            for (int64_t i = 0; i < op->stride; i += LANES)
                v16_store(out + i, v16_load(out + i) + v16_load(shared + i) * weight);
        }
    }
}

void KERNEL(gather)(const struct op_gather *op, struct share *share)
{
    struct row_range rows;
    while (rows_take(&rows, share, op->row_count)) {
        for (int64_t r = rows.first; r < rows.end; r++)
            memcpy((char *)op->out + r * op->row_bytes,
                   (const char *)op->in + op->rows[r] * op->row_bytes, (size_t)op->row_bytes);
    }
}

#define COPY_BYTES (256 * 1024) /* of a piece */

void KERNEL(copy)(const struct op_copy *op, struct share *share)
{
    int64_t pieces = ceil_div(op->bytes, COPY_BYTES), piece; /* of a row */
    while ((piece = share_take(share)) < pieces * (1 + op->more_rows)) {
        int64_t row = piece / pieces, at = piece % pieces * COPY_BYTES;
        int64_t bytes = op->bytes - at < COPY_BYTES ? op->bytes - at : COPY_BYTES;
        memcpy((char *)op->out + row * op->out_stride + at,
               (const char *)op->in + row * op->in_stride + at, (size_t)bytes);
    }
}

/* Whether score a goes before b of a lower id; NaN goes last. */
static bool score_is_better(float a, float b)
{
    return a > b || (b != b && a == a);
}

/* Picks the top_k largest of `scores`, which it overwrites with -1 where picked. Whatever the
 * scores are, no expert is picked twice: buffers count on it. */
static void top_k_pick(int32_t *ids, float *weights, float *scores, int64_t count, int64_t top_k)
{
    for (int64_t c = 0; c < top_k; c++) {
        int64_t best = -1;
        for (int64_t e = 0; e < count; e++) {
            bool is_picked = scores[e] == -1.0f;
            if (!is_picked && (best < 0 || score_is_better(scores[e], scores[best])))
                best = e;
        }
        ids[c] = (int32_t)best;
        weights[c] = scores[best];
        scores[best] = -1.0f;
    }
}

static void route_token(const struct op_route *op, int64_t t)
{
    float *scores = op->logits + t * op->logit_stride;
    float *weights = op->weights + t * op->choice_stride;
    float most = scores[0];
    for (int64_t e = 1; e < op->expert_count; e++)
        most = fmaxf(most, scores[e]);
    float sum = 0;
    for (int64_t e = 0; e < op->expert_count; e++) {
        scores[e] = expf(scores[e] - most);
        sum += scores[e];
    }
    for (int64_t e = 0; e < op->expert_count; e++)
        scores[e] /= sum;
    top_k_pick(op->ids + t * op->choice_stride, weights, scores, op->expert_count, op->top_k);
    if (!op->normalize)
        return;
    float chosen = 0;
    for (int64_t c = 0; c < op->top_k; c++)
        chosen += weights[c];
    for (int64_t c = 0; c < op->top_k; c++)
        weights[c] /= chosen;
}

void KERNEL(route)(const struct op_route *op, struct share *share)
{
    struct row_range rows;
    while (rows_take(&rows, share, op->token_count)) {
        for (int64_t t = rows.first; t < rows.end; t++)
            route_token(op, t);
    }
}

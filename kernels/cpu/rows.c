/* Operations that work row by row: embedding, norm, sums, gathers, and the
 * router. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

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
            vec_store(op->out + i, vec_load(op->out + i) + vec_load(op->in + i));
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
                    vec_store(out + i, vec_load(out + i) + vec_load(in + i) * weight);
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
                vec_store(out + i, vec_load(out + i) + vec_load(shared + i) * weight);
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

/* A probability as it is compared: behind all others where it is none, and behind that once it is
 * picked. */
#define SCORE_NAN    -1.0f
#define SCORE_PICKED -2.0f

/* Logits to their softmax, in place, SCORE_NAN where that is no number; SCORE_PICKED fills the last
 * vector. */
static void scores_make(float *scores, int64_t count)
{
    int64_t end = round_up(count, LANES);
    vec most = vec_all(-INFINITY), sum = {0};
    for (int64_t e = count; e < end; e++)
        scores[e] = -INFINITY;
    for (int64_t e = 0; e < end; e += LANES)
        most = vec_max(vec_load(scores + e), most);
    most = vec_all(vec_max_lane(most));
    for (int64_t e = 0; e < end; e += LANES) {
        vec power = vec_exp(vec_load(scores + e) - most);
        sum += power;
        vec_store(scores + e, power);
    }
    vec total = vec_all(vec_sum(sum));
    for (int64_t e = 0; e < end; e += LANES) {
        vec score = vec_load(scores + e) / total;
        veci is_nan = score != score;
        vec_store(scores + e, (vec)((is_nan & (veci)vec_all(SCORE_NAN)) | (~is_nan & (veci)score)));
    }
    for (int64_t e = count; e < end; e++)
        scores[e] = SCORE_PICKED;
}

/* The place of the largest score, of equal ones the first. */
static int64_t score_best(const float *scores, int64_t end)
{
    vec best = vec_load(scores);
    veci at = {0};
    for (int64_t e = LANES; e < end; e += LANES) {
        vec score = vec_load(scores + e);
        veci is_better = score > best;
        best = vec_max(score, best);
        at = (is_better & (int32_t)e) | (~is_better & at);
    }
    veci is_best = best == vec_all(vec_max_lane(best));
    return -(int64_t)veci_max_lane((is_best & -(at + lane_numbers())) | (~is_best & INT32_MIN));
}

/* Whatever the logits are, no expert is picked twice: buffers count on it. */
static void route_token(const struct op_route *op, int64_t t)
{
    float *scores = op->logits + t * op->logit_stride;
    int32_t *ids = op->ids + t * op->choice_stride;
    float *weights = op->weights + t * op->choice_stride;
    float chosen = 0;
    scores_make(scores, op->expert_count);
    for (int64_t c = 0; c < op->top_k; c++) {
        int64_t best = score_best(scores, round_up(op->expert_count, LANES));
        ids[c] = (int32_t)best;
        weights[c] = scores[best] == SCORE_NAN ? NAN : scores[best];
        scores[best] = SCORE_PICKED;
        chosen += weights[c];
    }
    for (int64_t c = 0; op->normalize && c < op->top_k; c++)
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

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

/* The lanes' best, of equal values the first. */
static struct largest lanes_best(v16 best, v16i at)
{
    float value = v16_max_lane(best);
    v16i is_best = best == v16_all(value);
    int32_t first = -v16i_max_lane((is_best & -at) | (~is_best & INT32_MIN));
    return (struct largest){value, value > -INFINITY ? first : LARGEST_NONE};
}

/* Fewer than 16 values, and -infinity behind them. */
static v16 load_last(const float *from, int64_t count)
{
    float last[LANES];
    for (int64_t i = 0; i < LANES; i++)
        last[i] = i < count ? from[i] : -INFINITY;
    return v16_load(last);
}

static struct largest row_largest(const float *row, int64_t dim)
{
    v16 best = v16_all(-INFINITY);
    v16i at = {0}, here = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, broken = {0};
    for (int64_t i = 0; i < dim; i += LANES, here += LANES) {
        v16 values = dim - i < LANES ? load_last(row + i, dim - i) : v16_load(row + i);
        v16i is_larger = values > best;
        broken |= ~(values < v16_all(INFINITY));
        best = v16_max(values, best);
        at = (is_larger & here) | (~is_larger & at);
    }
    if (v16i_max_lane(-broken) != 0)
        return (struct largest){NAN, LARGEST_BROKEN};
    return lanes_best(best, at);
}

void KERNEL(largest)(const struct op_largest *op, struct share *share)
{
    int64_t row;
    while ((row = share_take(share)) < op->row_count)
        op->out[row] = row_largest(op->in + row * op->stride, op->dim);
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
    v16 most = v16_all(-INFINITY), sum = {0};
    for (int64_t e = count; e < end; e++)
        scores[e] = -INFINITY;
    for (int64_t e = 0; e < end; e += LANES)
        most = v16_max(v16_load(scores + e), most);
    most = v16_all(v16_max_lane(most));
    for (int64_t e = 0; e < end; e += LANES) {
        v16 power = v16_exp(v16_load(scores + e) - most);
        sum += power;
        v16_store(scores + e, power);
    }
    v16 total = v16_all(v16_sum(sum));
    for (int64_t e = 0; e < end; e += LANES) {
        v16 score = v16_load(scores + e) / total;
        v16i is_nan = score != score;
        v16_store(scores + e, (v16)((is_nan & (v16i)v16_all(SCORE_NAN)) | (~is_nan & (v16i)score)));
    }
    for (int64_t e = count; e < end; e++)
        scores[e] = SCORE_PICKED;
}

/* The place of the largest score, of equal ones the first. */
static int64_t score_best(const float *scores, int64_t end)
{
    v16 best = v16_load(scores);
    v16i at = {0};
    for (int64_t e = LANES; e < end; e += LANES) {
        v16 score = v16_load(scores + e);
        v16i is_better = score > best;
        best = v16_max(score, best);
        at = (is_better & (int32_t)e) | (~is_better & at);
    }
    v16i is_best = best == v16_all(v16_max_lane(best));
    v16i lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return -(int64_t)v16i_max_lane((is_best & -(at + lane)) | (~is_best & INT32_MIN));
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

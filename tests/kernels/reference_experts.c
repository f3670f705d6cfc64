/* The references of the experts' operations. */
#include "reference_parts.h"

static double silu(double x)
{
    return x / (1 + exp(-x));
}

void reference_ffn_up(struct reference *out, const struct op_ffn_up *op)
{
    reference_init(out, op->offsets[op->group_count],
                   op->group_count > 0 ? op->groups[0].gate.rows : 0);
    for (int64_t g = 0; g < op->group_count; g++) {
        for (int64_t s = op->offsets[g]; s < op->offsets[g + 1]; s++) {
            const float *in = op->in + (op->token_of != NULL ? op->token_of[s] : s) * op->in_stride;
            for (int64_t n = 0; n < out->columns; n++) {
                double gate_bound, up_bound;
                double gate = reference_product(&gate_bound, &op->groups[g].gate, n, in);
                double up = reference_product(&up_bound, &op->groups[g].up, n, in);
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
    reference_init(out, op->offsets[op->group_count],
                   op->group_count > 0 ? op->groups[0].down.rows : 0);
    for (int64_t g = 0; g < op->group_count; g++) {
        for (int64_t s = op->offsets[g]; s < op->offsets[g + 1]; s++) {
            for (int64_t n = 0; n < out->columns; n++)
                out->value[s * out->columns + n] =
                    reference_product(&out->bound[s * out->columns + n], &op->groups[g].down, n,
                                      op->in + s * op->in_stride);
        }
    }
}

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
            most = logits[e] > most ? logits[e] : most;
            least = logits[e] < least ? logits[e] : least;
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

/* Whether any of the token's choices is an expert of the group. */
static bool goes_to(const struct op_dispatch *op, int64_t token, int64_t group)
{
    for (int64_t c = 0; c < op->top_k; c++) {
        int32_t id = op->ids[token * op->choice_stride + c];
        if (id >= 0 && op->group_of[id] == group)
            return true;
    }
    return false;
}

int32_t reference_dispatch(int32_t *counts, int32_t *token_of, int32_t *slot_of,
                           const struct op_dispatch *op)
{
    int32_t next = 0;
    for (int64_t g = 0; g < op->group_count; g++) {
        int32_t first = next;
        for (int64_t t = 0; t < op->token_count; t++) {
            slot_of[t * op->group_count + g] = -1;
            if (!goes_to(op, t, g))
                continue;
            token_of[next] = (int32_t)t;
            slot_of[t * op->group_count + g] = next++;
        }
        counts[g] = next - first;
    }
    return next;
}

int32_t reference_group(int32_t *offsets, int32_t *token_of, int32_t *position_of,
                        const struct op_group *op)
{
    int32_t next = 0;
    for (int64_t p = 0; p < op->token_count * op->top_k; p++)
        position_of[p] = -1;
    for (int64_t e = 0; e < op->expert_count; e++) {
        offsets[e] = next;
        for (int64_t t = 0; t < op->token_count; t++) {
            for (int64_t c = 0; c < op->top_k; c++) {
                int32_t id = op->ids[t * op->choice_stride + c];
                if (id < 0 || (op->local_of != NULL ? op->local_of[id] : id) != e)
                    continue;
                token_of[next] = (int32_t)t;
                position_of[t * op->top_k + c] = next++;
            }
        }
    }
    offsets[op->expert_count] = next;
    return next;
}

void reference_combine(struct reference *out, const struct op_combine *op)
{
    reference_init(out, op->token_count, op->stride);
    for (int64_t t = 0; t < out->rows; t++) {
        for (int64_t i = 0; i < out->columns; i++) {
            double sum = 0, magnitude = 0;
            for (int64_t c = 0; c < op->top_k; c++) {
                int64_t position = op->position_of[t * op->top_k + c];
                if (position < 0)
                    continue;
                double weight = op->weights != NULL ? op->weights[t * op->choice_stride + c] : 1;
                double term = weight * op->in[position * op->stride + i];
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

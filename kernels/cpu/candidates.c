/* The highest logits of each row, and sums over all of them. */
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/logits.h"

/* ---- The highest --------------------------------------------------------------------------- */

/* Into its place, which is behind equal ones; the last goes where there is no room. */
static void top_insert(struct candidates *out, struct candidate what)
{
    int64_t at = out->count < CANDIDATES_MAX ? out->count++ : CANDIDATES_MAX - 1;
    for (; at > 0 && what.logit > out->top[at - 1].logit; at--)
        out->top[at] = out->top[at - 1];
    out->top[at] = what;
}

/* The first of a row, then the few that are above the last of them. */
static void top_find(struct candidates *out, const float *row, int64_t dim)
{
    int64_t at = 0;
    out->count = 0;
    for (; at < dim && at < CANDIDATES_MAX; at++)
        top_insert(out, (struct candidate){row[at], (int32_t)at});
    const float *last = &out->top[CANDIDATES_MAX - 1].logit;
    for (; at < dim; at += LANES) {
        veci is_higher = load_some(row, at, dim) > vec_all(*last);
        if (veci_max_lane(-is_higher) == 0)
            continue;
        for (int i = 0; i < LANES; i++) {
            if (is_higher[i] != 0 && row[at + i] > *last)
                top_insert(out, (struct candidate){row[at + i], (int32_t)(at + i)});
        }
    }
}

/* ---- Sums ----------------------------------------------------------------------------------
 *
 * In f64, so that a sum of all is that of its parts, wherever a vocabulary is cut, up to 2^-36. */

#define HALF_LANES (LANES / 2)
typedef float vec_half VECTOR(2 * LANES, 4);
typedef double vecd VECTOR(4 * LANES, 8); /* HALF_LANES of them */
typedef int64_t vecl VECTOR(4 * LANES, 8);

#define POWER_MIN (-1000.0) /* of 2: smaller ones are 0 */
#define ROUNDING  0x1.8p52  /* added, it leaves the nearest whole number in the low bits */
#define LOG2_E    1.4426950408889634

/* 2^t for t up to 1; n + f with |f| <= 1/2, the Taylor series of 2^f to degree 9, whose remainder
 * is under 2^-36. */
INLINE vecd exp2_of(vecd t)
{
    static const double terms[] = {0x1p0,
                                   0.6931471805599453,
                                   0.2402265069591007,
                                   0.05550410866482158,
                                   0.009618129107628477,
                                   0.0013333558146428443,
                                   0.00015403530393381608,
                                   1.5252733804059838e-05,
                                   1.3215486790144307e-06,
                                   1.0178086009239699e-07};
    vecd rounding = (vecd){0} + ROUNDING, least = (vecd){0} + POWER_MIN;
    vecl is_small = (vecl)(t < least); /* and where it is no number that small, as of -infinity */
    t = (vecd)((is_small & (vecl)least) | (~is_small & (vecl)t));
    vecd shifted = t + rounding;
    vecl n = (vecl)shifted - (vecl)rounding;
    vecd f = t - (shifted - rounding), sum = (vecd){0} + terms[9];
#pragma GCC unroll 9
    for (int k = 8; k >= 0; k--)
        sum = sum * f + terms[k];
    return (vecd)((vecl)(sum * (vecd)((n + 1023) << 52)) & ~is_small);
}

/* Of exp((logit - most) / temperature). */
static double exp_sum(const float *row, int64_t dim, float most, double temperature)
{
    const double scale = LOG2_E / temperature, highest = (double)most * scale;
    const vecd ones = (vecd){0} + 1.0;
    vecd sum = {0};
    double total = 0;
    int64_t at = 0;
    for (; at + HALF_LANES <= dim; at += HALF_LANES) {
        vecd t = __builtin_convertvector(*(const vec_half *)(row + at), vecd) * scale - highest;
        vecl is_large = (vecl)(t > ones); /* only where f64 cannot tell logits apart */
        sum += exp2_of((vecd)((is_large & (vecl)ones) | (~is_large & (vecl)t)));
    }
    for (int i = 0; i < HALF_LANES; i++)
        total += sum[i];
    for (; at < dim; at++)
        total += exp(((double)row[at] - (double)most) / temperature);
    return total;
}

void KERNEL(candidates)(const struct op_candidates *op, struct share *share)
{
    int64_t r;
    while ((r = share_take(share)) < op->row_count) {
        const float *row = op->in + r * op->stride;
        const double temperature = op->draws != NULL ? op->draws[r].temperature : 0;
        struct candidates *out = &op->out[r];
        struct chosen most = row_largest(row, op->dim);
        *out = (struct candidates){.count = most.at};
        if (most.at < 0)
            continue;
        out->sum = out->mass = exp_sum(row, op->dim, most.logit, 1);
        if (temperature > 0 && temperature != 1)
            out->mass = exp_sum(row, op->dim, most.logit, temperature);
        top_find(out, row, op->dim);
    }
}

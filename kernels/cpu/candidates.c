/* The highest logits of each row, and sums over all of them. */
#include <stdlib.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/logits.h"

#define SUM_VECTORS 16 /* that are added in f32 before they are in f64 */

/* ---- The highest --------------------------------------------------------------------------- */

static bool ranks_before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.at < b.at);
}

static int compare_rank(const void *a, const void *b)
{
    struct candidate left = *(const struct candidate *)a, right = *(const struct candidate *)b;
    return ranks_before(left, right) ? -1 : ranks_before(right, left) ? 1 : 0;
}

/* Puts `what` in the place of the root of a heap whose root ranks last among its members. */
static void heap_replace(struct candidate *heap, int64_t count, struct candidate what)
{
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && ranks_before(heap[child], heap[child + 1]))
            child++;
        if (!ranks_before(what, heap[child]))
            break;
        heap[at] = heap[child];
    }
    heap[at] = what;
}

/* Of equal logits the first seen stay: those behind them have higher places. */
static void top_find(struct candidates *out, const float *row, int64_t dim)
{
    struct candidate *heap = out->top;
    out->count = dim < CANDIDATES_MAX ? dim : CANDIDATES_MAX;
    for (int64_t i = 0; i < out->count; i++)
        heap[i] = (struct candidate){row[i], (int32_t)i};
    qsort(heap, (size_t)out->count, sizeof *heap, compare_rank);
    for (int64_t i = 0; i < out->count / 2; i++) { /* turned round it is a heap */
        struct candidate swap = heap[i];
        heap[i] = heap[out->count - 1 - i];
        heap[out->count - 1 - i] = swap;
    }
    for (int64_t at = out->count; at < dim; at += LANES) {
        veci is_higher = load_some(row, at, dim) > vec_all(heap[0].logit);
        if (veci_max_lane(-is_higher) == 0)
            continue;
        for (int i = 0; i < LANES; i++) {
            if (is_higher[i] != 0 && row[at + i] > heap[0].logit)
                heap_replace(heap, out->count, (struct candidate){row[at + i], (int32_t)(at + i)});
        }
    }
    qsort(heap, (size_t)out->count, sizeof *heap, compare_rank);
}

/* ---- Sums ---------------------------------------------------------------------------------- */

/* Of exp((logit - most) x inverse). */
static double exp_sum(const float *row, int64_t dim, float most, float inverse)
{
    double total = 0;
    for (int64_t first = 0; first < dim; first += SUM_VECTORS * LANES) {
        vec sum = {0};
        for (int64_t at = first; at < dim && at < first + SUM_VECTORS * LANES; at += LANES)
            sum += vec_exp((load_some(row, at, dim) - most) * inverse);
        total += (double)vec_sum(sum);
    }
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
            out->mass = exp_sum(row, op->dim, most.logit, (float)(1 / temperature));
        top_find(out, row, op->dim);
    }
}

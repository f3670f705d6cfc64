/* A token of each row of logits: the largest, or a draw among all (device/draw.h).
 *
 * A draw asks of each token whether its score is above the best so far. That is
 *   1 - u < 1 - exp(-exp(d)) <= exp(d),   d = logit / temperature - best score,
 * so a vector of tokens takes a hash, from which comes 1 - u to 24 bits, and an exponential in f32;
 * whoever might win by these is scored in f64. The largest logit begins as the best: then the
 * others are few, some for each doubling of the vocabulary. */
#include <string.h>

#include "device/draw.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/logits.h"

/* ---- A draw -------------------------------------------------------------------------------- */

#define HASHES      256    /* tokens whose hashes are made at a time */
#define REST_BITS   24     /* of 1 - u, rounded down: what f32 has exactly */
#define REST_MARGIN 1.001f /* exp(d) is off by less than 2^-12 where it matters */

/* A row's race. */
struct race {
    const struct op_choose *op;
    const struct draw *draw;
    const float *row;
    float most;    /* the largest logit */
    float inverse; /* of the temperature */
    float behind;  /* most / temperature - the best score */
    struct chosen best;
};

static void race_enter(struct race *race, int32_t at)
{
    double score = draw_score(race->draw, race->row[at], race->op->first_token + at);
    if (score > race->best.score || (score == race->best.score && at < race->best.at)) {
        race->best = (struct chosen){score, at, race->row[at]};
        race->behind = (float)((double)race->most / race->draw->temperature - score);
    }
}

/* 1 - u of the tokens from `first` on, times 2^24, rounded down. */
static void rests_make(int32_t rests[HASHES], uint64_t key, uint64_t first)
{
    for (uint64_t i = 0; i < HASHES; i++)
        rests[i] = (int32_t)(~random_mix(key ^ (first + i)) >> (64 - REST_BITS));
}

/* All bits of the lanes whose token might win. */
static veci may_win(const struct race *race, const int32_t *rests, int64_t at)
{
    vec logits = load_some(race->row, at, race->op->dim);
    vec odds = vec_exp((logits - race->most) * race->inverse + race->behind);
    veci rest;
    memcpy(&rest, rests, sizeof rest);
    return __builtin_convertvector(rest, vec) < odds * (REST_MARGIN * (1 << REST_BITS));
}

static struct chosen row_draw(const struct op_choose *op, const struct draw *draw, const float *row,
                              struct chosen largest)
{
    _Alignas(64) int32_t rests[HASHES];
    struct race race = {.op = op,
                        .draw = draw,
                        .row = row,
                        .most = largest.logit,
                        .inverse = (float)(1 / draw->temperature),
                        .best = {(double)-INFINITY, 0, 0}};
    race_enter(&race, largest.at);
    for (int64_t first = 0; first < op->dim; first += HASHES) {
        int64_t end = op->dim - first < HASHES ? op->dim : first + HASHES;
        rests_make(rests, draw->key, (uint64_t)(op->first_token + first));
        for (int64_t at = first; at < end; at += LANES) {
            veci may = may_win(&race, rests + (at - first), at);
            if (veci_max_lane(-may) == 0)
                continue;
            for (int i = 0; i < LANES; i++) {
                if (may[i] != 0)
                    race_enter(&race, (int32_t)(at + i));
            }
        }
    }
    return race.best;
}

void KERNEL(choose)(const struct op_choose *op, struct share *share)
{
    int64_t r;
    while ((r = share_take(share)) < op->row_count) {
        const float *row = op->in + r * op->stride;
        struct chosen *out = &op->out[r];
        *out = row_largest(row, op->dim);
        if (op->draws != NULL && op->draws[r].temperature > 0 && out->at >= 0)
            *out = row_draw(op, &op->draws[r], row, *out);
    }
}

/* From logits to the next token.
 *
 * Random choice is Gumbel-max: the token with the largest logit / temperature + noise, where the
 * noise depends on (seed, position, token id) alone, so that neither the batch nor the number of
 * ranks changes it. Source: Gumbel, "Statistical theory of extreme values", 1954; as a sampler
 * Maddison, Tarlow, Minka, "A* sampling", 2014. */
#ifndef PHASOR_EXEC_SAMPLER_H
#define PHASOR_EXEC_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct candidate {
    float logit;
    int32_t id;
};

/* Below it the quotient logit / temperature leaves no second choice, and could overflow. */
#define SAMPLER_TEMPERATURE_MIN 1e-6

struct sampler {
    int64_t vocab_count;
    struct candidate *candidates; /* [vocab_count]: scratch */
};

/* As in engine/generator.h: temperature, then min_p, then top_k, then top_p over what is left. */
struct sampler_choice {
    double
        temperature; /* below SAMPLER_TEMPERATURE_MIN: the largest logit, the lowest id of equals */
    int64_t top_k;   /* 0: all */
    double top_p;    /* 1: all */
    double min_p;    /* 0: all */
    uint64_t seed;
    uint64_t position; /* of the token that is chosen */
};

enum status sampler_init(struct sampler *out, int64_t vocab_count, struct error *err) MUST_CHECK;
void sampler_deinit(struct sampler *sampler);

/* Whether the logits are numbers: none is NaN or +infinity, and not all are -infinity. */
bool sampler_can_choose(const float *logits, int64_t count);

/* log(sum(exp(logits))), summed in f64. NaN or infinite when the logits are no numbers. */
double sampler_log_sum_exp(const float *logits, int64_t count);

/* Whether the choice is the largest logit, the lowest id of equals. */
static inline bool sampler_is_greedy(const struct sampler_choice *choice)
{
    return choice->temperature < SAMPLER_TEMPERATURE_MIN;
}

int32_t sampler_choose(struct sampler *sampler, const float *logits,
                       const struct sampler_choice *choice);

/* The `count` largest logits in falling order, the lower id first among equals; `*out` is the
 * sampler's own memory until its next call. Returns how many (fewer when the vocabulary is
 * smaller). */
int64_t sampler_top(struct sampler *sampler, const float *logits, int64_t count,
                    const struct candidate **out);

#endif

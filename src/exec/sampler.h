/* From logits to the next token. A random choice is the draw of device/draw.h, among the tokens
 * that the limits leave; where they leave all, devices choose alike (struct op_choose). */
#ifndef PHASOR_EXEC_SAMPLER_H
#define PHASOR_EXEC_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/random.h"
#include "base/status.h"
#include "device/ops.h"

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

/* Whether it may be any token: then, and where it is greedy, a device needs no more than
 * sampler_draw to choose as sampler_choose does. */
static inline bool sampler_is_unlimited(const struct sampler_choice *choice, int64_t vocab_count)
{
    return (choice->top_k <= 0 || choice->top_k >= vocab_count) && choice->top_p >= 1 &&
           choice->min_p <= 0;
}

static inline struct draw sampler_draw(const struct sampler_choice *choice)
{
    return (struct draw){
        .temperature = sampler_is_greedy(choice) ? 0 : choice->temperature,
        .key = random_key(choice->seed, choice->position),
    };
}

int32_t sampler_choose(struct sampler *sampler, const float *logits,
                       const struct sampler_choice *choice);

/* The same, of what devices found of logits that are numbers (struct op_candidates, with the draw
 * of this choice); or -1, where that does not tell. A nucleus that ends within 2^-30 of top_p may
 * end a token earlier or later. */
int32_t sampler_choose_among(const struct candidates *candidates, int64_t vocab_count,
                             const struct sampler_choice *choice);

/* The `count` largest logits in falling order, the lower id first among equals; `*out` is the
 * sampler's own memory until its next call. Returns how many (fewer when the vocabulary is
 * smaller). */
int64_t sampler_top(struct sampler *sampler, const float *logits, int64_t count,
                    const struct candidate **out);

#endif

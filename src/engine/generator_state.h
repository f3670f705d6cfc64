/* What the generator's own sources share: generator.c schedules, generator_tokens.c turns logits
 * into tokens. */
#ifndef PHASOR_ENGINE_GENERATOR_STATE_H
#define PHASOR_ENGINE_GENERATOR_STATE_H

#include "engine/generator.h"
#include "exec/exec.h"
#include "exec/sampler.h"

struct sequence {
    struct sequence_request request;
    struct sequence *next; /* of the waiting */
    int group;             /* the data-parallel group that it runs in */
    int32_t *pages;        /* [page_count], of its group, taken when it starts */
    int64_t page_count;
    int64_t position;    /* tokens that are in the cache */
    int64_t token_count; /* generated */
    int32_t last_token;  /* generated, not yet in the cache */
    double submitted, started, first_token;
    bool done;
};

/* What a data-parallel group of the attention has before it. */
struct group_load {
    int64_t sequence_count;
    int64_t token_count; /* prompts and max_tokens of its sequences */
};

/* A row of the pass whose logits are wanted, and for which sequence. */
struct wanted_row {
    struct sequence *sequence;
    int32_t row;
    int64_t position; /* of the token that is fed there */
};

struct generator {
    struct exec *exec;
    struct generator_params params;
    struct kv_cache cache;
    struct sampler sampler;
    int group_count;
    int64_t group_token_max;    /* of a pass, in each group */
    int64_t group_sequence_max; /* that run at once in each group */
    struct group_load *loads;   /* [group_count] */
    struct sequence **running;  /* [sequence_count_max] in order of admission */
    struct sequence *first_waiting, *last_waiting;
    struct exec_segment *segments; /* [sequence_count_max] */
    struct sequence **of_segment;  /* [sequence_count_max] */
    struct wanted_row *wanted;     /* [batch_token_max] */
    struct token_logprob top[LOGPROBS_MAX];
    struct generator_counters counters;
};

/* Reports the end to the sequence's owner, once; the sequence is taken out after the step. */
void sequence_finish(struct sequence *sequence, enum finish_reason reason, int32_t stop_id,
                     const struct error *error);

/* Logits of the first `wanted_count` wanted rows of the pass that has run: scores prompts, chooses
 * next tokens, ends sequences. */
enum status generator_use_logits(struct generator *generator, int64_t wanted_count,
                                 struct error *err) MUST_CHECK;

#endif

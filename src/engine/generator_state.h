/* What the generator's own sources share: generator.c is its life and its step,
 * generator_admission.c says who enters and leaves, generator_pass.c what a pass computes,
 * generator_tokens.c turns logits into tokens. */
#ifndef PHASOR_ENGINE_GENERATOR_STATE_H
#define PHASOR_ENGINE_GENERATOR_STATE_H

#include "engine/generator.h"
#include "engine/page_pool.h"
#include "exec/exec.h"
#include "exec/sampler.h"

struct sequence {
    struct sequence_request request;
    struct sequence *next; /* of the waiting */
    int64_t number;        /* above 0, of this sequence alone: who it is to its page pool */
    int group;             /* the data-parallel group that it runs in */
    int32_t *pages;        /* [page_count], of its group, taken when it starts */
    int64_t page_count;
    int64_t load;        /* what it adds to its group's, see group_load */
    int64_t position;    /* tokens that are in the cache */
    int64_t token_count; /* generated */
    int32_t last_token;  /* generated, not yet in the cache */
    double submitted, started, first_token;
    bool done;
};

/* What a data-parallel group of the attention has before it. */
struct group_load {
    int64_t sequence_count;
    int64_t token_count; /* of its sequences: prompts without what was shared, and max_tokens */
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
    struct page_pool *pools; /* [group_count]: whose the cache's pages are */
    struct sampler sampler;
    int group_count;
    int64_t group_token_max;    /* of a pass, in each group */
    int64_t group_sequence_max; /* that run at once in each group */
    struct group_load *loads;   /* [group_count] */
    struct sequence **running;  /* [sequence_count_max] in order of admission */
    struct sequence *first_waiting, *last_waiting;
    bool is_full; /* the first of the waiting found no room, and nobody has left since */
    /* Of those who ran when it found none, so many leave at most before it enters, or so many
     * pages; since then so many have left, and the first of them so many steps ago. Of the waiting
     * so many have been looked at, whose prompts have entry_found tokens to compute. */
    int64_t entry_most, entry_pages, left, left_pages, entry_steps, entry_seen, entry_found;
    bool is_closed;                     /* nobody is admitted any more */
    bool wave_is_closed;                /* in waves: as long as anybody runs */
    struct generator_pass pass;         /* the last */
    int64_t last_number;                /* given to a sequence */
    struct exec_segment *segments;      /* [sequence_count_max] */
    struct sequence **of_segment;       /* [sequence_count_max] */
    struct wanted_row *wanted;          /* [batch_token_max] */
    int32_t head_rows[EXEC_LOGIT_ROWS]; /* those of the wanted that the head computes at a time */
    struct draw head_draws[EXEC_LOGIT_ROWS];
    struct token_logprob top[LOGPROBS_MAX];
    struct generator_counters counters;
    struct stage_total stages[STAGE_KIND_COUNT]; /* of the executor, after the last step */
};

void sequence_free(struct sequence *sequence);

/* Puts the waiting into groups, first come first served, while there is room. */
void generator_admit(struct generator *generator);

/* Whether a sequence that waits is of another kind than those that run (sequence_request.stays). */
bool generator_is_of_other_wave(const struct generator *generator, const struct sequence *sequence);

/* Takes the ended out of the running and gives their pages back. */
void generator_sweep_ended(struct generator *generator);

/* Chooses the segments of the next pass: prompts, or last tokens where no prompt can go on. Returns
 * how many there are. */
int64_t generator_collect(struct generator *generator, bool *is_prefill);

/* Whether the pass of these segments is the last of prefill in its wave. */
bool generator_is_last_prefill(const struct generator *generator, int64_t segment_count);

/* Whether decode is in the tail of its wave, with another wave behind it. */
bool generator_is_tail(const struct generator *generator);

/* Fills `wanted` with the rows of the pass whose logits are needed; returns how many. */
int64_t generator_collect_wanted(struct generator *generator, int64_t segment_count);

/* The pass has run: its tokens are in the cache. Returns how many they are. */
int64_t generator_advance(struct generator *generator, int64_t segment_count);

static inline int64_t prompt_left(const struct sequence *sequence)
{
    return sequence->request.prompt_count - sequence->position;
}

/* Reports the end to the sequence's owner, once; the sequence is taken out after the step. */
void sequence_finish(struct sequence *sequence, enum finish_reason reason, int32_t stop_id,
                     const struct error *error);

/* What a pass computes of its first wanted rows, as many as go into it; until the next call. */
struct exec_head generator_head(struct generator *generator, int64_t wanted_count);

/* Logits of the wanted rows of the pass that has run and found the first ones' (`head`): scores
 * prompts, chooses next tokens, ends sequences. */
enum status generator_use_logits(struct generator *generator, const struct exec_head *head,
                                 int64_t wanted_count, struct error *err) MUST_CHECK;

#endif

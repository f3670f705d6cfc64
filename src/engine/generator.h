/* Many sequences at once through the executor: admission, chunked prefill, decode, sampling.
 *
 * The generator knows token ids only; text, stop strings and files are its caller's. It is driven
 * by one thread: submit sequences, call generator_step until generator_is_idle. All callbacks come
 * from that thread, inside generator_step and generator_cancel_all.
 *
 * Order: sequences are admitted as they were submitted, each with all the KV pages that it can ever
 * need, so that none is ever put off; one that finds no room waits, and those behind it wait with
 * it, so that a large one is not passed by small ones for ever. Newcomers enter at any step where
 * there is room, a few together where there was none, and their prompts go before the next tokens
 * of those that decode; in waves they enter only until the first of them decodes.
 *
 * Prefixes: with shares_prefixes, full pages of prompt tokens are computed by the first sequence
 * that has them; one that shares them waits until they are there, then goes on behind them. They
 * stay, as long as nobody needs the room, for sequences to come. What a sequence gets is the same
 * to the bit, shared or not. A sequence with prompt_logprobs needs the logits of its whole prompt:
 * it takes nothing from others and leaves nothing for them. */
#ifndef PHASOR_ENGINE_GENERATOR_H
#define PHASOR_ENGINE_GENERATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "exec/stage.h"
#include "layout/layout.h"

#define LOGPROBS_MAX 20

struct sampling_params {
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    double min_p;       /* 0: all */
    uint64_t seed;      /* noise is keyed on (seed, position, token id) alone */
};

struct token_logprob {
    int32_t id;
    float logprob; /* natural, of the model's own distribution (temperature 1, nothing cut) */
};

struct generated_token {
    int32_t id;
    float logprob;                   /* valid when logprobs were asked for */
    const struct token_logprob *top; /* the likeliest, in falling order; valid in the callback */
    int32_t top_count;
};

enum finish_reason {
    FINISH_STOP,      /* an end-of-sequence or stop token came */
    FINISH_CALLER,    /* the token callback ended it (a stop string) */
    FINISH_LENGTH,    /* max_tokens, or the end of the context */
    FINISH_FAILED,    /* see the error */
    FINISH_CANCELLED, /* generator_cancel_all */
};

struct sequence_end {
    enum finish_reason reason;
    int32_t stop_id;            /* the token that ended it with FINISH_STOP; else -1 */
    int64_t token_count;        /* generated, a stop token included */
    double queued_seconds;      /* submit to the start of prefill */
    double first_token_seconds; /* submit to first token; 0 when there was none */
    double total_seconds;
    const struct error *error; /* with FINISH_FAILED; valid in the callback */
};

/* All are called with the sequence's context; any may be NULL but `finished`. */
struct sequence_callbacks {
    /* One generated token, in order; the stop token is not given. False ends the sequence. */
    bool (*token)(void *context, const struct generated_token *token);
    /* With prompt_logprobs: prompt positions 1, 2, ... in order, each scored given those before
     * it. `token->id` is the prompt's id. */
    void (*prompt_token)(void *context, int64_t position, const struct generated_token *token);
    /* Called exactly once; afterwards the generator knows the sequence no more. */
    void (*finished)(void *context, const struct sequence_end *end);
};

/* Everything is copied, but `prompt` and `stop_ids`, which are the caller's until `finished`. */
struct sequence_request {
    const int32_t *prompt;
    int64_t prompt_count;    /* at least 1 */
    int64_t token_count_max; /* max_tokens; 0 is allowed with prompt_logprobs */
    struct sampling_params sampling;
    bool ignore_eos;
    const int32_t *stop_ids; /* besides the model's end-of-sequence ids */
    int64_t stop_count;
    int32_t logprobs;     /* -1: none; 0..LOGPROBS_MAX: that many likeliest with each token */
    bool prompt_logprobs; /* score the prompt (with `logprobs` likeliest each, when >= 0) */
    bool stays; /* in waves: decode takes the weights as prefill has them. Waves are of such
                 * sequences, or of others */
    struct sequence_callbacks callbacks;
    void *context;
};

struct exec;
struct exec_hooks;
struct generator;
struct generator_counters;
struct model_config;
struct routing_counts;

#define GENERATOR_TAIL 32

/* Who found no room enters when so large a share of those who ran then has ended, or of the pages
 * that were short, when prompts that could enter in their places have about
 * generator_params.entry_tokens to compute, or fill a pass, when nobody else waits, and at the
 * latest so many passes behind the first who ended: a pass of one short prompt would read nearly
 * all weights for it. Half that share of the places are free meanwhile, on the mean. Who needs more
 * than that share then waits for nobody else. */
#define GENERATOR_ENTRY_SHARE  16
#define GENERATOR_ENTRY_PASSES 64

/* Tokens of a pass that takes about as long to compute as to read the experts for it. */
int64_t generator_entry_tokens(const struct model_config *config, bool is_gpu);

/* A pass to come. */
struct generator_pass {
    enum phase phase;
    /* In waves, of prefill: the next pass will be of decode, unless each of the sequences should
     * end with its first token. Nobody joins the wave any more. */
    bool is_last;
    /* In waves, of decode: all who run end within GENERATOR_TAIL passes, and others wait. */
    bool is_tail;
    bool stays; /* in waves: of sequences that all stay */
};

struct generator_params {
    int64_t sequence_count_max; /* --max-num-seqs */
    int64_t batch_token_max;    /* --max-num-batched-tokens: tokens of one step, >= sequences */
    int64_t context_max;        /* --max-model-len; prompt and max_tokens together */
    int64_t kv_bytes_max;       /* budget of the KV cache */
    int64_t tokens_expected;    /* of prompts, about; 0: not known. The keys and values of so many
                                 * are written ahead, at most of one pass (exec/kv_cache.h) */
    int64_t entry_tokens;       /* who found no room waits for others, until prompts have so many;
                                 * 0: for nobody */
    bool shares_prefixes;       /* prompts that begin alike compute their full pages once */
    /* A change of phase is dear: who comes while others decode waits until all of them have ended,
     * and those that wait then enter together, as many as there is room for: a wave. */
    bool in_waves;
    /* Called before each pass, may be NULL: the weights are to be as this phase has them, or come
     * to be by the hooks that it sets, which are none before. */
    enum status (*enter)(void *context, const struct generator_pass *pass, struct exec_hooks *hooks,
                         struct error *err);
    /* Called behind each pass where `enter` is: whether they were as the phase has them on all its
     * way. A pass where they were not is entered and run again: nothing of it is given out. */
    bool (*was_whole)(void *context);
    void *enter_context;
    const struct generator_counters *before; /* whose sums this one's go on: of an earlier one of
                                              * the same run; NULL: of none. Copied */
    /* Counts what the passes' tokens chose: made for the executor's token_max; NULL: they are not
     * counted. Borrowed as long as `exec` runs. */
    struct routing_counts *routing;
};

/* `exec` is borrowed. */
enum status generator_create(struct generator **out, struct exec *exec,
                             const struct generator_params *params, struct error *err) MUST_CHECK;
void generator_destroy(struct generator *generator); /* NULL is allowed; no callbacks */

/* Queues a sequence. Refused (STATUS_INVALID_ARGUMENT or STATUS_LIMIT, no callback) when the prompt
 * is empty, holds an id outside the vocabulary, leaves no room in the context (the sentence has the
 * numbers), or can never fit the KV budget. */
enum status generator_submit(struct generator *generator, const struct sequence_request *request,
                             struct error *err) MUST_CHECK;

/* One forward pass of one phase: prompt chunks of the admitted sequences while any prompt is left,
 * else one token of every running sequence. Failure is of the whole generator (the device failed).
 */
enum status generator_step(struct generator *generator, struct error *err) MUST_CHECK;

/* A sequence has at most so many tokens (>= 1, rounded up to whole pages) from now on, also where
 * the cache has room for a longer one: as counters.kv_token_max, which is lowered to it. */
void generator_limit_sequences(struct generator *generator, int64_t token_max);

/* From now on nobody enters: those that run go on to their ends, those that wait stay waiting, as
 * does who is submitted later, for generator_cancel_all or generator_destroy. For a run that is to
 * end soon; there is no way back. */
void generator_stop_admitting(struct generator *generator);

/* Whether no step could do anything: nobody runs, and nobody waits who may still enter. */
bool generator_is_idle(const struct generator *generator);

void generator_cancel_all(struct generator *generator); /* ends each with FINISH_CANCELLED */

struct generator_counters {
    int64_t running, waiting;
    int64_t prefill_tokens, decode_tokens; /* processed so far */
    double prefill_seconds, decode_seconds;
    /* Of these, by stage of a pass; STAGE_BETWEEN has what else a step does. */
    struct stage_total prefill_stages[STAGE_KIND_COUNT], decode_stages[STAGE_KIND_COUNT];
    int64_t step_count;
    int64_t shared_tokens; /* prompt tokens that were there already: not in prefill_tokens */
    /* Of all data-parallel groups together: had by sequences; computed, for sequences to come. */
    int64_t kv_pages_used, kv_pages_cached, kv_pages_total;
    int64_t kv_pages_written; /* when the cache was made */
    int64_t kv_pages_taken;   /* by any sequence so far */
    uint64_t kv_page_bytes;   /* of one page, all ranks of its group together */
    int64_t kv_token_max;     /* tokens that one sequence can have in its group */
};
struct generator_counters generator_counters_get(const struct generator *generator);

/* Host memory that a generator takes beside the cache: for its tables, and for each page of one
 * group. An upper estimate. */
uint64_t generator_table_bytes(const struct generator_params *params, int64_t vocab_count);
uint64_t generator_bytes_per_page(void);

#endif

/* An executor and a generator for one run, with the run's limits checked against the model. */
#ifndef PHASOR_ENGINE_SESSION_H
#define PHASOR_ENGINE_SESSION_H

#include <stdint.h>

#include "engine/engine.h"
#include "engine/generator.h"
#include "tokenizer/chat.h"

struct session_params {
    int64_t max_num_seqs;
    int64_t max_num_batched_tokens;
    int64_t max_model_len; /* 0: the model's own */
    /* 0: what the engine's memory_bytes leaves, or else half of the memory that is free, or what
     * the engine's plan was priced with where that is more. */
    uint64_t kv_bytes;
    uint64_t aside_bytes;                    /* of memory_bytes, which the caller takes later */
    int64_t tokens_expected;                 /* see generator_params */
    const struct generator_counters *before; /* see generator_params */
    bool shares_prefixes;                    /* see generator_params */
    bool counts_routing;                     /* of a model with experts */
    bool is_one_prompt;                      /* the two limits are not the user's */
    struct watch watch;                      /* see engine_watch; while the session is open */
    struct log_sink log;
};

struct session {
    struct engine *engine;
    struct exec *exec;
    struct generator *generator;
    struct routing_counts *routing; /* NULL: they are not counted */
    int64_t context_max;
    int64_t kv_token_max; /* tokens that the KV cache can hold of one sequence */
};

/* STATUS_INVALID_ARGUMENT when a limit is out of range, STATUS_NO_MEMORY when the run does not fit
 * the engine's memory_bytes or the memory that there is; the sentence names the flag.
 *
 * memory_bytes is for what phasor's allocator gives out in this process, so that it can be held
 * against it: what is held before the generator is made (weights, tokenizer, activations, staging)
 * is taken as measured; for the generator's tables and rows in flight an estimate is set aside; the
 * KV cache gets the rest. Not in it: the program itself, stacks, and what jansson takes while a
 * file is parsed. */
enum status session_open(struct session *out, struct engine *engine,
                         const struct session_params *params, struct error *err) MUST_CHECK;
void session_close(struct session *session); /* {0} is allowed */

/* The template called `name`, or the checkpoint's own when it is NULL. */
enum status session_chat_template(const struct chat_template **out, const struct engine *engine,
                                  const char *name, struct error *err) MUST_CHECK;

#endif

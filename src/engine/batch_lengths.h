/* How long the rows of a batch are, read ahead of it: what its plan depends on. */
#ifndef PHASOR_ENGINE_BATCH_LENGTHS_H
#define PHASOR_ENGINE_BATCH_LENGTHS_H

#include "base/watch.h"
#include "engine/batch_reader.h"
#include "engine/request.h"
#include "planner/planner.h"
#include "tokenizer/chat.h"

/* Of longer files every second row is looked at, every third ..., never more than these. */
#define BATCH_LENGTHS_ROWS_MAX 4096

/* Of an answer in a chat that has all the context left; a model ends it long before. */
#define BATCH_LENGTHS_ANSWER 256

struct batch_lengths_params {
    struct batch_reader *reader; /* at its first row; and left there */
    struct request_defaults defaults;
    const struct tokenizer *tokenizer;         /* NULL: rows of token ids alone are run */
    const struct chat_template *chat_template; /* NULL: no chats are */
    int64_t context_max;
    struct watch watch;
};

/* Sequences (a row has `n` for each of its prompts), and the means of their prompts and of what
 * they may generate, rounded up: an answer counts as long as max_tokens allows. Rows that cannot be
 * run are left out; `sequences` is 0 where none can. */
enum status batch_lengths_read(struct plan_load *out, const struct batch_lengths_params *params,
                               struct error *err) MUST_CHECK;

#endif

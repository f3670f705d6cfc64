/* How long the rows of a batch are, read ahead of it: what its plan depends on, and which of them
 * run together. */
#ifndef PHASOR_ENGINE_BATCH_LENGTHS_H
#define PHASOR_ENGINE_BATCH_LENGTHS_H

#include "base/watch.h"
#include "engine/batch_reader.h"
#include "engine/request.h"
#include "planner/plan_mix.h"
#include "tokenizer/chat.h"

/* So many rows are tokenized, of longer files every second, every third ...; of the others the
 * tokens are estimated by their bytes. */
#define BATCH_LENGTHS_ROWS_MAX 4096

/* Of larger files no others are looked at, and it is not known which are alike. */
#define BATCH_LENGTHS_FILE_BYTES_MAX ((int64_t)1 << 30)

/* Of an answer in a chat that has all the context left; a model ends it long before. */
#define BATCH_LENGTHS_ANSWER 256

struct batch_lengths_params {
    struct batch_reader *reader; /* at its first row; and left there */
    struct request_defaults defaults;
    const struct tokenizer *tokenizer;         /* NULL: rows of token ids alone are run */
    const struct chat_template *chat_template; /* NULL: no chats are */
    int64_t context_max;
    bool shares_prefixes; /* as of phasor_batch_params */
    struct watch watch;
};

#define BATCH_LENGTHS_NO_CELL UINT16_MAX /* a row that cannot be run, or was not looked at */

struct batch_lengths {
    /* Sequences (a row has `n` for each of its prompts), and the means of their prompts and of what
     * they may generate, rounded up: an answer counts as long as max_tokens allows. Rows that
     * cannot be run are left out; `sequences` is 0 where none can. What prompts share is what they
     * would if no page ever had to give way, by the rows that are tokenized. */
    struct plan_load load;
    struct plan_mix mix;    /* the same by their lengths */
    int64_t longest_tokens; /* of a sequence's prompt and answer together, the most */
    bool is_sample;         /* of most rows nothing is known */
    int64_t row_count;
    uint16_t *cell_of; /* [row_count]: an index of plan_cells.of, or BATCH_LENGTHS_NO_CELL */
};

/* To be deinitialised after success. */
enum status batch_lengths_read(struct batch_lengths *out, const struct batch_lengths_params *params,
                               struct error *err) MUST_CHECK;
void batch_lengths_deinit(struct batch_lengths *lengths); /* a zero one is allowed */

#endif

/* One row of a batch in flight: a parsed request becomes prompts of token ids, these become
 * sequences of the generator, and their tokens become choices. */
#ifndef PHASOR_ENGINE_BATCH_ROW_H
#define PHASOR_ENGINE_BATCH_ROW_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/batch_meter.h"
#include "engine/choice.h"
#include "engine/generator.h"
#include "engine/request.h"
#include "engine/result.h"
#include "engine/row_error.h"
#include "tokenizer/chat.h"

struct batch_row_run;

/* What all rows of a run share. */
struct batch_world {
    struct generator *generator;
    const struct tokenizer *tokenizer;         /* NULL: prompts must be token ids */
    const struct chat_template *chat_template; /* NULL: none; chat rows are refused with */
    const struct error *chat_refusal;          /* this sentence */
    struct batch_meter *meter;                 /* where times are counted */
    uint64_t seed;                             /* for rows without their own */
    int64_t context_max;                       /* tokens of prompt and choice together */
    int64_t kv_token_max;                      /* the same, as the KV cache allows it */

    bool stays;                 /* of rows that are started: see sequence_request */
    int64_t sequence_count;     /* submitted and not finished */
    uint64_t completion_tokens; /* generated so far */
    struct batch_row_run *rows; /* all that are in flight, newest first */
    uint64_t kept_bytes;        /* what these were begun with: prompts, echoes, tables of choices */

    /* A row is complete, or has failed (`has_failed`); it is destroyed after the call. */
    void (*done)(void *context, struct batch_row_run *row);
    void *context;
};

/* What a callback of the generator is given: which choice of which row. */
struct batch_sequence {
    struct batch_row_run *row;
    int64_t choice;
    double token_at; /* when its last token came; 0: none has */
};

struct batch_row_run {
    struct batch_world *world;
    struct batch_row_run *newer, *older;
    int64_t line;
    struct request request;
    struct choice_options choice_options;
    struct prompt_result *prompts;    /* [request.prompt_count] */
    struct choice *choices;           /* [choice_count] */
    struct batch_sequence *sequences; /* [choice_count] */
    int64_t choice_count;
    uint64_t kept_bytes; /* its part of the world's */
    int64_t open_count;  /* sequences that the generator has, and 1 while they are submitted */
    bool has_failed;
    struct row_error error;
};

/* Takes a parsed request (and clears the caller's) and submits its sequences. Whatever becomes of
 * the row, `done` is called once for it: within this call when it is refused, else within a
 * generator_step. STATUS_NO_MEMORY, with no such call and the request freed, when there is no
 * memory even for the row itself. */
enum status batch_row_start(struct batch_world *world, struct request *request, int64_t line,
                            struct error *err) MUST_CHECK;

/* Frees all rows in flight without a call; the generator must have forgotten their sequences. */
void batch_rows_drop(struct batch_world *world);

#endif

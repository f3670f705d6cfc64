/* One line of a batch file, read into what has to be done: every value checked for type and range,
 * every error naming its field. docs/batch-format.md is the reference of the fields. */
#ifndef PHASOR_ENGINE_REQUEST_H
#define PHASOR_ENGINE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/row_error.h"
#include "engine/stop_matcher.h"
#include "tokenizer/chat.h"

#define REQUEST_N_MAX        128
#define REQUEST_CHOICES_MAX  2048 /* prompts x n of one row */
#define REQUEST_STOP_IDS_MAX 128
#define MODEL_NAME_BYTES_MAX 512 /* it is kept until the row is answered */

enum endpoint { ENDPOINT_COMPLETIONS, ENDPOINT_CHAT };

/* Either a text, or token ids (`ids` is not NULL: a checked array of integers in [0, 2^31)). */
struct prompt_source {
    const char *text;
    size_t text_length;
    const json_t *ids;
};

struct request {
    json_t *root;       /* owns all texts and arrays below; NULL once dropped */
    json_t *kept[3];    /* then: custom_id, model and stop */
    struct arena arena; /* owns the arrays of prompts and messages */
    enum endpoint endpoint;
    const char *custom_id;
    size_t custom_id_length;
    const char *model; /* NULL when the row names none */

    struct prompt_source *prompts; /* completions: at least one; NULL once dropped */
    int64_t prompt_count;          /* 1 for chat, too */
    struct chat_message *messages; /* chat: at least one; NULL once dropped */
    size_t message_count;
    bool add_generation_prompt;
    bool enable_thinking;
    bool add_special_tokens; /* completions */
    bool parse_special;      /* completions: text that spells a special token becomes it */

    int64_t n;          /* choices for each prompt */
    int64_t max_tokens; /* -1: not given */
    double temperature;
    double top_p;
    double min_p;
    int64_t top_k; /* 0: all */
    bool has_seed;
    int64_t seed;

    struct stop_set stops;
    int32_t stop_ids[REQUEST_STOP_IDS_MAX];
    int64_t stop_id_count;
    bool ignore_eos;
    bool include_stop;

    int64_t logprobs;        /* -1: none; else so many likeliest with each generated token */
    int64_t prompt_logprobs; /* -1: none; else the same for the prompt, in vLLM's format */
    bool echo;
    bool skip_special_tokens;
    bool return_token_ids;
};

/* What rows without these fields get. */
struct request_defaults {
    bool ignore_eos;
    bool prompt_logprobs; /* as prompt_logprobs: 0 */
};

/* Field names that were met and ignored, each reported once; start with {.log = ...}. */
#define FIELD_NOTES_MAX 32
struct field_notes {
    const struct log_sink *log;
    int count;
    char names[FIELD_NOTES_MAX][64];
};

/* Parses a line. False fills `error` (out of memory is a 500) and leaves nothing to free. `notes`
 * may be NULL. The line is not needed afterwards. */
bool request_parse(struct request *out, const char *line, size_t length, int64_t line_number,
                   const struct request_defaults *defaults, struct field_notes *notes,
                   struct row_error *error) MUST_CHECK;
void request_deinit(struct request *request);

/* Frees all texts and ids but custom_id, model and stops, once prompts are encoded: as JSON they
 * take many times the memory of the token ids, and a row may hold anything beside, for as long as
 * it is in flight. The counts stay. */
void request_drop_json(struct request *request);

#endif

/* One choice in the making: generated tokens become text as they come, and stop strings end it. */
#ifndef PHASOR_ENGINE_CHOICE_H
#define PHASOR_ENGINE_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/generator.h"
#include "engine/result.h"
#include "engine/stop_matcher.h"
#include "tokenizer/tokenizer.h"

/* Shared by the choices of a row, and outlives them. */
struct choice_options {
    const struct tokenizer *tokenizer; /* NULL: no text, only ids */
    const struct stop_set *stops;
    bool include_stop; /* the stop string or stop token stays in the text */
    int64_t logprobs;  /* -1: none are kept */
};

struct choice {
    const struct choice_options *options;
    struct decoder decoder;
    struct text text; /* whole UTF-8 at any time */
    struct stop_state state;
    size_t searched; /* bytes of the text that the stop strings have seen */
    size_t counted;  /* bytes of the text in `characters` */
    int64_t characters;
    struct token_list ids;     /* all generated ones but the stop token */
    struct scored_list scores; /* of the same */
    int stop_index;            /* the stop string that ended it; -1: none */
    struct sequence_end end;   /* after choice_finish; `error` is NULL */
};

void choice_init(struct choice *choice, const struct choice_options *options, bool skip_special);
void choice_deinit(struct choice *choice);

/* Takes the next token. *ended tells that a stop string is complete: the text has been cut, and no
 * more tokens may come. */
enum status choice_push(struct choice *choice, const struct generated_token *token, bool *ended,
                        struct error *err) MUST_CHECK;

/* The generator is done with the sequence; `end` is copied. */
enum status choice_finish(struct choice *choice, const struct sequence_end *end,
                          struct error *err) MUST_CHECK;

/* Bytes of the text that will not be taken back whatever comes. */
size_t choice_settled(const struct choice *choice);

/* "stop" or "length". */
const char *choice_finish_reason(const struct choice *choice);

#endif

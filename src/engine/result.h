/* What the generator gave for the prompts of a row: token ids and log probabilities. */
#ifndef PHASOR_ENGINE_RESULT_H
#define PHASOR_ENGINE_RESULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "engine/generator.h"
#include "tokenizer/tokenizer.h"

struct scored_token {
    int32_t id;
    float logprob;
    size_t top_begin; /* of its likeliest, in scored_list.tops */
    int32_t top_count;
    int64_t text_offset; /* characters of the text before it */
};

/* Tokens with their log probabilities; start with {0}. */
struct scored_list {
    struct scored_token *tokens;
    size_t count, capacity;
    struct token_logprob *tops;
    size_t top_count, top_capacity;
};

/* Appends a token with at most `top_max` of its likeliest. */
enum status scored_list_add(struct scored_list *list, const struct generated_token *token,
                            int64_t top_max, int64_t text_offset, struct error *err) MUST_CHECK;
void scored_list_deinit(struct scored_list *list);

/* One prompt of a row, shared by its choices; start with {0}. */
struct prompt_result {
    struct token_list ids;
    struct text text;          /* with echo: what is echoed */
    struct scored_list scores; /* of positions 1, 2, ...; empty unless asked for */
};
void prompt_result_deinit(struct prompt_result *prompt);

enum status ids_append(struct token_list *list, int32_t id, struct error *err) MUST_CHECK;

/* Characters (code points) in valid UTF-8. */
int64_t count_characters(const char *text, size_t length);

/* Gives the scored tokens of a prompt their offsets in its text, in characters: never falling, at
 * most its length. A token that the tokenizer put before the text takes no room. Where a normalizer
 * changed the text (NFC), offsets behind the change are those of as many bytes of the new one. */
enum status prompt_result_place(struct prompt_result *prompt, const struct tokenizer *tokenizer,
                                bool skip_special, struct error *err) MUST_CHECK;

#endif

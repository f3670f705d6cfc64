/* Chat templates, rendered natively. A template is recognised by its text (a hash of it); an
 * unknown one is refused, and --chat-template names one of the known. No template code from a file
 * or a request is ever run. */
#ifndef PHASOR_TOKENIZER_CHAT_H
#define PHASOR_TOKENIZER_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

struct chat_template; /* a constant of a table in chat.c */

struct chat_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
    size_t content_length;
    /* What an answer's turn was thinking, for the templates of Qwen3, which then leave `content` as
     * it is; NULL: what stands in it between <think> and </think>. Others pass over it. */
    const char *reasoning;
    size_t reasoning_length;
};

struct chat_options {
    bool add_generation_prompt; /* open the assistant's turn */
    bool enable_thinking;       /* Qwen3; default true */
};

/* By name ("mixtral", "qwen2", "qwen3", ...; chat_template_names lists them). NULL: none. */
const struct chat_template *chat_template_find(const char *name);
const char *chat_template_name(const struct chat_template *chat_template);
const char *const *chat_template_names(void); /* NULL-terminated */

/* What a template's text is recognised by: XXH3 with 128 bits, in hexadecimal, of the text without
 * the ASCII white space around it. */
#define CHAT_TEMPLATE_HASH_LENGTH 32
void chat_template_hash(char out[CHAT_TEMPLATE_HASH_LENGTH + 1], const char *text, size_t length);

/* The template that came with the checkpoint: STATUS_NOT_FOUND when it has none,
 * STATUS_UNSUPPORTED when its text is not known; the sentence names --chat-template. */
enum status chat_template_of(const struct chat_template **out, const struct tokenizer *tokenizer,
                             struct error *err) MUST_CHECK;

/* Appends the ids of a rendered conversation. The template's own markers become their special
 * tokens; the messages' text never does. What a template refuses (a system turn, roles that do not
 * alternate) is STATUS_INVALID_ARGUMENT. */
enum status chat_encode(const struct chat_template *chat_template,
                        const struct tokenizer *tokenizer, struct token_list *out,
                        const struct chat_message *messages, size_t message_count,
                        struct chat_options options, struct error *err) MUST_CHECK;

/* The rendered text, as the template would give it: for tests and for showing. */
enum status chat_render(const struct chat_template *chat_template, struct text *out,
                        const struct chat_message *messages, size_t message_count,
                        struct chat_options options, struct error *err) MUST_CHECK;

#endif

/* Chat templates from the inside: the table of families and what their renderers share. */
#ifndef PHASOR_TOKENIZER_CHAT_INTERNAL_H
#define PHASOR_TOKENIZER_CHAT_INTERNAL_H

#include "tokenizer/chat.h"
#include "tokenizer/spans.h"

/* A rendered conversation: special tokens count only within `markup`. */
struct chat_writer {
    struct text text;
    struct span_list markup; /* sorted; neighbours are joined */
    const char *bos, *eos;
    enum status status; /* of adding to `markup`; text has its own flag */
    struct error *err;
};

struct conversation {
    const struct chat_message *messages;
    size_t count;
    struct chat_options options;
};

enum inst_system {
    INST_SYSTEM_REFUSED,
    INST_SYSTEM_FIRST, /* an opening system text goes before the first user text */
    INST_SYSTEM_LAST,  /* before the last one, when that ends the conversation */
    INST_SYSTEM_NEXT,  /* any system text goes before the next user text; roles are free */
};

/* The [INST] families: BOS, then for each turn the pieces around its text. */
struct inst_style {
    const char *user_before, *user_after;
    const char *answer_before, *answer_after; /* answer_after stands before EOS */
    const char *eos_after;
    enum inst_system system;
};

enum chatml_kind {
    CHATML_QWEN15, /* an unfinished last turn is left open when no answer is asked for */
    CHATML_PLAIN,
    CHATML_QWEN3, /* earlier thinking is left out */
};

enum thinking_prompt { THINKING_NONE, THINKING_OPTIONAL, THINKING_ALWAYS };

/* The ChatML families: <|im_start|>role, newline, text, <|im_end|>, newline. */
struct chatml_style {
    enum chatml_kind kind;
    const char *default_system; /* NULL: none */
    enum thinking_prompt thinking;
};

/* One of the two styles is set. */
struct chat_template {
    const char *name;
    const struct inst_style *inst;
    const struct chatml_style *chatml;
};

/* NULL: no template with this hash is known. */
const struct chat_template *chat_template_by_hash(const char *hash);

void chat_write_markup(struct chat_writer *writer, const char *markup);
/* Invalid UTF-8 is mended; nothing within becomes a special token. */
void chat_write_content(struct chat_writer *writer, const char *content, size_t length);

static inline bool chat_role_is(const struct chat_message *message, const char *role)
{
    return __builtin_strcmp(message->role, role) == 0;
}

enum status inst_render(const struct inst_style *style, struct chat_writer *writer,
                        const struct conversation *conversation) MUST_CHECK;
enum status chatml_render(const struct chatml_style *style, struct chat_writer *writer,
                          const struct conversation *conversation) MUST_CHECK;

#endif

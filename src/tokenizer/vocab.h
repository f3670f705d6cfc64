/* The tokens of a vocabulary: text to id and id to text. */
#ifndef PHASOR_TOKENIZER_VOCAB_H
#define PHASOR_TOKENIZER_VOCAB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

enum token_flag {
    TOKEN_IN_MODEL = 1, /* of the model's vocabulary: BPE may produce it */
    TOKEN_ADDED = 2,    /* found in the text before BPE */
    TOKEN_SPECIAL = 4,  /* a control token: text never becomes it unless asked to */
};

struct vocab_token {
    const char *text; /* NULL: no token has this id */
    uint32_t length;
    uint32_t flags;
};

struct vocab {
    struct vocab_token *tokens; /* [count], by id */
    size_t count;               /* largest id + 1 */
    uint32_t *slots;            /* open addressing: id + 1, or 0 */
    size_t slot_mask;
    uint64_t slot_seed;  /* random */
    struct arena *arena; /* of the tokenizer: owns the texts */
};

/* Ids may leave holes (checkpoints pad), but not so large that a small file costs much memory. */
#define VOCAB_HOLES_MAX 262144

/* Reads model.vocab (an object: text to id) and the ids of added_tokens (may be NULL). Flags of
 * added tokens are set here, too. Refused: an id twice, an id that is no integer, an added token
 * whose id is not the one that the vocabulary gives it. On failure vocab_deinit is still needed. */
enum status vocab_read(struct vocab *vocab, struct arena *arena, const json_t *model_vocab,
                       const json_t *added_tokens, const char *file, struct error *err) MUST_CHECK;
void vocab_deinit(struct vocab *vocab);

/* -1 when there is none. */
int32_t vocab_find(const struct vocab *vocab, const char *text, size_t length);

/* Only tokens of the model's vocabulary. */
int32_t vocab_find_model(const struct vocab *vocab, const char *text, size_t length);

/* Only those that ordinary text may become: of the model and not special. */
int32_t vocab_find_plain(const struct vocab *vocab, const char *text, size_t length);

/* NULL when no token has this id. */
static inline const struct vocab_token *vocab_at(const struct vocab *vocab, int64_t id)
{
    if (id < 0 || (uint64_t)id >= vocab->count || vocab->tokens[id].text == NULL)
        return NULL;
    return &vocab->tokens[id];
}

#endif

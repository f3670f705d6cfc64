/* Tokens that are found in a text before BPE sees it. */
#ifndef PHASOR_TOKENIZER_ADDED_TOKENS_H
#define PHASOR_TOKENIZER_ADDED_TOKENS_H

#include <jansson.h>
#include <stdbool.h>

#include "tokenizer/normalizer.h"
#include "tokenizer/spans.h"
#include "tokenizer/vocab.h"

struct added_token {
    const char *text; /* what is looked for; owned by the arena */
    size_t length;
    int32_t id;
    bool special;
    bool single_word; /* counts only where no word character stands beside it */
    bool left_strip;  /* takes the white space before it along */
    bool right_strip;
};

/* Tokens that are looked for together: of those that fit at a place the longest counts. */
struct token_set {
    struct added_token *tokens; /* sorted by text */
    size_t count;
    uint32_t first[257]; /* tokens whose first byte is b: first[b] to first[b + 1] */
};

struct added_tokens {
    struct token_set raw;        /* looked for in the text as it came */
    struct token_set normalized; /* looked for in the normalized pieces between those */
};

/* The longest text of an added token: the time of a search is at most this times the text. */
#define ADDED_TOKEN_BYTES_MAX 256

/* `json` is the value of "added_tokens" (may be NULL); ids come from the vocabulary. On failure
 * deinit is still needed. */
enum status added_tokens_read(struct added_tokens *added, struct arena *arena,
                              const struct vocab *vocab, const struct normalizer *normalizer,
                              const json_t *json, const char *file, struct error *err) MUST_CHECK;
void added_tokens_deinit(struct added_tokens *added);

/* Where special tokens are accepted. */
struct special_places {
    bool everywhere;
    const struct span *spans; /* otherwise only wholly within one of these (sorted) */
    size_t span_count;
};

struct segment {
    size_t begin, end;
    int32_t id; /* -1: ordinary text */
};
struct segment_list { /* start with {0} */
    struct segment *items;
    size_t count, capacity;
};
void segment_list_deinit(struct segment_list *list);

/* Replaces the list's contents by the parts of `text`, in order. */
enum status added_tokens_split(const struct token_set *set, struct segment_list *out,
                               const char *text, size_t length, struct special_places places,
                               struct error *err) MUST_CHECK;

#endif

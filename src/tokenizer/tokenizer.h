/* Text to token ids and back, from the pipeline that tokenizer.json describes.
 *
 * Known components: normalizers NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence; pre-tokenizers
 * Split with a known or PCRE2 pattern, ByteLevel, Metaspace, Digits, Sequence; model BPE
 * (byte_fallback, fuse_unk, ignore_merges); post-processors TemplateProcessing, ByteLevel,
 * Sequence; decoders ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence. Anything
 * else is refused by name. Encoding takes time linear (times a logarithm) in the text.
 *
 * Ids are those of Hugging Face tokenizers, but for three things. Text never becomes a special
 * token by a merge. Patterns that PCRE2 runs see its Unicode tables (10.42: Unicode 14), in which
 * newer characters are unassigned and \s takes U+180E. And where byte tokens are no valid UTF-8,
 * decoding gives one U+FFFD for each maximal broken part, not one for each byte of the whole run of
 * them: a stream cannot wait for the end of a run. "truncation" and "padding" are not applied. */
#ifndef PHASOR_TOKENIZER_TOKENIZER_H
#define PHASOR_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

struct tokenizer;

/* Reads DIR/tokenizer.json and, where they are there, DIR/tokenizer_config.json (chat template,
 * bos/eos text, add_bos_token) and DIR/chat_template.jinja. Thread-safe afterwards. */
enum status tokenizer_open(struct tokenizer **out, const char *dir, struct error *err) MUST_CHECK;
/* The same from memory: for tests and fuzzing; `config` may be NULL. `name` is for messages. */
enum status tokenizer_parse(struct tokenizer **out, const char *json, size_t json_length,
                            const char *config, size_t config_length, const char *name,
                            struct error *err) MUST_CHECK;
void tokenizer_close(struct tokenizer *tokenizer); /* NULL is allowed */

int64_t tokenizer_vocab_count(const struct tokenizer *tokenizer); /* largest id + 1 */

/* Growing list of ids; start with {0}. */
struct token_list {
    int32_t *ids;
    size_t count;
    size_t capacity;
};
void token_list_deinit(struct token_list *list);

struct encode_options {
    bool add_special;   /* what the post-processor adds (BOS) */
    bool parse_special; /* text that spells a special token becomes that token; off for user text */
};

/* Appends the ids of `text` (any bytes; invalid UTF-8 becomes U+FFFD, one for each maximal broken
 * part as the Unicode standard recommends). Added tokens that are not special are always found;
 * special ones only with parse_special. On failure the list is as before. STATUS_LIMIT: more than
 * 16 MiB, or an unknown split pattern that takes too long. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, struct token_list *out,
                             const char *text, size_t length, struct encode_options options,
                             struct error *err) MUST_CHECK;

/* Id of a token by its exact text, special tokens included; -1 when there is none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t length);

/* The token's own text as the vocabulary writes it; NULL when the id is none. */
const char *tokenizer_token(const struct tokenizer *tokenizer, int32_t id);
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);

/* The bytes that one token stands for, appended to `out` (may be a part of a UTF-8 sequence);
 * special tokens give their text unless skip_special. `first` tells that it is the first of the
 * text (its leading space may be stripped). */
void tokenizer_token_bytes(const struct tokenizer *tokenizer, struct text *out, int32_t id,
                           bool first, bool skip_special);

/* Decoding of a stream: text comes out as soon as it is whole UTF-8, never a broken sequence.
 * Start with {.skip_special = ...}; deinit frees it. */
struct decoder {
    bool skip_special;
    bool started;
    struct text pending; /* bytes of an unfinished sequence */
};
/* Appends what the next id completes; an id that is no token gives nothing. Bytes that can never
 * become valid are given as U+FFFD. */
enum status decoder_push(struct decoder *decoder, const struct tokenizer *tokenizer,
                         struct text *out, int32_t id, struct error *err) MUST_CHECK;
/* The end: an unfinished sequence becomes U+FFFD. */
enum status decoder_finish(struct decoder *decoder, struct text *out, struct error *err) MUST_CHECK;
void decoder_deinit(struct decoder *decoder);

#endif

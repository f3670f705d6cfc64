/* What a tokenizer is made of; for the files of this folder and their tests. */
#ifndef PHASOR_TOKENIZER_INTERNAL_H
#define PHASOR_TOKENIZER_INTERNAL_H

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decode_plan.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"

#define FRAME_IDS_MAX 8

/* Ids that the post-processor puts around a text. */
struct frame {
    int32_t before[FRAME_IDS_MAX], after[FRAME_IDS_MAX];
    size_t before_count, after_count;
};

struct tokenizer {
    struct arena arena;
    struct vocab vocab;
    struct added_tokens added;
    struct normalizer normalizer;
    struct pretokenizer pretokenizer;
    struct bpe bpe;
    struct frame frame;
    struct decode_plan decode;
    /* Of tokenizer_config.json and chat_template.jinja; NULL when absent. Owned by the arena. */
    const char *bos_text, *eos_text;
    const char *chat_template;
    size_t chat_template_length;
};

/* Reads "post_processor"; the ids must be tokens. */
enum status frame_read(struct frame *frame, const struct vocab *vocab, const json_t *json,
                       const char *file, struct error *err) MUST_CHECK;

/* Reads a tokenizer_config.json into the tokenizer. */
enum status tokenizer_read_config(struct tokenizer *tokenizer, const json_t *config,
                                  const char *file, struct error *err) MUST_CHECK;

/* A longer text is refused: it is far beyond every context, and offsets stay within 32 bits. */
#define ENCODE_BYTES_MAX ((size_t)16 << 20)

/* tokenizer_encode with special tokens accepted at `places` only; with spans the text must be valid
 * UTF-8. */
enum status tokenizer_encode_places(const struct tokenizer *tokenizer, struct token_list *out,
                                    const char *text, size_t length, struct special_places places,
                                    bool add_special, struct error *err) MUST_CHECK;

#endif

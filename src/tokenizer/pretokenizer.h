/* Pre-tokenizers of tokenizer.json: they cut a text into words, within which BPE merges. */
#ifndef PHASOR_TOKENIZER_PRETOKENIZER_H
#define PHASOR_TOKENIZER_PRETOKENIZER_H

#include <jansson.h>
#include <stdbool.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"
#include "tokenizer/split.h"

enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};

enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

enum pretokenizer_kind {
    PRETOKENIZER_PREFIX,    /* puts `text` before a piece that does not begin with it */
    PRETOKENIZER_REPLACE,   /* each space by `text` */
    PRETOKENIZER_SPLIT,     /* by `matcher` */
    PRETOKENIZER_BYTE_CHARS /* each byte by its character of the byte alphabet */
};

/* One step; a component of the file becomes one to three of them. */
struct pretokenizer_step {
    enum pretokenizer_kind kind;
    const char *text; /* owned by the arena */
    size_t text_length;
    enum prepend_scheme scheme;
    struct matcher matcher;
    enum split_behavior behavior;
    bool invert; /* the gaps count as matches and the matches as gaps */
};

#define PRETOKENIZER_STEPS_MAX 32

struct pretokenizer {
    struct pretokenizer_step steps[PRETOKENIZER_STEPS_MAX];
    size_t step_count;
};

/* `json` is the value of "pre_tokenizer", null included. On failure deinit is still needed. */
enum status pretokenizer_read(struct pretokenizer *pretokenizer, struct arena *arena,
                              const json_t *json, const char *file, struct error *err) MUST_CHECK;
void pretokenizer_deinit(struct pretokenizer *pretokenizer);

/* A part of a piece, while it is cut. */
struct part {
    uint32_t begin, end;
    bool is_match;
};

/* The pieces of a text. Start with {0}; deinit frees. */
struct pretokenizer_work {
    struct text text;        /* what the pieces lie in */
    struct span_list pieces; /* in order, not empty; after a Removed split with gaps between */
    struct text next_text;   /* the same of the step in progress */
    struct span_list next_pieces;
    struct span_list matches;
    struct part *parts;
    size_t part_count, part_capacity;
    struct match_work match;
};
void pretokenizer_work_deinit(struct pretokenizer_work *work);

/* Limits of a pre-tokenized text, so that no file can blow a prompt up. A mark before a piece of
 * one byte makes 5 bytes of it, and the byte alphabet then at most 10; of a whole normalized text
 * it makes twice as many. */
#define PRETOKENIZED_BYTES_MAX  ((size_t)96 << 20)
#define PRETOKENIZED_GROWTH_MAX ((size_t)16)

/* Cuts `in` (valid UTF-8) into work->pieces of work->text. `at_start` tells that it begins the
 * whole text (Metaspace "first"). STATUS_LIMIT beyond these limits, or from matcher_find. */
enum status pretokenizer_apply(const struct pretokenizer *pretokenizer,
                               struct pretokenizer_work *work, const char *in, size_t length,
                               bool at_start, struct error *err) MUST_CHECK;

/* The byte alphabet of byte-level BPE: printable bytes stand for themselves, the others for
 * U+0100 and up. byte_of_char gives -1 for a character outside the alphabet. */
uint32_t char_of_byte(unsigned char byte);
int byte_of_char(uint32_t code_point);

#endif

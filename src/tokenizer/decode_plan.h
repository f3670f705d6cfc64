/* The "decoder" of tokenizer.json: how the text of a token becomes bytes. */
#ifndef PHASOR_TOKENIZER_DECODE_PLAN_H
#define PHASOR_TOKENIZER_DECODE_PLAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/text.h"

enum decode_kind {
    DECODE_REPLACE,       /* each `from` by `to` */
    DECODE_BYTE_FALLBACK, /* <0x41> is the byte 0x41 */
    DECODE_BYTE_LEVEL,    /* characters of the byte alphabet are bytes */
    DECODE_METASPACE,     /* each `from` is a space; in the first token nothing, if `leading` */
    DECODE_STRIP,         /* at most `start` of `from` at the front and `stop` at the end go */
    DECODE_STRIP_TEXT,    /* one `from` at the front of the whole text goes */
    DECODE_JOIN,          /* a space before each token but the first: when no decoder is given */
};

struct decode_step {
    enum decode_kind kind;
    const char *from, *to; /* owned by the arena */
    size_t from_length, to_length;
    int64_t start, stop;
    bool leading;
};

#define DECODE_STEPS_MAX 16

/* Bytes that all Replace steps together may make of one, so that no file can blow a token up: the
 * longest one has 64 KiB. */
#define DECODE_GROWTH_MAX 64

struct decode_plan {
    struct decode_step steps[DECODE_STEPS_MAX];
    size_t step_count;
};

/* `json` is the value of "decoder", null included. Orders in which a token's bytes would depend on
 * its neighbours are refused, and steps that could make a token much longer. */
enum status decode_plan_read(struct decode_plan *plan, struct arena *arena, const json_t *json,
                             const char *file, struct error *err) MUST_CHECK;

/* Appends the bytes of one token. `first`: nothing came before it. Returns whether the next token
 * is no longer the first (a token without text may leave the place to the next). */
bool decode_plan_apply(const struct decode_plan *plan, struct text *out, const char *token,
                       size_t length, bool first);

#endif

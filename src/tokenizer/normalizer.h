/* Normalizers of tokenizer.json: Unicode normal forms, Prepend, Replace of a fixed text. */
#ifndef PHASOR_TOKENIZER_NORMALIZER_H
#define PHASOR_TOKENIZER_NORMALIZER_H

#include <jansson.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

enum normalizer_kind {
    NORMALIZER_NFC,
    NORMALIZER_NFD,
    NORMALIZER_NFKC,
    NORMALIZER_NFKD,
    NORMALIZER_PREPEND, /* `to` before a text that is not empty */
    NORMALIZER_REPLACE, /* each `from` by `to` */
};

struct normalizer_step {
    enum normalizer_kind kind;
    const char *from, *to; /* owned by the arena */
    size_t from_length, to_length;
};

#define NORMALIZER_STEPS_MAX 16

struct normalizer {
    struct normalizer_step steps[NORMALIZER_STEPS_MAX];
    size_t step_count;
};

/* `json` is the value of "normalizer", null included. Other kinds are STATUS_UNSUPPORTED. */
enum status normalizer_read(struct normalizer *normalizer, struct arena *arena, const json_t *json,
                            const char *file, struct error *err) MUST_CHECK;

/* Limits of a normalized text, so that no file can blow a prompt up. Compatibility forms make at
 * most 11 bytes of one (U+FDFA), a replaced space 3. */
#define NORMALIZED_BYTES_MAX   ((size_t)48 << 20)
#define NORMALIZED_SPARE_BYTES ((size_t)64 << 10) /* for what is put before a text */
#define NORMALIZED_GROWTH_MAX  ((size_t)16)

/* Replaces what `out` holds by the normal form of `in` (valid UTF-8); `scratch` is used between the
 * steps. STATUS_LIMIT beyond these limits. */
enum status normalizer_apply(const struct normalizer *normalizer, struct text *out,
                             struct text *scratch, const char *in, size_t length,
                             struct error *err) MUST_CHECK;

/* Appends the Unicode normal form `kind` of `in`. Linear in the text: runs of combining marks are
 * ordered by counting. */
enum status normalizer_form(enum normalizer_kind kind, struct text *out, const char *in,
                            size_t length, struct error *err) MUST_CHECK;

#endif

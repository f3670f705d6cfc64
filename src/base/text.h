/* A growing byte string, and UTF-8. */
#ifndef PHASOR_BASE_TEXT_H
#define PHASOR_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Start with {0}; `bytes` is NUL-terminated once something was appended. The first failed append
 * sets `failed`; later ones do nothing, so that a caller may check once at the end. */
struct text {
    char *bytes;
    size_t length;
    size_t capacity;
    bool failed;
};

void text_append(struct text *text, const char *bytes, size_t length);
void text_append_string(struct text *text, const char *string);
void text_append_format(struct text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A finite number, so that the same one is read back; with a point, whatever the locale. */
void text_append_number(struct text *text, double value);
void text_clear(struct text *text); /* length 0, keeps the memory */
void text_deinit(struct text *text);

/* STATUS_NO_MEMORY when any append failed. */
enum status text_check(const struct text *text, const char *what, struct error *err) MUST_CHECK;

/* Decodes one code point (no surrogates, no overlong forms, at most U+10FFFF). Returns its length
 * in bytes, or 0 when the bytes at `in` are no valid UTF-8 (or length is 0). */
size_t utf8_decode(uint32_t *code_point, const char *in, size_t length);

/* Writes at most 4 bytes; returns how many. */
size_t utf8_encode(char *out, uint32_t code_point);

bool utf8_is_valid(const char *in, size_t length);

/* Bytes at the end of `in` that begin a valid but unfinished sequence (0 to 3). */
size_t utf8_unfinished(const char *in, size_t length);

#endif

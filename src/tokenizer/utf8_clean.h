/* Bytes that may be broken UTF-8 to text that is not: each maximal broken part becomes one U+FFFD
 * (Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts"). */
#ifndef PHASOR_TOKENIZER_UTF8_CLEAN_H
#define PHASOR_TOKENIZER_UTF8_CLEAN_H

#include <stddef.h>

#include "base/text.h"

/* Appends all but an unfinished sequence at the end; returns how many bytes of `in` were used. */
size_t utf8_append_finished(struct text *out, const char *in, size_t length);

/* Appends all; an unfinished sequence at the end counts as broken. */
void utf8_append_clean(struct text *out, const char *in, size_t length);

#endif

/* What the pre-tokenizers ask of a code point. */
#ifndef PHASOR_TOKENIZER_UNICODE_CLASS_H
#define PHASOR_TOKENIZER_UNICODE_CLASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The classes of the split patterns: \p{L}, \p{N}, \s, and all the rest. They are disjoint. */
enum char_class { CLASS_OTHER, CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE };

enum char_class unicode_class(uint32_t code_point);

/* \w of added tokens' single_word. */
bool unicode_is_word(uint32_t code_point);

/* The code point that starts at `*at` of valid UTF-8; `*at` moves behind it. */
uint32_t unicode_next(const char *text, size_t *at);

/* The code point that ends at `*at` (> 0) of valid UTF-8; `*at` moves to its start. */
uint32_t unicode_previous(const char *text, size_t *at);

#endif

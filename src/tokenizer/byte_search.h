/* Finding a part in bytes that need not end in NUL. */
#ifndef PHASOR_TOKENIZER_BYTE_SEARCH_H
#define PHASOR_TOKENIZER_BYTE_SEARCH_H

#include <stddef.h>

/* The first place of `part` (not empty) in `bytes`; NULL when there is none. Linear in `length`. */
const char *bytes_find(const char *bytes, size_t length, const char *part, size_t part_length);

#endif

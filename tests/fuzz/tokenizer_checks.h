/* What must hold for every tokenizer and every text. */
#ifndef PHASOR_FUZZ_TOKENIZER_CHECKS_H
#define PHASOR_FUZZ_TOKENIZER_CHECKS_H

#include "fuzz.h"
#include "tokenizer/tokenizer.h"

/* Encodes (a text may be refused for its size; then false) and decodes again; `decoded` (start with
 * {0}) is the whole text. Checked: ids are tokens of the vocabulary, a second time appends the same
 * ids, the decoder gives whole UTF-8 at every step and forgets nothing. */
bool check_text(struct text *decoded, const struct tokenizer *tokenizer, const char *text,
                size_t length, struct encode_options options);

/* Ids that no text gives: below 0, beyond the vocabulary, holes. */
void check_ids(const struct tokenizer *tokenizer);

#endif

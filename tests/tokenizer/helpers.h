/* What the tests of the tokenizer share. */
#ifndef TESTS_TOKENIZER_HELPERS_H
#define TESTS_TOKENIZER_HELPERS_H

#include <criterion/criterion.h>
#include <jansson.h>

#include "base/memory.h"
#include "base/text.h"
#include "tokenizer/tokenizer.h"

/* A file of tests/data/tokenizers; memory_free. */
char *data_read(const char *name, size_t *length);

/* The lines of such a file, each a JSON value. */
struct json_lines {
    json_t **items;
    size_t count;
};
struct json_lines data_lines(const char *name);
void json_lines_deinit(struct json_lines *lines);

/* The tokenizer of NAME.json; fails the test when it cannot be read. */
struct tokenizer *data_tokenizer(const char *name);

/* From a text in which ' stands for ". NULL with the sentence in `err` when it is refused. */
struct tokenizer *parse_quoted(const char *json, struct error *err);

/* Fails the test with both lists unless they are equal. */
void assert_ids(const struct token_list *got, const int32_t *want, size_t count, const char *what);

/* Parses `json` (quotes as above) and checks that it is refused with this status, in words that
 * hold `part`, and that nothing leaks. */
void assert_refused(const char *json, enum status status, const char *part);

/* CPU time of this thread, for limits on hostile input. The thread sanitizer slows everything by
 * its own factor, which is taken out. */
double cpu_seconds(void);

#endif

/* Writing JSON straight into a text: output rows can hold a hundred thousand log probabilities, for
 * which a tree would cost a hundred times their size. Whatever bytes come, what is written is valid
 * UTF-8: broken ones become U+FFFD. Commas are put by the writer; that brackets
 * and keys pair up is its caller's business. Out of memory shows in text_check at the end. */
#ifndef PHASOR_BASE_JSON_WRITER_H
#define PHASOR_BASE_JSON_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

struct json_writer {
    struct text *out;
    bool needs_comma; /* a value stands before this place */
};

void json_write_open(struct json_writer *json, char bracket);  /* '{' or '[' */
void json_write_close(struct json_writer *json, char bracket); /* '}' or ']' */

/* The name of a member; its value follows. `key` is plain ASCII without quotes. */
void json_write_key(struct json_writer *json, const char *key);
/* The same for any text. */
void json_write_key_text(struct json_writer *json, const char *key, size_t length);

void json_write_text(struct json_writer *json, const char *text, size_t length);
void json_write_string(struct json_writer *json, const char *string); /* NULL: null */
void json_write_int(struct json_writer *json, int64_t value);
void json_write_number(struct json_writer *json, double value); /* finite */
void json_write_bool(struct json_writer *json, bool value);
void json_write_null(struct json_writer *json);

/* Enough digits that the same float is read back. NaN becomes null; JSON has no infinities, so
 * what is beyond -9999 or 9999 becomes that (as in OpenAI's API for impossible tokens). */
void json_write_logprob(struct json_writer *json, float value);

#endif

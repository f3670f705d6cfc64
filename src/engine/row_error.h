/* Why one row of a batch file failed, in the words of OpenAI's error object. */
#ifndef PHASOR_ENGINE_ROW_ERROR_H
#define PHASOR_ENGINE_ROW_ERROR_H

#include <stdbool.h>

#include "base/status.h"

struct row_error {
    int http_status;  /* 400 or 500 */
    const char *code; /* a constant, e.g. "invalid_value" */
    char param[64];   /* the field at fault; "" when it is none in particular */
    char message[ERROR_MESSAGE_BYTES];
};

/* Codes that phasor gives; readers should treat the list as open. */
#define ROW_INVALID_JSON    "invalid_json"
#define ROW_INVALID_VALUE   "invalid_value"
#define ROW_MISSING         "missing_required_parameter"
#define ROW_UNSUPPORTED     "unsupported_parameter"
#define ROW_UNSUPPORTED_URL "invalid_url"
#define ROW_DUPLICATE_ID    "duplicate_custom_id"
#define ROW_LINE_TOO_LONG   "line_too_long"
#define ROW_CONTEXT_LENGTH  "context_length_exceeded"
#define ROW_INTERNAL        "internal_error"

/* Fills a 400 (500 for ROW_INTERNAL); `param` may be NULL. Always returns false, so that a check
 * can `return row_error_set(...)`. */
bool row_error_set(struct row_error *error, const char *code, const char *param, const char *format,
                   ...) __attribute__((format(printf, 4, 5)));

/* The same from a failed call, with its sentence. */
bool row_error_from(struct row_error *error, const char *code, const char *param,
                    const struct error *cause);

/* OpenAI's "type": "invalid_request_error", or "server_error" from 500 on. */
const char *row_error_type(const struct row_error *error);

#endif

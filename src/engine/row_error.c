#include "engine/row_error.h"

#include <stdio.h>
#include <string.h>

static void set_kind(struct row_error *error, const char *code, const char *param)
{
    error->http_status = strcmp(code, ROW_INTERNAL) == 0 ? 500 : 400;
    error->code = code;
    snprintf(error->param, sizeof error->param, "%s", param == NULL ? "" : param);
}

bool row_error_set(struct row_error *error, const char *code, const char *param, const char *format,
                   ...)
{
    set_kind(error, code, param);
    struct error text; /* keeps the rules of a sentence: one line, cut at a character */
    va_list args;
    va_start(args, format);
    error_set_v(&text, STATUS_INVALID_ARGUMENT, format, args);
    va_end(args);
    memcpy(error->message, text.message, sizeof error->message);
    return false;
}

bool row_error_from(struct row_error *error, const char *code, const char *param,
                    const struct error *cause)
{
    return row_error_set(error, code, param, "%s", cause->message);
}

const char *row_error_type(const struct row_error *error)
{
    return error->http_status >= 500 ? "server_error" : "invalid_request_error";
}

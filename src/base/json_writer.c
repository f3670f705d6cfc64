#include "base/json_writer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LOGPROB_BOUND 9999.0f

static void begin_value(struct json_writer *json)
{
    if (json->needs_comma)
        text_append(json->out, ",", 1);
    json->needs_comma = true;
}

void json_write_open(struct json_writer *json, char bracket)
{
    begin_value(json);
    text_append(json->out, &bracket, 1);
    json->needs_comma = false;
}

void json_write_close(struct json_writer *json, char bracket)
{
    text_append(json->out, &bracket, 1);
    json->needs_comma = true;
}

/* The escape that a byte needs within a string, or NULL. */
static const char *short_escape(unsigned char byte)
{
    switch (byte) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    default:
        return NULL;
    }
}

/* What stands for a byte >= 0x80 within a string: NULL when its character stands for itself.
 * `*step` is how many bytes it covers. */
static const char *wide_escape(const char *at, size_t left, size_t *step)
{
    uint32_t code_point;
    *step = utf8_decode(&code_point, at, left);
    if (*step == 0) {
        *step = 1;
        return "\\ufffd";
    }
    /* Some readers of lines split at these two (Python's str.splitlines). */
    return code_point == 0x2028 ? "\\u2028" : code_point == 0x2029 ? "\\u2029" : NULL;
}

static void append_quoted(struct text *out, const char *text, size_t length)
{
    size_t plain = 0; /* everything before it is written */
    text_append(out, "\"", 1);
    for (size_t at = 0, step; at < length; at += step) {
        unsigned char byte = (unsigned char)text[at];
        char hex[8];
        const char *escape = short_escape(byte);
        step = 1;
        if (byte >= 0x80) {
            escape = wide_escape(text + at, length - at, &step);
        } else if (escape == NULL && (byte < 0x20 || byte == 0x7F)) {
            snprintf(hex, sizeof hex, "\\u%04x", byte);
            escape = hex;
        }
        if (escape == NULL)
            continue;
        text_append(out, text + plain, at - plain);
        text_append_string(out, escape);
        plain = at + step;
    }
    text_append(out, text + plain, length - plain);
    text_append(out, "\"", 1);
}

void json_write_key_text(struct json_writer *json, const char *key, size_t length)
{
    begin_value(json);
    append_quoted(json->out, key, length);
    text_append(json->out, ":", 1);
    json->needs_comma = false;
}

void json_write_key(struct json_writer *json, const char *key)
{
    json_write_key_text(json, key, strlen(key));
}

void json_write_text(struct json_writer *json, const char *text, size_t length)
{
    begin_value(json);
    append_quoted(json->out, text == NULL ? "" : text, length);
}

void json_write_string(struct json_writer *json, const char *string)
{
    if (string == NULL)
        json_write_null(json);
    else
        json_write_text(json, string, strlen(string));
}

void json_write_int(struct json_writer *json, int64_t value)
{
    begin_value(json);
    text_append_format(json->out, "%lld", (long long)value);
}

void json_write_number(struct json_writer *json, double value)
{
    begin_value(json);
    text_append_number(json->out, value);
}

void json_write_bool(struct json_writer *json, bool value)
{
    begin_value(json);
    text_append_string(json->out, value ? "true" : "false");
}

void json_write_null(struct json_writer *json)
{
    begin_value(json);
    text_append_string(json->out, "null");
}

void json_write_logprob(struct json_writer *json, float value)
{
    if (isnan(value)) {
        json_write_null(json);
        return;
    }
    begin_value(json);
    float bounded = fmaxf(-LOGPROB_BOUND, fminf(LOGPROB_BOUND, value));
    char digits[32];
    snprintf(digits, sizeof digits, "%.9g", (double)bounded);
    char *comma = strchr(digits, ','); /* the program's locale may write one */
    if (comma != NULL)
        *comma = '.';
    text_append_string(json->out, digits);
}

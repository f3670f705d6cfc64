#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static bool text_make_room(struct text *text, size_t length)
{
    if (text->failed)
        return false;
    if (length >= SIZE_MAX - text->length ||
        memory_reserve(&text->bytes, &text->capacity, text->length + length + 1, 1, "text", NULL) !=
            STATUS_OK)
        text->failed = true;
    return !text->failed;
}

void text_append(struct text *text, const char *bytes, size_t length)
{
    if (!text_make_room(text, length))
        return;
    if (length > 0)
        memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = 0;
}

void text_append_string(struct text *text, const char *string)
{
    text_append(text, string, strlen(string));
}

void text_append_format(struct text *text, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length >= 0 && text_make_room(text, (size_t)length)) {
        vsnprintf(text->bytes + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

void text_append_number(struct text *text, double value)
{
    char digits[40];
    int precision = 15; /* what every number has; few need 17 digits */
    do
        snprintf(digits, sizeof digits, "%.*g", precision, value);
    while (++precision <= 17 && strtod(digits, NULL) != value);
    char *comma = strchr(digits, ','); /* the program's locale may write one */
    if (comma != NULL)
        *comma = '.';
    text_append_string(text, digits);
}

void text_clear(struct text *text)
{
    text->length = 0;
    if (text->bytes != NULL)
        text->bytes[0] = 0;
}

void text_deinit(struct text *text)
{
    memory_free(text->bytes);
    *text = (struct text){0};
}

enum status text_check(const struct text *text, const char *what, struct error *err)
{
    if (text->failed)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while building %s", what);
    return STATUS_OK;
}

/* Length that a lead byte announces; 0 when it cannot lead. */
static size_t lead_length(unsigned char lead)
{
    if (lead < 0x80)
        return 1;
    if (lead >= 0xC2 && lead < 0xE0)
        return 2;
    if (lead >= 0xE0 && lead < 0xF0)
        return 3;
    if (lead >= 0xF0 && lead < 0xF5)
        return 4;
    return 0;
}

/* Whether the second byte is allowed behind this lead (overlong, surrogate, beyond U+10FFFF). */
static bool second_fits(unsigned char lead, unsigned char second)
{
    if ((second & 0xC0) != 0x80)
        return false;
    switch (lead) {
    case 0xE0:
        return second >= 0xA0;
    case 0xED:
        return second < 0xA0;
    case 0xF0:
        return second >= 0x90;
    case 0xF4:
        return second < 0x90;
    default:
        return true;
    }
}

size_t utf8_decode(uint32_t *code_point, const char *in, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)in;
    if (length == 0)
        return 0;
    size_t wanted = lead_length(bytes[0]);
    if (wanted == 0 || wanted > length)
        return 0;
    if (wanted == 1) {
        *code_point = bytes[0];
        return 1;
    }
    if (!second_fits(bytes[0], bytes[1]))
        return 0;
    uint32_t value = bytes[0] & (0xFFu >> (wanted + 1));
    for (size_t i = 1; i < wanted; i++) {
        if ((bytes[i] & 0xC0) != 0x80)
            return 0;
        value = value << 6 | (bytes[i] & 0x3F);
    }
    *code_point = value;
    return wanted;
}

size_t utf8_encode(char *out, uint32_t code_point)
{
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        out[0] = (char)(0xC0 | code_point >> 6);
        out[1] = (char)(0x80 | (code_point & 0x3F));
        return 2;
    }
    if (code_point < 0x10000) {
        out[0] = (char)(0xE0 | code_point >> 12);
        out[1] = (char)(0x80 | (code_point >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code_point & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code_point >> 18);
    out[1] = (char)(0x80 | (code_point >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code_point >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code_point & 0x3F));
    return 4;
}

bool utf8_is_valid(const char *in, size_t length)
{
    while (length > 0) {
        uint32_t code_point;
        size_t step = utf8_decode(&code_point, in, length);
        if (step == 0)
            return false;
        in += step;
        length -= step;
    }
    return true;
}

size_t utf8_unfinished(const char *in, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)in;
    for (size_t back = 1; back <= 3 && back <= length; back++) {
        unsigned char lead = bytes[length - back];
        if ((lead & 0xC0) == 0x80)
            continue;
        size_t wanted = lead_length(lead);
        if (wanted <= back)
            return 0;
        if (back >= 2 && !second_fits(lead, bytes[length - back + 1]))
            return 0;
        return back;
    }
    return 0;
}

#include "model/safetensors_scan.h"

#include <string.h>

#include "base/text.h"

static long long offset_of(const struct scan *scan)
{
    return (long long)(scan->at - scan->start);
}

int scan_peek(struct scan *scan)
{
    while (scan->at < scan->end &&
           (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\n' || *scan->at == '\r'))
        scan->at++;
    return scan->at < scan->end ? (unsigned char)*scan->at : -1;
}

enum status scan_expect(struct scan *scan, char wanted)
{
    int found = scan_peek(scan);
    if (found == wanted) {
        scan->at++;
        return STATUS_OK;
    }
    if (found < 0)
        return error_set(scan->err, STATUS_FORMAT,
                         "%s: the header ends where '%c' was expected (byte %lld of the header)",
                         scan->name, wanted, offset_of(scan));
    return error_set(scan->err, STATUS_FORMAT,
                     found > 0x20 && found < 0x7F
                         ? "%s: expected '%c' at byte %lld of the header, found '%c'"
                         : "%s: expected '%c' at byte %lld of the header, found byte 0x%02x",
                     scan->name, wanted, offset_of(scan), (unsigned)found);
}

static int hex_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F')
        return digit - 'A' + 10;
    return -1;
}

/* Four hex digits; -1 when they are not there. */
static int32_t hex4(const char *at, const char *end)
{
    int32_t value = 0;
    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_value(at[i]);
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* `at` stands behind a backslash. Returns the bytes taken, 0 when it is no escape. */
static size_t decode_escape(uint32_t *out, const char *at, const char *end)
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (at == end)
        return 0;
    const char *letter = memchr(letters, *at, sizeof letters - 1);
    if (letter != NULL) {
        *out = (unsigned char)values[letter - letters];
        return 1;
    }
    int32_t high = *at == 'u' ? hex4(at + 1, end) : -1;
    if (high < 0 || (high >= 0xDC00 && high < 0xE000))
        return 0;
    *out = (uint32_t)high;
    if (high < 0xD800 || high >= 0xDC00)
        return 5;
    if (end - at < 11 || at[5] != '\\' || at[6] != 'u')
        return 0;
    int32_t low = hex4(at + 7, end);
    if (low < 0xDC00 || low >= 0xE000)
        return 0;
    *out = 0x10000 + ((uint32_t)(high - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
    return 11;
}

enum status scan_string(struct scan_string *out, struct scan *scan)
{
    TRY(scan_expect(scan, '"'));
    struct scan_string string = {.bytes = scan->at};
    while (scan->at < scan->end && *scan->at != '"') {
        uint32_t code_point;
        size_t taken = 0;
        if ((unsigned char)*scan->at < 0x20)
            return error_set(scan->err, STATUS_FORMAT,
                             "%s: control character in a string at byte %lld of the header",
                             scan->name, offset_of(scan));
        if (*scan->at == '\\') {
            taken = decode_escape(&code_point, scan->at + 1, scan->end);
            if (taken == 0 || code_point == 0)
                return error_set(scan->err, STATUS_FORMAT,
                                 "%s: invalid escape in a string at byte %lld of the header",
                                 scan->name, offset_of(scan));
            string.has_escape = true;
        }
        scan->at += 1 + taken;
    }
    if (scan->at >= scan->end)
        return error_set(scan->err, STATUS_FORMAT, "%s: the header ends inside a string",
                         scan->name);
    string.length = (size_t)(scan->at - string.bytes);
    scan->at++;
    *out = string;
    return STATUS_OK;
}

size_t scan_unescape(char *out, struct scan_string string)
{
    const char *at = string.bytes, *end = string.bytes + string.length;
    size_t length = 0;
    while (at < end) {
        char bytes[4] = {*at};
        size_t count = 1;
        if (*at++ == '\\') {
            uint32_t code_point = 0;
            at += decode_escape(&code_point, at, end);
            count = utf8_encode(bytes, code_point);
        }
        if (out != NULL)
            memcpy(out + length, bytes, count);
        length += count;
    }
    return length;
}

bool scan_equals(struct scan_string string, const char *text)
{
    return !string.has_escape && string.length == strlen(text) &&
           memcmp(string.bytes, text, string.length) == 0;
}

int scan_shown_length(struct scan_string string)
{
    if (string.length < 200)
        return (int)string.length;
    return 200 - (int)utf8_unfinished(string.bytes, 200);
}

static bool is_digit(const struct scan *scan)
{
    return scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9';
}

enum status scan_count(uint64_t *out, struct scan *scan, struct scan_string tensor,
                       const char *field)
{
    static const char rule[] = "expected non-negative integers below 2^64 in plain digits";
    int first = scan_peek(scan);
    uint64_t value = 0;
    const char *start = scan->at;
    bool fits = true;
    while (is_digit(scan) && fits) {
        fits = !__builtin_mul_overflow(value, 10, &value) &&
               !__builtin_add_overflow(value, (uint64_t)(*scan->at - '0'), &value);
        scan->at++;
    }
    bool plain = scan->at > start && !(first == '0' && scan->at > start + 1) &&
                 !(scan->at < scan->end && memchr(".eE", *scan->at, 3) != NULL);
    if (!plain || !fits)
        return error_set(scan->err, STATUS_FORMAT, "%s: tensor \"%.*s\": \"%s\": %s", scan->name,
                         SCAN_SHOWN(tensor), field, rule);
    *out = value;
    return STATUS_OK;
}

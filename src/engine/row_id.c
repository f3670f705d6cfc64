#include "engine/row_id.h"

#include <string.h>

#include "base/json.h"

struct cursor {
    const char *at, *end;
};

static void skip_space(struct cursor *cursor)
{
    while (cursor->at < cursor->end && strchr(" \t\r\n", *cursor->at) != NULL && *cursor->at != 0)
        cursor->at++;
}

static bool take(struct cursor *cursor, char c)
{
    skip_space(cursor);
    if (cursor->at == cursor->end || *cursor->at != c)
        return false;
    cursor->at++;
    return true;
}

/* Takes a string literal with its quotes. */
static bool take_string(struct cursor *cursor, const char **literal, size_t *length)
{
    skip_space(cursor);
    const char *start = cursor->at;
    if (start == cursor->end || *start != '"')
        return false;
    const char *at = start + 1;
    while (at < cursor->end && *at != '"')
        at += *at == '\\' && at + 1 < cursor->end ? 2 : 1;
    if (at >= cursor->end)
        return false;
    cursor->at = at + 1;
    *literal = start;
    *length = (size_t)(at + 1 - start);
    return true;
}

/* Steps over a value by counting brackets; what it holds is not checked. */
static bool skip_value(struct cursor *cursor)
{
    size_t depth = 0;
    const char *literal;
    size_t length;
    skip_space(cursor);
    while (cursor->at < cursor->end) {
        char c = *cursor->at;
        if (c == '"') {
            if (!take_string(cursor, &literal, &length))
                return false;
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}'))
            return true;
        if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth == 0)
                return false;
            depth--;
        }
        cursor->at++;
    }
    return false;
}

/* What most custom_ids are: ASCII without escapes. */
static bool is_plain(const char *literal, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)literal[i];
        if (c < 0x20 || c >= 0x7f || c == '\\')
            return false;
    }
    return true;
}

static bool append_decoded(struct text *out, const char *literal, size_t length)
{
    if (is_plain(literal, length)) {
        text_append(out, literal + 1, length - 2);
        return !out->failed;
    }
    json_t *value = json_loadb(literal, length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    bool is_text = json_is_string(value);
    if (is_text)
        text_append(out, json_string_value(value), json_string_length(value));
    json_decref(value);
    return is_text && !out->failed;
}

static bool is_wanted(const char *key, size_t length)
{
    static const char wanted[] = "custom_id";
    size_t wanted_length = sizeof wanted - 1;
    if (memchr(key, '\\', length) == NULL)
        return length == wanted_length + 2 && memcmp(key + 1, wanted, wanted_length) == 0;
    struct text decoded = {0};
    bool is_equal = append_decoded(&decoded, key, length) && decoded.length == wanted_length &&
                    memcmp(decoded.bytes, wanted, wanted_length) == 0;
    text_deinit(&decoded);
    return is_equal;
}

bool row_id_find(struct text *out, const char *line, size_t length)
{
    struct cursor cursor = {.at = line, .end = line + length};
    if (!take(&cursor, '{'))
        return false;
    do {
        const char *key, *value;
        size_t key_length, value_length;
        if (!take_string(&cursor, &key, &key_length) || !take(&cursor, ':'))
            return false;
        if (is_wanted(key, key_length))
            return take_string(&cursor, &value, &value_length) &&
                   append_decoded(out, value, value_length);
        if (!skip_value(&cursor))
            return false;
    } while (take(&cursor, ','));
    return false;
}

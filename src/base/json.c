#include "base/json.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

/* Of what begins with each of these, and of a text's byte (jansson 2.14, with what malloc adds): an
 * object has its first buckets, an array its first places, and both double. */
#define OBJECT_BYTES  256
#define ARRAY_BYTES   160
#define MEMBER_BYTES  96 /* its name and place in an object */
#define ELEMENT_BYTES 64 /* a number, and its place in an array */
#define QUOTE_BYTES   40 /* half of a string without its text */
#define MOST_BYTES    (OBJECT_BYTES + 1)

bool json_tree_fits(uint64_t *bytes, const char *text, size_t length, uint64_t most)
{
    static const uint16_t bytes_of[256] = {
        ['{'] = OBJECT_BYTES, ['['] = ARRAY_BYTES, [':'] = MEMBER_BYTES, [','] = ELEMENT_BYTES};
    bool is_text = false;
    *bytes = length * MOST_BYTES;
    if (length <= most / MOST_BYTES)
        return true;
    *bytes = length + ELEMENT_BYTES;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '"') {
            is_text = !is_text;
            *bytes += QUOTE_BYTES;
        } else if (!is_text) {
            *bytes += bytes_of[(unsigned char)text[i]];
        } else if (text[i] == '\\') {
            i++; /* what it stands before ends no text */
        }
    }
    return *bytes <= most;
}

enum status json_parse_object(json_t **out, const char *bytes, size_t length, const char *name,
                              struct error *err)
{
    json_error_t reason;
    uint64_t tree;
    if (!json_tree_fits(&tree, bytes, length, JSON_TREE_BYTES_MAX))
        return error_set(err, STATUS_LIMIT,
                         "%s has so many values that they would take up to %llu MiB of memory; at "
                         "most %llu are accepted",
                         name, (unsigned long long)(tree >> 20),
                         (unsigned long long)(JSON_TREE_BYTES_MAX >> 20));
    json_t *value = json_loadb(bytes, length,
                               JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &reason);
    if (value == NULL)
        return error_set(err, STATUS_FORMAT, "%s is not valid JSON: line %d, column %d: %s", name,
                         reason.line, reason.column, reason.text);
    if (!json_is_object(value)) {
        enum status status = error_set(err, STATUS_FORMAT, "%s: expected a JSON object, found %s",
                                       name, json_kind(value));
        json_decref(value);
        return status;
    }
    *out = value;
    return STATUS_OK;
}

enum status json_load_object(json_t **out, const char *path, size_t bytes_max, struct error *err)
{
    char *bytes;
    size_t length;
    TRY(file_read_whole(&bytes, &length, path, bytes_max, err));
    enum status status = json_parse_object(out, bytes, length, path, err);
    memory_free(bytes);
    return status;
}

const char *json_kind(const json_t *value)
{
    if (value == NULL)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a fraction";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    }
    return "something unknown";
}

static bool is_absent(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value == NULL || json_is_null(value);
}

enum status json_get_int(int64_t *out, const json_t *object, const char *file, const char *key,
                         int64_t min, int64_t max, struct error *err)
{
    const json_t *value = json_object_get(object, key);
    int64_t number;
    if (json_is_integer(value)) {
        number = json_integer_value(value);
    } else if (json_is_real(value) && fabs(json_real_value(value)) < 0x1p53 &&
               json_real_value(value) == floor(json_real_value(value))) {
        number = (int64_t)json_real_value(value);
    } else {
        return error_set(err, STATUS_FORMAT, "%s: \"%s\": expected an integer, found %s", file, key,
                         json_kind(value));
    }
    if (number < min || number > max)
        return error_set(err, STATUS_FORMAT, "%s: \"%s\": expected %lld to %lld, found %lld", file,
                         key, (long long)min, (long long)max, (long long)number);
    *out = number;
    return STATUS_OK;
}

enum status json_get_int_or(int64_t *out, const json_t *object, const char *file, const char *key,
                            int64_t min, int64_t max, int64_t fallback, struct error *err)
{
    if (!is_absent(object, key))
        return json_get_int(out, object, file, key, min, max, err);
    *out = fallback;
    return STATUS_OK;
}

enum status json_get_real(double *out, const json_t *object, const char *file, const char *key,
                          double min, double max, struct error *err)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        return error_set(err, STATUS_FORMAT, "%s: \"%s\": expected a number, found %s", file, key,
                         json_kind(value));
    double number = json_number_value(value);
    if (!(number >= min && number <= max))
        return error_set(err, STATUS_FORMAT, "%s: \"%s\": expected %g to %g, found %g", file, key,
                         min, max, number);
    *out = number;
    return STATUS_OK;
}

enum status json_get_real_or(double *out, const json_t *object, const char *file, const char *key,
                             double min, double max, double fallback, struct error *err)
{
    if (!is_absent(object, key))
        return json_get_real(out, object, file, key, min, max, err);
    *out = fallback;
    return STATUS_OK;
}

enum status json_get_bool_or(bool *out, const json_t *object, const char *file, const char *key,
                             bool fallback, struct error *err)
{
    if (is_absent(object, key)) {
        *out = fallback;
        return STATUS_OK;
    }
    const json_t *value = json_object_get(object, key);
    if (!json_is_boolean(value))
        return error_set(err, STATUS_FORMAT, "%s: \"%s\": expected true or false, found %s", file,
                         key, json_kind(value));
    *out = json_is_true(value);
    return STATUS_OK;
}

enum status json_get_string(const char **out, const json_t *object, const char *file,
                            const char *key, struct error *err)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value))
        return error_set(err, STATUS_FORMAT, "%s: \"%s\": expected a string, found %s", file, key,
                         json_kind(value));
    if (strlen(json_string_value(value)) != json_string_length(value))
        return error_set(err, STATUS_FORMAT, "%s: \"%s\": the string has a NUL character in it",
                         file, key);
    *out = json_string_value(value);
    return STATUS_OK;
}

enum status json_get_string_or(const char **out, const json_t *object, const char *file,
                               const char *key, const char *fallback, struct error *err)
{
    if (!is_absent(object, key))
        return json_get_string(out, object, file, key, err);
    *out = fallback;
    return STATUS_OK;
}

#include "replay/box_place.h"

#include <stdio.h>
#include <string.h>

#define NUMBER_MAX 1e30

/* ---- Places ---------------------------------------------------------------------------------- */

enum status place_refuse(const struct place *place, const char *key, const char *fault)
{
    return error_set(place->err, STATUS_FORMAT, "%s: \"%s\": %s", place->name, key, fault);
}

enum status place_check_keys(const struct place *place, const char *allowed)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)place->object, key, value)
    {
        char word[64];
        int length = snprintf(word, sizeof word, "%s ", key);
        const char *found = length < (int)sizeof word ? strstr(allowed, word) : NULL;
        while (found != NULL && found != allowed && found[-1] != ' ')
            found = strstr(found + 1, word);
        if (found == NULL || strchr(key, ' ') != NULL)
            return error_set(place->err, STATUS_FORMAT,
                             "%s: \"%s\" is no key of this place; known are: %.*s", place->name,
                             key, (int)strlen(allowed) - 1, allowed);
    }
    return STATUS_OK;
}

/* The object `value`, whose name is that of `outer` with `name` behind. */
static enum status place_enter(struct place *out, const struct place *outer, const char *name,
                               const json_t *value, const char *allowed)
{
    if (!json_is_object(value))
        return error_set(outer->err, STATUS_FORMAT, "%s: \"%s\": expected an object, found %s",
                         outer->name, name, json_kind(value));
    *out = (struct place){.object = value, .numbers = outer->numbers, .err = outer->err};
    /* One that is too long is cut. */
    if (snprintf(out->name, sizeof out->name, "%s: %s", outer->name, name) < 0)
        out->name[0] = '\0';
    return allowed == NULL ? STATUS_OK : place_check_keys(out, allowed);
}

enum status place_enter_key(struct place *out, const struct place *outer, const char *key,
                            const char *allowed)
{
    return place_enter(out, outer, key, json_object_get(outer->object, key), allowed);
}

enum status place_enter_item(struct place *out, const struct place *outer, const char *key,
                             size_t index, const char *allowed)
{
    char name[64];
    snprintf(name, sizeof name, "%s[%zu]", key, index);
    return place_enter(out, outer, name, json_array_get(json_object_get(outer->object, key), index),
                       allowed);
}

enum status place_get_array(size_t *count, const struct place *place, const char *key, size_t min,
                            size_t max)
{
    const json_t *value = json_object_get(place->object, key);
    if (!json_is_array(value))
        return error_set(place->err, STATUS_FORMAT, "%s: \"%s\": expected an array, found %s",
                         place->name, key, json_kind(value));
    *count = json_array_size(value);
    if (*count < min || *count > max)
        return error_set(place->err, STATUS_FORMAT,
                         "%s: \"%s\": expected %zu to %zu entries, found %zu", place->name, key,
                         min, max, *count);
    return STATUS_OK;
}

enum status place_get_text(const char **out, const struct place *place, const char *key)
{
    return json_get_string(out, place->object, place->name, key, place->err);
}

enum status place_copy_text(char *out, size_t room, const struct place *place, const char *key)
{
    const char *text;
    TRY(place_get_text(&text, place, key));
    if (text[0] == '\0' || strlen(text) >= room)
        return error_set(place->err, STATUS_FORMAT,
                         "%s: \"%s\": expected 1 to %zu bytes, found %zu", place->name, key,
                         room - 1, strlen(text));
    strcpy(out, text);
    return STATUS_OK;
}

bool place_is_name(const char *text)
{
    return text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-_")] == '\0';
}

enum status place_copy_name(char *out, size_t room, const struct place *place, const char *key)
{
    TRY(place_copy_text(out, room, place, key));
    if (!place_is_name(out))
        return place_refuse(place, key, "expected letters a to z, digits, - and _");
    return STATUS_OK;
}

enum status place_get_word(int *out, const struct place *place, const char *key,
                           const char *const *words, int count)
{
    const char *text;
    TRY(place_get_text(&text, place, key));
    for (*out = 0; *out < count; (*out)++) {
        if (strcmp(text, words[*out]) == 0)
            return STATUS_OK;
    }
    return error_set(place->err, STATUS_FORMAT,
                     "%s: \"%s\": \"%s\" is unknown; the first known is "
                     "\"%s\"",
                     place->name, key, text, words[0]);
}

/* ---- Numbers --------------------------------------------------------------------------------- */

static const struct unit {
    enum quantity quantity;
    const char *name;
    double factor;
} units[] = {
    {BANDWIDTH, "B/s", 1},
    {BANDWIDTH, "MB/s", 1e6},
    {BANDWIDTH, "GB/s", 1e9},
    {BANDWIDTH, "TB/s", 1e12},
    {BANDWIDTH, "MiB/s", 0x1p20},
    {BANDWIDTH, "GiB/s", 0x1p30},
    {SECONDS, "ns", 1e-9},
    {SECONDS, "us", 1e-6},
    {SECONDS, "ms", 1e-3},
    {SECONDS, "s", 1},
    {COMPUTE, "GFLOP/s", 1e9},
    {COMPUTE, "TFLOP/s", 1e12},
    {SIZE, "MB", 1e6},
    {SIZE, "GB", 1e9},
    {SIZE, "MiB", 0x1p20},
    {SIZE, "GiB", 0x1p30},
};
#define UNIT_COUNT (sizeof units / sizeof *units)

static enum status get_factor(double *out, const struct place *place, enum quantity quantity)
{
    const char *text;
    TRY(json_get_string_or(&text, place->object, place->name, "unit", NULL, place->err));
    *out = 1;
    if (quantity == SHARE)
        return text == NULL ? STATUS_OK : place_refuse(place, "unit", "a share has none");
    if (text == NULL)
        return place_refuse(place, "unit", "is missing");
    const char *known = "";
    for (size_t u = 0; u < UNIT_COUNT; u++) {
        *out = units[u].factor;
        if (units[u].quantity != quantity)
            continue;
        if (strcmp(units[u].name, text) == 0)
            return STATUS_OK;
        known = units[u].name;
    }
    return error_set(place->err, STATUS_FORMAT,
                     "%s: \"unit\": \"%s\" is none for this number; \"%s\" is one", place->name,
                     text, known);
}

/* Where a number is from: a source, or why it is assumed. */
static enum status check_origin(const struct place *place)
{
    const char *source, *reason;
    bool is_assumed;
    TRY(json_get_string_or(&source, place->object, place->name, "source", NULL, place->err));
    TRY(json_get_string_or(&reason, place->object, place->name, "reason", NULL, place->err));
    TRY(json_get_bool_or(&is_assumed, place->object, place->name, "assumed", false, place->err));
    if (source != NULL && !is_assumed && reason == NULL && source[0] != '\0')
        return STATUS_OK;
    if (source == NULL && is_assumed && reason != NULL && reason[0] != '\0')
        return STATUS_OK;
    return error_set(place->err, STATUS_FORMAT,
                     "%s: expected either a \"source\", or \"assumed\": true and a \"reason\"",
                     place->name);
}

/* What a number may be, in its unit of `factor`. */
struct limits {
    double low, high;
};

static struct limits limits_of(enum quantity quantity, double factor)
{
    if (quantity == SHARE)
        return (struct limits){1e-6, 1};
    if (quantity == SECONDS)
        return (struct limits){0, 1e6 / factor};
    return (struct limits){1e-6 / factor, NUMBER_MAX / factor};
}

/* Between which values it may lie, the value itself among them. */
static enum status check_range(const struct place *place, const struct limits *limits)
{
    const json_t *range = json_object_get(place->object, "range");
    const json_t *value = json_object_get(place->object, "value");
    if (range == NULL || !json_is_number(value))
        return STATUS_OK;
    double of = json_number_value(value);
    double low = json_number_value(json_array_get(range, 0));
    double high = json_number_value(json_array_get(range, 1));
    if (json_array_size(range) != 2 || !(low > 0) || !(low >= limits->low) || !(low <= of) ||
        !(of <= high) || !(high <= limits->high))
        return place_refuse(place, "range",
                            "expected two numbers above 0, the value between them and both what "
                            "the value may be");
    return STATUS_OK;
}

#define NUMBER_KEYS "value range unit source assumed reason "

static enum status enter_number(struct place *out, const struct place *place, const char *key)
{
    const json_t *value = json_object_get(place->object, key);
    if (!json_is_string(value))
        return place_enter(out, place, key, value, NUMBER_KEYS);
    const char *name = json_string_value(value);
    const json_t *named = json_object_get(place->numbers, name);
    if (named == NULL)
        return error_set(place->err, STATUS_FORMAT, "%s: \"%s\": \"numbers\" has no \"%s\"",
                         place->name, key, name);
    struct place numbers = {.numbers = place->numbers, .err = place->err};
    memcpy(numbers.name, place->name, sizeof numbers.name);
    return place_enter(out, &numbers, name, named, NUMBER_KEYS);
}

enum status place_get_number(double *out, const struct place *place, const char *key,
                             enum quantity quantity)
{
    struct place number;
    double value, factor;
    TRY(enter_number(&number, place, key));
    TRY(check_origin(&number));
    TRY(get_factor(&factor, &number, quantity));
    struct limits limits = limits_of(quantity, factor);
    TRY(json_get_real(&value, number.object, number.name, "value", 0,
                      quantity == SHARE ? 1 : NUMBER_MAX, place->err));
    TRY(check_range(&number, &limits));
    value *= factor;
    if (quantity != SECONDS && !(value >= 1e-6))
        return place_refuse(&number, "value", "is to be above 0");
    if (quantity == SECONDS && value > 1e6)
        return place_refuse(&number, "value", "is more than a million seconds");
    *out = value;
    return STATUS_OK;
}

enum status place_take_numbers(struct place *file)
{
    const char *key;
    json_t *value;
    struct place numbers, number;
    static const struct limits any = {0, NUMBER_MAX};
    if (json_object_get(file->object, "numbers") == NULL)
        return STATUS_OK;
    TRY(place_enter_key(&numbers, file, "numbers", NULL));
    json_object_foreach((json_t *)(uintptr_t)numbers.object, key, value)
    {
        TRY(place_enter(&number, &numbers, key, value, NUMBER_KEYS));
        TRY(check_origin(&number));
        TRY(check_range(&number, &any));
    }
    file->numbers = numbers.object;
    return STATUS_OK;
}

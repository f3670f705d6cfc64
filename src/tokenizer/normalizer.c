#include "tokenizer/normalizer.h"

#include <string.h>

#include "base/json.h"
#include "tokenizer/byte_search.h"

static enum status copy_string(const char **out, size_t *length, struct arena *arena,
                               const json_t *value, const char *what, const char *file,
                               struct error *err)
{
    if (!json_is_string(value))
        return error_set(err, STATUS_FORMAT, "%s: normalizer: \"%s\": expected a string, found %s",
                         file, what, json_kind(value));
    *length = json_string_length(value);
    *out = arena_copy_text(arena, json_string_value(value), *length);
    if (*out == NULL)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate the normalizer of %s", file);
    return STATUS_OK;
}

static enum status read_replace(struct normalizer_step *step, struct arena *arena,
                                const json_t *json, const char *file, struct error *err)
{
    const json_t *pattern = json_object_get(json, "pattern");
    if (json_object_get(pattern, "Regex") != NULL)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: normalizer Replace with a Regex is not supported", file);
    TRY(copy_string(&step->from, &step->from_length, arena, json_object_get(pattern, "String"),
                    "pattern.String", file, err));
    if (step->from_length == 0)
        return error_set(err, STATUS_FORMAT, "%s: normalizer Replace has an empty pattern", file);
    return copy_string(&step->to, &step->to_length, arena, json_object_get(json, "content"),
                       "content", file, err);
}

static enum status read_step(struct normalizer *normalizer, struct arena *arena, const json_t *json,
                             const char *file, struct error *err)
{
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    const char *type;
    TRY(json_get_string(&type, json, file, "type", err));
    if (normalizer->step_count == NORMALIZER_STEPS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: more than %d normalizers", file,
                         NORMALIZER_STEPS_MAX);
    struct normalizer_step *step = &normalizer->steps[normalizer->step_count++];
    for (int kind = NORMALIZER_NFC; kind <= NORMALIZER_NFKD; kind++) {
        if (strcmp(type, forms[kind]) == 0) {
            step->kind = (enum normalizer_kind)kind;
            return STATUS_OK;
        }
    }
    if (strcmp(type, "Prepend") == 0) {
        step->kind = NORMALIZER_PREPEND;
        return copy_string(&step->to, &step->to_length, arena, json_object_get(json, "prepend"),
                           "prepend", file, err);
    }
    if (strcmp(type, "Replace") == 0) {
        step->kind = NORMALIZER_REPLACE;
        return read_replace(step, arena, json, file, err);
    }
    return error_set(err, STATUS_UNSUPPORTED, "%s: normalizer \"%s\" is not supported", file, type);
}

enum status normalizer_read(struct normalizer *normalizer, struct arena *arena, const json_t *json,
                            const char *file, struct error *err)
{
    *normalizer = (struct normalizer){0};
    if (json == NULL || json_is_null(json))
        return STATUS_OK;
    const char *type;
    TRY(json_get_string(&type, json, file, "type", err));
    if (strcmp(type, "Sequence") != 0)
        return read_step(normalizer, arena, json, file, err);
    const json_t *steps = json_object_get(json, "normalizers");
    if (!json_is_array(steps))
        return error_set(err, STATUS_FORMAT, "%s: \"normalizers\": expected an array, found %s",
                         file, json_kind(steps));
    for (size_t i = 0; i < json_array_size(steps); i++)
        TRY(read_step(normalizer, arena, json_array_get(steps, i), file, err));
    return STATUS_OK;
}

static enum status check_size(size_t length, size_t limit, struct error *err)
{
    if (length > limit)
        return error_set(err, STATUS_LIMIT,
                         "the text becomes longer than %zu bytes when it is normalized", limit);
    return STATUS_OK;
}

/* For a text of `length` bytes. */
static size_t size_limit(size_t length)
{
    size_t room = NORMALIZED_BYTES_MAX - NORMALIZED_SPARE_BYTES;
    if (length > room / NORMALIZED_GROWTH_MAX)
        return NORMALIZED_BYTES_MAX;
    return NORMALIZED_SPARE_BYTES + NORMALIZED_GROWTH_MAX * length;
}

static enum status replace(const struct normalizer_step *step, struct text *out, const char *in,
                           size_t length, size_t limit, struct error *err)
{
    const char *end = in + length;
    while (in < end) {
        const char *hit = bytes_find(in, (size_t)(end - in), step->from, step->from_length);
        if (hit == NULL)
            hit = end;
        text_append(out, in, (size_t)(hit - in));
        if (hit == end)
            break;
        text_append(out, step->to, step->to_length);
        TRY(check_size(out->length, limit, err));
        in = hit + step->from_length;
    }
    return STATUS_OK;
}

static enum status apply_step(const struct normalizer_step *step, struct text *out, const char *in,
                              size_t length, size_t limit, struct error *err)
{
    switch (step->kind) {
    case NORMALIZER_PREPEND:
        if (length > 0)
            text_append(out, step->to, step->to_length);
        text_append(out, in, length);
        return STATUS_OK;
    case NORMALIZER_REPLACE:
        return replace(step, out, in, length, limit, err);
    default:
        return normalizer_form(step->kind, out, in, length, err);
    }
}

enum status normalizer_apply(const struct normalizer *normalizer, struct text *out,
                             struct text *scratch, const char *in, size_t length, struct error *err)
{
    size_t limit = size_limit(length);
    text_clear(out);
    text_append(out, in, length);
    TRY(text_check(out, "a normalized text", err));
    for (size_t i = 0; i < normalizer->step_count; i++) {
        text_clear(scratch);
        TRY(apply_step(&normalizer->steps[i], scratch, out->bytes, out->length, limit, err));
        TRY(text_check(scratch, "a normalized text", err));
        TRY(check_size(scratch->length, limit, err));
        struct text result = *scratch;
        *scratch = *out;
        *out = result;
    }
    return STATUS_OK;
}

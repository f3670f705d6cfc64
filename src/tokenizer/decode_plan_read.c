/* Reading "decoder" of a tokenizer.json. */
#include <string.h>

#include "base/json.h"
#include "tokenizer/decode_plan.h"

struct reader {
    struct decode_plan *out;
    struct arena *arena;
    const char *file;
    struct error *err;
    bool has_bytes; /* a token may now be a part of a character */
    bool fused;     /* the tokens are one text */
    bool has_first; /* a step already treats the first token otherwise */
    double growth;  /* bytes that the steps so far make of one at most */
};

static enum status unsupported(const struct reader *reader, const char *type, const char *reason)
{
    return error_set(reader->err, STATUS_UNSUPPORTED, "%s: decoder %s %s is not supported",
                     reader->file, type, reason);
}

static enum status copy_text(const struct reader *reader, const char **out, size_t *length,
                             const json_t *value, const char *what)
{
    if (!json_is_string(value))
        return error_set(reader->err, STATUS_FORMAT,
                         "%s: decoder: \"%s\": expected a string, found %s", reader->file, what,
                         json_kind(value));
    *length = json_string_length(value);
    *out = arena_copy_text(reader->arena, json_string_value(value), *length);
    if (*out == NULL)
        return error_set(reader->err, STATUS_NO_MEMORY, "cannot allocate the decoder of %s",
                         reader->file);
    return STATUS_OK;
}

static enum status read_from(const struct reader *reader, struct decode_step *step,
                             const json_t *value, const char *what)
{
    TRY(copy_text(reader, &step->from, &step->from_length, value, what));
    if (step->from_length == 0)
        return error_set(reader->err, STATUS_FORMAT, "%s: decoder: \"%s\" is empty", reader->file,
                         what);
    return STATUS_OK;
}

/* Each step counts as if the one before it made nothing but what it replaces. */
static enum status count_growth(struct reader *reader, const struct decode_step *step)
{
    if (step->to_length > step->from_length)
        reader->growth *= (double)step->to_length / (double)step->from_length;
    if (reader->growth > DECODE_GROWTH_MAX)
        return error_set(reader->err, STATUS_LIMIT,
                         "%s: the decoder's Replace steps make up to %g bytes of one, at most %d "
                         "are allowed",
                         reader->file, reader->growth, DECODE_GROWTH_MAX);
    return STATUS_OK;
}

static enum status read_replace(struct reader *reader, struct decode_step *step, const json_t *json)
{
    const json_t *pattern = json_object_get(json, "pattern");
    step->kind = DECODE_REPLACE;
    if (json_object_get(pattern, "Regex") != NULL)
        return unsupported(reader, "Replace", "with a Regex");
    if (reader->has_bytes || reader->fused)
        return unsupported(reader, "Replace", "behind ByteFallback, ByteLevel or Fuse");
    TRY(read_from(reader, step, json_object_get(pattern, "String"), "pattern.String"));
    TRY(copy_text(reader, &step->to, &step->to_length, json_object_get(json, "content"),
                  "content"));
    return count_growth(reader, step);
}

static enum status read_metaspace(struct reader *reader, struct decode_step *step,
                                  const json_t *json)
{
    const char *scheme;
    bool prefix;
    step->kind = DECODE_METASPACE;
    if (reader->has_bytes || reader->fused)
        return unsupported(reader, "Metaspace", "behind ByteFallback, ByteLevel or Fuse");
    TRY(json_get_string_or(&scheme, json, reader->file, "prepend_scheme", "always", reader->err));
    TRY(json_get_bool_or(&prefix, json, reader->file, "add_prefix_space", true, reader->err));
    step->leading = prefix && strcmp(scheme, "never") != 0;
    reader->has_first = true;
    return read_from(reader, step, json_object_get(json, "replacement"), "replacement");
}

/* Behind Fuse there is one text, of which a stream knows the front but not the end. */
static enum status read_strip(struct reader *reader, struct decode_step *step, const json_t *json)
{
    TRY(json_get_int_or(&step->start, json, reader->file, "start", 0, 1024, 0, reader->err));
    TRY(json_get_int_or(&step->stop, json, reader->file, "stop", 0, 1024, 0, reader->err));
    step->kind = reader->fused ? DECODE_STRIP_TEXT : DECODE_STRIP;
    if (reader->fused && (step->start > 1 || step->stop > 0))
        return unsupported(reader, "Strip", "of more than one leading character of a fused text");
    if (reader->fused ? reader->has_first : reader->has_bytes)
        return unsupported(reader, "Strip", "at this place");
    reader->has_first = reader->has_first || reader->fused;
    return read_from(reader, step, json_object_get(json, "content"), "content");
}

static enum status read_byte_step(struct reader *reader, struct decode_step *step, const char *type)
{
    bool byte_level = strcmp(type, "ByteLevel") == 0;
    if (reader->has_bytes || reader->fused)
        return unsupported(reader, type, "behind another that makes bytes");
    step->kind = byte_level ? DECODE_BYTE_LEVEL : DECODE_BYTE_FALLBACK;
    reader->has_bytes = true;
    reader->fused = byte_level;
    return STATUS_OK;
}

static enum status read_one(struct reader *reader, const json_t *json)
{
    const char *type;
    TRY(json_get_string(&type, json, reader->file, "type", reader->err));
    if (strcmp(type, "Fuse") == 0) {
        reader->fused = true;
        return STATUS_OK;
    }
    if (reader->out->step_count == DECODE_STEPS_MAX)
        return error_set(reader->err, STATUS_LIMIT, "%s: the decoder has more than %d steps",
                         reader->file, DECODE_STEPS_MAX);
    struct decode_step *step = &reader->out->steps[reader->out->step_count++];
    if (strcmp(type, "Replace") == 0)
        return read_replace(reader, step, json);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(reader, step, json);
    if (strcmp(type, "Strip") == 0)
        return read_strip(reader, step, json);
    if (strcmp(type, "ByteFallback") == 0 || strcmp(type, "ByteLevel") == 0)
        return read_byte_step(reader, step, type);
    return error_set(reader->err, STATUS_UNSUPPORTED, "%s: decoder \"%s\" is not supported",
                     reader->file, type);
}

enum status decode_plan_read(struct decode_plan *plan, struct arena *arena, const json_t *json,
                             const char *file, struct error *err)
{
    *plan = (struct decode_plan){0};
    if (json == NULL || json_is_null(json)) {
        plan->steps[plan->step_count++].kind = DECODE_JOIN;
        return STATUS_OK;
    }
    struct reader reader = {.out = plan, .arena = arena, .file = file, .err = err, .growth = 1};
    const char *type;
    TRY(json_get_string(&type, json, file, "type", err));
    if (strcmp(type, "Sequence") != 0)
        return read_one(&reader, json);
    const json_t *decoders = json_object_get(json, "decoders");
    if (!json_is_array(decoders))
        return error_set(err, STATUS_FORMAT, "%s: \"decoders\": expected an array, found %s", file,
                         json_kind(decoders));
    for (size_t i = 0; i < json_array_size(decoders); i++)
        TRY(read_one(&reader, json_array_get(decoders, i)));
    return STATUS_OK;
}

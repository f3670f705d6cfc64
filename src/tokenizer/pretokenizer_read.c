/* Reading "pre_tokenizer" of a tokenizer.json. */
#include <string.h>

#include "base/json.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/unicode_class.h"

struct reader {
    struct pretokenizer *out;
    struct arena *arena;
    const char *file;
    struct error *err;
    bool has_bytes; /* the text is in the byte alphabet */
};

/* A fresh step behind the others; NULL with the sentence made when there are too many. */
static struct pretokenizer_step *new_step(struct reader *reader, enum pretokenizer_kind kind)
{
    if (reader->out->step_count == PRETOKENIZER_STEPS_MAX) {
        enum status status =
            error_set(reader->err, STATUS_LIMIT, "%s: the pre-tokenizer has more than %d steps",
                      reader->file, PRETOKENIZER_STEPS_MAX);
        (void)status;
        return NULL;
    }
    struct pretokenizer_step *step = &reader->out->steps[reader->out->step_count++];
    *step = (struct pretokenizer_step){.kind = kind};
    return step;
}

static enum status copy_text(const struct reader *reader, const char **out, size_t *out_length,
                             const char *text, size_t length)
{
    *out = arena_copy_text(reader->arena, text, length);
    *out_length = length;
    if (*out == NULL)
        return error_set(reader->err, STATUS_NO_MEMORY, "cannot allocate the pre-tokenizer of %s",
                         reader->file);
    return STATUS_OK;
}

static enum status add_text_step(struct reader *reader, enum pretokenizer_kind kind,
                                 const char *text, enum prepend_scheme scheme)
{
    struct pretokenizer_step *step = new_step(reader, kind);
    if (step == NULL)
        return STATUS_LIMIT;
    step->scheme = scheme;
    return copy_text(reader, &step->text, &step->text_length, text, strlen(text));
}

static enum status read_behavior(const struct reader *reader, enum split_behavior *out,
                                 const json_t *json)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name;
    TRY(json_get_string(&name, json, reader->file, "behavior", reader->err));
    for (int i = 0; i < 5; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum split_behavior)i;
            return STATUS_OK;
        }
    }
    return error_set(reader->err, STATUS_UNSUPPORTED,
                     "%s: pre-tokenizer Split with behavior \"%s\" is not supported", reader->file,
                     name);
}

static enum status read_split(struct reader *reader, const json_t *json)
{
    struct pretokenizer_step *step = new_step(reader, PRETOKENIZER_SPLIT);
    if (step == NULL)
        return STATUS_LIMIT;
    TRY(read_behavior(reader, &step->behavior, json));
    TRY(json_get_bool_or(&step->invert, json, reader->file, "invert", false, reader->err));
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *literal = json_object_get(pattern, "String");
    if (json_is_string(regex))
        return matcher_from_regex(&step->matcher, json_string_value(regex),
                                  json_string_length(regex), reader->file, reader->err);
    if (!json_is_string(literal) || json_string_length(literal) == 0)
        return error_set(reader->err, STATUS_FORMAT,
                         "%s: pre-tokenizer Split: \"pattern\": expected a Regex or a String with "
                         "text",
                         reader->file);
    return copy_text(reader, &step->matcher.literal, &step->matcher.literal_length,
                     json_string_value(literal), json_string_length(literal));
}

static enum status read_byte_level(struct reader *reader, const json_t *json)
{
    bool prefix, use_regex;
    if (reader->has_bytes)
        return error_set(reader->err, STATUS_UNSUPPORTED,
                         "%s: pre-tokenizer ByteLevel behind another ByteLevel is not supported",
                         reader->file);
    reader->has_bytes = true;
    TRY(json_get_bool_or(&prefix, json, reader->file, "add_prefix_space", true, reader->err));
    TRY(json_get_bool_or(&use_regex, json, reader->file, "use_regex", true, reader->err));
    if (prefix)
        TRY(add_text_step(reader, PRETOKENIZER_PREFIX, " ", PREPEND_ALWAYS));
    if (use_regex) {
        struct pretokenizer_step *step = new_step(reader, PRETOKENIZER_SPLIT);
        if (step == NULL)
            return STATUS_LIMIT;
        step->behavior = SPLIT_ISOLATED;
        step->matcher.kind = MATCHER_GPT2;
    }
    return new_step(reader, PRETOKENIZER_BYTE_CHARS) == NULL ? STATUS_LIMIT : STATUS_OK;
}

/* Older files write add_prefix_space alone, newer ones prepend_scheme. */
static enum status read_scheme(const struct reader *reader, enum prepend_scheme *out,
                               const json_t *json)
{
    const char *name;
    bool prefix;
    TRY(json_get_string_or(&name, json, reader->file, "prepend_scheme", "always", reader->err));
    TRY(json_get_bool_or(&prefix, json, reader->file, "add_prefix_space", true, reader->err));
    if (!prefix || strcmp(name, "never") == 0)
        *out = PREPEND_NEVER;
    else if (strcmp(name, "always") == 0)
        *out = PREPEND_ALWAYS;
    else if (strcmp(name, "first") == 0)
        *out = PREPEND_FIRST;
    else
        return error_set(reader->err, STATUS_UNSUPPORTED,
                         "%s: Metaspace with prepend_scheme \"%s\" is not supported", reader->file,
                         name);
    return STATUS_OK;
}

static enum status read_metaspace(struct reader *reader, const json_t *json)
{
    const char *mark;
    bool split;
    enum prepend_scheme scheme = PREPEND_ALWAYS;
    TRY(json_get_string(&mark, json, reader->file, "replacement", reader->err));
    TRY(json_get_bool_or(&split, json, reader->file, "split", true, reader->err));
    TRY(read_scheme(reader, &scheme, json));
    uint32_t code_point;
    if (mark[0] == 0 || utf8_decode(&code_point, mark, strlen(mark)) != strlen(mark))
        return error_set(reader->err, STATUS_FORMAT,
                         "%s: Metaspace: \"replacement\": expected one character, found \"%s\"",
                         reader->file, mark);
    TRY(add_text_step(reader, PRETOKENIZER_REPLACE, mark, PREPEND_NEVER));
    if (scheme != PREPEND_NEVER)
        TRY(add_text_step(reader, PRETOKENIZER_PREFIX, mark, scheme));
    if (!split)
        return STATUS_OK;
    struct pretokenizer_step *step = new_step(reader, PRETOKENIZER_SPLIT);
    if (step == NULL)
        return STATUS_LIMIT;
    step->behavior = SPLIT_MERGED_WITH_NEXT;
    return copy_text(reader, &step->matcher.literal, &step->matcher.literal_length, mark,
                     strlen(mark));
}

static enum status read_digits(struct reader *reader, const json_t *json)
{
    bool individual;
    TRY(json_get_bool_or(&individual, json, reader->file, "individual_digits", false, reader->err));
    struct pretokenizer_step *step = new_step(reader, PRETOKENIZER_SPLIT);
    if (step == NULL)
        return STATUS_LIMIT;
    step->matcher.kind = MATCHER_NUMBERS;
    step->behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    return STATUS_OK;
}

static enum status read_one(struct reader *reader, const json_t *json)
{
    static const struct {
        const char *type;
        enum status (*read)(struct reader *, const json_t *);
    } known[] = {{"Split", read_split},
                 {"ByteLevel", read_byte_level},
                 {"Metaspace", read_metaspace},
                 {"Digits", read_digits}};
    const char *type;
    TRY(json_get_string(&type, json, reader->file, "type", reader->err));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(type, known[i].type) == 0)
            return known[i].read(reader, json);
    }
    return error_set(reader->err, STATUS_UNSUPPORTED, "%s: pre-tokenizer \"%s\" is not supported",
                     reader->file, type);
}

enum status pretokenizer_read(struct pretokenizer *pretokenizer, struct arena *arena,
                              const json_t *json, const char *file, struct error *err)
{
    *pretokenizer = (struct pretokenizer){0};
    struct reader reader = {.out = pretokenizer, .arena = arena, .file = file, .err = err};
    if (json == NULL || json_is_null(json))
        return STATUS_OK;
    const char *type;
    TRY(json_get_string(&type, json, file, "type", err));
    if (strcmp(type, "Sequence") != 0)
        return read_one(&reader, json);
    const json_t *parts = json_object_get(json, "pretokenizers");
    if (!json_is_array(parts))
        return error_set(err, STATUS_FORMAT, "%s: \"pretokenizers\": expected an array, found %s",
                         file, json_kind(parts));
    for (size_t i = 0; i < json_array_size(parts); i++)
        TRY(read_one(&reader, json_array_get(parts, i)));
    return STATUS_OK;
}

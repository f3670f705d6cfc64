/* The post-processor: which ids stand before and behind a text. */
#include <string.h>

#include "base/json.h"
#include "tokenizer/internal.h"

static enum status add_id(int32_t *ids, size_t *count, const json_t *value,
                          const struct vocab *vocab, const char *file, struct error *err)
{
    if (!json_is_integer(value) || vocab_at(vocab, json_integer_value(value)) == NULL)
        return error_set(err, STATUS_FORMAT,
                         "%s: post-processor: expected the id of a token, found %s", file,
                         json_is_integer(value) ? "an integer that is none" : json_kind(value));
    if (*count == FRAME_IDS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: post-processor adds more than %d tokens", file,
                         FRAME_IDS_MAX);
    ids[(*count)++] = (int32_t)json_integer_value(value);
    return STATUS_OK;
}

/* TemplateProcessing: "single" is a list of special tokens and one sequence. */
static enum status read_template(struct frame *frame, const struct vocab *vocab, const json_t *json,
                                 const char *file, struct error *err)
{
    const json_t *items = json_object_get(json, "single");
    const json_t *special = json_object_get(json, "special_tokens");
    size_t sequence_count = 0;
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        if (json_object_get(item, "Sequence") != NULL) {
            sequence_count++;
            continue;
        }
        const char *name;
        TRY(json_get_string(&name, json_object_get(item, "SpecialToken"), file, "id", err));
        const json_t *ids = json_object_get(json_object_get(special, name), "ids");
        if (json_array_size(ids) == 0)
            return error_set(err, STATUS_FORMAT,
                             "%s: post-processor: \"special_tokens\" gives no ids for \"%s\"", file,
                             name);
        for (size_t k = 0; k < json_array_size(ids); k++)
            TRY(add_id(sequence_count == 0 ? frame->before : frame->after,
                       sequence_count == 0 ? &frame->before_count : &frame->after_count,
                       json_array_get(ids, k), vocab, file, err));
    }
    if (sequence_count != 1)
        return error_set(err, STATUS_FORMAT,
                         "%s: post-processor: expected one sequence in \"single\", found %zu", file,
                         sequence_count);
    return STATUS_OK;
}

static enum status read_one(struct frame *frame, const struct vocab *vocab, const json_t *json,
                            bool *has_template, const char *file, struct error *err)
{
    const char *type;
    TRY(json_get_string(&type, json, file, "type", err));
    if (strcmp(type, "ByteLevel") == 0) /* it only trims offsets */
        return STATUS_OK;
    if (strcmp(type, "TemplateProcessing") != 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: post-processor \"%s\" is not supported",
                         file, type);
    if (*has_template)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: two post-processors TemplateProcessing are not supported", file);
    *has_template = true;
    return read_template(frame, vocab, json, file, err);
}

enum status frame_read(struct frame *frame, const struct vocab *vocab, const json_t *json,
                       const char *file, struct error *err)
{
    *frame = (struct frame){0};
    bool has_template = false;
    if (json == NULL || json_is_null(json))
        return STATUS_OK;
    const char *type;
    TRY(json_get_string(&type, json, file, "type", err));
    if (strcmp(type, "Sequence") != 0)
        return read_one(frame, vocab, json, &has_template, file, err);
    const json_t *processors = json_object_get(json, "processors");
    if (!json_is_array(processors))
        return error_set(err, STATUS_FORMAT, "%s: \"processors\": expected an array, found %s",
                         file, json_kind(processors));
    for (size_t i = 0; i < json_array_size(processors); i++)
        TRY(read_one(frame, vocab, json_array_get(processors, i), &has_template, file, err));
    return STATUS_OK;
}

/* "prompt" of a completions body: a text, token ids, or an array of either. */
#include "engine/request_fields.h"

static bool prompt_error(struct row_error *error, const struct row_place *place)
{
    return row_error_set(error, ROW_INVALID_VALUE, "prompt",
                         "%s: \"prompt\": expected a string, an array of strings, an array of "
                         "token ids, or an array of such arrays",
                         place->text);
}

static bool check_ids(const json_t *ids, const struct row_place *place, struct row_error *error)
{
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id))
            return prompt_error(error, place);
        if (value < 0 || value > INT32_MAX)
            return row_error_set(error, ROW_INVALID_VALUE, "prompt",
                                 "%s: \"prompt\"[%zu]: %lld is no token id", place->text, i,
                                 (long long)value);
    }
    return true;
}

static bool read_one(struct prompt_source *out, const json_t *value, const struct row_place *place,
                     struct row_error *error)
{
    if (json_is_string(value)) {
        out->text = json_string_value(value);
        out->text_length = json_string_length(value);
        return true;
    }
    if (!json_is_array(value) || json_array_size(value) == 0)
        return prompt_error(error, place);
    out->ids = value;
    return check_ids(value, place, error);
}

bool request_read_prompt(struct request *out, const json_t *body, const struct row_place *place,
                         struct row_error *error)
{
    const json_t *prompt = json_object_get(body, "prompt");
    if (prompt == NULL || json_is_null(prompt))
        return row_error_set(error, ROW_MISSING, "prompt", "%s: \"prompt\" is missing",
                             place->text);
    bool is_several = json_is_array(prompt) && !json_is_integer(json_array_get(prompt, 0));
    size_t count = is_several ? json_array_size(prompt) : 1;
    if (count == 0)
        return prompt_error(error, place);
    if (count > (size_t)(REQUEST_CHOICES_MAX / out->n))
        return row_error_set(error, ROW_INVALID_VALUE, "prompt",
                             "%s: %zu prompts with n = %lld make more than %d choices", place->text,
                             count, (long long)out->n, REQUEST_CHOICES_MAX);
    out->prompts = arena_alloc(&out->arena, count, sizeof *out->prompts);
    if (out->prompts == NULL)
        return row_error_set(error, ROW_INTERNAL, "prompt", "%s: out of memory", place->text);
    out->prompt_count = (int64_t)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *value = is_several ? json_array_get(prompt, i) : prompt;
        if (!read_one(&out->prompts[i], value, place, error))
            return false;
    }
    return true;
}

/* "messages" and "chat_template_kwargs" of a chat body. */
#include <stdio.h>
#include <string.h>

#include "engine/request_fields.h"

/* Roles as the API has them, and as templates know them. */
static const char *const roles[][2] = {
    {"system", "system"}, {"developer", "system"}, {"user", "user"}, {"assistant", "assistant"}};

static bool message_error(struct row_error *error, const char *code, const struct row_place *place,
                          size_t index, const char *what)
{
    char param[32];
    snprintf(param, sizeof param, "messages[%zu]", index);
    return row_error_set(error, code, param, "%s: \"messages\"[%zu]: %s", place->text, index, what);
}

static const char *find_role(const json_t *value)
{
    for (size_t i = 0; json_is_string(value) && i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(json_string_value(value), roles[i][0]) == 0)
            return roles[i][1];
    }
    return NULL;
}

/* The text of a part {"type": "text", "text": "..."}; NULL when it is something else. */
static const json_t *part_text(const json_t *part)
{
    const json_t *type = json_object_get(part, "type");
    const json_t *text = json_object_get(part, "text");
    bool is_text = json_is_string(type) && strcmp(json_string_value(type), "text") == 0;
    return is_text && json_is_string(text) ? text : NULL;
}

/* Joins the parts of a content array with nothing between them, as templates do. */
static const char *join_parts(struct arena *arena, struct chat_message *out, const json_t *parts)
{
    size_t length = 0;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *text = part_text(json_array_get(parts, i));
        if (text == NULL)
            return "only parts {\"type\": \"text\", \"text\": ...} are supported as content";
        length += json_string_length(text);
    }
    char *joined = arena_alloc(arena, length + 1, 1);
    if (joined == NULL)
        return "out of memory";
    out->content = joined;
    out->content_length = length;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *text = part_text(json_array_get(parts, i));
        memcpy(joined, json_string_value(text), json_string_length(text));
        joined += json_string_length(text);
    }
    return NULL;
}

static bool read_content(struct request *out, size_t index, const json_t *content,
                         const struct row_place *place, struct row_error *error)
{
    struct chat_message *message = &out->messages[index];
    if (json_is_string(content)) {
        message->content = json_string_value(content);
        message->content_length = json_string_length(content);
        return true;
    }
    if (!json_is_array(content))
        return message_error(error, ROW_INVALID_VALUE, place, index,
                             "\"content\" must be a string or an array of parts");
    const char *wrong = join_parts(&out->arena, message, content);
    return wrong == NULL || message_error(error, ROW_UNSUPPORTED, place, index, wrong);
}

static bool read_reasoning(struct request *out, size_t index, const json_t *reasoning,
                           const struct row_place *place, struct row_error *error)
{
    struct chat_message *message = &out->messages[index];
    message->reasoning = json_string_value(reasoning);
    message->reasoning_length = json_string_length(reasoning);
    return reasoning == NULL || json_is_null(reasoning) || json_is_string(reasoning) ||
           message_error(error, ROW_INVALID_VALUE, place, index,
                         "\"reasoning_content\" must be a string");
}

/* Those that are no part of any prompt. "name" is none either, but known to be a mere label, and
 * nobody but who answers has been thinking. */
static void note_members(struct field_notes *notes, const json_t *message, bool is_answer)
{
    static const char *const known[] = {"role", "content", "tool_calls", "name"};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)message, name, value)
    {
        bool is_known =
            json_is_null(value) || (is_answer && strcmp(name, "reasoning_content") == 0);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known = is_known || strcmp(name, known[i]) == 0;
        if (!is_known)
            field_notes_add(notes, "messages[].", name);
    }
}

static bool read_message(struct request *out, size_t index, const json_t *value,
                         const struct row_place *place, struct field_notes *notes,
                         struct row_error *error)
{
    if (!json_is_object(value))
        return message_error(error, ROW_INVALID_VALUE, place, index, "expected an object");
    const char *role = find_role(json_object_get(value, "role"));
    if (role == NULL)
        return message_error(error, ROW_INVALID_VALUE, place, index,
                             "\"role\" must be \"system\", \"developer\", \"user\" or "
                             "\"assistant\"");
    out->messages[index].role = role;
    const json_t *calls = json_object_get(value, "tool_calls");
    if (calls != NULL && !json_is_null(calls) && json_array_size(calls) > 0)
        return message_error(error, ROW_UNSUPPORTED, place, index,
                             "\"tool_calls\" are not supported");
    note_members(notes, value, strcmp(role, "assistant") == 0);
    return read_content(out, index, json_object_get(value, "content"), place, error) &&
           read_reasoning(out, index, json_object_get(value, "reasoning_content"), place, error);
}

static bool read_template_options(struct request *out, const json_t *body,
                                  const struct row_place *place, struct field_notes *notes,
                                  struct row_error *error)
{
    json_t *options = json_object_get(body, "chat_template_kwargs");
    struct error reason;
    if (options == NULL || json_is_null(options))
        return true;
    if (!json_is_object(options))
        return row_error_set(error, ROW_INVALID_VALUE, "chat_template_kwargs",
                             "%s: \"chat_template_kwargs\": expected an object, found %s",
                             place->text, json_kind(options));
    if (json_get_bool_or(&out->enable_thinking, options, place->text, "enable_thinking", true,
                         &reason) != STATUS_OK)
        return row_error_from(error, ROW_INVALID_VALUE, "chat_template_kwargs.enable_thinking",
                              &reason);
    const char *name;
    json_t *value;
    json_object_foreach(options, name, value)
    {
        if (strcmp(name, "enable_thinking") != 0)
            field_notes_add(notes, "chat_template_kwargs.", name);
    }
    return true;
}

bool request_read_chat(struct request *out, const json_t *body, const struct row_place *place,
                       struct field_notes *notes, struct row_error *error)
{
    const json_t *messages = json_object_get(body, "messages");
    if (messages == NULL)
        return row_error_set(error, ROW_MISSING, "messages", "%s: \"messages\" is missing",
                             place->text);
    size_t count = json_array_size(messages);
    if (count == 0)
        return row_error_set(error, ROW_INVALID_VALUE, "messages",
                             "%s: \"messages\": expected an array of at least one message",
                             place->text);
    out->prompt_count = 1;
    out->message_count = count;
    out->messages = arena_alloc(&out->arena, count, sizeof *out->messages);
    if (out->messages == NULL)
        return row_error_set(error, ROW_INTERNAL, "messages", "%s: out of memory", place->text);
    for (size_t i = 0; i < count; i++) {
        if (!read_message(out, i, json_array_get(messages, i), place, notes, error))
            return false;
    }
    return read_template_options(out, body, place, notes, error);
}

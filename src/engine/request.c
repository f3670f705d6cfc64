#include "engine/request.h"

#include <stdio.h>
#include <string.h>

#include "engine/batch_reader.h"
#include "engine/request_fields.h"

/* Of a row's JSON: four times the longest line, and enough for a prompt of four million token ids.
 */
#define TREE_BYTES_MAX ((uint64_t)4 * BATCH_LINE_BYTES_MAX)

static bool ends_with(const char *text, const char *tail)
{
    size_t length = strlen(text), tail_length = strlen(tail);
    return length >= tail_length && strcmp(text + length - tail_length, tail) == 0;
}

static bool read_url(struct request *out, const char *url, const struct row_place *place,
                     struct row_error *error)
{
    /* The last segments decide, as in vLLM: rows written for a hosted service often have a host or
     * a prefix of its own before them. */
    if (ends_with(url, "/chat/completions"))
        out->endpoint = ENDPOINT_CHAT;
    else if (ends_with(url, "/completions"))
        out->endpoint = ENDPOINT_COMPLETIONS;
    else
        return row_error_set(error, ROW_UNSUPPORTED_URL, "url",
                             "%s: the url \"%s\" is not supported; use /v1/completions or "
                             "/v1/chat/completions",
                             place->text, url);
    return true;
}

/* A string member of the row itself, which must be there and not be empty. */
static const json_t *require_string(const json_t *row, const char *key,
                                    const struct row_place *place, struct row_error *error)
{
    const json_t *value = json_object_get(row, key);
    if (value == NULL || json_is_null(value))
        row_error_set(error, ROW_MISSING, key, "%s: \"%s\" is missing", place->text, key);
    else if (!json_is_string(value) || json_string_length(value) == 0)
        row_error_set(error, ROW_INVALID_VALUE, key,
                      "%s: \"%s\": expected a string that is not empty, found %s", place->text, key,
                      json_is_string(value) ? "\"\"" : json_kind(value));
    else
        return value;
    return NULL;
}

static bool read_envelope(struct request *out, const struct row_place *place,
                          struct row_error *error)
{
    const json_t *id = require_string(out->root, "custom_id", place, error);
    if (id == NULL)
        return false;
    out->custom_id = json_string_value(id);
    out->custom_id_length = json_string_length(id);
    if (out->custom_id_length > CUSTOM_ID_BYTES_MAX)
        return row_error_set(error, ROW_INVALID_VALUE, "custom_id",
                             "%s: custom_id has %zu bytes; at most %d are allowed", place->text,
                             out->custom_id_length, CUSTOM_ID_BYTES_MAX);
    const json_t *method = require_string(out->root, "method", place, error);
    if (method == NULL)
        return false;
    if (strcmp(json_string_value(method), "POST") != 0)
        return row_error_set(error, ROW_INVALID_VALUE, "method", "%s: \"method\" must be \"POST\"",
                             place->text);
    const json_t *url = require_string(out->root, "url", place, error);
    return url != NULL && read_url(out, json_string_value(url), place, error);
}

static bool read_body(struct request *out, const struct row_place *place, struct field_notes *notes,
                      struct row_error *error)
{
    const json_t *body = json_object_get(out->root, "body");
    if (!json_is_object(body))
        return row_error_set(error, body == NULL ? ROW_MISSING : ROW_INVALID_VALUE, "body",
                             "%s: \"body\": expected an object, found %s", place->text,
                             json_kind(body));
    struct error reason;
    if (json_get_string_or(&out->model, body, place->text, "model", NULL, &reason) != STATUS_OK)
        return row_error_from(error, ROW_INVALID_VALUE, "model", &reason);
    size_t length = json_string_length(json_object_get(body, "model"));
    if (length > MODEL_NAME_BYTES_MAX)
        return row_error_set(error, ROW_INVALID_VALUE, "model",
                             "%s: \"model\" has %zu bytes; at most %d are allowed", place->text,
                             length, MODEL_NAME_BYTES_MAX);
    if (!request_read_scalars(out, body, place, notes, error) ||
        !request_read_stops(out, body, place, error))
        return false;
    return out->endpoint == ENDPOINT_CHAT ? request_read_chat(out, body, place, notes, error)
                                          : request_read_prompt(out, body, place, error);
}

/* json_parse_object would give the place as a line of the row, which has but one. */
static bool parse_json(struct request *out, const char *line, size_t length,
                       const struct row_place *place, struct row_error *error)
{
    json_error_t reason;
    uint64_t tree;
    if (!json_tree_fits(&tree, line, length, TREE_BYTES_MAX))
        return row_error_set(error, ROW_INVALID_JSON, NULL,
                             "%s has so many values that they would take up to %llu MiB of memory; "
                             "at most %d are accepted",
                             place->text, (unsigned long long)(tree >> 20),
                             (int)(TREE_BYTES_MAX >> 20));
    out->root = json_loadb(line, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY,
                           &reason);
    if (out->root == NULL)
        return row_error_set(error, ROW_INVALID_JSON, NULL, "%s is not valid JSON: column %d: %s",
                             place->text, reason.column, reason.text);
    if (json_is_object(out->root))
        return true;
    row_error_set(error, ROW_INVALID_JSON, NULL, "%s: expected a JSON object, found %s",
                  place->text, json_kind(out->root));
    request_deinit(out);
    return false;
}

bool request_parse(struct request *out, const char *line, size_t length, int64_t line_number,
                   const struct request_defaults *defaults, struct field_notes *notes,
                   struct row_error *error)
{
    struct row_place place;
    snprintf(place.text, sizeof place.text, "line %lld", (long long)line_number);
    *out = (struct request){
        .add_generation_prompt = true,
        .enable_thinking = true,
        .add_special_tokens = true,
        .skip_special_tokens = true,
        .n = 1,
        .max_tokens = -1,
        .temperature = 1,
        .top_p = 1,
        .logprobs = -1,
        .prompt_logprobs = defaults->prompt_logprobs ? 0 : -1,
        .ignore_eos = defaults->ignore_eos,
    };
    if (!parse_json(out, line, length, &place, error))
        return false;
    if (read_envelope(out, &place, error) && read_body(out, &place, notes, error))
        return true;
    request_deinit(out);
    return false;
}

void request_deinit(struct request *request)
{
    stop_set_deinit(&request->stops);
    arena_deinit(&request->arena);
    json_decref(request->root);
    request->root = NULL;
    for (size_t i = 0; i < sizeof request->kept / sizeof *request->kept; i++) {
        json_decref(request->kept[i]);
        request->kept[i] = NULL;
    }
}

void request_drop_json(struct request *request)
{
    json_t *body = json_object_get(request->root, "body");
    request->kept[0] = json_incref(json_object_get(request->root, "custom_id"));
    request->kept[1] = json_incref(json_object_get(body, "model"));
    request->kept[2] = json_incref(json_object_get(body, "stop"));
    json_decref(request->root);
    request->root = NULL;
    arena_deinit(&request->arena);
    request->prompts = NULL;
    request->messages = NULL;
}

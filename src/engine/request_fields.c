#include "engine/request_fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/generator.h"

enum field_kind {
    FIELD_INT,   /* int64_t at `offset`, within [min, max] */
    FIELD_REAL,  /* double, within [min, max] */
    FIELD_BOOL,  /* bool */
    FIELD_OTHER, /* read by a function of its own */
    FIELD_IGNORED,
    /* Known, not supported, and harmless only with this value: */
    FIELD_ONLY_ZERO,
    FIELD_ONLY_ONE,
    FIELD_ONLY_FALSE,
    FIELD_ONLY_TRUE,
    FIELD_ONLY_EMPTY, /* "", [] or {} */
    FIELD_ONLY_TEXT,  /* {"type": "text"} */
    FIELD_ONLY_NONE,  /* "none" or "auto": no tools are there to choose */
};

#define COMPLETIONS (1u << ENDPOINT_COMPLETIONS)
#define CHAT        (1u << ENDPOINT_CHAT)
#define BOTH        (COMPLETIONS | CHAT)

struct field {
    const char *name;
    unsigned endpoints;
    enum field_kind kind;
    double min, max; /* of FIELD_INT and FIELD_REAL */
    size_t offset;
};

#define AT(member) offsetof(struct request, member)
#define INT32_TOP  2147483647.0

static const struct field fields[] = {
    {"model", BOTH, FIELD_OTHER, 0, 0, 0},
    {"prompt", COMPLETIONS, FIELD_OTHER, 0, 0, 0},
    {"messages", CHAT, FIELD_OTHER, 0, 0, 0},
    {"chat_template_kwargs", CHAT, FIELD_OTHER, 0, 0, 0},
    {"stop", BOTH, FIELD_OTHER, 0, 0, 0},
    {"stop_token_ids", BOTH, FIELD_OTHER, 0, 0, 0},
    {"best_of", BOTH, FIELD_OTHER, 0, 0, 0},
    {"stream", BOTH, FIELD_OTHER, 0, 0, 0},
    {"logprobs", CHAT, FIELD_OTHER, 0, 0, 0},
    {"top_logprobs", CHAT, FIELD_OTHER, 0, 0, 0},

    {"max_tokens", BOTH, FIELD_INT, 0, INT32_TOP, AT(max_tokens)},
    {"max_completion_tokens", BOTH, FIELD_INT, 0, INT32_TOP, AT(max_tokens)}, /* wins */
    {"temperature", BOTH, FIELD_REAL, 0, 100, AT(temperature)},
    {"top_p", BOTH, FIELD_REAL, 0, 1, AT(top_p)},
    {"min_p", BOTH, FIELD_REAL, 0, 1, AT(min_p)},
    {"top_k", BOTH, FIELD_INT, -1, INT32_TOP, AT(top_k)},
    {"seed", BOTH, FIELD_INT, -0x1p63, 0x1p63, AT(seed)},
    {"n", BOTH, FIELD_INT, 1, REQUEST_N_MAX, AT(n)},
    {"logprobs", COMPLETIONS, FIELD_INT, 0, LOGPROBS_MAX, AT(logprobs)},
    {"prompt_logprobs", BOTH, FIELD_INT, 0, LOGPROBS_MAX, AT(prompt_logprobs)},
    {"echo", COMPLETIONS, FIELD_BOOL, 0, 0, AT(echo)},
    {"ignore_eos", BOTH, FIELD_BOOL, 0, 0, AT(ignore_eos)},
    {"include_stop_str_in_output", BOTH, FIELD_BOOL, 0, 0, AT(include_stop)},
    {"add_special_tokens", COMPLETIONS, FIELD_BOOL, 0, 0, AT(add_special_tokens)},
    {"parse_special", COMPLETIONS, FIELD_BOOL, 0, 0, AT(parse_special)},
    {"skip_special_tokens", BOTH, FIELD_BOOL, 0, 0, AT(skip_special_tokens)},
    {"add_generation_prompt", CHAT, FIELD_BOOL, 0, 0, AT(add_generation_prompt)},
    {"return_token_ids", BOTH, FIELD_BOOL, 0, 0, AT(return_token_ids)},

    {"frequency_penalty", BOTH, FIELD_ONLY_ZERO, 0, 0, 0},
    {"presence_penalty", BOTH, FIELD_ONLY_ZERO, 0, 0, 0},
    {"repetition_penalty", BOTH, FIELD_ONLY_ONE, 0, 0, 0},
    {"length_penalty", BOTH, FIELD_ONLY_ONE, 0, 0, 0},
    {"min_tokens", BOTH, FIELD_ONLY_ZERO, 0, 0, 0},
    {"use_beam_search", BOTH, FIELD_ONLY_FALSE, 0, 0, 0},
    {"logit_bias", BOTH, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"bad_words", BOTH, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"allowed_token_ids", BOTH, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"truncate_prompt_tokens", BOTH, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"prompt_embeds", BOTH, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"logits_processors", BOTH, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"spaces_between_special_tokens", BOTH, FIELD_ONLY_TRUE, 0, 0, 0},
    {"guided_json", BOTH, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"guided_regex", BOTH, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"guided_choice", BOTH, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"guided_grammar", BOTH, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"structural_tag", BOTH, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"structured_outputs", BOTH, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"response_format", BOTH, FIELD_ONLY_TEXT, 0, 0, 0},
    {"suffix", COMPLETIONS, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"echo", CHAT, FIELD_ONLY_FALSE, 0, 0, 0},
    {"add_special_tokens", CHAT, FIELD_ONLY_FALSE, 0, 0, 0},
    {"parse_special", CHAT, FIELD_ONLY_FALSE, 0, 0, 0},
    {"continue_final_message", CHAT, FIELD_ONLY_FALSE, 0, 0, 0},
    {"chat_template", CHAT, FIELD_ONLY_EMPTY, 0, 0, 0}, /* no template comes from a request */
    {"documents", CHAT, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"tools", CHAT, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"functions", CHAT, FIELD_ONLY_EMPTY, 0, 0, 0},
    {"tool_choice", CHAT, FIELD_ONLY_NONE, 0, 0, 0},
    {"function_call", CHAT, FIELD_ONLY_NONE, 0, 0, 0},
    {"audio", CHAT, FIELD_ONLY_EMPTY, 0, 0, 0},

    {"user", BOTH, FIELD_IGNORED, 0, 0, 0},
    {"metadata", BOTH, FIELD_IGNORED, 0, 0, 0},
    {"store", BOTH, FIELD_IGNORED, 0, 0, 0},
    {"service_tier", BOTH, FIELD_IGNORED, 0, 0, 0},
    {"priority", BOTH, FIELD_IGNORED, 0, 0, 0},
    {"request_id", BOTH, FIELD_IGNORED, 0, 0, 0},
    {"stream_options", BOTH, FIELD_IGNORED, 0, 0, 0},
    {"parallel_tool_calls", BOTH, FIELD_IGNORED, 0, 0, 0},
    {"safety_identifier", BOTH, FIELD_IGNORED, 0, 0, 0},
    {"prompt_cache_key", BOTH, FIELD_IGNORED, 0, 0, 0},
    {"cache_salt", BOTH, FIELD_IGNORED, 0, 0, 0},
};

static const struct field *find_field(const char *name, enum endpoint endpoint)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if ((fields[i].endpoints & 1u << endpoint) != 0 && strcmp(fields[i].name, name) == 0)
            return &fields[i];
    }
    return NULL;
}

void field_notes_add(struct field_notes *notes, const char *prefix, const char *name)
{
    char full[sizeof notes->names[0]];
    if (notes == NULL || notes->count == FIELD_NOTES_MAX)
        return;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    for (int i = 0; i < notes->count; i++) {
        if (strcmp(notes->names[i], full) == 0)
            return;
    }
    memcpy(notes->names[notes->count++], full, sizeof full);
    log_write(notes->log, LOG_WARNING,
              "the field \"%s\" is not known where it stands, and is ignored in all such rows",
              full);
}

static bool is_number(const json_t *value, double wanted)
{
    return json_is_number(value) && json_number_value(value) == wanted;
}

static bool is_empty(const json_t *value)
{
    return (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static bool is_string(const json_t *value, const char *wanted)
{
    return json_is_string(value) && strcmp(json_string_value(value), wanted) == 0;
}

static bool is_harmless(enum field_kind kind, const json_t *value)
{
    switch (kind) {
    case FIELD_ONLY_ZERO:
        return is_number(value, 0);
    case FIELD_ONLY_ONE:
        return is_number(value, 1);
    case FIELD_ONLY_FALSE:
        return json_is_false(value);
    case FIELD_ONLY_TRUE:
        return json_is_true(value);
    case FIELD_ONLY_EMPTY:
        return is_empty(value);
    case FIELD_ONLY_TEXT:
        return is_string(json_object_get(value, "type"), "text");
    case FIELD_ONLY_NONE:
        return is_string(value, "none") || is_string(value, "auto");
    default:
        return true;
    }
}

/* A real bound as an integer one: 2^63 is one beyond what fits. */
static int64_t int_bound(double bound)
{
    return bound >= 0x1p63 ? INT64_MAX : bound <= -0x1p63 ? INT64_MIN : (int64_t)bound;
}

static bool read_field(struct request *out, const struct field *field, const json_t *body,
                       const struct row_place *place, struct row_error *error)
{
    struct error reason;
    enum status status = STATUS_OK;
    char *target = (char *)out + field->offset;
    if (field->kind == FIELD_INT)
        status = json_get_int((int64_t *)(void *)target, body, place->text, field->name,
                              int_bound(field->min), int_bound(field->max), &reason);
    else if (field->kind == FIELD_REAL)
        status = json_get_real((double *)(void *)target, body, place->text, field->name, field->min,
                               field->max, &reason);
    else if (field->kind == FIELD_BOOL)
        status = json_get_bool_or((bool *)target, body, place->text, field->name, false, &reason);
    else if (!is_harmless(field->kind, json_object_get(body, field->name)))
        return row_error_set(error, ROW_UNSUPPORTED, field->name,
                             "%s: \"%s\" is not supported with this value; leave it out",
                             place->text, field->name);
    if (status != STATUS_OK)
        return row_error_from(error, ROW_INVALID_VALUE, field->name, &reason);
    return true;
}

static bool is_given(const json_t *body, const char *name)
{
    const json_t *value = json_object_get(body, name);
    return value != NULL && !json_is_null(value);
}

static bool read_chat_logprobs(struct request *out, const json_t *body,
                               const struct row_place *place, struct row_error *error)
{
    bool wanted;
    int64_t top_count;
    struct error reason;
    if (json_get_bool_or(&wanted, body, place->text, "logprobs", false, &reason) != STATUS_OK)
        return row_error_from(error, ROW_INVALID_VALUE, "logprobs", &reason);
    if (json_get_int_or(&top_count, body, place->text, "top_logprobs", 0, LOGPROBS_MAX, 0,
                        &reason) != STATUS_OK)
        return row_error_from(error, ROW_INVALID_VALUE, "top_logprobs", &reason);
    if (!wanted && top_count > 0)
        return row_error_set(error, ROW_INVALID_VALUE, "top_logprobs",
                             "%s: \"top_logprobs\" needs \"logprobs\": true", place->text);
    out->logprobs = wanted ? top_count : -1;
    return true;
}

/* Rules that bind several fields, or exclude single values. */
static bool check_rules(const struct request *out, const json_t *body,
                        const struct row_place *place, struct row_error *error)
{
    if (out->top_p == 0)
        return row_error_set(error, ROW_INVALID_VALUE, "top_p",
                             "%s: \"top_p\": expected a number above 0 and at most 1, found 0",
                             place->text);
    bool reads_prompt = out->echo || out->prompt_logprobs >= 0;
    if (out->max_tokens == 0 && !reads_prompt)
        return row_error_set(error, ROW_INVALID_VALUE, "max_tokens",
                             "%s: \"max_tokens\": 0 makes sense only with \"echo\" or "
                             "\"prompt_logprobs\"",
                             place->text);
    if (is_given(body, "stream") && !json_is_false(json_object_get(body, "stream")))
        return row_error_set(error, ROW_INVALID_VALUE, "stream",
                             "%s: \"stream\" must be false in a batch file", place->text);
    const json_t *best_of = json_object_get(body, "best_of");
    if (is_given(body, "best_of") && !is_number(best_of, (double)out->n))
        return row_error_set(error, ROW_UNSUPPORTED, "best_of",
                             "%s: \"best_of\" is not supported; leave it out", place->text);
    return true;
}

bool request_read_scalars(struct request *out, const json_t *body, const struct row_place *place,
                          struct field_notes *notes, struct row_error *error)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if ((fields[i].endpoints & 1u << out->endpoint) != 0 && is_given(body, fields[i].name) &&
            !read_field(out, &fields[i], body, place, error))
            return false;
    }
    if (out->endpoint == ENDPOINT_CHAT && !read_chat_logprobs(out, body, place, error))
        return false;
    if (out->top_k < 0)
        out->top_k = 0; /* vLLM's -1 */
    out->has_seed = is_given(body, "seed");
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, name, value)
    {
        if (find_field(name, out->endpoint) == NULL)
            field_notes_add(notes, "", name);
    }
    return check_rules(out, body, place, error);
}

#include "engine/response.h"

#include <stdio.h>

#include "base/json_writer.h"
#include "engine/response_logprobs.h"

/* Writes key: "<prefix><hex>". */
static void write_name(struct json_writer *json, const char *key, const char *prefix,
                       const struct row_name *name)
{
    char digits[ROW_NAME_DIGITS + 1], text[64];
    row_name_format(digits, name);
    snprintf(text, sizeof text, "%s%s", prefix, digits);
    json_write_key(json, key);
    json_write_string(json, text);
}

/* Up to the opened "response" object with its status. */
static void open_line(struct json_writer *json, const struct row_identity *identity,
                      const struct row_name *name, int http_status)
{
    json_write_open(json, '{');
    write_name(json, "id", "batch_req_", name);
    json_write_key(json, "custom_id");
    if (identity->custom_id == NULL)
        json_write_null(json);
    else
        json_write_text(json, identity->custom_id, identity->custom_id_length);
    json_write_key(json, "response");
    json_write_open(json, '{');
    json_write_key(json, "status_code");
    json_write_int(json, http_status);
    write_name(json, "request_id", "req_", name);
    json_write_key(json, "body");
}

static void write_string_member(struct json_writer *json, const char *key, const char *value)
{
    json_write_key(json, key);
    json_write_string(json, value);
}

static void write_int_member(struct json_writer *json, const char *key, int64_t value)
{
    json_write_key(json, key);
    json_write_int(json, value);
}

void response_write_error(struct text *out, const struct row_identity *identity,
                          const struct row_error *error)
{
    struct json_writer json = {.out = out};
    struct row_name name = row_name_of(identity);
    open_line(&json, identity, &name, error->http_status);
    json_write_open(&json, '{');
    json_write_key(&json, "error");
    json_write_open(&json, '{');
    write_string_member(&json, "message", error->message);
    write_string_member(&json, "type", row_error_type(error));
    write_string_member(&json, "param", error->param[0] == 0 ? NULL : error->param);
    write_string_member(&json, "code", error->code);
    json_write_close(&json, '}');
    json_write_close(&json, '}');
    json_write_close(&json, '}');
    json_write_key(&json, "error");
    json_write_open(&json, '{');
    write_string_member(&json, "code", error->code);
    write_string_member(&json, "message", error->message);
    json_write_close(&json, '}');
    json_write_close(&json, '}');
    text_append(out, "\n", 1);
}

struct usage response_usage(const struct response *response)
{
    const struct request *request = response->request;
    struct usage usage = {0};
    for (int64_t i = 0; i < request->prompt_count; i++)
        usage.prompt_tokens += (int64_t)response->prompts[i].ids.count;
    for (int64_t i = 0; i < request->prompt_count * request->n; i++)
        usage.completion_tokens += response->choices[i].end.token_count;
    return usage;
}

static void write_usage(struct json_writer *json, const struct response *response)
{
    struct usage usage = response_usage(response);
    json_write_key(json, "usage");
    json_write_open(json, '{');
    write_int_member(json, "prompt_tokens", usage.prompt_tokens);
    write_int_member(json, "completion_tokens", usage.completion_tokens);
    write_int_member(json, "total_tokens", usage.prompt_tokens + usage.completion_tokens);
    json_write_close(json, '}');
}

/* vLLM's stop_reason: the stop string, the id of a stop_token_ids token, or null. */
static void write_stop_reason(struct json_writer *json, const struct request *request,
                              const struct choice *choice)
{
    json_write_key(json, "stop_reason");
    if (choice->stop_index >= 0) {
        const struct stop_string *string = &request->stops.strings[choice->stop_index];
        json_write_text(json, string->bytes, string->length);
        return;
    }
    for (int64_t i = 0; i < request->stop_id_count; i++) {
        if (choice->end.reason == FINISH_STOP && request->stop_ids[i] == choice->end.stop_id) {
            json_write_int(json, choice->end.stop_id);
            return;
        }
    }
    json_write_null(json);
}

static void write_ids(struct json_writer *json, const char *key, const struct token_list *ids)
{
    json_write_key(json, key);
    json_write_open(json, '[');
    for (size_t i = 0; i < ids->count; i++)
        json_write_int(json, ids->ids[i]);
    json_write_close(json, ']');
}

/* Members that both endpoints have behind the text. */
static void write_choice_end(struct json_writer *json, const struct response *response,
                             const struct choice *choice)
{
    write_string_member(json, "finish_reason", choice_finish_reason(choice));
    write_stop_reason(json, response->request, choice);
    if (response->request->return_token_ids)
        write_ids(json, "token_ids", &choice->ids);
}

static void write_message(struct json_writer *json, const struct choice *choice)
{
    json_write_key(json, "message");
    json_write_open(json, '{');
    write_string_member(json, "role", "assistant");
    json_write_key(json, "content");
    json_write_text(json, choice->text.bytes, choice->text.length);
    write_string_member(json, "refusal", NULL);
    json_write_close(json, '}');
}

static void write_chat_choice(struct json_writer *json, const struct response *response,
                              const struct choice *choice)
{
    write_message(json, choice);
    json_write_key(json, "logprobs");
    if (response->request->logprobs >= 0)
        response_write_chat_logprobs(json, response->tokenizer, &choice->scores);
    else
        json_write_null(json);
    write_choice_end(json, response, choice);
}

static void write_completion_text(struct json_writer *json, const struct prompt_result *echoed,
                                  const struct choice *choice)
{
    struct text joined = {0};
    if (echoed != NULL)
        text_append(&joined, echoed->text.bytes, echoed->text.length);
    text_append(&joined, choice->text.bytes, choice->text.length);
    json_write_key(json, "text");
    json_write_text(json, joined.bytes, joined.length);
    json->out->failed |= joined.failed;
    text_deinit(&joined);
}

static void write_completion_choice(struct json_writer *json, const struct response *response,
                                    const struct prompt_result *prompt, const struct choice *choice)
{
    const struct request *request = response->request;
    const struct prompt_result *echoed = request->echo ? prompt : NULL;
    write_completion_text(json, echoed, choice);
    json_write_key(json, "logprobs");
    if (request->logprobs >= 0)
        response_write_completion_logprobs(json, response->tokenizer, echoed, &choice->scores,
                                           request->logprobs);
    else
        json_write_null(json);
    write_choice_end(json, response, choice);
    if (request->return_token_ids)
        write_ids(json, "prompt_token_ids", &prompt->ids);
    if (request->prompt_logprobs >= 0) {
        json_write_key(json, "prompt_logprobs");
        response_write_prompt_logprobs(json, response->tokenizer, prompt, request->prompt_logprobs);
    }
}

static void write_choices(struct json_writer *json, const struct response *response)
{
    const struct request *request = response->request;
    json_write_key(json, "choices");
    json_write_open(json, '[');
    for (int64_t i = 0; i < request->prompt_count * request->n; i++) {
        json_write_open(json, '{');
        write_int_member(json, "index", i);
        if (request->endpoint == ENDPOINT_CHAT)
            write_chat_choice(json, response, &response->choices[i]);
        else
            write_completion_choice(json, response, &response->prompts[i / request->n],
                                    &response->choices[i]);
        json_write_close(json, '}');
    }
    json_write_close(json, ']');
}

void response_write(struct text *out, const struct response *response)
{
    const struct request *request = response->request;
    bool is_chat = request->endpoint == ENDPOINT_CHAT;
    struct json_writer json = {.out = out};
    struct row_name name = row_name_of(&response->identity);
    open_line(&json, &response->identity, &name, 200);
    json_write_open(&json, '{');
    write_name(&json, "id", is_chat ? "chatcmpl-" : "cmpl-", &name);
    write_string_member(&json, "object", is_chat ? "chat.completion" : "text_completion");
    write_int_member(&json, "created", response->created);
    write_string_member(&json, "model", request->model == NULL ? response->model : request->model);
    write_choices(&json, response);
    write_usage(&json, response);
    if (is_chat && request->prompt_logprobs >= 0) {
        json_write_key(&json, "prompt_logprobs");
        response_write_prompt_logprobs(&json, response->tokenizer, &response->prompts[0],
                                       request->prompt_logprobs);
    }
    if (is_chat && request->return_token_ids)
        write_ids(&json, "prompt_token_ids", &response->prompts[0].ids);
    json_write_close(&json, '}');
    json_write_close(&json, '}');
    write_string_member(&json, "error", NULL);
    json_write_close(&json, '}');
    text_append(out, "\n", 1);
}

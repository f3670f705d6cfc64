#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/request.h"

static const struct request_defaults no_defaults;

static bool parse(struct request *out, const char *line, struct row_error *error)
{
    return request_parse(out, line, strlen(line), 7, &no_defaults, NULL, error);
}

/* A row with these members in its body (which begins with a prompt or messages). */
static const char *row(bool is_chat, const char *members)
{
    static char line[8192];
    snprintf(line, sizeof line,
             "{\"custom_id\":\"r\",\"method\":\"POST\",\"url\":\"/v1/%s\",\"body\":{%s%s%s}}",
             is_chat ? "chat/completions" : "completions",
             is_chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
                     : "\"prompt\":\"hi\"",
             *members != 0 ? "," : "", members);
    return line;
}

/* ---- Errors -------------------------------------------------------------------------------- */

struct bad_row {
    const char *line;
    const char *code;
    const char *param;
};

static void expect_error(const char *line, const char *code, const char *param)
{
    struct request request;
    struct row_error error;
    bool is_taken = parse(&request, line, &error);
    cr_expect(!is_taken, "taken: %s", line);
    if (is_taken) {
        request_deinit(&request);
        return;
    }
    cr_expect_eq(error.http_status, 400);
    cr_expect_str_eq(error.code, code, "%s: %s (%s)", line, error.code, error.message);
    cr_expect_str_eq(error.param, param, "%s: %s (%s)", line, error.param, error.message);
    cr_expect_eq(strncmp(error.message, "line 7", 6), 0, "%s", error.message);
}

Test(request, broken_rows_are_refused)
{
    static const struct bad_row rows[] = {
        {"", ROW_INVALID_JSON, ""},
        {"null", ROW_INVALID_JSON, ""},
        {"[1]", ROW_INVALID_JSON, ""},
        {"{\"a\":1}}", ROW_INVALID_JSON, ""},
        {"{\"a\":1,\"a\":2}", ROW_INVALID_JSON, ""},
        {"{\"custom_id\":\"\xFF\"}", ROW_INVALID_JSON, ""},
        {"{\"custom_id\":\"\\ud800\"}", ROW_INVALID_JSON, ""},
        {"{\"custom_id\":\"\xED\xA0\x80\"}", ROW_INVALID_JSON, ""},
        {"{}", ROW_MISSING, "custom_id"},
        {"{\"custom_id\":\"\"}", ROW_INVALID_VALUE, "custom_id"},
        {"{\"custom_id\":3}", ROW_INVALID_VALUE, "custom_id"},
        {"{\"custom_id\":\"a\"}", ROW_MISSING, "method"},
        {"{\"custom_id\":\"a\",\"method\":\"GET\"}", ROW_INVALID_VALUE, "method"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\"}", ROW_MISSING, "url"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/embeddings\"}",
         ROW_UNSUPPORTED_URL, "url"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\"}", ROW_MISSING,
         "body"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":[]}",
         ROW_INVALID_VALUE, "body"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}",
         ROW_MISSING, "prompt"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{}}",
         ROW_MISSING, "messages"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_error(rows[i].line, rows[i].code, rows[i].param);
    struct request request;
    struct row_error error;
    cr_expect(!request_parse(&request, "{\"a\":\0}", 7, 7, &no_defaults, NULL, &error));
}

struct bad_field {
    const char *members;
    const char *code;
    const char *param;
};

static const struct bad_field both_bad[] = {
    {"\"max_tokens\":-1", ROW_INVALID_VALUE, "max_tokens"},
    {"\"max_tokens\":0", ROW_INVALID_VALUE, "max_tokens"},
    {"\"max_tokens\":2147483648", ROW_INVALID_VALUE, "max_tokens"},
    {"\"max_tokens\":1.5", ROW_INVALID_VALUE, "max_tokens"},
    {"\"max_tokens\":\"9\"", ROW_INVALID_VALUE, "max_tokens"},
    {"\"max_tokens\":true", ROW_INVALID_VALUE, "max_tokens"},
    {"\"max_tokens\":1e309", ROW_INVALID_JSON, ""},
    {"\"max_tokens\":99999999999999999999", ROW_INVALID_JSON, ""},
    {"\"max_completion_tokens\":-1", ROW_INVALID_VALUE, "max_completion_tokens"},
    {"\"temperature\":NaN", ROW_INVALID_JSON, ""},
    {"\"temperature\":-0.1", ROW_INVALID_VALUE, "temperature"},
    {"\"temperature\":1e9", ROW_INVALID_VALUE, "temperature"},
    {"\"temperature\":[]", ROW_INVALID_VALUE, "temperature"},
    {"\"top_p\":0", ROW_INVALID_VALUE, "top_p"},
    {"\"top_p\":1.01", ROW_INVALID_VALUE, "top_p"},
    {"\"min_p\":-1e-9", ROW_INVALID_VALUE, "min_p"},
    {"\"top_k\":-2", ROW_INVALID_VALUE, "top_k"},
    {"\"top_k\":2147483648", ROW_INVALID_VALUE, "top_k"},
    {"\"n\":0", ROW_INVALID_VALUE, "n"},
    {"\"n\":1000000000", ROW_INVALID_VALUE, "n"},
    {"\"seed\":1.5", ROW_INVALID_VALUE, "seed"},
    {"\"prompt_logprobs\":21", ROW_INVALID_VALUE, "prompt_logprobs"},
    {"\"prompt_logprobs\":true", ROW_INVALID_VALUE, "prompt_logprobs"},
    {"\"stop\":\"\"", ROW_INVALID_VALUE, "stop"},
    {"\"stop\":[1]", ROW_INVALID_VALUE, "stop"},
    {"\"stop\":7", ROW_INVALID_VALUE, "stop"},
    {"\"stop\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", ROW_INVALID_VALUE, "stop"},
    {"\"stop_token_ids\":[-1]", ROW_INVALID_VALUE, "stop_token_ids"},
    {"\"stop_token_ids\":[2147483648]", ROW_INVALID_VALUE, "stop_token_ids"},
    {"\"stop_token_ids\":3", ROW_INVALID_VALUE, "stop_token_ids"},
    {"\"stream\":true", ROW_INVALID_VALUE, "stream"},
    {"\"model\":7", ROW_INVALID_VALUE, "model"},
    {"\"ignore_eos\":1", ROW_INVALID_VALUE, "ignore_eos"},
    {"\"frequency_penalty\":0.5", ROW_UNSUPPORTED, "frequency_penalty"},
    {"\"presence_penalty\":-1", ROW_UNSUPPORTED, "presence_penalty"},
    {"\"repetition_penalty\":1.1", ROW_UNSUPPORTED, "repetition_penalty"},
    {"\"logit_bias\":{\"5\":1}", ROW_UNSUPPORTED, "logit_bias"},
    {"\"best_of\":3", ROW_UNSUPPORTED, "best_of"},
    {"\"guided_json\":{\"type\":\"object\"}", ROW_UNSUPPORTED, "guided_json"},
    {"\"guided_regex\":\"a*\"", ROW_UNSUPPORTED, "guided_regex"},
    {"\"response_format\":{\"type\":\"json_object\"}", ROW_UNSUPPORTED, "response_format"},
    {"\"min_tokens\":4", ROW_UNSUPPORTED, "min_tokens"},
};

static const struct bad_field completions_bad[] = {
    {"\"logprobs\":21", ROW_INVALID_VALUE, "logprobs"},
    {"\"logprobs\":1000000", ROW_INVALID_VALUE, "logprobs"},
    {"\"logprobs\":true", ROW_INVALID_VALUE, "logprobs"},
    {"\"suffix\":\"x\"", ROW_UNSUPPORTED, "suffix"},
    {"\"echo\":\"yes\"", ROW_INVALID_VALUE, "echo"},
};

static const struct bad_field chat_bad[] = {
    {"\"logprobs\":5", ROW_INVALID_VALUE, "logprobs"},
    {"\"top_logprobs\":5", ROW_INVALID_VALUE, "top_logprobs"},
    {"\"logprobs\":true,\"top_logprobs\":21", ROW_INVALID_VALUE, "top_logprobs"},
    {"\"tools\":[{\"type\":\"function\"}]", ROW_UNSUPPORTED, "tools"},
    {"\"tool_choice\":\"required\"", ROW_UNSUPPORTED, "tool_choice"},
    {"\"echo\":true", ROW_UNSUPPORTED, "echo"},
    {"\"add_special_tokens\":true", ROW_UNSUPPORTED, "add_special_tokens"},
    {"\"chat_template\":\"{{ x }}\"", ROW_UNSUPPORTED, "chat_template"},
    {"\"chat_template_kwargs\":[]", ROW_INVALID_VALUE, "chat_template_kwargs"},
    {"\"chat_template_kwargs\":{\"enable_thinking\":1}", ROW_INVALID_VALUE,
     "chat_template_kwargs.enable_thinking"},
};

static void expect_field_errors(bool is_chat, const struct bad_field *fields, size_t count)
{
    for (size_t i = 0; i < count; i++)
        expect_error(row(is_chat, fields[i].members), fields[i].code, fields[i].param);
}

Test(request, bad_fields_are_named)
{
    expect_field_errors(false, both_bad, sizeof both_bad / sizeof *both_bad);
    expect_field_errors(true, both_bad, sizeof both_bad / sizeof *both_bad);
    expect_field_errors(false, completions_bad, sizeof completions_bad / sizeof *completions_bad);
    expect_field_errors(true, chat_bad, sizeof chat_bad / sizeof *chat_bad);
}

static const char *with_value(bool is_chat, const char *value)
{
    static char line[4096];
    snprintf(line, sizeof line,
             "{\"custom_id\":\"r\",\"method\":\"POST\",\"url\":\"/v1/%s\",\"body\":{\"%s\":%s}}",
             is_chat ? "chat/completions" : "completions", is_chat ? "messages" : "prompt", value);
    return line;
}

Test(request, bad_prompts_are_refused)
{
    static const char *const prompts[] = {
        "7",
        "true",
        "{}",
        "[]",
        "[[]]",
        "[1,\"a\"]",
        "[\"a\",1]",
        "[1.5]",
        "[-1]",
        "[2147483648]",
        "[[1],[2,null]]",
        "[null]",
        "[\"a\",[1],{}]",
    };
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++)
        expect_error(with_value(false, prompts[i]), ROW_INVALID_VALUE, "prompt");
}

Test(request, bad_messages_are_refused)
{
    static const struct bad_row messages[] = {
        {"[]", ROW_INVALID_VALUE, "messages"},
        {"\"hi\"", ROW_INVALID_VALUE, "messages"},
        {"[7]", ROW_INVALID_VALUE, "messages[0]"},
        {"[{\"content\":\"a\"}]", ROW_INVALID_VALUE, "messages[0]"},
        {"[{\"role\":\"tool\",\"content\":\"a\"}]", ROW_INVALID_VALUE, "messages[0]"},
        {"[{\"role\":\"user\"}]", ROW_INVALID_VALUE, "messages[0]"},
        {"[{\"role\":\"user\",\"content\":null}]", ROW_INVALID_VALUE, "messages[0]"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{\"type\":"
         "\"image_url\"}]}]",
         ROW_UNSUPPORTED, "messages[1]"},
        {"[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[{}]}]", ROW_UNSUPPORTED,
         "messages[0]"},
        {"[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":[\"b\"]}]",
         ROW_INVALID_VALUE, "messages[0]"},
    };
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++)
        expect_error(with_value(true, messages[i].line), messages[i].code, messages[i].param);
}

Test(request, choices_are_bounded)
{
    char line[16384] =
        "{\"custom_id\":\"r\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
        "{\"n\":128,\"prompt\":[\"a\"";
    for (int i = 1; i < 17; i++)
        strcat(line, ",\"a\"");
    strcat(line, "]}}");
    expect_error(line, ROW_INVALID_VALUE, "prompt");
}

/* It is kept for as long as the row is in flight. */
Test(request, the_name_of_a_model_is_bounded)
{
    char members[1024], name[MODEL_NAME_BYTES_MAX + 2];
    for (int over = 0; over < 2; over++) {
        struct request request;
        struct row_error error;
        memset(name, 'm', sizeof name);
        name[MODEL_NAME_BYTES_MAX + over] = 0;
        snprintf(members, sizeof members, "\"model\":\"%s\"", name);
        if (over > 0) {
            expect_error(row(false, members), ROW_INVALID_VALUE, "model");
            continue;
        }
        cr_assert(parse(&request, row(false, members), &error), "%s", error.message);
        cr_expect_str_eq(request.model, name);
        request_deinit(&request);
    }
}

/* ---- What is taken ------------------------------------------------------------------------- */

static struct request take(const char *line)
{
    struct request request;
    struct row_error error;
    cr_assert(parse(&request, line, &error), "%s: %s", line, error.message);
    return request;
}

Test(request, silence_means_the_defaults)
{
    struct request request = take(row(false, ""));
    cr_expect_eq(request.endpoint, ENDPOINT_COMPLETIONS);
    cr_expect_eq(request.max_tokens, -1);
    cr_expect_eq(request.temperature, 1.0);
    cr_expect_eq(request.top_p, 1.0);
    cr_expect_eq(request.n, 1);
    cr_expect_eq(request.logprobs, -1);
    cr_expect_eq(request.prompt_logprobs, -1);
    cr_expect(!request.has_seed && !request.ignore_eos && !request.echo && !request.include_stop);
    cr_expect(request.add_special_tokens && request.skip_special_tokens && !request.parse_special);
    cr_expect_null(request.model);
    request_deinit(&request);
    const struct request_defaults defaults = {.ignore_eos = true, .prompt_logprobs = true};
    const char *line = row(false, "\"prompt_logprobs\":null");
    struct row_error error;
    cr_assert(request_parse(&request, line, strlen(line), 1, &defaults, NULL, &error));
    cr_expect(request.ignore_eos);
    cr_expect_eq(request.prompt_logprobs, 0);
    request_deinit(&request);
}

Test(request, fields_are_taken)
{
    struct request request = take(
        row(false,
            "\"model\":\"m\",\"max_tokens\":5,\"max_completion_tokens\":6,\"temperature\":0,"
            "\"top_p\":0.5,\"top_k\":-1,\"min_p\":0.1,\"seed\":-3,\"n\":128,\"best_of\":128,"
            "\"logprobs\":20,\"prompt_logprobs\":0,\"echo\":true,\"stop\":[\"a\",\"bc\"],"
            "\"stop_token_ids\":[0,5],\"include_stop_str_in_output\":true,\"stream\":false,"
            "\"add_special_tokens\":false,\"skip_special_tokens\":false,\"return_token_ids\":true,"
            "\"parse_special\":true,"
            "\"frequency_penalty\":0.0,\"repetition_penalty\":1,\"logit_bias\":{},\"suffix\":null,"
            "\"response_format\":{\"type\":\"text\"},\"user\":\"u\",\"ignore_eos\":true"));
    cr_expect_str_eq(request.model, "m");
    cr_expect_eq(request.max_tokens, 6, "max_completion_tokens replaces max_tokens");
    cr_expect_eq(request.top_k, 0);
    cr_expect(request.has_seed && request.seed == -3);
    cr_expect_eq(request.n, 128);
    cr_expect_eq(request.stops.count, 2);
    cr_expect_eq(request.stop_id_count, 2);
    cr_expect(request.echo && request.include_stop && request.return_token_ids);
    cr_expect(!request.add_special_tokens && !request.skip_special_tokens && request.parse_special);
    request_deinit(&request);
    request = take(row(false, "\"max_tokens\":0,\"echo\":true"));
    cr_expect_eq(request.max_tokens, 0);
    request_deinit(&request);
    request = take(row(false, "\"seed\":9223372036854775807,\"max_tokens\":1e3"));
    cr_expect_eq(request.seed, INT64_MAX);
    cr_expect_eq(request.max_tokens, 1000);
    request_deinit(&request);
}

/* Whatever else a row holds is not kept while it is in flight. */
Test(request, only_names_are_left_of_the_json)
{
    struct request request = take(row(false, "\"model\":\"m\",\"user\":\"u\",\"stop\":\"s\""));
    request_drop_json(&request);
    cr_expect_null(request.root);
    cr_expect_null(request.prompts);
    cr_expect_str_eq(request.custom_id, "r");
    cr_expect_str_eq(request.model, "m");
    cr_assert_eq(request.stops.count, 1);
    cr_expect_arr_eq(request.stops.strings[0].bytes, "s", 1);
    cr_expect_eq(request.prompt_count, 1);
    request_deinit(&request);
    request = take(row(false, "\"model\":null"));
    request_drop_json(&request);
    cr_expect_null(request.model);
    request_deinit(&request);
}

Test(request, prompts_come_in_four_forms)
{
    struct request request = take(with_value(false, "\"a\\u0000b\""));
    cr_expect_eq(request.prompts[0].text_length, 3);
    request_deinit(&request);
    request = take(with_value(false, "[\"a\",\"bc\"]"));
    cr_expect_eq(request.prompt_count, 2);
    cr_expect_str_eq(request.prompts[1].text, "bc");
    request_deinit(&request);
    request = take(with_value(false, "[1,2,3]"));
    cr_expect_eq(request.prompt_count, 1);
    cr_expect_eq(json_array_size(request.prompts[0].ids), 3);
    request_deinit(&request);
    request = take(with_value(false, "[[1],[2,3]]"));
    cr_expect_eq(request.prompt_count, 2);
    cr_expect_eq(json_array_size(request.prompts[1].ids), 2);
    request_deinit(&request);
}

Test(request, messages_are_taken)
{
    struct request request = take(with_value(
        true, "[{\"role\":\"developer\",\"content\":\"be brief\"},{\"role\":\"user\",\"content\":"
              "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"bc\"}]},"
              "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[]},{\"role\":\"assistant\","
              "\"content\":\"d\",\"reasoning_content\":\"e\\u0000f\"},{\"role\":\"assistant\","
              "\"content\":[],\"reasoning_content\":null}]"));
    cr_expect_eq(request.message_count, 5);
    cr_expect_str_eq(request.messages[0].role, "system");
    cr_expect_str_eq(request.messages[1].content, "abc");
    cr_expect_eq(request.messages[1].content_length, 3);
    cr_expect_eq(request.messages[2].content_length, 0);
    cr_expect_null(request.messages[2].reasoning);
    cr_assert_not_null(request.messages[3].reasoning);
    cr_expect_arr_eq(request.messages[3].reasoning, "e\0f", 3);
    cr_expect_eq(request.messages[3].reasoning_length, 3);
    cr_expect_null(request.messages[4].reasoning);
    request_deinit(&request);
    request = take(row(true, "\"logprobs\":true,\"top_logprobs\":3,\"chat_template_kwargs\":"
                             "{\"enable_thinking\":false},\"add_generation_prompt\":false"));
    cr_expect_eq(request.logprobs, 3);
    cr_expect(!request.enable_thinking && !request.add_generation_prompt);
    request_deinit(&request);
}

Test(request, urls_are_taken_by_their_end)
{
    static const char *const urls[] = {"/v1/completions", "https://host:8000/v1/completions",
                                       "/openai/deployments/m/completions"};
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        char line[256];
        snprintf(line, sizeof line,
                 "{\"custom_id\":\"r\",\"method\":\"POST\",\"url\":\"%s\",\"body\":{\"prompt\":"
                 "\"a\"}}",
                 urls[i]);
        struct request request = take(line);
        cr_expect_eq(request.endpoint, ENDPOINT_COMPLETIONS);
        request_deinit(&request);
    }
}

/* ---- Notes and memory ---------------------------------------------------------------------- */

static void count_messages(void *context, enum log_level level, const char *message)
{
    cr_expect_eq(level, LOG_WARNING);
    cr_expect_not_null(strstr(message, "\"odd"), "%s", message);
    ++*(int *)context;
}

Test(request, unknown_fields_are_noted_once)
{
    int count = 0;
    struct log_sink log = {count_messages, &count};
    struct field_notes notes = {.log = &log};
    for (int i = 0; i < 3; i++) {
        struct request request;
        struct row_error error;
        const char *line = row(true, "\"odd\":1,\"odd2\":2,\"user\":\"u\",\"store\":false");
        cr_assert(request_parse(&request, line, strlen(line), 1, &no_defaults, &notes, &error));
        request_deinit(&request);
    }
    cr_expect_eq(count, 2);
}

static void check_note(void *context, enum log_level level, const char *message)
{
    cr_expect_eq(level, LOG_WARNING);
    cr_expect(strstr(message,
                     "the field \"messages[].weight\" is not known where it stands, and is "
                     "ignored in all such rows") == message ||
                  strstr(message, "the field \"messages[].reasoning_content\" is not") == message,
              "%s", message);
    ++*(int *)context;
}

Test(request, unknown_members_of_messages_are_noted)
{
    static const struct {
        const char *role, *members;
        int notes;
    } cases[] = {
        {"assistant", "\"name\":\"u\"", 0},
        {"assistant", "\"reasoning_content\":\"r\",\"tool_calls\":[]", 0},
        {"user", "\"reasoning_content\":\"r\"", 1},
        {"assistant", "\"refusal\":null", 0}, /* as phasor writes it */
        {"assistant", "\"weight\":null", 0},
        {"user", "\"weight\":0", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int count = 0;
        struct log_sink log = {check_note, &count};
        struct field_notes notes = {.log = &log};
        struct request request;
        struct row_error error;
        char messages[256];
        snprintf(messages, sizeof messages, "[{\"role\":\"%s\",\"content\":\"a\",%s}]",
                 cases[i].role, cases[i].members);
        const char *line = with_value(true, messages);
        cr_assert(request_parse(&request, line, strlen(line), 1, &no_defaults, &notes, &error));
        cr_expect_eq(count, cases[i].notes, "%s", cases[i].members);
        request_deinit(&request);
    }
}

Test(request, every_allocation_may_fail)
{
    const char *line = row(true, "\"stop\":[\"a\",\"b\"],\"chat_template_kwargs\":{}");
    uint64_t live = memory_counters_get().live_count;
    for (uint64_t n = 1;; n++) {
        struct request request;
        struct row_error error;
        memory_fail_at(n, 0);
        bool is_taken = parse(&request, line, &error);
        memory_fail_at(0, 0);
        if (is_taken)
            request_deinit(&request);
        cr_assert_eq(memory_counters_get().live_count, live);
        if (is_taken)
            break;
        cr_assert_eq(error.http_status, 500);
    }
}

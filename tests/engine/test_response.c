#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_writer.h"
#include "engine/response.h"
#include "engine/response_logprobs.h"

static json_t *parse_line(const struct text *line)
{
    json_error_t reason;
    cr_assert(line->length > 0 && line->bytes[line->length - 1] == '\n');
    cr_assert_null(memchr(line->bytes, '\n', line->length - 1), "a row is one line");
    json_t *row =
        json_loadb(line->bytes, line->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &reason);
    cr_assert_not_null(row, "%s: %s", reason.text, line->bytes);
    return row;
}

static const char *string_at(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

Test(json_writer, strings_survive)
{
    static const char bytes[] =
        "q\" b\\ n\n t\t z\0 d\x7F e\x1B \xC3\xA9 \xF0\x9F\x99\x82 \xE2\x80\xA8";
    struct text out = {0};
    struct json_writer json = {.out = &out};
    json_write_text(&json, bytes, sizeof bytes - 1);
    json_t *value = json_loadb(out.bytes, out.length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    cr_assert_not_null(value, "%s", out.bytes);
    cr_expect_eq(json_string_length(value), sizeof bytes - 1);
    cr_expect_eq(memcmp(json_string_value(value), bytes, sizeof bytes - 1), 0);
    json_decref(value);
    text_deinit(&out);
}

Test(json_writer, broken_bytes_become_replacement_characters)
{
    static const char *const broken[] = {"\xFF", "\xC3", "a\xED\xA0\x80z", "\xF5\x80\x80\x80",
                                         "\xC0\xAF"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        struct text out = {0};
        struct json_writer json = {.out = &out};
        json_write_string(&json, broken[i]);
        json_t *value = json_loadb(out.bytes, out.length, JSON_DECODE_ANY, NULL);
        cr_assert_not_null(value, "%s", out.bytes);
        cr_expect_not_null(strstr(json_string_value(value), "\xEF\xBF\xBD"));
        json_decref(value);
        text_deinit(&out);
    }
}

Test(json_writer, log_probabilities_are_json)
{
    static const struct {
        float value;
        const char *text;
    } cases[] = {
        {-INFINITY, "-9999"}, {INFINITY, "9999"}, {NAN, "null"}, {0.0f, "0"}, {-0.25f, "-0.25"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text out = {0};
        struct json_writer json = {.out = &out};
        json_write_logprob(&json, cases[i].value);
        cr_expect_str_eq(out.bytes, cases[i].text);
        text_deinit(&out);
    }
}

Test(response, an_error_has_both_shapes)
{
    struct row_identity identity = {.line = 3, .custom_id = "a\"b", .custom_id_length = 3};
    struct row_error error;
    struct text out = {0};
    row_error_set(&error, ROW_INVALID_VALUE, "n", "line 3: \"n\" is %d", 0);
    response_write_error(&out, &identity, &error);
    json_t *row = parse_line(&out);
    const json_t *response = json_object_get(row, "response");
    const json_t *inner = json_object_get(json_object_get(response, "body"), "error");
    const json_t *outer = json_object_get(row, "error");
    cr_expect_str_eq(string_at(row, "custom_id"), "a\"b");
    cr_expect_eq(json_integer_value(json_object_get(response, "status_code")), 400);
    cr_expect_str_eq(string_at(inner, "message"), "line 3: \"n\" is 0");
    cr_expect_str_eq(string_at(inner, "type"), "invalid_request_error");
    cr_expect_str_eq(string_at(inner, "param"), "n");
    cr_expect_str_eq(string_at(inner, "code"), "invalid_value");
    cr_expect_str_eq(string_at(outer, "message"), "line 3: \"n\" is 0");
    cr_expect_str_eq(string_at(outer, "code"), "invalid_value");
    json_decref(row);
    text_clear(&out);
    identity.custom_id = NULL;
    row_error_set(&error, ROW_INTERNAL, NULL, "out of memory");
    response_write_error(&out, &identity, &error);
    row = parse_line(&out);
    response = json_object_get(row, "response");
    inner = json_object_get(json_object_get(response, "body"), "error");
    cr_expect(json_is_null(json_object_get(row, "custom_id")));
    cr_expect_eq(json_integer_value(json_object_get(response, "status_code")), 500);
    cr_expect_str_eq(string_at(inner, "type"), "server_error");
    cr_expect(json_is_null(json_object_get(inner, "param")));
    json_decref(row);
    text_deinit(&out);
}

/* A response of two prompts with two choices each, without a tokenizer. */
struct fixture {
    struct request request;
    struct choice_options options;
    struct prompt_result prompts[2];
    struct choice choices[4];
    struct response response;
};

static void add_token(struct scored_list *list, int32_t id, float logprob)
{
    const struct token_logprob top[2] = {{id == 5 ? 5 : 9, -0.5f}, {id == 5 ? 9 : 5, -1.5f}};
    struct generated_token token = {.id = id, .logprob = logprob, .top = top, .top_count = 2};
    cr_assert_eq(scored_list_add(list, &token, 2, 0, NULL), STATUS_OK);
}

static void make_fixture(struct fixture *fixture, const char *line)
{
    static const struct request_defaults defaults;
    struct row_error error;
    bool is_taken =
        request_parse(&fixture->request, line, strlen(line), 1, &defaults, NULL, &error);
    cr_assert(is_taken, "%s", error.message);
    fixture->options = (struct choice_options){.stops = &fixture->request.stops, .logprobs = 2};
    for (int p = 0; p < 2; p++) {
        for (int32_t id = 4; id < 7; id++)
            cr_assert_eq(ids_append(&fixture->prompts[p].ids, id, NULL), STATUS_OK);
        add_token(&fixture->prompts[p].scores, 5, -0.5f);
        add_token(&fixture->prompts[p].scores, 6, -3.0f);
    }
    for (int c = 0; c < 4; c++) {
        struct sequence_end end = {.reason = FINISH_LENGTH, .stop_id = -1, .token_count = 1};
        choice_init(&fixture->choices[c], &fixture->options, true);
        add_token(&fixture->choices[c].scores, 7, -2.0f);
        cr_assert_eq(ids_append(&fixture->choices[c].ids, 7, NULL), STATUS_OK);
        text_append_string(&fixture->choices[c].text, "out");
        cr_assert_eq(choice_finish(&fixture->choices[c], &end, NULL), STATUS_OK);
    }
    fixture->response = (struct response){
        .identity = {.line = 1,
                     .custom_id = fixture->request.custom_id,
                     .custom_id_length = fixture->request.custom_id_length},
        .request = &fixture->request,
        .model = "fallback",
        .created = 1700000000,
        .prompts = fixture->prompts,
        .choices = fixture->choices,
    };
}

static void free_fixture(struct fixture *fixture)
{
    for (int p = 0; p < 2; p++)
        prompt_result_deinit(&fixture->prompts[p]);
    for (int c = 0; c < 4; c++)
        choice_deinit(&fixture->choices[c]);
    request_deinit(&fixture->request);
}

#define ROW(url, body)                                                                             \
    "{\"custom_id\":\"r\",\"method\":\"POST\",\"url\":\"/v1/" url "\",\"body\":{" body "}}"

Test(response, completions_have_their_shape)
{
    struct fixture fixture = {0};
    struct text out = {0};
    make_fixture(&fixture, ROW("completions", "\"prompt\":[[4,5,6],[4,5,6]],\"n\":2,\"logprobs\":2,"
                                              "\"prompt_logprobs\":1,\"return_token_ids\":true"));
    response_write(&out, &fixture.response);
    json_t *row = parse_line(&out);
    cr_expect(json_is_null(json_object_get(row, "error")));
    const json_t *response = json_object_get(row, "response");
    const json_t *body = json_object_get(response, "body");
    cr_expect_eq(json_integer_value(json_object_get(response, "status_code")), 200);
    cr_expect_str_eq(string_at(body, "object"), "text_completion");
    cr_expect_str_eq(string_at(body, "model"), "fallback");
    cr_expect_eq(strncmp(string_at(body, "id"), "cmpl-", 5), 0);
    const json_t *choices = json_object_get(body, "choices");
    cr_assert_eq(json_array_size(choices), 4);
    const json_t *last = json_array_get(choices, 3);
    cr_expect_eq(json_integer_value(json_object_get(last, "index")), 3);
    cr_expect_str_eq(string_at(last, "text"), "out");
    cr_expect_str_eq(string_at(last, "finish_reason"), "length");
    const json_t *logprobs = json_object_get(last, "logprobs");
    const json_t *tops = json_array_get(json_object_get(logprobs, "top_logprobs"), 0);
    cr_expect_eq(json_object_size(tops), 3, "two likeliest and the token itself");
    cr_expect_eq(json_number_value(json_object_get(tops, "token_id:7")), -2.0);
    const json_t *scored = json_object_get(last, "prompt_logprobs");
    cr_assert_eq(json_array_size(scored), 3);
    cr_expect(json_is_null(json_array_get(scored, 0)));
    const json_t *entry = json_object_get(json_array_get(scored, 1), "5");
    cr_expect_eq(json_integer_value(json_object_get(entry, "rank")), 1);
    entry = json_object_get(json_array_get(scored, 2), "6");
    cr_expect_eq(json_number_value(json_object_get(entry, "logprob")), -3.0);
    cr_expect(json_is_null(json_object_get(entry, "rank")));
    cr_expect_eq(json_object_size(json_array_get(scored, 2)), 2);
    const json_t *usage = json_object_get(body, "usage");
    cr_expect_eq(json_integer_value(json_object_get(usage, "prompt_tokens")), 6);
    cr_expect_eq(json_integer_value(json_object_get(usage, "completion_tokens")), 4);
    cr_expect_eq(json_integer_value(json_object_get(usage, "total_tokens")), 10);
    cr_expect_eq(json_array_size(json_object_get(last, "prompt_token_ids")), 3);
    json_decref(row);
    text_deinit(&out);
    free_fixture(&fixture);
}

Test(response, chats_have_their_shape)
{
    struct fixture fixture = {0};
    struct text out = {0};
    make_fixture(&fixture,
                 ROW("chat/completions",
                     "\"model\":\"asked\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                     "\"n\":4,\"logprobs\":true,\"top_logprobs\":2,\"prompt_logprobs\":0"));
    response_write(&out, &fixture.response);
    json_t *row = parse_line(&out);
    const json_t *body = json_object_get(json_object_get(row, "response"), "body");
    cr_expect_str_eq(string_at(body, "object"), "chat.completion");
    cr_expect_str_eq(string_at(body, "model"), "asked");
    cr_expect_eq(strncmp(string_at(body, "id"), "chatcmpl-", 9), 0);
    cr_expect_eq(json_array_size(json_object_get(body, "prompt_logprobs")), 3);
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 1);
    const json_t *message = json_object_get(choice, "message");
    cr_expect_str_eq(string_at(message, "role"), "assistant");
    cr_expect_str_eq(string_at(message, "content"), "out");
    const json_t *content =
        json_array_get(json_object_get(json_object_get(choice, "logprobs"), "content"), 0);
    cr_expect_eq(json_number_value(json_object_get(content, "logprob")), -2.0);
    cr_expect_eq(json_array_size(json_object_get(content, "top_logprobs")), 2);
    cr_expect_gt(json_array_size(json_object_get(content, "bytes")), 0);
    json_decref(row);
    text_deinit(&out);
    free_fixture(&fixture);
}

/* [logprobs, prompt_logprobs] of a prompt of two tokens, the second of them `id`, with three of the
 * likeliest kept, of which `top_max` are asked for. */
static json_t *write_prompt_scores(int32_t id, int64_t top_max)
{
    static const struct token_logprob top[] = {{9, -0.5f}, {5, -1.5f}, {8, -2.0f}};
    static const struct scored_list nothing;
    struct generated_token token = {.id = id, .top = top, .top_count = 3};
    struct prompt_result prompt = {0};
    struct text out = {0};
    struct json_writer json = {.out = &out};
    cr_assert_eq(ids_append(&prompt.ids, 4, NULL), STATUS_OK);
    cr_assert_eq(ids_append(&prompt.ids, id, NULL), STATUS_OK);
    cr_assert_eq(scored_list_add(&prompt.scores, &token, 3, 0, NULL), STATUS_OK);
    json_write_open(&json, '[');
    response_write_completion_logprobs(&json, NULL, &prompt, &nothing, top_max);
    response_write_prompt_logprobs(&json, NULL, &prompt, top_max);
    json_write_close(&json, ']');
    json_t *both = json_loadb(out.bytes, out.length, JSON_REJECT_DUPLICATES, NULL);
    cr_assert_not_null(both, "%s", out.bytes);
    text_deinit(&out);
    prompt_result_deinit(&prompt);
    return both;
}

/* A row may ask for more in one format than in the other, and the most of both is kept. */
Test(response, each_format_has_as_many_likeliest_as_it_was_asked_for)
{
    static const struct {
        int32_t id;
        int64_t top_max;
        size_t members; /* as many likeliest, and the token itself where it is not among them */
        int rank;       /* 0: null */
    } cases[] = {
        {9, 1, 1, 1}, {5, 1, 2, 0}, {5, 2, 2, 2}, {8, 1, 2, 0}, {8, 2, 3, 0}, {8, 3, 3, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char id[16], label[32];
        snprintf(id, sizeof id, "%d", cases[i].id);
        snprintf(label, sizeof label, "token_id:%d", cases[i].id);
        json_t *both = write_prompt_scores(cases[i].id, cases[i].top_max);
        const json_t *tops = json_object_get(json_array_get(both, 0), "top_logprobs");
        const json_t *ranked = json_array_get(json_array_get(both, 1), 1);
        const json_t *rank = json_object_get(json_object_get(ranked, id), "rank");
        tops = json_array_get(tops, 1);
        cr_expect_not_null(json_object_get(tops, label), "case %zu", i);
        cr_expect_eq(json_object_size(tops), cases[i].members, "case %zu: %zu members", i,
                     json_object_size(tops));
        cr_expect_eq(json_object_size(ranked), cases[i].members, "case %zu", i);
        cr_expect_eq(json_integer_value(rank), cases[i].rank, "case %zu: rank %d", i,
                     (int)json_integer_value(rank));
        json_decref(both);
    }
}

Test(response, ids_depend_on_the_row_alone)
{
    struct row_identity a = {.run_seed = 1, .line = 2, .custom_id = "x", .custom_id_length = 1};
    struct row_identity b = a;
    struct row_error error;
    struct text first = {0}, second = {0};
    row_error_set(&error, ROW_INTERNAL, NULL, "no");
    response_write_error(&first, &a, &error);
    response_write_error(&second, &b, &error);
    cr_expect_str_eq(first.bytes, second.bytes);
    text_clear(&second);
    b.line = 3;
    response_write_error(&second, &b, &error);
    cr_expect_str_neq(first.bytes, second.bytes);
    text_deinit(&first);
    text_deinit(&second);
}

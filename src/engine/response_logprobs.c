#include "engine/response_logprobs.h"

#include <stdio.h>
#include <xxhash.h>

/* The bytes of a token; "token_id:7" (as vLLM writes it) without a tokenizer. */
static void token_bytes(struct text *out, const struct tokenizer *tokenizer, int32_t id)
{
    text_clear(out);
    if (tokenizer == NULL)
        text_append_format(out, "token_id:%d", id);
    else
        tokenizer_token_bytes(tokenizer, out, id, false, false);
}

/* The same as valid UTF-8 from which the bytes can be told: a part of a character becomes
 * "bytes:\xe2\x80", as OpenAI's completions have it. */
static void token_label(struct text *out, const struct tokenizer *tokenizer, int32_t id)
{
    token_bytes(out, tokenizer, id);
    if (utf8_is_valid(out->bytes, out->length))
        return;
    struct text label = {0};
    text_append_string(&label, "bytes:");
    for (size_t i = 0; i < out->length; i++)
        text_append_format(&label, "\\x%02x", (unsigned char)out->bytes[i]);
    text_deinit(out);
    *out = label;
}

static void write_text_member(struct json_writer *json, const char *key, const struct text *text)
{
    json_write_key(json, key);
    json_write_text(json, text->bytes, text->length);
}

/* {token, logprob, bytes: the members that a chat token and its alternatives share. */
static void open_chat_token(struct json_writer *json, const struct tokenizer *tokenizer,
                            struct text *scratch, int32_t id, float logprob)
{
    token_bytes(scratch, tokenizer, id);
    json_write_open(json, '{');
    write_text_member(json, "token", scratch);
    json_write_key(json, "logprob");
    json_write_logprob(json, logprob);
    json_write_key(json, "bytes");
    json_write_open(json, '[');
    for (size_t i = 0; i < scratch->length; i++)
        json_write_int(json, (unsigned char)scratch->bytes[i]);
    json_write_close(json, ']');
}

void response_write_chat_logprobs(struct json_writer *json, const struct tokenizer *tokenizer,
                                  const struct scored_list *scores)
{
    struct text scratch = {0};
    json_write_open(json, '{');
    json_write_key(json, "content");
    json_write_open(json, '[');
    for (size_t i = 0; i < scores->count; i++) {
        const struct scored_token *token = &scores->tokens[i];
        open_chat_token(json, tokenizer, &scratch, token->id, token->logprob);
        json_write_key(json, "top_logprobs");
        json_write_open(json, '[');
        for (int32_t j = 0; j < token->top_count; j++) {
            const struct token_logprob *top = &scores->tops[token->top_begin + (size_t)j];
            open_chat_token(json, tokenizer, &scratch, top->id, top->logprob);
            json_write_close(json, '}');
        }
        json_write_close(json, ']');
        json_write_close(json, '}');
    }
    json_write_close(json, ']');
    json_write_key(json, "refusal");
    json_write_null(json);
    json_write_close(json, '}');
    json->out->failed |= scratch.failed;
    text_deinit(&scratch);
}

/* Members "text": logprob of an object, each text once: two ids can stand for the same bytes, and
 * the likelier, which comes first, is kept. */
struct label_writer {
    struct json_writer *json;
    const struct tokenizer *tokenizer;
    struct text label;
    uint64_t seen[LOGPROBS_MAX + 1];
    int seen_count;
};

static void write_label(struct label_writer *writer, int32_t id, float logprob)
{
    token_label(&writer->label, writer->tokenizer, id);
    uint64_t hash = XXH3_64bits(writer->label.bytes, writer->label.length);
    for (int i = 0; i < writer->seen_count; i++) {
        if (writer->seen[i] == hash)
            return;
    }
    if (writer->seen_count == LOGPROBS_MAX + 1)
        return;
    writer->seen[writer->seen_count++] = hash;
    json_write_key_text(writer->json, writer->label.bytes, writer->label.length);
    json_write_logprob(writer->json, logprob);
}

/* `top_max` likeliest of each token, and the token itself where it is not among them. More may be
 * kept, for prompt_logprobs. */
static void write_tops(struct json_writer *json, const struct tokenizer *tokenizer,
                       const struct scored_list *scores, int64_t top_max)
{
    struct label_writer writer = {.json = json, .tokenizer = tokenizer};
    for (size_t i = 0; i < scores->count; i++) {
        const struct scored_token *token = &scores->tokens[i];
        writer.seen_count = 0;
        json_write_open(json, '{');
        for (int32_t j = 0; j < token->top_count && j < top_max; j++) {
            const struct token_logprob *top = &scores->tops[token->top_begin + (size_t)j];
            write_label(&writer, top->id, top->logprob);
        }
        write_label(&writer, token->id, token->logprob);
        json_write_close(json, '}');
    }
    json->out->failed |= writer.label.failed;
    text_deinit(&writer.label);
}

static void write_labels(struct json_writer *json, const struct tokenizer *tokenizer,
                         const int32_t *first, const struct scored_list *prompt,
                         const struct scored_list *scores)
{
    struct text label = {0};
    if (first != NULL) {
        token_label(&label, tokenizer, *first);
        json_write_text(json, label.bytes, label.length);
    }
    for (size_t i = 0; prompt != NULL && i < prompt->count; i++) {
        token_label(&label, tokenizer, prompt->tokens[i].id);
        json_write_text(json, label.bytes, label.length);
    }
    for (size_t i = 0; i < scores->count; i++) {
        token_label(&label, tokenizer, scores->tokens[i].id);
        json_write_text(json, label.bytes, label.length);
    }
    json->out->failed |= label.failed;
    text_deinit(&label);
}

void response_write_completion_logprobs(struct json_writer *json, const struct tokenizer *tokenizer,
                                        const struct prompt_result *prompt,
                                        const struct scored_list *scores, int64_t top_max)
{
    static const struct scored_list nothing;
    const struct scored_list *before = prompt == NULL ? &nothing : &prompt->scores;
    int64_t shift = prompt == NULL ? 0 : count_characters(prompt->text.bytes, prompt->text.length);
    json_write_open(json, '{');
    json_write_key(json, "tokens");
    json_write_open(json, '[');
    write_labels(json, tokenizer, prompt == NULL ? NULL : prompt->ids.ids, before, scores);
    json_write_close(json, ']');

    json_write_key(json, "token_logprobs");
    json_write_open(json, '[');
    if (prompt != NULL)
        json_write_null(json);
    for (size_t i = 0; i < before->count; i++)
        json_write_logprob(json, before->tokens[i].logprob);
    for (size_t i = 0; i < scores->count; i++)
        json_write_logprob(json, scores->tokens[i].logprob);
    json_write_close(json, ']');

    json_write_key(json, "top_logprobs");
    if (top_max > 0) {
        json_write_open(json, '[');
        if (prompt != NULL)
            json_write_null(json);
        write_tops(json, tokenizer, before, top_max);
        write_tops(json, tokenizer, scores, top_max);
        json_write_close(json, ']');
    } else {
        json_write_null(json);
    }

    json_write_key(json, "text_offset");
    json_write_open(json, '[');
    if (prompt != NULL)
        json_write_int(json, 0);
    for (size_t i = 0; i < before->count; i++)
        json_write_int(json, before->tokens[i].text_offset);
    for (size_t i = 0; i < scores->count; i++)
        json_write_int(json, shift + scores->tokens[i].text_offset);
    json_write_close(json, ']');
    json_write_close(json, '}');
}

static void write_ranked(struct json_writer *json, const struct tokenizer *tokenizer,
                         struct text *scratch, int32_t id, float logprob, int64_t rank)
{
    char key[16];
    snprintf(key, sizeof key, "%d", id);
    token_bytes(scratch, tokenizer, id);
    json_write_key(json, key);
    json_write_open(json, '{');
    json_write_key(json, "logprob");
    json_write_logprob(json, logprob);
    json_write_key(json, "rank");
    if (rank > 0)
        json_write_int(json, rank);
    else
        json_write_null(json);
    write_text_member(json, "decoded_token", scratch);
    json_write_close(json, '}');
}

void response_write_prompt_logprobs(struct json_writer *json, const struct tokenizer *tokenizer,
                                    const struct prompt_result *prompt, int64_t top_max)
{
    struct text scratch = {0};
    const struct scored_list *scores = &prompt->scores;
    json_write_open(json, '[');
    json_write_null(json);
    for (size_t i = 0; i < scores->count; i++) {
        const struct scored_token *token = &scores->tokens[i];
        int64_t rank = 0; /* of the prompt's own token among the likeliest; 0: not there */
        json_write_open(json, '{');
        for (int32_t j = 0; j < token->top_count && j < top_max; j++) {
            const struct token_logprob *top = &scores->tops[token->top_begin + (size_t)j];
            if (top->id == token->id)
                rank = j + 1;
            write_ranked(json, tokenizer, &scratch, top->id, top->logprob, j + 1);
        }
        if (rank == 0)
            write_ranked(json, tokenizer, &scratch, token->id, token->logprob, rank);
        json_write_close(json, '}');
    }
    json_write_close(json, ']');
    json->out->failed |= scratch.failed;
    text_deinit(&scratch);
}

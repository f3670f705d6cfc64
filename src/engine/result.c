#include "engine/result.h"

#include <string.h>

#include "base/memory.h"

enum status scored_list_add(struct scored_list *list, const struct generated_token *token,
                            int64_t top_max, int64_t text_offset, struct error *err)
{
    size_t top_count = token->top_count > 0 ? (size_t)token->top_count : 0;
    if (top_max < (int64_t)top_count)
        top_count = top_max > 0 ? (size_t)top_max : 0;
    TRY(memory_reserve(&list->tokens, &list->capacity, list->count + 1, sizeof *list->tokens,
                       "log probabilities", err));
    TRY(memory_reserve(&list->tops, &list->top_capacity, list->top_count + top_count,
                       sizeof *list->tops, "log probabilities", err));
    list->tokens[list->count++] = (struct scored_token){
        .id = token->id,
        .logprob = token->logprob,
        .top_begin = list->top_count,
        .top_count = (int32_t)top_count,
        .text_offset = text_offset,
    };
    if (top_count > 0)
        memcpy(list->tops + list->top_count, token->top, top_count * sizeof *list->tops);
    list->top_count += top_count;
    return STATUS_OK;
}

void scored_list_deinit(struct scored_list *list)
{
    memory_free(list->tokens);
    memory_free(list->tops);
    *list = (struct scored_list){0};
}

void prompt_result_deinit(struct prompt_result *prompt)
{
    token_list_deinit(&prompt->ids);
    text_deinit(&prompt->text);
    scored_list_deinit(&prompt->scores);
}

enum status ids_append(struct token_list *list, int32_t id, struct error *err)
{
    TRY(memory_reserve(&list->ids, &list->capacity, list->count + 1, sizeof *list->ids, "token ids",
                       err));
    list->ids[list->count++] = id;
    return STATUS_OK;
}

int64_t count_characters(const char *text, size_t length)
{
    int64_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

/* Whether a token was put before the text that was given (BOS): one whose own text does not stand
 * where the tokens so far end. */
static bool is_added(const struct prompt_result *prompt, const struct tokenizer *tokenizer,
                     size_t end, int32_t id)
{
    const char *token = tokenizer_token(tokenizer, id);
    if (token == NULL || !tokenizer_is_special(tokenizer, id))
        return false;
    size_t length = strlen(token), left = prompt->text.length - end;
    return left < length || memcmp(prompt->text.bytes + end, token, length) != 0;
}

enum status prompt_result_place(struct prompt_result *prompt, const struct tokenizer *tokenizer,
                                bool skip_special, struct error *err)
{
    struct decoder decoder = {.skip_special = skip_special};
    struct text text = {0};
    size_t end = 0; /* of the tokens so far in the prompt's text */
    int64_t characters = 0;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < prompt->scores.count && status == STATUS_OK; i++) {
        text_clear(&text);
        if (decoder.pending.length > 0 || !is_added(prompt, tokenizer, end, prompt->ids.ids[i]))
            status = decoder_push(&decoder, tokenizer, &text, prompt->ids.ids[i], err);
        /* Where a normalizer has changed the text, offsets are about right, but within it. */
        size_t left = prompt->text.length - end, length = text.length < left ? text.length : left;
        characters += length == 0 ? 0 : count_characters(prompt->text.bytes + end, length);
        end += length;
        prompt->scores.tokens[i].text_offset = characters;
    }
    decoder_deinit(&decoder);
    text_deinit(&text);
    return status;
}

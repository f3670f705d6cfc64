#include "tokenizer_checks.h"

#include <string.h>

/* The decoder must keep at most an unfinished sequence to itself. */
static void push(struct decoder *decoder, const struct tokenizer *tokenizer, struct text *out,
                 int32_t id)
{
    struct error err;
    size_t before = out->length;
    FUZZ_CHECK(decoder_push(decoder, tokenizer, out, id, &err) == STATUS_OK);
    FUZZ_CHECK(out->length >= before);
    FUZZ_CHECK(out->length == before || utf8_is_valid(out->bytes + before, out->length - before));
    FUZZ_CHECK(decoder->pending.length <= 3);
}

static void finish(struct decoder *decoder, struct text *out)
{
    struct error err;
    size_t before = out->length;
    FUZZ_CHECK(decoder_finish(decoder, out, &err) == STATUS_OK);
    FUZZ_CHECK(out->length == before || utf8_is_valid(out->bytes + before, out->length - before));
    decoder_deinit(decoder);
}

static void check_list(const struct tokenizer *tokenizer, const struct token_list *list)
{
    int64_t vocab_count = tokenizer_vocab_count(tokenizer);
    for (size_t i = 0; i < list->count; i++) {
        FUZZ_CHECK(list->ids[i] >= 0 && list->ids[i] < vocab_count);
        FUZZ_CHECK(tokenizer_token(tokenizer, list->ids[i]) != NULL);
    }
}

bool check_text(struct text *decoded, const struct tokenizer *tokenizer, const char *text,
                size_t length, struct encode_options options)
{
    struct token_list list = {0};
    struct error err;
    enum status status = tokenizer_encode(tokenizer, &list, text, length, options, &err);
    if (status != STATUS_OK) {
        fuzz_check_error(status, &err);
        FUZZ_CHECK(list.count == 0);
        token_list_deinit(&list);
        return false;
    }
    check_list(tokenizer, &list);
    size_t count = list.count;
    FUZZ_CHECK(tokenizer_encode(tokenizer, &list, text, length, options, &err) == STATUS_OK);
    FUZZ_CHECK(list.count == 2 * count);
    FUZZ_CHECK(count == 0 || memcmp(list.ids, list.ids + count, count * sizeof *list.ids) == 0);

    struct decoder decoder = {.skip_special = options.add_special};
    for (size_t i = 0; i < count; i++)
        push(&decoder, tokenizer, decoded, list.ids[i]);
    finish(&decoder, decoded);
    token_list_deinit(&list);
    return true;
}

void check_ids(const struct tokenizer *tokenizer)
{
    int64_t count = tokenizer_vocab_count(tokenizer);
    FUZZ_CHECK(count > 0 && count <= INT32_MAX);
    const int32_t odd[] = {-1, INT32_MIN, INT32_MAX, (int32_t)count, (int32_t)count - 1};
    struct decoder decoder = {0};
    struct text out = {0};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        push(&decoder, tokenizer, &out, odd[i]);
        if (i < 4)
            FUZZ_CHECK(tokenizer_token(tokenizer, odd[i]) == NULL);
        FUZZ_CHECK(!tokenizer_is_special(tokenizer, odd[i]) || i == 4);
    }
    for (int32_t id = 0; id < count && id < 512; id++) {
        const char *token = tokenizer_token(tokenizer, id);
        push(&decoder, tokenizer, &out, id);
        if (token != NULL && strlen(token) > 0) { /* a NUL in a token hides the rest of it here */
            int32_t found = tokenizer_find(tokenizer, token, strlen(token));
            FUZZ_CHECK(found >= -1 && found < count);
        }
    }
    finish(&decoder, &out);
    text_deinit(&out);
}

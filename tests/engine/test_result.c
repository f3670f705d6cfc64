/* Where the tokens of an echoed prompt stand in its text. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "engine/result.h"
#include "engine_tools.h"

static struct tokenizer *open_tokenizer(const char *path)
{
    struct tokenizer *tokenizer;
    struct error err;
    size_t length;
    char *json = tools_read_file(path, &length);
    cr_assert_eq(tokenizer_parse(&tokenizer, json, length, NULL, 0, path, &err), STATUS_OK, "%s",
                 err.message);
    free(json);
    return tokenizer;
}

/* A prompt as the engine has it: its ids, what is echoed, and a score for each position but 0. */
static void prompt_make(struct prompt_result *prompt, const struct tokenizer *tokenizer,
                        const char *text, struct encode_options options)
{
    struct error err;
    *prompt = (struct prompt_result){0};
    cr_assert_eq(tokenizer_encode(tokenizer, &prompt->ids, text, strlen(text), options, &err),
                 STATUS_OK);
    text_append(&prompt->text, text, strlen(text));
    for (size_t i = 1; i < prompt->ids.count; i++) {
        struct generated_token token = {.id = prompt->ids.ids[i]};
        cr_assert_eq(scored_list_add(&prompt->scores, &token, 0, 0, &err), STATUS_OK);
    }
}

/* Each token begins where the one before it ends, the first at the text's first character, and the
 * text of every token but the added one stands there. */
static void check_places(const char *path, const char *text, struct encode_options options,
                         bool skip_special)
{
    struct tokenizer *tokenizer = open_tokenizer(path);
    struct prompt_result prompt;
    struct error err;
    prompt_make(&prompt, tokenizer, text, options);
    cr_assert_eq(prompt_result_place(&prompt, tokenizer, skip_special, &err), STATUS_OK);
    size_t added = options.add_special ? 1 : 0;
    for (size_t i = 1; i < prompt.ids.count; i++) {
        struct text piece = {0};
        int64_t offset = prompt.scores.tokens[i - 1].text_offset;
        tokenizer_token_bytes(tokenizer, &piece, prompt.ids.ids[i], i == added, false);
        cr_expect(offset + (int64_t)piece.length <= (int64_t)strlen(text) &&
                      memcmp(text + offset, piece.bytes, piece.length) == 0,
                  "\"%s\", token %zu: \"%.*s\" at %lld", text, i, (int)piece.length, piece.bytes,
                  (long long)offset);
        text_deinit(&piece);
    }
    prompt_result_deinit(&prompt);
    tokenizer_close(tokenizer);
}

Test(result, a_token_that_was_put_before_the_text_takes_no_room_in_it)
{
    static const char *const paths[] = {MODELS_DIR "/kjv-moe/tokenizer.json",
                                        TEST_DATA "/tokenizers/mixtral.json"};
    static const char *const texts[] = {"In the beginning God created", " a b", "x", "s> <s"};
    for (size_t p = 0; p < 2; p++) {
        for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
            for (int skip = 0; skip < 2; skip++) {
                check_places(paths[p], texts[t], (struct encode_options){.add_special = true},
                             skip != 0);
                check_places(paths[p], texts[t], (struct encode_options){.add_special = false},
                             skip != 0);
            }
        }
    }
}

/* One that the text spells stands there. */
Test(result, a_special_token_of_the_text_has_its_room)
{
    check_places(TEST_DATA "/tokenizers/mixtral.json", "a</s>",
                 (struct encode_options){.parse_special = true}, false);
    check_places(TEST_DATA "/tokenizers/mixtral.json", "a</s>",
                 (struct encode_options){.parse_special = true, .add_special = true}, false);
}

/* A normalizer may change how many characters there are; none is said to stand behind the last. */
Test(result, offsets_rise_and_stay_in_the_text)
{
    static const char *const texts[] = {"e\xcc\x81t\xc3\xa9 cafe\xcc\x81", "\xea\xb0\x80 a",
                                        "\xef\xac\x81"};
    struct tokenizer *tokenizer = open_tokenizer(TEST_DATA "/tokenizers/qwen.json");
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        struct prompt_result prompt;
        struct error err;
        int64_t last = 0;
        prompt_make(&prompt, tokenizer, texts[t], (struct encode_options){.add_special = false});
        cr_assert_eq(prompt_result_place(&prompt, tokenizer, false, &err), STATUS_OK);
        for (size_t i = 0; i < prompt.scores.count; i++) {
            int64_t offset = prompt.scores.tokens[i].text_offset;
            cr_expect_geq(offset, last);
            cr_expect_leq(offset, count_characters(texts[t], strlen(texts[t])));
            last = offset;
        }
        prompt_result_deinit(&prompt);
    }
    tokenizer_close(tokenizer);
}

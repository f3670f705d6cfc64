/* Unicode normal forms and the limits of normalizers; the goldens hold the common cases. */
#include "helpers.h"

#include <string.h>

#include "tokenizer/byte_search.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/unicode_class.h"

Test(normalizer, normal_forms)
{
    static const struct {
        const char *in, *nfc, *nfd, *nfkc, *nfkd;
    } cases[] = {
        {"", "", "", "", ""},
        {"plain", "plain", "plain", "plain", "plain"},
        {"\u00E9", "\u00E9", "e\u0301", "\u00E9", "e\u0301"},
        {"xe\u0301x", "x\u00E9x", "xe\u0301x", "x\u00E9x", "xe\u0301x"},
        {"\u1E9B\u0323", "\u1E9B\u0323", "\u017F\u0323\u0307", "\u1E69", "s\u0323\u0307"},
        {"\uFB01", "\uFB01", "\uFB01", "fi", "fi"},
        {"\u1100\u1161\u11A8", "\uAC01", "\u1100\u1161\u11A8", "\uAC01", "\u1100\u1161\u11A8"},
        {"\u212B", "\u00C5", "A\u030A", "\u00C5", "A\u030A"},
        {"\u0958", "\u0915\u093C", "\u0915\u093C", "\u0915\u093C", "\u0915\u093C"},
        /* newer than the tables of the reference: they stay, and part what is beside them */
        {"a\u07FD\u0301", "a\u07FD\u0301", "a\u07FD\u0301", "a\u07FD\u0301", "a\u07FD\u0301"},
        {"\U00011935\U00011930", "\U00011935\U00011930", "\U00011935\U00011930",
         "\U00011935\U00011930", "\U00011935\U00011930"},
        {"\u32FFe\u0301", "\u32FF\u00E9", "\u32FFe\u0301", "\u32FF\u00E9", "\u32FFe\u0301"},
        {"a\u0315\u0300\u05AE\u0300b", "\u00E0\u05AE\u0300\u0315b", "a\u05AE\u0300\u0300\u0315b",
         "\u00E0\u05AE\u0300\u0315b", "a\u05AE\u0300\u0300\u0315b"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const want[] = {cases[i].nfc, cases[i].nfd, cases[i].nfkc, cases[i].nfkd};
        for (int kind = NORMALIZER_NFC; kind <= NORMALIZER_NFKD; kind++) {
            struct text got = {0};
            struct error err;
            cr_assert_eq(normalizer_form((enum normalizer_kind)kind, &got, cases[i].in,
                                         strlen(cases[i].in), &err),
                         STATUS_OK);
            text_append(&got, "", 0);
            cr_expect_str_eq(got.bytes, want[kind], "case %zu, form %d", i, kind);
            text_deinit(&got);
        }
    }
}

/* A long run of marks is ordered by counting: the same order as by insertion, in linear time:
 * by insertion this would take hours. */
Test(normalizer, long_runs_of_marks)
{
    enum { PAIRS = 2000000 };
    struct text in = {0}, got = {0};
    struct error err;
    text_append_string(&in, "a");
    for (int i = 0; i < PAIRS; i++)
        text_append_string(&in, "\u0301\u0316");
    cr_assert_eq(normalizer_form(NORMALIZER_NFD, &got, in.bytes, in.length, &err), STATUS_OK);
    cr_assert_eq(got.length, in.length);
    for (size_t i = 0; i < 2 * PAIRS; i++)
        cr_assert_eq(memcmp(got.bytes + 1 + 2 * i, i < PAIRS ? "\u0316" : "\u0301", 2), 0);
    text_deinit(&in);
    text_deinit(&got);
}

/* Replacing a letter by a long text cannot make a prompt larger than the limit. */
Test(normalizer, growth_is_limited)
{
    struct text json = {0};
    struct token_list ids = {0};
    struct error err = {0};
    size_t length = 200000;
    char *text = memory_alloc(length, 1);
    memset(text, 'a', length);
    text_append_string(&json, "{'model':{'vocab':{'a':0},'merges':[]},'normalizer':{'type':"
                              "'Replace','pattern':{'String':'a'},'content':'");
    for (int i = 0; i < 4096; i++)
        text_append_string(&json, "a");
    text_append_string(&json, "'}}");
    struct tokenizer *tokenizer = parse_quoted(json.bytes, &err);
    cr_assert_not_null(tokenizer, "%s", err.message);
    cr_assert_eq(tokenizer_encode(tokenizer, &ids, text, length, (struct encode_options){0}, &err),
                 STATUS_LIMIT);
    cr_assert_not_null(strstr(err.message, "when it is normalized"), "%s", err.message);
    tokenizer_close(tokenizer);
    memory_free(text);
    text_deinit(&json);
}

Test(byte_search, finds_across_windows)
{
    enum { LENGTH = 20000 };
    char *bytes = memory_alloc(LENGTH, 1);
    memset(bytes, 'a', LENGTH);
    for (size_t at = 0; at + 3 <= LENGTH; at += at > 4000 && at < 8300 ? 1 : 97) {
        memcpy(bytes + at, "abc", 3);
        cr_assert_eq(bytes_find(bytes, LENGTH, "abc", 3), bytes + at);
        cr_assert_null(bytes_find(bytes, at + 2, "abc", 3));
        memset(bytes + at, 'a', 3);
    }
    cr_assert_null(bytes_find(bytes, LENGTH, "ab", 2));
    cr_assert_null(bytes_find(bytes, 0, "a", 1));
    cr_assert_null(bytes_find(NULL, 0, "a", 1));
    memory_free(bytes);
}

Test(unicode_class, edges)
{
    static const struct {
        uint32_t code_point;
        enum char_class class;
        bool is_word;
    } cases[] = {
        {'a', CLASS_LETTER, true},     {'0', CLASS_NUMBER, true},
        {'_', CLASS_OTHER, true},      {' ', CLASS_SPACE, false},
        {'\v', CLASS_SPACE, false},    {0x1C, CLASS_OTHER, false},
        {0x85, CLASS_SPACE, false},    {0xA0, CLASS_SPACE, false},
        {0x200B, CLASS_OTHER, false},  {0x200D, CLASS_OTHER, true},
        {0x180E, CLASS_OTHER, false},  {0x3000, CLASS_SPACE, false},
        {0xFEFF, CLASS_OTHER, false},  {0xBD, CLASS_NUMBER, false},
        {0x2167, CLASS_NUMBER, true},  {0x301, CLASS_OTHER, true},
        {0x24B6, CLASS_OTHER, true},   {0x10FFFF, CLASS_OTHER, false},
        {0x1C89, CLASS_LETTER, true},  {0x10D40, CLASS_NUMBER, true}, /* Unicode 16 */
        {0x2EBF0, CLASS_LETTER, true}, {0x0897, CLASS_OTHER, true},
        {0x31350, CLASS_LETTER, true}, /* Unicode 15 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_expect_eq(unicode_class(cases[i].code_point), cases[i].class, "U+%04X",
                     (unsigned)cases[i].code_point);
        cr_expect_eq(unicode_is_word(cases[i].code_point), cases[i].is_word, "U+%04X",
                     (unsigned)cases[i].code_point);
    }
}

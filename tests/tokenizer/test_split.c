/* Split patterns: the hand-written scanners against PCRE2, the behaviours, and hostile patterns. */
#include "helpers.h"

#include <string.h>

#include "base/random.h"
#include "tokenizer/pretokenizer.h"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define QWEN2                                                                                      \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"      \
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static void find(struct span_list *out, const struct matcher *matcher, const char *text,
                 size_t length)
{
    struct match_work work = {.text_bytes = length};
    struct error err;
    out->count = 0;
    cr_assert_eq(matcher_find(matcher, &work, out, text, length, &err), STATUS_OK, "%s",
                 err.message);
    match_work_deinit(&work);
}

/* A text of characters that the patterns treat apart. */
static void random_text(struct text *out, struct random *random)
{
    static const char *const pieces[] = {"a",        "s",
                                         "S",        "t",
                                         "re",       "LL",
                                         "'",        " ",
                                         "  ",       "\n",
                                         "\r",       "\t",
                                         "1",        "23",
                                         ".",        "-",
                                         "\xC5\xBF", "\xC3\xA9",
                                         "_",        "\xE4\xB8\x96",
                                         "\xC2\xA0", "\xE3\x80\x80",
                                         "\xC2\xBD", "\xCC\x81",
                                         "d"};
    text_clear(out);
    for (uint64_t i = random_below(random, 30) + 1; i > 0; i--)
        text_append_string(out, pieces[random_below(random, sizeof pieces / sizeof *pieces)]);
}

/* The same expression, once as a known one, once in a group that no table knows. */
static void check_scanner(const char *regex)
{
    struct matcher scanner, pcre;
    struct span_list got = {0}, want = {0};
    struct text grouped = {0}, text = {0};
    struct random random = {.seed = 3};
    struct error err;
    text_append_format(&grouped, "(?:%s)", regex);
    cr_assert_eq(matcher_from_regex(&scanner, regex, strlen(regex), "a", &err), STATUS_OK);
    cr_assert_eq(matcher_from_regex(&pcre, grouped.bytes, grouped.length, "a", &err), STATUS_OK,
                 "%s", err.message);
    cr_assert_neq(scanner.kind, MATCHER_PCRE);
    cr_assert_eq(pcre.kind, MATCHER_PCRE);
    for (int i = 0; i < 20000; i++) {
        random_text(&text, &random);
        find(&got, &scanner, text.bytes, text.length);
        find(&want, &pcre, text.bytes, text.length);
        cr_assert(got.count == want.count &&
                      memcmp(got.items, want.items, got.count * sizeof *got.items) == 0,
                  "seed 3, text %d: \"%s\"", i, text.bytes);
    }
    span_list_deinit(&got);
    span_list_deinit(&want);
    text_deinit(&text);
    text_deinit(&grouped);
    matcher_deinit(&scanner);
    matcher_deinit(&pcre);
}

Test(split, scanners_match_as_pcre2)
{
    check_scanner(GPT2);
    check_scanner(QWEN2);
}

/* Behaviours on "ab--c-" cut at "-", as tokenizers documents them. */
Test(split, behaviors)
{
    static const struct {
        const char *behavior, *invert, *want;
    } cases[] = {
        {"Removed", "false", "ab|c|"},
        {"Isolated", "false", "ab|-|-|c|-|"},
        {"MergedWithPrevious", "false", "ab-|-|c-|"},
        {"MergedWithNext", "false", "ab|-|-c|-|"},
        {"Contiguous", "false", "ab|--|c|-|"},
        {"Removed", "true", "-|-|-|"},
        {"MergedWithPrevious", "true", "ab|-|-c|-|"},
        {"Contiguous", "true", "ab|--|c|-|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pretokenizer pretokenizer;
        struct pretokenizer_work work = {0};
        struct arena arena = {0};
        struct text json = {0}, got = {0};
        struct error err;
        text_append_format(&json,
                           "{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"%s\","
                           "\"invert\":%s}",
                           cases[i].behavior, cases[i].invert);
        json_t *value = json_loads(json.bytes, 0, NULL);
        cr_assert_eq(pretokenizer_read(&pretokenizer, &arena, value, "a", &err), STATUS_OK, "%s",
                     err.message);
        cr_assert_eq(pretokenizer_apply(&pretokenizer, &work, "ab--c-", 6, true, &err), STATUS_OK);
        for (size_t k = 0; k < work.pieces.count; k++) {
            struct span piece = work.pieces.items[k];
            text_append(&got, work.text.bytes + piece.begin, piece.end - piece.begin);
            text_append_string(&got, "|");
        }
        cr_expect_str_eq(got.bytes, cases[i].want, "%s %s: %s", cases[i].behavior, cases[i].invert,
                         got.bytes);
        json_decref(value);
        text_deinit(&json);
        text_deinit(&got);
        pretokenizer_work_deinit(&work);
        pretokenizer_deinit(&pretokenizer);
        arena_deinit(&arena);
    }
}

/* Marks that are digits, and are cut off as such: each round makes two pieces of one, and twice the
 * text. */
static enum status encode_rounds(int rounds, struct error *err)
{
    enum { LENGTH = 2048 };
    struct text json = {0};
    struct token_list ids = {0};
    char text[LENGTH];
    memset(text, '0', LENGTH);
    text_append_string(&json, "{'model':{'vocab':{'a':0},'merges':[]},'pre_tokenizer':{'type':"
                              "'Sequence','pretokenizers':[");
    for (int mark = 1; mark <= rounds; mark++)
        text_append_format(&json,
                           "%s{'type':'Digits','individual_digits':true},{'type':'Metaspace',"
                           "'replacement':'%d','split':false}",
                           mark == 1 ? "" : ",", mark);
    text_append_string(&json, "]}}");
    struct tokenizer *tokenizer = parse_quoted(json.bytes, err);
    cr_assert_not_null(tokenizer, "%s", err->message);
    enum status status =
        tokenizer_encode(tokenizer, &ids, text, LENGTH, (struct encode_options){0}, err);
    token_list_deinit(&ids);
    tokenizer_close(tokenizer);
    text_deinit(&json);
    return status;
}

Test(split, growth_is_limited)
{
    struct error err = {0};
    cr_assert_eq(encode_rounds(4, &err), STATUS_OK, "%s", err.message);
    for (int rounds = 5; rounds <= 9; rounds++) {
        cr_assert_eq(encode_rounds(rounds, &err), STATUS_LIMIT, "%d rounds", rounds);
        cr_assert_str_eq(err.message,
                         "the text becomes longer than 32784 bytes when it is pre-tokenized");
    }
}

Test(split, refuses_what_oniguruma_reads_otherwise)
{
    static const struct {
        const char *regex, *reason;
    } cases[] = {
        {"\\w+", "an escape whose meaning differs"},
        {"\\h", "an escape whose meaning differs"},
        {"(a)\\1", "an escape whose meaning differs"},
        {"[a&&b]", "a class within a class"},
        {"[a[bc]]", "a class within a class"},
        {"[]a]", "a class that begins with ]"},
        {"(*UTF)a", "a verb"},
        {"(?m:a)", "a group of an unknown kind"},
        {"(?i)a", "a group of an unknown kind"},
        {"(?R)?a", "a group of an unknown kind"},
        {"a(?", "a group of an unknown kind"},
        {"a{2}+", "a counted repeat followed by +"},
        {"a?", "it may match the empty text"},
        {"a)|(?:b", "unmatched closing parenthesis"},
        {"a\\", "\\ at end of pattern"},
        {"", "it is empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct matcher matcher;
        struct error err = {0};
        uint64_t live = memory_counters_get().live_count;
        cr_expect_eq(
            matcher_from_regex(&matcher, cases[i].regex, strlen(cases[i].regex), "a.json", &err),
            STATUS_UNSUPPORTED, "%s", cases[i].regex);
        cr_expect_not_null(strstr(err.message, cases[i].reason), "%s: %s", cases[i].regex,
                           err.message);
        cr_expect_eq(memory_counters_get().live_count, live);
    }
}

/* Patterns that take exponential or quadratic time give up within 200 ms. */
Test(split, hostile_patterns_give_up)
{
    static const struct {
        const char *regex;
        char letter, last;
    } cases[] = {
        {"(a+)+$", 'a', 'b'},
        {"(a|a)+$", 'a', 'b'},
        {"(?:a+)+b(?=c)", 'a', 'b'},
        {"\\s+$", ' ', 'x'},
    };
    enum { LENGTH = 65536 };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct matcher matcher;
        struct match_work work = {.text_bytes = LENGTH + 1};
        struct span_list spans = {0};
        struct error err = {0};
        char *text = memory_alloc(LENGTH + 1, 1);
        memset(text, cases[i].letter, LENGTH);
        text[LENGTH] = cases[i].last;
        cr_assert_eq(
            matcher_from_regex(&matcher, cases[i].regex, strlen(cases[i].regex), "a", &err),
            STATUS_OK, "%s", err.message);
        double start = cpu_seconds();
        cr_expect_eq(matcher_find(&matcher, &work, &spans, text, LENGTH + 1, &err), STATUS_LIMIT,
                     "%s", cases[i].regex);
        cr_expect_lt(cpu_seconds() - start, 0.2, "%s: %g s", cases[i].regex, cpu_seconds() - start);
        cr_expect_not_null(strstr(err.message, "takes too"), "%s", err.message);
        match_work_deinit(&work);
        span_list_deinit(&spans);
        matcher_deinit(&matcher);
        memory_free(text);
    }
}

Test(split, byte_alphabet)
{
    bool seen[0x200] = {false};
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t code_point = char_of_byte((unsigned char)byte);
        cr_assert_lt(code_point, 0x144);
        cr_assert_not(seen[code_point]);
        seen[code_point] = true;
        cr_assert_eq(byte_of_char(code_point), (int)byte);
    }
    for (uint32_t code_point = 0; code_point < 0x200; code_point++)
        cr_assert_eq(byte_of_char(code_point) >= 0, seen[code_point]);
    cr_assert_eq(char_of_byte(' '), 0x120);
    cr_assert_eq(char_of_byte('\n'), 0x10A);
}

/* Ids and texts against those of Hugging Face tokenizers (tools/goldens/tokenizer). */
#include "helpers.h"

#include <string.h>

#include "tokenizer/utf8_clean.h"

static size_t decode_base64(char *out, const char *in)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    size_t bit_count = 0, length = 0;
    for (; *in != 0 && *in != '='; in++) {
        bits = bits << 6 | (uint32_t)(strchr(digits, *in) - digits);
        bit_count += 6;
        if (bit_count >= 8) {
            bit_count -= 8;
            out[length++] = (char)(bits >> bit_count);
        }
    }
    return length;
}

/* The bytes of a line of texts.jsonl; `count` repeats of a unit, where it has one. */
static void append_input(struct text *out, const json_t *line, int64_t count)
{
    const char *keys[] = {"text", "base64", "unit", "unit_base64"};
    for (size_t i = 0; i < 4; i++) {
        const json_t *value = json_object_get(line, keys[i]);
        if (value == NULL)
            continue;
        char *bytes = memory_alloc(json_string_length(value) + 1, 1);
        size_t length = json_string_length(value);
        memcpy(bytes, json_string_value(value), length);
        if (i % 2 == 1)
            length = decode_base64(bytes, json_string_value(value));
        for (int64_t k = 0; k < (i < 2 ? 1 : count); k++)
            text_append(out, bytes, length);
        memory_free(bytes);
    }
    cr_assert_not(out->failed);
}

static void add_all(struct token_list *out, const json_t *array)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        cr_assert_eq(memory_reserve(&out->ids, &out->capacity, out->count + 1, sizeof *out->ids,
                                    "ids", NULL),
                     STATUS_OK);
        out->ids[out->count++] = (int32_t)json_integer_value(json_array_get(array, i));
    }
}

/* A list of ids, or of runs: [count, ids]. */
static struct token_list wanted_ids(const json_t *list)
{
    struct token_list ids = {0};
    if (!json_is_array(json_array_get(list, 0))) {
        add_all(&ids, list);
        return ids;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *run = json_array_get(list, i);
        for (json_int_t k = 0; k < json_integer_value(json_array_get(run, 0)); k++)
            add_all(&ids, json_array_get(run, 1));
    }
    return ids;
}

/* Appends to a list that is not empty, so that what was there must stay. */
static void check_encode(const struct tokenizer *tokenizer, const struct text *input,
                         struct encode_options options, const json_t *wanted, const char *what)
{
    struct token_list want = wanted_ids(wanted), got = {0};
    struct error err = {0};
    cr_assert_eq(tokenizer_encode(tokenizer, &got, input->bytes, input->length, options, &err),
                 STATUS_OK, "%s: %s", what, err.message);
    assert_ids(&got, want.ids, want.count, what);
    token_list_deinit(&got);
    token_list_deinit(&want);
}

static const json_t *first_of(const json_t *a, const json_t *b)
{
    return a != NULL ? a : b;
}

static struct text stream(const struct tokenizer *tokenizer, const struct token_list *ids,
                          bool skip_special)
{
    struct text out = {0};
    struct decoder decoder = {.skip_special = skip_special};
    struct error err;
    for (size_t i = 0; i < ids->count; i++) {
        size_t before = out.length;
        cr_assert_eq(decoder_push(&decoder, tokenizer, &out, ids->ids[i], &err), STATUS_OK);
        cr_assert(out.length == before || utf8_is_valid(out.bytes + before, out.length - before));
    }
    cr_assert_eq(decoder_finish(&decoder, &out, &err), STATUS_OK);
    decoder_deinit(&decoder);
    return out;
}

static void assert_text(const struct text *got, const char *want, size_t length, const char *what)
{
    cr_assert(got->length == length && (length == 0 || memcmp(got->bytes, want, length) == 0),
              "%s: got \"%s\", want \"%s\"", what, got->length == 0 ? "" : got->bytes, want);
}

static void check_short(const struct tokenizer *tokenizer, const json_t *source,
                        const json_t *golden, const char *what)
{
    struct text input = {0}, clean = {0};
    append_input(&input, source, 1);
    const json_t *plain = json_object_get(golden, "ids");
    const json_t *parsed = first_of(json_object_get(golden, "parsed"), plain);
    const json_t *framed = first_of(json_object_get(golden, "framed"), parsed);
    check_encode(tokenizer, &input, (struct encode_options){0}, plain, what);
    check_encode(tokenizer, &input, (struct encode_options){.parse_special = true}, parsed, what);
    check_encode(tokenizer, &input,
                 (struct encode_options){.parse_special = true, .add_special = true}, framed, what);

    struct token_list ids = wanted_ids(plain);
    struct text decoded = stream(tokenizer, &ids, false);
    const json_t *text = json_object_get(golden, "text");
    utf8_append_clean(&clean, input.bytes, input.length);
    if (text != NULL)
        assert_text(&decoded, json_string_value(text), json_string_length(text), what);
    else
        assert_text(&decoded, clean.bytes, clean.length, what);
    token_list_deinit(&ids);
    text_deinit(&decoded);
    text_deinit(&clean);
    text_deinit(&input);
}

/* The goal is a second for each MiB; sanitizers and slow machines are given more. */
#define SECONDS_PER_MIB 10.0

static void check_long(const struct tokenizer *tokenizer, const json_t *source,
                       const json_t *golden, const char *what)
{
    struct text input = {0};
    const json_t *count =
        first_of(json_object_get(golden, "count"), json_object_get(source, "count"));
    append_input(&input, source, json_integer_value(count));
    const json_t *plain = json_object_get(golden, "runs");
    const json_t *parsed = first_of(json_object_get(golden, "parsed_runs"), plain);
    double start = cpu_seconds();
    check_encode(tokenizer, &input, (struct encode_options){0}, plain, what);
    check_encode(tokenizer, &input, (struct encode_options){.parse_special = true}, parsed, what);
    double limit = 1 + SECONDS_PER_MIB * (double)input.length / (1 << 20);
    cr_expect_lt(cpu_seconds() - start, limit, "%s takes too long", what);
    text_deinit(&input);
}

static void check_decode(const struct tokenizer *tokenizer, const json_t *golden, const char *what)
{
    struct token_list ids = wanted_ids(json_object_get(golden, "decode"));
    const json_t *kept = json_object_get(golden, "text");
    const json_t *skipped = first_of(json_object_get(golden, "skipped"), kept);
    for (int skip = 0; skip < 2; skip++) {
        const json_t *want = skip ? skipped : kept;
        struct text got = stream(tokenizer, &ids, skip);
        assert_text(&got, json_string_value(want), json_string_length(want), what);
        text_deinit(&got);
    }
    token_list_deinit(&ids);
}

static void check_goldens(const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "%s.jsonl", name);
    uint64_t live = memory_counters_get().live_count;
    struct json_lines texts = data_lines("texts.jsonl"), goldens = data_lines(file);
    struct tokenizer *tokenizer = data_tokenizer(name);
    cr_assert_gt(texts.count, 100);
    cr_assert_gt(goldens.count, texts.count);
    for (size_t i = 0; i < goldens.count; i++) {
        const char *what =
            i < texts.count ? json_string_value(json_object_get(texts.items[i], "name")) : "decode";
        if (i >= texts.count)
            check_decode(tokenizer, goldens.items[i], what);
        else if (json_object_get(texts.items[i], "count") != NULL)
            check_long(tokenizer, texts.items[i], goldens.items[i], what);
        else
            check_short(tokenizer, texts.items[i], goldens.items[i], what);
    }
    tokenizer_close(tokenizer);
    json_lines_deinit(&texts);
    json_lines_deinit(&goldens);
    cr_expect_eq(memory_counters_get().live_count, live);
}

#define GOLDENS(name)                                                                              \
    Test(encode_goldens, name)                                                                     \
    {                                                                                              \
        check_goldens(#name);                                                                      \
    }

GOLDENS(qwen)
GOLDENS(gpt2)
GOLDENS(prefix)
GOLDENS(deepseek)
GOLDENS(tricky)
GOLDENS(mixtral)
GOLDENS(metaspace)
GOLDENS(words)

Test(encode, what_the_list_held_stays)
{
    struct tokenizer *tokenizer = data_tokenizer("qwen");
    struct token_list list = {0};
    struct error err;
    cr_assert_eq(tokenizer_encode(tokenizer, &list, "a", 1, (struct encode_options){0}, &err), 0);
    cr_assert_eq(tokenizer_encode(tokenizer, &list, "b", 1, (struct encode_options){0}, &err), 0);
    cr_assert_eq(list.count, 2);
    cr_assert_str_eq(tokenizer_token(tokenizer, list.ids[0]), "a");
    cr_assert_str_eq(tokenizer_token(tokenizer, list.ids[1]), "b");
    cr_assert_eq(tokenizer_encode(tokenizer, &list, NULL, 0, (struct encode_options){0}, &err), 0);
    cr_assert_eq(list.count, 2);
    token_list_deinit(&list);
    tokenizer_close(tokenizer);
}

Test(encode, a_text_beyond_the_limit_is_refused)
{
    struct tokenizer *tokenizer = data_tokenizer("mixtral");
    size_t length = (size_t)64 << 20;
    char *text = memory_alloc(length, 1);
    struct token_list list = {0};
    struct error err;
    cr_assert_eq(tokenizer_encode(tokenizer, &list, text, length, (struct encode_options){0}, &err),
                 STATUS_LIMIT);
    cr_assert_str_eq(err.message, "the text is 67108864 bytes long, at most 16777216 are allowed");
    cr_assert_eq(list.count, 0);
    memory_free(text);
    tokenizer_close(tokenizer);
}

/* Every allocation of an encode fails once: the list must be as before and nothing may leak. */
Test(encode, each_allocation_may_fail)
{
    static const char text[] = "The <|im_end|> e\xCC\x81\xCC\xA3 \xFF 12 caf\xC3\xA9 [both]  word";
    const char *const names[] = {"qwen", "deepseek", "tricky", "mixtral", "metaspace"};
    for (size_t i = 0; i < 5; i++) {
        struct tokenizer *tokenizer = data_tokenizer(names[i]);
        uint64_t live = memory_counters_get().live_count;
        struct error err;
        enum status status = STATUS_NO_MEMORY;
        for (uint64_t n = 1; status != STATUS_OK; n++) {
            struct token_list list = {0};
            memory_fail_at(n, n % 2 == 0);
            status = tokenizer_encode(tokenizer, &list, text, sizeof text - 1,
                                      (struct encode_options){.add_special = true}, &err);
            memory_fail_at(0, 0);
            cr_assert(status == STATUS_OK || status == STATUS_NO_MEMORY, "%s", err.message);
            cr_assert(status == STATUS_OK || list.count == 0);
            token_list_deinit(&list);
            cr_assert_eq(memory_counters_get().live_count, live, "%s at %u", names[i], (unsigned)n);
            cr_assert_lt(n, 1000);
        }
        tokenizer_close(tokenizer);
    }
}

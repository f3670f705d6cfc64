/* Any bytes through tokenizers that are known to be good. The first byte chooses the options (bits
 * 0 and 1) and the tokenizer (bits 2 to 4; bit 7: all of them); the rest is the text. Where the
 * tokenizer can spell every text, decoding must give the text back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/file.h"
#include "fuzz.h"
#include "tokenizer_checks.h"

enum round_trip {
    TRIP_NONE,
    TRIP_EXACT,
    TRIP_SPACES, /* U+2581 and the space are one character */
};

static struct fixed {
    const char *path;
    enum round_trip round_trip;
    struct tokenizer *tokenizer;
} fixed[] = {
    {TEST_DATA "/tokenizers/gpt2.json", TRIP_EXACT, NULL},
    {TEST_DATA "/tokenizers/qwen.json", TRIP_EXACT, NULL},
    {TEST_DATA "/tokenizers/deepseek.json", TRIP_EXACT, NULL},
    {TEST_DATA "/tokenizers/prefix.json", TRIP_NONE, NULL}, /* a space comes before each piece */
    {TEST_DATA "/tokenizers/mixtral.json", TRIP_SPACES, NULL},
    {TEST_DATA "/tokenizers/metaspace.json", TRIP_NONE, NULL}, /* unknown characters are lost */
    {TEST_DATA "/tokenizers/words.json", TRIP_NONE, NULL},
    {TEST_DATA "/tokenizers/tricky.json", TRIP_NONE, NULL}, /* its added tokens take spaces along */
};
#define FIXED_COUNT (sizeof fixed / sizeof *fixed)

static void open_all(void)
{
    for (size_t i = 0; i < FIXED_COUNT; i++) {
        char *json;
        size_t length;
        struct error err = {0};
        enum status status = file_read_whole(&json, &length, fixed[i].path, (size_t)64 << 20, &err);
        if (status == STATUS_OK) {
            status =
                tokenizer_parse(&fixed[i].tokenizer, json, length, NULL, 0, fixed[i].path, &err);
            memory_free(json);
        }
        if (status != STATUS_OK) {
            fprintf(stderr, "%s\n", err.message);
            exit(1);
        }
    }
}

/* How many bytes at `in` are one broken part: Unicode 15, section 3.9, table 3-7, written down a
 * second time. Called where no valid sequence begins. */
static size_t broken_length(const uint8_t *in, size_t length)
{
    uint8_t first = in[0], low = 0x80, high = 0xBF;
    size_t wanted = first >= 0xC2 && first <= 0xDF   ? 2
                    : first >= 0xE0 && first <= 0xEF ? 3
                    : first >= 0xF0 && first <= 0xF4 ? 4
                                                     : 1;
    low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : low;
    high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : high;
    size_t taken = 1;
    while (taken < wanted && taken < length && in[taken] >= low && in[taken] <= high) {
        taken++;
        low = 0x80;
        high = 0xBF;
    }
    return taken;
}

/* What the encoder is to make of any bytes. */
static void append_clean(struct text *out, const uint8_t *in, size_t length)
{
    for (size_t at = 0; at < length;) {
        uint32_t code_point;
        size_t step = utf8_decode(&code_point, (const char *)in + at, length - at);
        if (step > 0) {
            text_append(out, (const char *)in + at, step);
        } else {
            text_append_string(out, "\xEF\xBF\xBD");
            step = broken_length(in + at, length - at);
        }
        at += step;
    }
}

static void append_nfc(struct text *out, const struct text *in)
{
    utf8proc_uint8_t *result = NULL;
    if (in->length == 0)
        return;
    utf8proc_ssize_t length =
        utf8proc_map((const utf8proc_uint8_t *)in->bytes, (utf8proc_ssize_t)in->length, &result,
                     UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    FUZZ_CHECK(length >= 0);
    text_append(out, (const char *)result, (size_t)length);
    free(result);
}

static void append_with_spaces(struct text *out, const char *in, size_t length)
{
    for (size_t at = 0; at < length; at++) {
        bool is_mark = length - at >= 3 && memcmp(in + at, "\xE2\x96\x81", 3) == 0;
        text_append(out, is_mark ? " " : in + at, 1);
        at += is_mark ? 2 : 0;
    }
}

static bool equal(const struct text *a, const char *bytes, size_t length)
{
    return a->length == length && (length == 0 || memcmp(a->bytes, bytes, length) == 0);
}

/* `nfc` is normal and valid, so that no normalizer changes it. */
static void check_round_trip(const struct fixed *with, const struct text *nfc)
{
    struct text decoded = {0}, spaces = {0};
    if (check_text(&decoded, with->tokenizer, nfc->bytes, nfc->length,
                   (struct encode_options){0})) {
        if (with->round_trip == TRIP_EXACT)
            FUZZ_CHECK(equal(&decoded, nfc->bytes, nfc->length));
        append_with_spaces(&spaces, nfc->bytes, nfc->length);
        if (with->round_trip == TRIP_SPACES)
            FUZZ_CHECK(equal(&decoded, spaces.bytes, spaces.length));
    }
    text_deinit(&spaces);
    text_deinit(&decoded);
}

/* Broken bytes and the same bytes with the broken parts replaced are one text. */
static void check_replaced(const struct tokenizer *tokenizer, const struct fuzz_input *input,
                           const struct text *clean, struct encode_options options)
{
    struct text decoded = {0}, of_clean = {0};
    bool is_taken = check_text(&decoded, tokenizer, input->at, input->left, options);
    FUZZ_CHECK(check_text(&of_clean, tokenizer, clean->bytes, clean->length, options) == is_taken);
    FUZZ_CHECK(equal(&decoded, of_clean.bytes, of_clean.length));
    text_deinit(&of_clean);
    text_deinit(&decoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_open;
    if (size == 0)
        return 0;
    if (!is_open)
        open_all();
    is_open = true;
    struct fuzz_account account = fuzz_begin(size);
    struct encode_options options = {.add_special = data[0] & 1, .parse_special = data[0] >> 1 & 1};
    struct fuzz_input input = {(const char *)data + 1, size - 1, false};
    struct text clean = {0}, nfc = {0};
    append_clean(&clean, data + 1, size - 1);
    FUZZ_CHECK(clean.length == 0 || utf8_is_valid(clean.bytes, clean.length));
    append_nfc(&nfc, &clean);
    for (size_t i = 0; i < FIXED_COUNT; i++) {
        if (data[0] < 0x80 && (data[0] >> 2 & 7) != i)
            continue;
        check_replaced(fixed[i].tokenizer, &input, &clean, options);
        if (fixed[i].round_trip != TRIP_NONE)
            check_round_trip(&fixed[i], &nfc);
    }
    text_deinit(&nfc);
    text_deinit(&clean);
    fuzz_end(&account);
    return 0;
}

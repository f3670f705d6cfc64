/* Decoding: streams, single tokens, and the components that no golden holds. */
#include "helpers.h"

#include <string.h>

#include "base/random.h"
#include "tokenizer/utf8_clean.h"

static struct text decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count)
{
    struct text out = {0};
    struct decoder decoder = {0};
    struct error err;
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(decoder_push(&decoder, tokenizer, &out, ids[i], &err), STATUS_OK);
    cr_assert_eq(decoder_finish(&decoder, &out, &err), STATUS_OK);
    decoder_deinit(&decoder);
    text_append(&out, "", 0); /* so that there is text even when it is empty */
    return out;
}

/* A vocabulary of tokens that the decoders look at. */
#define VOCAB                                                                                      \
    "'model':{'vocab':{'_a':0,'_':1,'b_c':2,'<0xE2>':3,'<0x82>':4,'<0xAC>':5,' x ':6,'<0xG0>':7,"  \
    "'':8},'merges':[]}"

Test(decoder, components)
{
    static const struct {
        const char *decoder;
        int32_t ids[6];
        size_t count;
        const char *want;
    } cases[] = {
        {"null", {0, 2}, 2, "_a b_c"},
        {"{'type':'Fuse'}", {0, 2}, 2, "_ab_c"},
        {"{'type':'Replace','pattern':{'String':'_'},'content':'--'}", {0, 2}, 2, "--ab--c"},
        {"{'type':'ByteFallback'}", {3, 4, 5, 0}, 4, "\xE2\x82\xAC_a"},
        {"{'type':'ByteFallback'}", {3, 4, 0, 4}, 4, "\xEF\xBF\xBD_a\xEF\xBF\xBD"},
        {"{'type':'ByteFallback'}", {3, 3, 7, 3}, 4, "\xEF\xBF\xBD\xEF\xBF\xBD<0xG0>\xEF\xBF\xBD"},
        {"{'type':'Metaspace','replacement':'_'}", {0, 0, 2}, 3, "a ab c"},
        {"{'type':'Metaspace','replacement':'_','prepend_scheme':'never'}", {0, 2}, 2, " ab c"},
        {"{'type':'Metaspace','replacement':'_','add_prefix_space':false}", {0, 2}, 2, " ab c"},
        {"{'type':'Metaspace','replacement':'_'}", {1, 0}, 2, " a"},
        {"{'type':'Strip','content':' ','start':1,'stop':1}", {6, 6}, 2, "xx"},
        {"{'type':'Sequence','decoders':[{'type':'Replace','pattern':{'String':'_'},'content':' '},"
         "{'type':'ByteFallback'},{'type':'Fuse'},{'type':'Strip','content':' ','start':1,"
         "'stop':0}]}",
         {0, 0, 6},
         3,
         "a a x "},
        {"{'type':'Sequence','decoders':[{'type':'Replace','pattern':{'String':'_'},'content':' '},"
         "{'type':'Fuse'},{'type':'Strip','content':' ','start':1,'stop':0}]}",
         {8, 1, 1, 0},
         4,
         "  a"},
        {"{'type':'ByteLevel'}", {0, 6}, 2, "_a x "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct text json = {0};
        struct error err = {0};
        text_append_format(&json, "{" VOCAB ",'decoder':%s}", cases[i].decoder);
        struct tokenizer *tokenizer = parse_quoted(json.bytes, &err);
        cr_assert_not_null(tokenizer, "%s", err.message);
        struct text got = decode(tokenizer, cases[i].ids, cases[i].count);
        cr_expect_str_eq(got.bytes, cases[i].want, "%s: \"%s\"", cases[i].decoder, got.bytes);
        text_deinit(&got);
        text_deinit(&json);
        tokenizer_close(tokenizer);
    }
}

/* Steps may make 64 bytes of one; what another takes off does not count. */
Test(decoder, growth_is_limited)
{
    for (int more = 0; more < 2; more++) {
        struct text json = {0};
        struct error err = {0};
        text_append_format(&json,
                           "{" VOCAB ",'decoder':{'type':'Sequence','decoders':["
                           "{'type':'Replace','pattern':{'String':'a'},'content':'aaaaaaaa'},"
                           "{'type':'Replace','pattern':{'String':'aa'},'content':'a'},"
                           "{'type':'Replace','pattern':{'String':'a'},'content':'bbbbbbbb%s'}]}}",
                           more == 1 ? "b" : "");
        if (more == 1) {
            assert_refused(json.bytes, STATUS_LIMIT, "make up to 72 bytes of one, at most 64");
        } else {
            struct tokenizer *tokenizer = parse_quoted(json.bytes, &err);
            cr_assert_not_null(tokenizer, "%s", err.message);
            struct text got = decode(tokenizer, (int32_t[]){0}, 1);
            cr_expect_str_eq(got.bytes, "_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "%s", got.bytes);
            text_deinit(&got);
            tokenizer_close(tokenizer);
        }
        text_deinit(&json);
    }
}

/* The bytes of single tokens, put together and mended, are the text of the stream. */
static void check_token_bytes(const char *name)
{
    struct tokenizer *tokenizer = data_tokenizer(name);
    struct random random = {.seed = 7};
    for (int round = 0; round < 200; round++) {
        int32_t ids[24];
        struct text bytes = {0}, mended = {0};
        bool first = true;
        for (size_t i = 0; i < 24; i++) {
            size_t before = bytes.length;
            ids[i] = (int32_t)random_below(&random, (uint64_t)tokenizer_vocab_count(tokenizer));
            tokenizer_token_bytes(tokenizer, &bytes, ids[i], first, false);
            const char *own = tokenizer_token(tokenizer, ids[i]);
            first = first && bytes.length == before && strcmp(own, "\xE2\x96\x81") != 0;
        }
        utf8_append_clean(&mended, bytes.bytes, bytes.length);
        struct text stream = decode(tokenizer, ids, 24);
        cr_assert_eq(stream.length, mended.length, "%s", name);
        cr_assert_eq(memcmp(stream.bytes, mended.bytes, mended.length), 0, "%s", name);
        text_deinit(&bytes);
        text_deinit(&mended);
        text_deinit(&stream);
    }
    tokenizer_close(tokenizer);
}

Test(decoder, single_tokens_make_the_stream)
{
    check_token_bytes("qwen");
    check_token_bytes("mixtral");
    check_token_bytes("tricky");
}

Test(decoder, holds_an_unfinished_sequence_back)
{
    struct error err = {0};
    struct tokenizer *tokenizer =
        parse_quoted("{" VOCAB ",'decoder':{'type':'ByteFallback'}}", &err);
    struct decoder decoder = {0};
    struct text out = {0};
    cr_assert_eq(decoder_push(&decoder, tokenizer, &out, 3, &err), STATUS_OK);
    cr_assert_eq(decoder_push(&decoder, tokenizer, &out, 4, &err), STATUS_OK);
    cr_assert_eq(out.length, 0);
    cr_assert_eq(decoder_push(&decoder, tokenizer, &out, 5, &err), STATUS_OK);
    cr_assert_str_eq(out.bytes, "\xE2\x82\xAC");
    /* Ids that are no tokens give nothing: a model may have padded its output layer. */
    cr_assert_eq(decoder_push(&decoder, tokenizer, &out, 9999, &err), STATUS_OK);
    cr_assert_eq(decoder_push(&decoder, tokenizer, &out, -1, &err), STATUS_OK);
    cr_assert_eq(out.length, 3);
    cr_assert_eq(decoder_push(&decoder, tokenizer, &out, 3, &err), STATUS_OK);
    cr_assert_eq(decoder_finish(&decoder, &out, &err), STATUS_OK);
    cr_assert_str_eq(out.bytes, "\xE2\x82\xAC\xEF\xBF\xBD");
    decoder_deinit(&decoder);
    text_deinit(&out);
    tokenizer_close(tokenizer);
}

/* A push that fails changes nothing: the same push succeeds afterwards. */
Test(decoder, a_failed_push_changes_nothing)
{
    struct tokenizer *tokenizer = data_tokenizer("mixtral");
    uint64_t live = memory_counters_get().live_count;
    struct decoder decoder = {0};
    struct text out = {0};
    struct error err;
    int32_t ids[64];
    for (int32_t i = 0; i < 64; i++)
        ids[i] = 3 + (i * 37) % 1000;
    for (size_t i = 0; i < 64; i++) {
        size_t length = out.length;
        enum status status = STATUS_NO_MEMORY;
        for (uint64_t n = 1; status != STATUS_OK; n++) {
            memory_fail_at(n, 0);
            status = decoder_push(&decoder, tokenizer, &out, ids[i], &err);
            memory_fail_at(0, 0);
            cr_assert(status == STATUS_OK || out.length == length);
            cr_assert_lt(n, 20);
        }
    }
    cr_assert_eq(decoder_finish(&decoder, &out, &err), STATUS_OK);
    struct text want = decode(tokenizer, ids, 64);
    cr_assert_str_eq(out.bytes, want.bytes);
    text_deinit(&want);
    text_deinit(&out);
    decoder_deinit(&decoder);
    cr_assert_eq(memory_counters_get().live_count, live);
    tokenizer_close(tokenizer);
}

Test(utf8_clean, replaces_maximal_broken_parts)
{
    static const struct {
        const char *in, *want; /* R stands for U+FFFD */
    } cases[] = {
        {"", ""},
        {"a\xC3\xA9", "a\xC3\xA9"},
        {"\x80", "R"},
        {"\xC0\xAF", "RR"},
        {"\xE2\x82", "R"},
        {"\xE2\x82x", "Rx"},
        {"\xE2\x82\xE2\x82\xAC", "R\xE2\x82\xAC"},
        {"\xF0\x9F\x98", "R"},
        {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
        {"\xED\xA0\x80", "RRR"},
        {"\xF4\x90\x80\x80", "RRRR"},
        {"\xE0\x80\x80", "RRR"},
        {"\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63", "RRR\x62R\x63"},
        {"\xFF\xFE", "RR"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct text got = {0}, want = {0};
        utf8_append_clean(&got, cases[i].in, strlen(cases[i].in));
        for (const char *at = cases[i].want; *at != 0; at++)
            text_append(&want, *at == 'R' ? "\xEF\xBF\xBD" : at, *at == 'R' ? 3 : 1);
        cr_expect_eq(got.length, want.length, "case %zu", i);
        cr_expect(got.length == 0 || memcmp(got.bytes, want.bytes, got.length) == 0, "case %zu", i);
        text_deinit(&got);
        text_deinit(&want);
    }
}

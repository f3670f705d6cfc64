/* Opening and parsing: what is accepted, and what is refused in which words. */
#include "helpers.h"
#include "sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A tokenizer.json around a model's vocabulary, merges and other parts. */
#define MODEL(vocab, merges) "'model':{'type':'BPE','vocab':{" vocab "},'merges':[" merges "]}"
#define FILE_OF(model, rest) "{" model rest "}"
#define SMALL(rest)          FILE_OF(MODEL("'a':0,'b':1,'ab':2", "'a b'"), rest)

Test(tokenizer, knows_its_tokens)
{
    struct tokenizer *tokenizer = data_tokenizer("qwen");
    int32_t id = tokenizer_find(tokenizer, "<|im_end|>", 10);
    cr_assert_eq(id, 1102);
    cr_assert_eq(tokenizer_vocab_count(tokenizer), 1105);
    cr_assert_str_eq(tokenizer_token(tokenizer, id), "<|im_end|>");
    cr_assert(tokenizer_is_special(tokenizer, id));
    cr_assert_not(tokenizer_is_special(tokenizer, tokenizer_find(tokenizer, "<think>", 7)));
    cr_assert_not(tokenizer_is_special(tokenizer, 0));
    cr_assert_not(tokenizer_is_special(tokenizer, -1));
    cr_assert_eq(tokenizer_find(tokenizer, "<|im_end|", 9), -1);
    cr_assert_eq(tokenizer_find(tokenizer, "", 0), -1);
    cr_assert_null(tokenizer_token(tokenizer, -1));
    cr_assert_null(tokenizer_token(tokenizer, 1105));
    cr_assert_null(tokenizer_token(tokenizer, INT32_MAX));
    tokenizer_close(tokenizer);
    tokenizer_close(NULL);
}

Test(tokenizer, refuses_by_name)
{
    static const struct {
        const char *json;
        enum status status;
        const char *part;
    } cases[] = {
        {"[]", STATUS_FORMAT, "a.json: expected a JSON object, found an array"},
        {"{", STATUS_FORMAT, "a.json is not valid JSON"},
        {"{}", STATUS_FORMAT, "\"model\": expected an object, found nothing"},
        {"{'model':{'type':'BPE'}}", STATUS_FORMAT, "\"model.vocab\": expected an object"},
        {"{'model':{'type':'BPE','vocab':{'a':0}}}", STATUS_FORMAT, "\"model.merges\""},
        {"{'model':{'type':'WordPiece','vocab':{}}}", STATUS_UNSUPPORTED, "model \"WordPiece\""},
        {"{'model':{'type':'Unigram','vocab':[]}}", STATUS_UNSUPPORTED, "model \"Unigram\""},
        {"{'model':{'type':'BPE','vocab':{'a':0},'merges':[],'dropout':0.1}}", STATUS_UNSUPPORTED,
         "dropout 0.1"},
        {"{'model':{'vocab':{'a':0},'merges':[],'continuing_subword_prefix':'##'}}",
         STATUS_UNSUPPORTED, "continuing_subword_prefix \"##\""},
        {"{'model':{'vocab':{'a':0},'merges':[],'end_of_word_suffix':'</w>'}}", STATUS_UNSUPPORTED,
         "end_of_word_suffix \"</w>\""},
        {"{'model':{'vocab':{'a':0},'merges':[],'unk_token':'?'}}", STATUS_FORMAT,
         "\"unk_token\" \"?\" is no token"},
        {"{'model':{'vocab':{'a':0},'merges':[],'byte_fallback':1}}", STATUS_FORMAT,
         "\"byte_fallback\": expected true or false"},
        /* vocabulary */
        {FILE_OF(MODEL("", ""), ""), STATUS_FORMAT, "\"model.vocab\" is empty"},
        {FILE_OF(MODEL("'a':0,'b':0", ""), ""), STATUS_FORMAT, "the same id 0"},
        {FILE_OF(MODEL("'a':0,'a':1", ""), ""), STATUS_FORMAT, "duplicate object key"},
        {FILE_OF(MODEL("'a':2147483648", ""), ""), STATUS_FORMAT,
         "id of token \"a\": expected 0 to 262144 for this number of tokens, found 2147483648"},
        {FILE_OF(MODEL("'a':-1", ""), ""), STATUS_FORMAT, "found -1"},
        {FILE_OF(MODEL("'a':1e3", ""), ""), STATUS_FORMAT, "found a number with a fraction"},
        {FILE_OF(MODEL("'a':'0'", ""), ""), STATUS_FORMAT, "expected an integer, found a string"},
        {FILE_OF(MODEL("0:'a'", ""), ""), STATUS_FORMAT, "is not valid JSON"},
        /* merges */
        {FILE_OF(MODEL("'a':0,'b':1,'ab':2", "'a c'"), ""), STATUS_FORMAT,
         "merge 0 names \"c\", which is no token"},
        {FILE_OF(MODEL("'a':0,'b':1,'ab':2", "'a b','ab b'"), ""), STATUS_FORMAT,
         "merge 1 makes \"abb\", which is no token"},
        {FILE_OF(MODEL("'a':0,'b':1", "['a','b','a']"), ""), STATUS_FORMAT,
         "merge 0: expected two tokens, found an array"},
        {FILE_OF(MODEL("'a':0,'b':1", "'a'"), ""), STATUS_FORMAT, "expected two tokens, found a"},
        {FILE_OF(MODEL("'a':0,'b':1", "'a b a'"), ""), STATUS_FORMAT, "expected two tokens"},
        {FILE_OF(MODEL("'a':0,'b':1", "[1,2]"), ""), STATUS_FORMAT, "expected two tokens"},
        /* added tokens */
        {SMALL(",'added_tokens':{}"), STATUS_FORMAT, "\"added_tokens\": expected an array"},
        {SMALL(",'added_tokens':[3]"), STATUS_FORMAT, "\"content\""},
        {SMALL(",'added_tokens':[{'id':3,'content':''}]"), STATUS_FORMAT, "an empty one"},
        {SMALL(",'added_tokens':[{'id':0,'content':'x'}]"), STATUS_FORMAT, "the same id 0"},
        {SMALL(",'added_tokens':[{'id':4,'content':'a'}]"), STATUS_FORMAT,
         "added token \"a\" has id 4, but the vocabulary gives it id 0"},
        {SMALL(",'added_tokens':[{'id':4,'content':'x'},{'id':4,'content':'x'}]"), STATUS_FORMAT,
         "token \"x\" is added twice"},
        {SMALL(",'added_tokens':[{'content':'x'}]"), STATUS_FORMAT, "found nothing"},
        {SMALL(",'added_tokens':[{'id':4,'content':'x','lstrip':3}]"), STATUS_FORMAT, "\"lstrip\""},
        /* normalizers */
        {SMALL(",'normalizer':{'type':'BertNormalizer'}"), STATUS_UNSUPPORTED,
         "normalizer \"BertNormalizer\""},
        {SMALL(",'normalizer':{'type':'Lowercase'}"), STATUS_UNSUPPORTED, "\"Lowercase\""},
        {SMALL(",'normalizer':{'type':'Sequence','normalizers':[{'type':'Strip'}]}"),
         STATUS_UNSUPPORTED, "\"Strip\""},
        {SMALL(",'normalizer':{'type':'Sequence','normalizers':[{'type':'Sequence'}]}"),
         STATUS_UNSUPPORTED, "normalizer \"Sequence\""},
        {SMALL(",'normalizer':{'type':'Sequence'}"), STATUS_FORMAT, "\"normalizers\""},
        {SMALL(",'normalizer':[]"), STATUS_FORMAT, "\"type\""},
        {SMALL(",'normalizer':{'type':'Replace','pattern':{'Regex':'a'},'content':''}"),
         STATUS_UNSUPPORTED, "Replace with a Regex"},
        {SMALL(",'normalizer':{'type':'Replace','pattern':{'String':''},'content':''}"),
         STATUS_FORMAT, "empty pattern"},
        {SMALL(",'normalizer':{'type':'Prepend'}"), STATUS_FORMAT, "\"prepend\""},
        /* pre-tokenizers */
        {SMALL(",'pre_tokenizer':{'type':'Whitespace'}"), STATUS_UNSUPPORTED,
         "pre-tokenizer \"Whitespace\""},
        {SMALL(",'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'Punctuation'}]}"),
         STATUS_UNSUPPORTED, "\"Punctuation\""},
        {SMALL(",'pre_tokenizer':{'type':'Split','behavior':'Isolated','pattern':{'Regex':'('}}"),
         STATUS_UNSUPPORTED, "missing closing parenthesis"},
        {SMALL(",'pre_tokenizer':{'type':'Split','behavior':'Isolated','pattern':{'Regex':'a*'}}"),
         STATUS_UNSUPPORTED, "it may match the empty text"},
        {SMALL(",'pre_tokenizer':{'type':'Split','behavior':'Isolated','pattern':{'Regex':'\\\\w'}"
               "}"),
         STATUS_UNSUPPORTED, "an escape whose meaning differs"},
        {SMALL(",'pre_tokenizer':{'type':'Split','behavior':'Isolated','pattern':{'Regex':''}}"),
         STATUS_UNSUPPORTED, "it is empty"},
        {SMALL(",'pre_tokenizer':{'type':'Split','behavior':'Isolated','pattern':{'String':''}}"),
         STATUS_FORMAT, "\"pattern\""},
        {SMALL(",'pre_tokenizer':{'type':'Split','behavior':'Odd','pattern':{'String':'a'}}"),
         STATUS_UNSUPPORTED, "behavior \"Odd\""},
        {SMALL(",'pre_tokenizer':{'type':'Metaspace','replacement':'xy'}"), STATUS_FORMAT,
         "expected one character, found \"xy\""},
        {SMALL(",'pre_tokenizer':{'type':'Metaspace','replacement':'_','prepend_scheme':'odd'}"),
         STATUS_UNSUPPORTED, "prepend_scheme \"odd\""},
        {SMALL(",'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'ByteLevel'},{'type':"
               "'Digits'},{'type':'ByteLevel'}]}"),
         STATUS_UNSUPPORTED, "a.json: pre-tokenizer ByteLevel behind another ByteLevel"},
        /* post-processors */
        {SMALL(",'post_processor':{'type':'BertProcessing'}"), STATUS_UNSUPPORTED,
         "post-processor \"BertProcessing\""},
        {SMALL(",'post_processor':{'type':'TemplateProcessing','single':[]}"), STATUS_FORMAT,
         "expected one sequence in \"single\", found 0"},
        {SMALL(",'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'s'"
               "}}],'special_tokens':{}}"),
         STATUS_FORMAT, "gives no ids for \"s\""},
        {SMALL(",'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'s'"
               "}}],'special_tokens':{'s':{'ids':[9]}}}"),
         STATUS_FORMAT, "expected the id of a token, found an integer that is none"},
        {SMALL(",'post_processor':{'type':'Sequence'}"), STATUS_FORMAT, "\"processors\""},
        /* decoders */
        {SMALL(",'decoder':{'type':'WordPiece'}"), STATUS_UNSUPPORTED, "decoder \"WordPiece\""},
        {SMALL(",'decoder':{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'Strip',"
               "'content':' ','start':2,'stop':0}]}"),
         STATUS_UNSUPPORTED, "decoder Strip of more than one leading character"},
        {SMALL(",'decoder':{'type':'Sequence','decoders':[{'type':'ByteFallback'},{'type':'Replace'"
               ",'pattern':{'String':'_'},'content':' '}]}"),
         STATUS_UNSUPPORTED, "decoder Replace behind ByteFallback"},
        {SMALL(",'decoder':{'type':'Sequence','decoders':[{'type':'ByteFallback'},{'type':"
               "'ByteLevel'}]}"),
         STATUS_UNSUPPORTED, "decoder ByteLevel behind another"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(cases[i].json, cases[i].status, cases[i].part);
}

/* A file may hold what is long without costing memory or time in proportion to more than its size.
 */
Test(tokenizer, refuses_what_is_too_long_or_too_deep)
{
    struct text json = {0};
    text_append_string(&json, "{'model':{'vocab':{'a':0},'merges':[]},'added_tokens':[{'id':1,"
                              "'content':'");
    for (int i = 0; i < 300; i++)
        text_append_string(&json, "x");
    text_append_string(&json, "'}]}");
    assert_refused(json.bytes, STATUS_LIMIT, "added token 1 is 300 bytes long, 1 to 256");

    text_clear(&json);
    text_append_string(&json, "{'model':{'vocab':{'");
    for (int i = 0; i < 70000; i++)
        text_append_string(&json, "x");
    text_append_string(&json, "':0},'merges':[]}}");
    assert_refused(json.bytes, STATUS_LIMIT, "token 0 is 70000 bytes long, at most 65535");

    text_clear(&json);
    text_append_string(&json, "{'normalizer':");
    for (int i = 0; i < 100000; i++)
        text_append_string(&json, "{'type':'Sequence','normalizers':[");
    assert_refused(json.bytes, STATUS_FORMAT, "is not valid JSON");

    text_clear(&json);
    text_append_string(&json, "{'model':{'vocab':{'a':0},'merges':[]},'normalizer':{'type':"
                              "'Sequence','normalizers':[");
    for (int i = 0; i < 17; i++)
        text_append_string(&json, i == 0 ? "{'type':'NFC'}" : ",{'type':'NFC'}");
    text_append_string(&json, "]}}");
    assert_refused(json.bytes, STATUS_LIMIT, "more than 16 normalizers");
    text_deinit(&json);
}

Test(tokenizer, accepts_holes_between_ids)
{
    struct error err = {0};
    struct tokenizer *tokenizer =
        parse_quoted(FILE_OF(MODEL("'a':7,'b':1,'ab':90", "'a b'"), ""), &err);
    cr_assert_not_null(tokenizer, "%s", err.message);
    cr_assert_eq(tokenizer_vocab_count(tokenizer), 91);
    cr_assert_null(tokenizer_token(tokenizer, 0));
    struct token_list ids = {0};
    cr_assert_eq(tokenizer_encode(tokenizer, &ids, "aab", 3, (struct encode_options){0}, &err), 0);
    assert_ids(&ids, (int32_t[]){7, 90}, 2, "aab");
    token_list_deinit(&ids);
    tokenizer_close(tokenizer);
}

/* Each allocation of a parse fails once. */
static void sweep_parse(const char *name)
{
    static const char config[] = "{\"bos_token\":\"a\",\"chat_template\":\"b\"}";
    char file[64];
    size_t length;
    struct error err;
    snprintf(file, sizeof file, "%s.json", name);
    char *json = data_read(file, &length);
    uint64_t live = memory_counters_get().live_count;
    enum status status = STATUS_NO_MEMORY;
    uint64_t step = sweep_step(7);
    for (uint64_t n = sweep_first(step); status != STATUS_OK; n += step) {
        struct tokenizer *tokenizer = NULL;
        memory_fail_at(n, n % 2);
        status = tokenizer_parse(&tokenizer, json, length, config, sizeof config - 1, file, &err);
        memory_fail_at(0, 0);
        cr_assert(status == STATUS_OK || status == STATUS_NO_MEMORY, "%s", err.message);
        cr_assert(status == STATUS_OK || tokenizer == NULL);
        tokenizer_close(tokenizer);
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %u", (unsigned)n);
        cr_assert_lt(n, 5000);
    }
    memory_free(json);
}

Test(tokenizer, each_allocation_of_a_parse_may_fail)
{
    sweep_parse("mixtral");
    sweep_parse("deepseek");
    sweep_parse("tricky");
}

/* Cutting or changing a file anywhere gives a tokenizer or a sentence, nothing else. */
Test(tokenizer, survives_damaged_files)
{
    size_t length;
    struct error err;
    char *json = data_read("tricky.json", &length);
    uint64_t live = memory_counters_get().live_count;
    for (size_t i = 0; i < length; i += 1 + length / 400) {
        struct tokenizer *tokenizer = NULL;
        char kept = json[i];
        cr_assert_neq(tokenizer_parse(&tokenizer, json, i, NULL, 0, "cut", &err), STATUS_OK);
        for (const char *other = "\"0{]-\x80"; *other != 0; other++) {
            json[i] = *other;
            if (tokenizer_parse(&tokenizer, json, length, NULL, 0, "changed", &err) == STATUS_OK)
                tokenizer_close(tokenizer);
        }
        json[i] = kept;
    }
    cr_assert_eq(memory_counters_get().live_count, live);
    memory_free(json);
}

static void write_file(const char *dir, const char *name, const char *text, size_t length)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(text, 1, length, file), length);
    fclose(file);
}

static void remove_file(const char *dir, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    remove(path);
}

Test(tokenizer, opens_a_directory)
{
    char dir[] = "/tmp/phasor-tokenizer-XXXXXX";
    struct tokenizer *tokenizer = NULL;
    struct error err;
    size_t length;
    cr_assert_not_null(mkdtemp(dir));
    cr_expect_eq(tokenizer_open(&tokenizer, dir, &err), STATUS_NOT_FOUND);
    cr_expect_not_null(strstr(err.message, "tokenizer.json"));

    char *json = data_read("mixtral.json", &length);
    write_file(dir, "tokenizer.json", json, length);
    cr_assert_eq(tokenizer_open(&tokenizer, dir, &err), STATUS_OK, "%s", err.message);
    tokenizer_close(tokenizer);

    write_file(dir, "tokenizer_config.json", "[]", 2);
    cr_expect_eq(tokenizer_open(&tokenizer, dir, &err), STATUS_FORMAT);
    cr_expect_not_null(strstr(err.message, "tokenizer_config.json"), "%s", err.message);
    write_file(dir, "tokenizer_config.json", "{\"bos_token\":3}", 15);
    cr_expect_eq(tokenizer_open(&tokenizer, dir, &err), STATUS_FORMAT);
    cr_expect_not_null(strstr(err.message, "\"bos_token\": expected a token, found an integer"));
    remove_file(dir, "tokenizer.json");
    remove_file(dir, "tokenizer_config.json");
    rmdir(dir);
    memory_free(json);
}

/* The Llama classes of tokenizers take their frame from two switches of the configuration. */
Test(tokenizer, configuration_switches)
{
    static const struct {
        const char *config;
        size_t count; /* ids of an empty text */
    } cases[] = {
        {"{}", 1},
        {"{\"add_bos_token\":false}", 1},
        {"{\"tokenizer_class\":\"LlamaTokenizer\",\"add_bos_token\":false}", 0},
        {"{\"tokenizer_class\":\"LlamaTokenizerFast\",\"bos_token\":\"<s>\",\"add_bos_token\":true,"
         "\"eos_token\":{\"content\":\"</s>\"},\"add_eos_token\":true}",
         2},
    };
    size_t length;
    char *json = data_read("mixtral.json", &length);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tokenizer *tokenizer = NULL;
        struct token_list ids = {0};
        struct error err;
        cr_assert_eq(tokenizer_parse(&tokenizer, json, length, cases[i].config,
                                     strlen(cases[i].config), "a", &err),
                     STATUS_OK, "%s", err.message);
        cr_assert_eq(tokenizer_encode(tokenizer, &ids, "", 0,
                                      (struct encode_options){.add_special = true}, &err),
                     STATUS_OK);
        cr_expect_eq(ids.count, cases[i].count, "%s", cases[i].config);
        token_list_deinit(&ids);
        tokenizer_close(tokenizer);
    }
    memory_free(json);
}

/* The rules of BPE on vocabularies small enough to follow by hand. */
#include "helpers.h"

#include <string.h>

#include "tokenizer/internal.h"

static void check_ids(const char *model, const char *text, const char *const *want)
{
    struct error err = {0};
    struct text json = {0};
    struct token_list ids = {0};
    text_append_format(&json, "{'model':{%s}}", model);
    struct tokenizer *tokenizer = parse_quoted(json.bytes, &err);
    cr_assert_not_null(tokenizer, "%s", err.message);
    cr_assert_eq(
        tokenizer_encode(tokenizer, &ids, text, strlen(text), (struct encode_options){0}, &err),
        STATUS_OK);
    size_t count = 0;
    for (; want[count] != NULL; count++) {
        const char *token = count < ids.count ? tokenizer_token(tokenizer, ids.ids[count]) : "";
        cr_expect_str_eq(token, want[count], "%s token %zu: \"%s\"", text, count, token);
    }
    cr_expect_eq(ids.count, count, "%s", text);
    token_list_deinit(&ids);
    text_deinit(&json);
    tokenizer_close(tokenizer);
}

#define WANT(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Of equal ranks the leftmost, and lower ranks first: "aaa" is "aa" "a". */
Test(bpe, ties_go_to_the_left)
{
    const char *model = "'vocab':{'a':0,'aa':1,'aaaa':2},'merges':['a a','aa aa']";
    check_ids(model, "a", WANT("a"));
    check_ids(model, "aaa", WANT("aa", "a"));
    check_ids(model, "aaaa", WANT("aaaa"));
    check_ids(model, "aaaaaaa", WANT("aaaa", "aa", "a"));
}

Test(bpe, lower_ranks_come_first)
{
    check_ids("'vocab':{'a':0,'b':1,'c':2,'ab':3,'bc':4},'merges':['b c','a b']", "abc",
              WANT("a", "bc"));
    check_ids("'vocab':{'a':0,'b':1,'c':2,'ab':3,'bc':4},'merges':['a b','b c']", "abc",
              WANT("ab", "c"));
}

/* "x" "yz" is queued when "yz" "w" is merged before it; then its right side is another. */
Test(bpe, a_queued_pair_may_expire)
{
    check_ids("'vocab':{'x':0,'y':1,'z':2,'xy':3,'yz':4,'xyz':5,'w':6,'zw':7,'yzw':8,'xyzw':9},"
              "'merges':['y z','xy z','yz w','x yz','xyz w']",
              "xyzw", WANT("x", "yzw"));
}

/* A pair that is listed twice has its later rank. */
Test(bpe, the_later_of_two_equal_merges_counts)
{
    check_ids("'vocab':{'a':0,'b':1,'c':2,'ab':3,'bc':4},'merges':['a b','b c','a b']", "abc",
              WANT("a", "bc"));
}

Test(bpe, unknown_characters)
{
    const char *plain = "'vocab':{'a':0},'merges':[]";
    const char *unknown = "'vocab':{'a':0,'?':1},'merges':[],'unk_token':'?'";
    const char *fused = "'vocab':{'a':0,'?':1},'merges':[],'unk_token':'?','fuse_unk':true";
    const char *bytes = "'vocab':{'a':0,'?':1,'<0xC3>':2,'<0xA9>':3},'merges':[],'unk_token':'?',"
                        "'fuse_unk':true,'byte_fallback':true";
    check_ids(plain, "xaya", WANT("a", "a"));
    check_ids(unknown, "xyaz", WANT("?", "?", "a", "?"));
    check_ids(fused, "xyaz", WANT("?", "a", "?"));
    check_ids(bytes, "a\xC3\xA9", WANT("a", "<0xC3>", "<0xA9>"));
    check_ids(bytes, "a\xC3\xA8", WANT("a", "?"));
    /* Byte tokens do not flush a pending unknown: it comes behind them, as in the original. */
    check_ids(bytes, "x\xC3\xA9y", WANT("<0xC3>", "<0xA9>", "?"));
}

Test(bpe, ignore_merges_takes_a_word_whole)
{
    const char *vocab = "'vocab':{'a':0,'b':1,'c':2,'ab':3,'abc':4},'merges':['a b']";
    struct text model = {0};
    check_ids(vocab, "abc", WANT("ab", "c"));
    text_append_format(&model, "%s,'ignore_merges':true", vocab);
    check_ids(model.bytes, "abc", WANT("abc"));
    check_ids(model.bytes, "abca", WANT("ab", "c", "a"));
    text_deinit(&model);
}

/* A merge into a special token is left out, and so is a single character that is one. */
Test(bpe, text_does_not_become_a_special_token)
{
    struct error err = {0};
    struct token_list ids = {0};
    struct tokenizer *tokenizer = parse_quoted(
        "{'model':{'vocab':{'<':0,'s':1,'>':2,'<s':3,'<s>':4,'$':5},'merges':['< s','<s >'],"
        "'ignore_merges':true},'added_tokens':[{'id':4,'content':'<s>','special':true},"
        "{'id':5,'content':'$','special':true}]}",
        &err);
    cr_assert_not_null(tokenizer, "%s", err.message);
    struct encode_options options = {0};
    cr_assert_eq(tokenizer_encode(tokenizer, &ids, "<s>$", 4, options, &err), STATUS_OK);
    assert_ids(&ids, (int32_t[]){3, 2}, 2, "plain");
    ids.count = 0;
    options.parse_special = true;
    cr_assert_eq(tokenizer_encode(tokenizer, &ids, "<s>$", 4, options, &err), STATUS_OK);
    assert_ids(&ids, (int32_t[]){4, 5}, 2, "parsed");
    token_list_deinit(&ids);
    tokenizer_close(tokenizer);
}

/* Tokens and merges lie in other places each time, so that no file can hold what meets in one. */
Test(bpe, tables_are_laid_out_anew)
{
    struct tokenizer *a = data_tokenizer("qwen"), *b = data_tokenizer("qwen");
    size_t tokens = 0, same_tokens = 0, merges = 0, same_merges = 0;
    cr_assert_eq(a->vocab.slot_mask, b->vocab.slot_mask);
    cr_assert_eq(a->bpe.merge_mask, b->bpe.merge_mask);
    for (size_t i = 0; i <= a->vocab.slot_mask; i++) {
        tokens += a->vocab.slots[i] != 0;
        same_tokens += a->vocab.slots[i] != 0 && a->vocab.slots[i] == b->vocab.slots[i];
    }
    for (size_t i = 0; i <= a->bpe.merge_mask; i++) {
        const struct merge_slot *one = &a->bpe.merges[i], *other = &b->bpe.merges[i];
        merges += one->result >= 0;
        same_merges += one->result >= 0 && other->result >= 0 && one->pair == other->pair;
    }
    cr_assert(tokens > 100 && merges > 100);
    cr_expect_lt(same_tokens, tokens / 4);
    cr_expect_lt(same_merges, merges / 4);
    tokenizer_close(a);
    tokenizer_close(b);
}

Test(bpe, merges_of_old_files)
{
    check_ids("'vocab':{'a':0,'b':1,'ab':2},'merges':['#version: 0.2','a b']", "ab", WANT("ab"));
    check_ids("'vocab':{'a b':0,'a':1,' ':2,'b':3,' b':4},'merges':[[' ','b'],['a',' b']]", "a b",
              WANT("a b"));
}

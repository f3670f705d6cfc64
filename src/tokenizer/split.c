#include "tokenizer/split.h"

#include <string.h>

#include "tokenizer/byte_search.h"
#include "tokenizer/unicode_class.h"

static const struct {
    enum matcher_kind kind;
    const char *regex;
} known_patterns[] = {
    {MATCHER_GPT2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|"
                   "\\s+"},
    {MATCHER_QWEN2, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {MATCHER_LLAMA3, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

enum status matcher_from_regex(struct matcher *out, const char *regex, size_t length,
                               const char *file, struct error *err)
{
    for (size_t i = 0; i < sizeof known_patterns / sizeof known_patterns[0]; i++) {
        if (strlen(known_patterns[i].regex) == length &&
            memcmp(known_patterns[i].regex, regex, length) == 0) {
            *out = (struct matcher){.kind = known_patterns[i].kind};
            return STATUS_OK;
        }
    }
    struct pcre_pattern *pattern;
    TRY(pcre_pattern_compile(&pattern, regex, length, file, err));
    *out = (struct matcher){.kind = MATCHER_PCRE, .pcre = pattern};
    return STATUS_OK;
}

void matcher_deinit(struct matcher *matcher)
{
    pcre_pattern_free(matcher->pcre);
    *matcher = (struct matcher){0};
}

static enum status find_literal(const struct matcher *matcher, struct span_list *out,
                                const char *text, size_t length, struct error *err)
{
    const char *at = text, *end = text + length;
    while (at < end) {
        const char *hit =
            bytes_find(at, (size_t)(end - at), matcher->literal, matcher->literal_length);
        if (hit == NULL)
            break;
        at = hit + matcher->literal_length;
        TRY(span_list_add(out, (size_t)(hit - text), (size_t)(at - text), err));
    }
    return STATUS_OK;
}

static enum status find_numbers(struct span_list *out, const char *text, size_t length,
                                struct error *err)
{
    for (size_t at = 0, next = 0; at < length; at = next) {
        if (unicode_class(unicode_next(text, &next)) == CLASS_NUMBER)
            TRY(span_list_add(out, at, next, err));
    }
    return STATUS_OK;
}

enum status matcher_find(const struct matcher *matcher, struct match_work *work,
                         struct span_list *out, const char *text, size_t length, struct error *err)
{
    switch (matcher->kind) {
    case MATCHER_LITERAL:
        return find_literal(matcher, out, text, length, err);
    case MATCHER_NUMBERS:
        return find_numbers(out, text, length, err);
    case MATCHER_PCRE:
        return pcre_pattern_find(matcher->pcre, work, out, text, length, err);
    default:
        break;
    }
    for (size_t at = 0, end; at < length; at = end) {
        end = split_scan_next(matcher->kind, text, length, at);
        TRY(span_list_add(out, at, end, err));
    }
    return STATUS_OK;
}

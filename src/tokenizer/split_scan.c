/* The known split patterns by hand. Each alternative stands in the order of the expression. */
#include <stdbool.h>

#include "tokenizer/split.h"
#include "tokenizer/unicode_class.h"

/* End of the run of one class that begins at `at`, of at most `limit` characters. */
static size_t run_end(const char *text, size_t length, size_t at, enum char_class class,
                      size_t limit)
{
    while (at < length && limit-- > 0) {
        size_t next = at;
        if (unicode_class(unicode_next(text, &next)) != class)
            break;
        at = next;
    }
    return at;
}

static bool is_newline(char byte)
{
    return byte == '\n' || byte == '\r';
}

static char lower(char byte, bool fold)
{
    return fold && byte >= 'A' && byte <= 'Z' ? (char)(byte | 0x20) : byte;
}

/* 's|'t|'re|'ve|'m|'ll|'d at `at`; 0 when none is there. With `fold` letters of either case count,
 * and so does U+017F, which folds to s. */
static size_t contraction_length(const char *text, size_t length, size_t at, bool fold)
{
    if (text[at] != '\'' || length - at < 2)
        return 0;
    char first = lower(text[at + 1], fold);
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return 2;
    if (length - at < 3)
        return 0;
    char second = lower(text[at + 2], fold);
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
        (first == 'l' && second == 'l'))
        return 3;
    return fold && first == '\xC5' && second == '\xBF' ? 3 : 0;
}

/* \s+(?!\S)|\s+ : white space up to the end, or all but the last character before something else,
 * or that one character. */
static size_t space_end(const char *text, size_t length, size_t at)
{
    size_t end = run_end(text, length, at, CLASS_SPACE, SIZE_MAX);
    if (end == length)
        return end;
    size_t last = end;
    unicode_previous(text, &last);
    return last > at ? last : end;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t next_gpt2(const char *text, size_t length, size_t at)
{
    size_t contraction = contraction_length(text, length, at, false);
    if (contraction > 0)
        return at + contraction;
    size_t body = text[at] == ' ' && at + 1 < length ? at + 1 : at;
    size_t behind = body;
    enum char_class class = unicode_class(unicode_next(text, &behind));
    if (class != CLASS_SPACE)
        return run_end(text, length, behind, class, SIZE_MAX);
    return space_end(text, length, at);
}

/* \s*[\r\n]+ : up to the last newline of a run of white space; 0 when the run has none. */
static size_t newline_end(const char *text, size_t length, size_t at)
{
    size_t end = run_end(text, length, at, CLASS_SPACE, SIZE_MAX);
    while (end > at && !is_newline(text[end - 1]))
        end--;
    return end > at ? end : 0;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t next_qwen2(const char *text, size_t length, size_t at, size_t digits)
{
    size_t contraction = contraction_length(text, length, at, true);
    if (contraction > 0)
        return at + contraction;
    size_t behind = at;
    enum char_class class = unicode_class(unicode_next(text, &behind));
    if (class == CLASS_LETTER)
        return run_end(text, length, behind, CLASS_LETTER, SIZE_MAX);
    if (class == CLASS_NUMBER)
        return run_end(text, length, behind, CLASS_NUMBER, digits - 1);
    if (!is_newline(text[at])) {
        size_t letters = run_end(text, length, behind, CLASS_LETTER, SIZE_MAX);
        if (letters > behind)
            return letters;
    }
    size_t others = class == CLASS_OTHER || text[at] == ' '
                        ? run_end(text, length, behind, CLASS_OTHER, SIZE_MAX)
                        : behind;
    if (class == CLASS_OTHER || others > behind) {
        while (others < length && is_newline(text[others]))
            others++;
        return others;
    }
    size_t newlines = newline_end(text, length, at);
    return newlines > 0 ? newlines : space_end(text, length, at);
}

size_t split_scan_next(enum matcher_kind kind, const char *text, size_t length, size_t at)
{
    switch (kind) {
    case MATCHER_GPT2:
        return next_gpt2(text, length, at);
    case MATCHER_QWEN2:
        return next_qwen2(text, length, at, 1);
    default:
        return next_qwen2(text, length, at, 3);
    }
}

#include "tokenizer/unicode_class.h"

#include <utf8proc.h>

#include "base/text.h"

struct range {
    uint32_t first, last;
};

/* Letters, numbers and marks that Unicode 15.1 and 16 added: the reference knows them, utf8proc 2.8
 * (Unicode 15.0) does not. Harmless with a newer utf8proc. */
static const struct range newer_letters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
    {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
    {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D},
};
static const struct range newer_numbers[] = {
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x16130, 0x16139},
    {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA},
};
static const struct range newer_marks[] = {
    {0x0897, 0x0897},   {0x10D69, 0x10D6D}, {0x10EFC, 0x10EFC}, {0x113B8, 0x113C0},
    {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D0},
    {0x113D2, 0x113D2}, {0x113E1, 0x113E2}, {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F},
    {0x1E5EE, 0x1E5EF},
};
/* Symbols with the property Alphabetic: circled and squared Latin letters. */
static const struct range alphabetic_symbols[] = {
    {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static bool in_ranges(const struct range *ranges, size_t count, uint32_t code_point)
{
    for (size_t i = 0; i < count; i++) {
        if (code_point >= ranges[i].first && code_point <= ranges[i].last)
            return true;
    }
    return false;
}

/* The class of a code point that utf8proc calls unassigned. */
static enum char_class newer_class(uint32_t code_point)
{
    if (in_ranges(newer_letters, LENGTH(newer_letters), code_point))
        return CLASS_LETTER;
    if (in_ranges(newer_numbers, LENGTH(newer_numbers), code_point))
        return CLASS_NUMBER;
    return CLASS_OTHER;
}

static enum char_class ascii_class(uint32_t code_point)
{
    if ((code_point | 0x20) >= 'a' && (code_point | 0x20) <= 'z')
        return CLASS_LETTER;
    if (code_point >= '0' && code_point <= '9')
        return CLASS_NUMBER;
    return code_point == ' ' || (code_point >= 9 && code_point <= 13) ? CLASS_SPACE : CLASS_OTHER;
}

enum char_class unicode_class(uint32_t code_point)
{
    if (code_point < 0x80)
        return ascii_class(code_point);
    switch (utf8proc_category((utf8proc_int32_t)code_point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return CLASS_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return CLASS_NUMBER;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return CLASS_SPACE;
    case UTF8PROC_CATEGORY_CN:
        return newer_class(code_point);
    default:
        return code_point == 0x85 ? CLASS_SPACE : CLASS_OTHER;
    }
}

/* Alphabetic, Mark, Decimal_Number, Connector_Punctuation, Join_Control. */
bool unicode_is_word(uint32_t code_point)
{
    switch (utf8proc_category((utf8proc_int32_t)code_point)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    case UTF8PROC_CATEGORY_NO:
        return false;
    case UTF8PROC_CATEGORY_SO:
        return in_ranges(alphabetic_symbols, LENGTH(alphabetic_symbols), code_point);
    case UTF8PROC_CATEGORY_CF:
        return code_point == 0x200C || code_point == 0x200D;
    case UTF8PROC_CATEGORY_CN:
        return newer_class(code_point) != CLASS_OTHER ||
               in_ranges(newer_marks, LENGTH(newer_marks), code_point);
    default:
        return unicode_class(code_point) == CLASS_LETTER;
    }
}

uint32_t unicode_next(const char *text, size_t *at)
{
    uint32_t code_point = (unsigned char)text[*at];
    if (code_point < 0x80)
        *at += 1;
    else
        *at += utf8_decode(&code_point, text + *at, 4);
    return code_point;
}

uint32_t unicode_previous(const char *text, size_t *at)
{
    do
        *at -= 1;
    while (((unsigned char)text[*at] & 0xC0) == 0x80);
    size_t start = *at;
    return unicode_next(text, &start);
}

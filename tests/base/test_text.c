#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

/* ---- Growing text -------------------------------------------------------------------------- */

Test(text, appends)
{
    struct text text = {0};
    struct error err;
    text_append(&text, NULL, 0);
    cr_assert_str_eq(text.bytes, "");
    for (int i = 0; i < 1000; i++)
        text_append_string(&text, "ab");
    text_append_format(&text, "%d-%s", 42, "x");
    text_append(&text, "\0z", 2);
    cr_assert_eq(text.length, 2000 + 4 + 2);
    cr_assert_eq(memcmp(text.bytes + 1998, "ab42-x\0z", 9), 0); /* and the NUL behind */
    cr_assert_eq(text_check(&text, "a test", &err), STATUS_OK);
    size_t capacity = text.capacity;
    text_clear(&text);
    cr_assert(text.length == 0 && text.capacity == capacity && text.bytes[0] == 0);
    text_append_format(&text, "%s", "");
    cr_assert_str_eq(text.bytes, "");
    text_deinit(&text);
    text_clear(&text);
    cr_assert_null(text.bytes);
}

Test(text, a_failure_stays)
{
    struct text text = {0};
    struct error err;
    text_append_string(&text, "kept");
    memory_fail_at(1, 0);
    text_append_format(&text, "%1000d", 1);
    cr_assert(text.failed);
    text_append_string(&text, "x");
    text_append_format(&text, "%d", 1);
    cr_assert_str_eq(text.bytes, "kept");
    cr_assert_eq(text_check(&text, "a page", &err), STATUS_NO_MEMORY);
    cr_assert_not_null(strstr(err.message, "a page"));
    text_deinit(&text);

    text_append_string(&text, "anew");
    text_append(&text, "", SIZE_MAX);
    cr_assert(text.failed);
    cr_assert_str_eq(text.bytes, "anew");
    text_deinit(&text);
}

/* ---- UTF-8 --------------------------------------------------------------------------------- */

/* The table of Unicode's standard, chapter 3, table 3-7 (well-formed byte sequences): rows of byte
 * ranges. Slow and plain. */
static const struct {
    size_t length;
    unsigned char low[4], high[4];
} well_formed[] = {
    {1, {0x00}, {0x7F}},
    {2, {0xC2, 0x80}, {0xDF, 0xBF}},
    {3, {0xE0, 0xA0, 0x80}, {0xE0, 0xBF, 0xBF}},
    {3, {0xE1, 0x80, 0x80}, {0xEC, 0xBF, 0xBF}},
    {3, {0xED, 0x80, 0x80}, {0xED, 0x9F, 0xBF}},
    {3, {0xEE, 0x80, 0x80}, {0xEF, 0xBF, 0xBF}},
    {4, {0xF0, 0x90, 0x80, 0x80}, {0xF0, 0xBF, 0xBF, 0xBF}},
    {4, {0xF1, 0x80, 0x80, 0x80}, {0xF3, 0xBF, 0xBF, 0xBF}},
    {4, {0xF4, 0x80, 0x80, 0x80}, {0xF4, 0x8F, 0xBF, 0xBF}},
};
#define ROWS (sizeof well_formed / sizeof well_formed[0])

/* Length of the sequence that `in` begins with, 0 when none; with `length` short of it, the row's
 * length as far as the bytes fit. */
static size_t table_match(const unsigned char *in, size_t length, bool unfinished)
{
    for (size_t row = 0; row < ROWS; row++) {
        size_t wanted = well_formed[row].length, i = 0;
        while (i < wanted && i < length && in[i] >= well_formed[row].low[i] &&
               in[i] <= well_formed[row].high[i])
            i++;
        if (i == wanted || (unfinished && i == length && length > 0))
            return wanted;
    }
    return 0;
}

static size_t table_unfinished(const unsigned char *in, size_t length)
{
    for (size_t back = 3; back > 0; back--) {
        if (back <= length && table_match(in + length - back, back, false) == 0 &&
            table_match(in + length - back, back, true) > back)
            return back;
    }
    return 0;
}

/* All sequences of up to 4 bytes from bytes that stand on both sides of every limit. */
Test(utf8, equals_the_table_of_the_standard)
{
    static const unsigned char edges[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                          0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
                                          0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF8, 0xFF};
    const size_t n = sizeof edges;
    for (size_t number = 0; number < n * n * n * n; number++) {
        unsigned char bytes[4] = {edges[number % n], edges[number / n % n],
                                  edges[number / n / n % n], edges[number / n / n / n]};
        for (size_t length = 0; length <= 4; length++) {
            uint32_t code_point;
            size_t found = utf8_decode(&code_point, (char *)bytes, length);
            if (found != table_match(bytes, length, false))
                cr_assert(false, "%02X %02X %02X %02X, %zu bytes: %zu", bytes[0], bytes[1],
                          bytes[2], bytes[3], length, found);
            size_t rest = utf8_unfinished((char *)bytes, length);
            if (rest != table_unfinished(bytes, length))
                cr_assert(false, "%02X %02X %02X %02X, %zu bytes: %zu unfinished instead of %zu",
                          bytes[0], bytes[1], bytes[2], bytes[3], length, rest,
                          table_unfinished(bytes, length));
        }
    }
}

Test(utf8, every_code_point_there_and_back)
{
    uint32_t valid = 0;
    for (uint32_t code_point = 0; code_point <= 0x10FFFF; code_point++) {
        char bytes[4];
        uint32_t back = 0;
        size_t length = utf8_encode(bytes, code_point);
        size_t read = utf8_decode(&back, bytes, length);
        if (code_point >= 0xD800 && code_point < 0xE000) {
            cr_assert_eq(read, 0);
            continue;
        }
        if (read != length || back != code_point)
            cr_assert(false, "U+%04X", code_point);
        for (size_t cut = 1; cut < length; cut++) {
            if (utf8_decode(&back, bytes, cut) != 0 || utf8_unfinished(bytes, cut) != cut)
                cr_assert(false, "U+%04X cut to %zu bytes", code_point, cut);
        }
        valid++;
    }
    cr_assert_eq(valid, 0x110000 - 0x800);
}

Test(utf8, whole_texts)
{
    static const struct {
        const char *bytes;
        size_t length;
        bool valid;
    } cases[] = {
        {"", 0, true},
        {"a\0b", 3, true},
        {"caf\xC3\xA9", 5, true},
        {"caf\xC3\xA9", 4, false},
        {"\xF4\x8F\xBF\xBF", 4, true},
        {"\xF4\x90\x80\x80", 4, false},
        {"\xED\xA0\x80\xED\xB0\x80", 6, false},
        {"\xC0\x80", 2, false},
        {"ok\x80", 3, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_assert_eq(utf8_is_valid(cases[i].bytes, cases[i].length), cases[i].valid, "case %zu", i);
}

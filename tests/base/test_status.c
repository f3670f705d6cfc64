#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "base/text.h"

Test(status, the_sentence_and_the_status)
{
    struct error err;
    cr_assert_eq(error_set(&err, STATUS_LIMIT, "%d of %s", 3, "four"), STATUS_LIMIT);
    cr_assert_eq(err.status, STATUS_LIMIT);
    cr_assert_str_eq(err.message, "3 of four");
    cr_assert_eq(error_set(NULL, STATUS_FORMAT, "%s", "dropped"), STATUS_FORMAT);
    cr_assert_eq(error_set_errno(NULL, ENOENT, "%s", "dropped"), STATUS_NOT_FOUND);
    cr_assert_eq(error_prefix(NULL, STATUS_IO, "%s", "dropped"), STATUS_IO);
}

Test(status, control_characters_and_broken_bytes_are_shown)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"a\tb\nc\rd", "a?b?c?d"},
        {"\x1B[31mred\x7F", "?[31mred?"},
        {"\x01\x1F ", "?? "},
        {"caf\xC3\xA9 \xF0\x9F\x98\x80", "caf\xC3\xA9 \xF0\x9F\x98\x80"},
        {"\xC2\x9B"
         "31m\xC2\x80\xC2\xA0",
         "?31m?\xC2\xA0"}, /* C1 controls as UTF-8; U+00A0 is none */
        {"\x9B"
         "31m",
         "?31m"},                /* and as a byte */
        {"x\xC3(y", "x?(y"},     /* no UTF-8 */
        {"\xE2\x82", "??"},      /* cut */
        {"\xED\xA0\x80", "???"}, /* a surrogate */
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err;
        cr_assert_eq(error_set(&err, STATUS_IO, "%s", cases[i].in), STATUS_IO);
        cr_assert_str_eq(err.message, cases[i].out, "case %zu: %s", i, err.message);
        cr_assert(utf8_is_valid(err.message, strlen(err.message)));
    }
}

/* A text of every length around the limit, in characters of 1 to 4 bytes: either whole, or cut at a
 * character with "..." and as long as can be. */
Test(status, too_long_is_cut_at_a_character)
{
    static const char *const characters[] = {"x", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    for (size_t c = 0; c < 4; c++) {
        size_t width = strlen(characters[c]);
        for (size_t lead = 0; lead < 5; lead++) {
            for (size_t count = 1000 / width; count < 1060 / width; count++) {
                char text[2048] = "";
                struct error err;
                memset(text, '-', lead);
                for (size_t i = 0; i < count; i++)
                    strcat(text, characters[c]);
                cr_assert_eq(error_set(&err, STATUS_IO, "%s", text), STATUS_IO);
                size_t full = strlen(text), length = strlen(err.message);
                cr_assert(utf8_is_valid(err.message, length));
                if (full < ERROR_MESSAGE_BYTES) {
                    cr_assert_str_eq(err.message, text);
                    continue;
                }
                cr_assert_str_eq(err.message + length - 3, "...");
                cr_assert_eq(memcmp(err.message, text, length - 3), 0);
                cr_assert_eq((length - 3 - lead) % width, 0);
                cr_assert(length + width > ERROR_MESSAGE_BYTES - 1, "only %zu bytes", length);
            }
        }
    }
}

Test(status, too_long_without_characters)
{
    char text[2048];
    struct error err;
    memset(text, 0x80, sizeof text - 1);
    text[sizeof text - 1] = 0;
    cr_assert_eq(error_set(&err, STATUS_IO, "%s", text), STATUS_IO);
    cr_assert(strlen(err.message) > 1000);
    cr_assert_str_eq(err.message + strlen(err.message) - 4, "?...");
}

Test(status, errno_chooses_the_status_and_gives_the_reason)
{
    static const struct {
        int number;
        enum status status;
        const char *message;
    } cases[] = {
        {ENOENT, STATUS_NOT_FOUND, "cannot open x: No such file or directory"},
        {ENOMEM, STATUS_NO_MEMORY, "cannot open x: Cannot allocate memory"},
        {EACCES, STATUS_IO, "cannot open x: Permission denied"},
        {EIO, STATUS_IO, "cannot open x: Input/output error"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err;
        cr_assert_eq(error_set_errno(&err, cases[i].number, "cannot open %s", "x"),
                     cases[i].status);
        cr_assert_eq(err.status, cases[i].status);
        cr_assert_str_eq(err.message, cases[i].message);
    }
    struct error err;
    cr_assert_eq(error_set_errno(&err, 123456, "odd"), STATUS_IO);
    cr_assert_not_null(strstr(err.message, "123456"));
}

Test(status, prefix_keeps_what_was_said)
{
    struct error err;
    error_set(&err, STATUS_FORMAT, "bad header");
    cr_assert_eq(error_prefix(&err, err.status, "shard %d\n", 2), STATUS_FORMAT);
    cr_assert_str_eq(err.message, "shard 2?: bad header");

    char longest[ERROR_MESSAGE_BYTES];
    memset(longest, 'y', sizeof longest);
    longest[sizeof longest - 1] = 0;
    error_set(&err, STATUS_IO, "%s", longest);
    cr_assert_eq(error_prefix(&err, STATUS_IO, "%s", "in a file"), STATUS_IO);
    cr_assert_eq(strncmp(err.message, "in a file: yyy", 14), 0);
    cr_assert_str_eq(err.message + ERROR_MESSAGE_BYTES - 1 - 4, "y...");
}

Test(status, every_status_has_its_own_name)
{
    for (int a = STATUS_OK; a <= STATUS_INTERNAL; a++) {
        cr_assert_str_neq(status_name((enum status)a), "unknown");
        for (int b = STATUS_OK; b < a; b++)
            cr_assert_str_neq(status_name((enum status)a), status_name((enum status)b));
    }
    cr_assert_str_eq(status_name((enum status)999), "unknown");
}

static enum status forwards(enum status status)
{
    TRY(status);
    return STATUS_INTERNAL;
}

static enum status cleans_up(enum status given, int *cleaned)
{
    enum status status;
    TRY_GOTO(given, done);
done:
    ++*cleaned;
    return status;
}

Test(status, try_forwards)
{
    int cleaned = 0;
    cr_assert_eq(forwards(STATUS_LIMIT), STATUS_LIMIT);
    cr_assert_eq(forwards(STATUS_OK), STATUS_INTERNAL);
    cr_assert_eq(cleans_up(STATUS_IO, &cleaned), STATUS_IO);
    cr_assert_eq(cleans_up(STATUS_OK, &cleaned), STATUS_OK);
    cr_assert_eq(cleaned, 2);
}

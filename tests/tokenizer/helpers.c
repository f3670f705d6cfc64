#include "helpers.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"

char *data_read(const char *name, size_t *length)
{
    char path[1024], *bytes;
    struct error err;
    snprintf(path, sizeof path, "%s/tokenizers/%s", TEST_DATA, name);
    cr_assert_eq(file_read_whole(&bytes, length, path, 64 << 20, &err), STATUS_OK, "%s",
                 err.message);
    return bytes;
}

struct json_lines data_lines(const char *name)
{
    size_t length;
    char *bytes = data_read(name, &length);
    struct json_lines lines = {0};
    size_t capacity = 0;
    for (char *at = bytes, *end; at < bytes + length; at = end + 1) {
        json_error_t reason;
        end = memchr(at, '\n', (size_t)(bytes + length - at));
        cr_assert_not_null(end);
        cr_assert_eq(memory_reserve(&lines.items, &capacity, lines.count + 1, sizeof *lines.items,
                                    "lines", NULL),
                     STATUS_OK);
        json_t *value = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, &reason);
        cr_assert_not_null(value, "%s line %zu: %s", name, lines.count + 1, reason.text);
        lines.items[lines.count++] = value;
    }
    memory_free(bytes);
    return lines;
}

void json_lines_deinit(struct json_lines *lines)
{
    for (size_t i = 0; i < lines->count; i++)
        json_decref(lines->items[i]);
    memory_free(lines->items);
    *lines = (struct json_lines){0};
}

struct tokenizer *data_tokenizer(const char *name)
{
    char file[64];
    size_t length;
    struct tokenizer *tokenizer = NULL;
    struct error err;
    snprintf(file, sizeof file, "%s.json", name);
    char *json = data_read(file, &length);
    cr_assert_eq(tokenizer_parse(&tokenizer, json, length, NULL, 0, file, &err), STATUS_OK, "%s",
                 err.message);
    memory_free(json);
    return tokenizer;
}

struct tokenizer *parse_quoted(const char *json, struct error *err)
{
    struct tokenizer *tokenizer = NULL;
    size_t length = strlen(json);
    char *copy = memory_copy_text(json, length);
    cr_assert_not_null(copy);
    for (char *at = copy; (at = strchr(at, '\'')) != NULL;)
        *at = '"';
    enum status status = tokenizer_parse(&tokenizer, copy, length, NULL, 0, "a.json", err);
    memory_free(copy);
    cr_assert_eq(status == STATUS_OK, tokenizer != NULL);
    return tokenizer;
}

void assert_ids(const struct token_list *got, const int32_t *want, size_t count, const char *what)
{
    if (got->count == count && (count == 0 || memcmp(got->ids, want, count * sizeof *want) == 0))
        return;
    struct text text = {0};
    for (size_t i = 0; i < got->count && i < 200; i++)
        text_append_format(&text, " %d", got->ids[i]);
    text_append_string(&text, "; want");
    for (size_t i = 0; i < count && i < 200; i++)
        text_append_format(&text, " %d", want[i]);
    cr_assert_fail("%s: got%s", what, text.bytes);
}

void assert_refused(const char *json, enum status status, const char *part)
{
    struct error err = {0};
    uint64_t live = memory_counters_get().live_count;
    struct tokenizer *tokenizer = parse_quoted(json, &err);
    cr_assert_null(tokenizer, "accepted: %s", json);
    cr_expect_eq(err.status, status, "%s: %s", status_name(err.status), err.message);
    cr_expect_not_null(strstr(err.message, part), "\"%s\" lacks \"%s\"", err.message, part);
    cr_expect_eq(memory_counters_get().live_count, live);
}

double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
#if defined(__SANITIZE_THREAD__)
    seconds /= 10;
#endif
    return seconds;
}

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "engine/batch_reader.h"
#include "engine_tools.h"

static struct batch_reader *open_bytes(const char *bytes, size_t length, size_t line_bytes_max)
{
    struct batch_reader *reader;
    struct error err;
    const char *path = tools_path(tools_folder(), "in.jsonl");
    tools_write_file(path, bytes, length);
    enum status status = batch_reader_open(&reader, path, line_bytes_max, NULL, NULL, &err);
    cr_assert_eq(status, STATUS_OK, "%s", err.message);
    unlink(path);
    return reader;
}

static struct batch_row next(struct batch_reader *reader)
{
    struct batch_row row;
    struct error err;
    bool found;
    cr_assert_eq(batch_reader_next(reader, &row, &found, &err), STATUS_OK);
    cr_assert(found);
    return row;
}

static bool is_at_end(struct batch_reader *reader)
{
    struct batch_row row;
    struct error err;
    bool found;
    cr_assert_eq(batch_reader_next(reader, &row, &found, &err), STATUS_OK);
    return !found;
}

struct shape {
    const char *name;
    const char *bytes;
    int64_t lines[4]; /* of the rows; 0 ends */
    const char *last; /* what the last row holds */
};

Test(batch_reader, takes_the_shapes_that_files_have)
{
    static const struct shape shapes[] = {
        {"empty file", "", {0}, NULL},
        {"blank lines only", "\n  \n\t\r\n", {0}, NULL},
        {"one line", "{\"a\":1}\n", {1}, "{\"a\":1}"},
        {"no newline at the end", "{}\n{\"a\":1}", {1, 2}, "{\"a\":1}"},
        {"carriage returns", "{}\r\n{\"a\":1}\r\n", {1, 2}, "{\"a\":1}"},
        {"byte order mark", "\xEF\xBB\xBF{\"a\":1}\n", {1}, "{\"a\":1}"},
        {"blank lines count", "\n\n{}\n\n{\"a\":1}\n\n", {3, 5}, "{\"a\":1}"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *shape = &shapes[i];
        struct batch_reader *reader =
            open_bytes(shape->bytes, strlen(shape->bytes), BATCH_LINE_BYTES_MAX);
        int64_t count = 0;
        for (; shape->lines[count] != 0; count++) {
            struct batch_row row = next(reader);
            cr_expect_eq(row.line, shape->lines[count], "%s: line %lld", shape->name,
                         (long long)row.line);
            cr_expect(!row.is_wrong, "%s", shape->name);
            if (shape->lines[count + 1] == 0)
                cr_expect(row.length == strlen(shape->last) &&
                              memcmp(row.bytes, shape->last, row.length) == 0,
                          "%s: found %.*s", shape->name, (int)row.length, row.bytes);
        }
        cr_expect(is_at_end(reader), "%s", shape->name);
        cr_expect_eq(batch_reader_row_count(reader), count, "%s", shape->name);
        batch_reader_close(reader);
    }
}

Test(batch_reader, a_long_line_is_skipped_in_bounded_memory)
{
    /* Limits around the line's length, and lines many times the limit. */
    enum { LIMIT = 1 << 20 };
    static const size_t lengths[] = {LIMIT - 1, LIMIT,         LIMIT + 1, LIMIT + 2,
                                     LIMIT + 3, 5 * LIMIT + 7, 16 * LIMIT};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (int with_return = 0; with_return < 2; with_return++) {
            size_t total = lengths[i] + (size_t)with_return + 1;
            char *bytes = malloc(total + 32);
            memset(bytes, 'x', lengths[i]);
            memcpy(bytes, "{\"custom_id\":\"long\",", 20);
            memcpy(bytes + lengths[i], "\r\n", 2);
            bytes[total - 1] = '\n';
            memcpy(bytes + total, "{\"custom_id\":\"next\"}", 20);
            uint64_t live = memory_counters_get().live_bytes;
            struct batch_reader *reader = open_bytes(bytes, total + 20, LIMIT);
            struct batch_row row = next(reader);
            cr_expect_eq(row.is_wrong, lengths[i] > LIMIT, "%zu bytes", lengths[i]);
            cr_expect_eq(row.custom_id_length, 4);
            cr_expect_lt(memory_counters_get().live_bytes - live, LIMIT + (256 << 10));
            row = next(reader);
            cr_expect_eq(row.line, 2);
            cr_expect(!row.is_wrong && memcmp(row.custom_id, "next", 4) == 0);
            cr_expect(is_at_end(reader));
            batch_reader_close(reader);
            free(bytes);
        }
    }
}

Test(batch_reader, the_second_of_two_ids_names_both_lines)
{
    const char *text =
        "{\"custom_id\":\"a\"}\n\n{\"custom_id\":\"b\"}\n{\"custom_id\":\"\\u0061\"}\n";
    struct batch_reader *reader = open_bytes(text, strlen(text), BATCH_LINE_BYTES_MAX);
    for (int pass = 0; pass < 2; pass++) {
        struct error err;
        cr_expect(!next(reader).is_wrong);
        cr_expect(!next(reader).is_wrong);
        struct batch_row row = next(reader);
        cr_assert(row.is_wrong);
        cr_expect_str_eq(row.error.code, ROW_DUPLICATE_ID);
        cr_expect_str_eq(row.error.message, "line 4: this custom_id stands on line 1 already");
        cr_assert_eq(batch_reader_rewind(reader, &err), STATUS_OK);
    }
    batch_reader_close(reader);
}

Test(batch_reader, an_id_of_a_mebibyte_is_a_row_error)
{
    size_t length = 1 << 20;
    char *bytes = malloc(length + 32);
    memcpy(bytes, "{\"custom_id\":\"", 14);
    memset(bytes + 14, 'a', length);
    memcpy(bytes + 14 + length, "\"}\n", 3);
    struct batch_reader *reader = open_bytes(bytes, length + 17, BATCH_LINE_BYTES_MAX);
    struct batch_row row = next(reader);
    cr_expect(row.is_wrong);
    cr_expect_str_eq(row.error.param, "custom_id");
    cr_expect_eq(row.custom_id_length, length);
    batch_reader_close(reader);
    free(bytes);
}

Test(batch_reader, many_ids_grow_the_table)
{
    size_t capacity = 64 * 5000, length = 0;
    char *bytes = malloc(capacity);
    for (int i = 0; i < 5000; i++)
        length += (size_t)sprintf(bytes + length, "{\"custom_id\":\"row-%d\"}\n", i % 4999);
    struct batch_reader *reader = open_bytes(bytes, length, BATCH_LINE_BYTES_MAX);
    cr_expect_eq(batch_reader_row_count(reader), 5000);
    for (int i = 0; i < 4999; i++)
        cr_assert(!next(reader).is_wrong, "row %d", i);
    cr_expect(next(reader).is_wrong);
    batch_reader_close(reader);
    free(bytes);
}

Test(batch_reader, a_pipe_is_spooled)
{
    int ends[2];
    struct error err;
    struct batch_reader *reader;
    char path[32];
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(write(ends[1], "{}\n{}\n", 6), 6);
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    cr_assert_eq(batch_reader_open(&reader, path, 100, NULL, NULL, &err), STATUS_OK, "%s",
                 err.message);
    cr_expect_eq(batch_reader_row_count(reader), 2);
    cr_expect_eq(next(reader).line, 1);
    batch_reader_close(reader);
}

/* Twice, as the plan reads it and then the run. */
Test(batch_reader, standard_input_is_read_from_where_it_stands)
{
    static const char text[] = "{\"a\":1}\n{\"b\":2}\n{}\n";
    const char *path = tools_path(tools_folder(), "in.jsonl");
    struct error err;
    tools_write_file(path, text, strlen(text));
    int file = open(path, O_RDONLY);
    cr_assert_eq(lseek(file, 8, SEEK_SET), 8);
    cr_assert_eq(dup2(file, STDIN_FILENO), STDIN_FILENO);
    for (int time = 0; time < 2; time++) {
        struct batch_reader *reader;
        cr_assert_eq(batch_reader_open(&reader, "-", 100, NULL, NULL, &err), STATUS_OK, "%s",
                     err.message);
        cr_expect_eq(batch_reader_row_count(reader), 2);
        for (int pass = 0; pass < 2; pass++) {
            struct batch_row row = next(reader);
            cr_expect(row.line == 1 && row.length == 7 && memcmp(row.bytes, "{\"b\":2}", 7) == 0,
                      "line %lld: %.*s", (long long)row.line, (int)row.length, row.bytes);
            cr_assert_eq(batch_reader_rewind(reader, &err), STATUS_OK);
        }
        batch_reader_close(reader);
    }
    close(file);
}

/* Between the first pass and the second: more is not seen, all else is told, where it shows first.
 */
Test(batch_reader, a_file_that_changes_is_told)
{
    static const struct {
        const char *name, *now;
        int64_t rows; /* that are given before it is told; -1: it is not */
    } cases[] = {
        {"grows", "{\"a\":1}\n{\"b\":2}\n{\"c\":3}\n", -1},
        {"goes on in its last line", "{\"a\":1}\n{\"b\":2}\nx", -1},
        {"shrinks", "{\"a\":1}\n", 1},
        {"is empty", "", 0},
        {"has other bytes", "{\"a\":1}\n{\"b\":3}\n", 2},
        {"has more lines in as many bytes", "{}\n{}\n{}\n{\"b\":2}\n", 2},
    };
    const char *path = tools_path(tools_folder(), "in.jsonl");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct batch_reader *reader;
        struct error err;
        tools_write_file(path, "{\"a\":1}\n{\"b\":2}\n", 16);
        cr_assert_eq(batch_reader_open(&reader, path, 100, NULL, NULL, &err), STATUS_OK);
        tools_write_file(path, cases[i].now, strlen(cases[i].now));
        cr_expect_eq(batch_reader_bytes(reader), 16);
        for (int pass = 0; pass < 2; pass++) {
            struct batch_row row;
            bool found;
            for (int64_t r = 0; r < (cases[i].rows < 0 ? 2 : cases[i].rows); r++)
                next(reader);
            enum status status = batch_reader_next(reader, &row, &found, &err);
            cr_expect_eq(status, cases[i].rows < 0 ? STATUS_OK : STATUS_IO, "a file that %s",
                         cases[i].name);
            cr_expect(status == STATUS_OK ? !found
                                          : strstr(err.message, "in.jsonl changed while") != NULL);
            cr_assert_eq(batch_reader_rewind(reader, &err), STATUS_OK);
        }
        batch_reader_close(reader);
    }
}

Test(batch_reader, what_cannot_be_read_is_refused)
{
    struct error err;
    struct batch_reader *reader;
    cr_expect_eq(batch_reader_open(&reader, "/nonexistent/in", 100, NULL, NULL, &err),
                 STATUS_NOT_FOUND);
    cr_expect_eq(batch_reader_open(&reader, "/tmp", 100, NULL, NULL, &err),
                 STATUS_INVALID_ARGUMENT);
}

Test(batch_reader, every_allocation_may_fail)
{
    const char *text = "{\"custom_id\":\"a\"}\n{\"custom_id\":\"b\"}\n";
    const char *path = tools_path(tools_folder(), "in.jsonl");
    tools_write_file(path, text, strlen(text));
    uint64_t live = memory_counters_get().live_count;
    for (uint64_t n = 1;; n++) {
        struct batch_reader *reader = NULL;
        struct error err;
        memory_fail_at(n, 0);
        enum status status = batch_reader_open(&reader, path, 1000, NULL, NULL, &err);
        memory_fail_at(0, 0);
        batch_reader_close(reader);
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %d leaks", (int)n);
        if (status == STATUS_OK)
            break;
        cr_assert_eq(status, STATUS_NO_MEMORY);
    }
}

/* The bytes of an old output file through what --resume reads of it. Lines that are taken are whole,
 * one for each row, and found again by their rows' names; everything else is refused. */
#include <string.h>
#include <unistd.h>

#include "engine/batch_past.h"
#include "fuzz.h"

#define NAME_AT (sizeof "{\"id\":\"batch_req_" - 1)

static struct batch_writer *open_writer(const char *path)
{
    struct batch_writer *writer;
    struct error err;
    const struct batch_writer_params params = {
        .output_path = path, .mode = BATCH_FILES_RESUME, .input_fd = -1};
    FUZZ_CHECK(batch_writer_open(&writer, &params, &err) == STATUS_OK);
    return writer;
}

/* The names that stand in the first `bytes` bytes, by a slow and plain look at each line. */
static void find_names(struct row_names *names, const char *data, int64_t bytes)
{
    const char *end = data + bytes;
    while (data < end) {
        const char *newline = memchr(data, '\n', (size_t)(end - data));
        struct row_name name;
        struct error err;
        FUZZ_CHECK(newline != NULL); /* what is taken ends with a line */
        FUZZ_CHECK(newline - data > (ptrdiff_t)(NAME_AT + ROW_NAME_DIGITS));
        FUZZ_CHECK(row_name_parse(&name, data + NAME_AT));
        FUZZ_CHECK(row_names_add(names, 1, NULL, 0, &err) == STATUS_OK);
        names->names[names->count - 1] = name;
        data = newline + 1;
    }
}

static void check_past(struct batch_past *past, const char *data, size_t size)
{
    struct row_names names = {0};
    const struct row_names none = {0};
    struct error err;
    int64_t whole = past->whole_bytes[BATCH_OUTPUT];
    FUZZ_CHECK(whole >= 0 && whole <= (int64_t)size);
    FUZZ_CHECK(memchr(data + whole, '\n', size - (size_t)whole) == NULL); /* the rest is torn */
    FUZZ_CHECK(memchr(data, 0, (size_t)whole) == NULL);
    find_names(&names, data, whole);
    FUZZ_CHECK(past->completed_count + past->failed_count == names.count);
    if (names.count > 0) {
        FUZZ_CHECK(batch_past_match(past, &none, &err) != STATUS_OK);
        fuzz_check_error(err.status, &err);
    } else {
        FUZZ_CHECK(batch_past_match(past, &names, &err) == STATUS_OK);
    }
    row_names_deinit(&names);
}

/* All lines belong to rows of the input whose names they have. */
static void check_match(struct batch_past *past, const char *data)
{
    struct row_names names = {0};
    struct error err;
    find_names(&names, data, past->whole_bytes[BATCH_OUTPUT]);
    FUZZ_CHECK(batch_past_match(past, &names, &err) == STATUS_OK);
    for (size_t i = 0; i < names.count; i++)
        FUZZ_CHECK(batch_past_has(past, (int64_t)i));
    FUZZ_CHECK(!batch_past_has(past, (int64_t)names.count));
    row_names_deinit(&names);
}

static void try_past(const struct batch_writer *writer, const char *data, size_t size,
                     bool is_matched)
{
    struct batch_past past = {0};
    struct error err;
    enum status status = batch_past_read(&past, writer, (int64_t)size, &err);
    if (status != STATUS_OK)
        fuzz_check_error(status, &err);
    else if (is_matched)
        check_match(&past, data);
    else
        check_past(&past, data, size);
    batch_past_deinit(&past);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_account account = fuzz_begin(size);
    int fd = fuzz_file(data, size);
    struct fuzz_path path = fuzz_file_path(fd);
    struct batch_writer *writer = open_writer(path.text);
    try_past(writer, (const char *)data, size, false);
    try_past(writer, (const char *)data, size, true);
    batch_writer_abandon(writer);
    close(fd);
    fuzz_end(&account);
    return 0;
}

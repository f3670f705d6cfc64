#include "engine/batch_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "engine/id_table.h"
#include "engine/line_reader.h"
#include "engine/row_id.h"

struct batch_reader {
    int fd;
    const char *name; /* for messages */
    size_t line_bytes_max;
    struct line_reader lines;
    struct id_table ids; /* complete after the first pass */
    struct text custom_id;
    int64_t row_count;
};

static enum status create_spool(int *out, struct error *err)
{
    const char *folder = getenv("TMPDIR");
    struct text path = {0};
    text_append_format(&path, "%s/phasor-input-XXXXXX",
                       folder != NULL && *folder != 0 ? folder : "/tmp");
    enum status status = text_check(&path, "the name of a temporary file", err);
    if (status == STATUS_OK) {
        *out = mkstemp(path.bytes);
        if (*out < 0)
            status = error_set_errno(err, errno,
                                     "cannot create the temporary file %s (TMPDIR "
                                     "names another folder)",
                                     path.bytes);
        else
            unlink(path.bytes);
    }
    text_deinit(&path);
    return status;
}

static enum status copy_bytes(int to, int from, const char *name, struct error *err)
{
    char bytes[65536];
    for (;;) {
        ssize_t got = read(from, bytes, sizeof bytes);
        if (got == 0)
            return STATUS_OK;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set_errno(err, errno, "cannot read %s", name);
        for (ssize_t done = 0; done < got;) {
            ssize_t put = write(to, bytes + done, (size_t)(got - done));
            if (put < 0 && errno != EINTR)
                return error_set_errno(err, errno, "cannot copy %s to a temporary file", name);
            done += put > 0 ? put : 0;
        }
    }
}

/* Replaces a descriptor that cannot be read twice by one of a copy. */
static enum status spool(int *fd, const char *name, struct error *err)
{
    int copy = -1;
    TRY(create_spool(&copy, err));
    enum status status = copy_bytes(copy, *fd, name, err);
    close(status == STATUS_OK ? *fd : copy);
    if (status == STATUS_OK)
        *fd = copy;
    return status;
}

static enum status open_input(int *out, const char *path, const char *name, struct error *err)
{
    int fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot open the input file %s", name);
    struct stat about;
    enum status status = STATUS_OK;
    if (fstat(fd, &about) != 0)
        status = error_set_errno(err, errno, "cannot look at %s", name);
    else if (S_ISDIR(about.st_mode))
        status = error_set(err, STATUS_INVALID_ARGUMENT, "the input %s is a directory", name);
    else if (!S_ISREG(about.st_mode))
        status = spool(&fd, name, err);
    if (status == STATUS_OK)
        *out = fd;
    else
        close(fd);
    return status;
}

static bool is_blank(const struct line *line)
{
    for (size_t i = 0; i < line->length; i++) {
        if (line->bytes[i] != ' ' && line->bytes[i] != '\t' && line->bytes[i] != '\r')
            return false;
    }
    return true;
}

static enum status next_line(struct batch_reader *reader, struct line *out, bool *found,
                             struct error *err)
{
    do
        TRY(line_reader_next(&reader->lines, out, found, err));
    while (*found && is_blank(out));
    if (!*found)
        return STATUS_OK;
    text_clear(&reader->custom_id);
    row_id_find(&reader->custom_id, out->bytes, out->length);
    return text_check(&reader->custom_id, "a custom_id", err);
}

static enum status first_pass(struct batch_reader *reader, struct error *err)
{
    for (;;) {
        struct line line;
        bool found;
        int64_t first_line;
        TRY(next_line(reader, &line, &found, err));
        if (!found)
            return batch_reader_rewind(reader, err);
        reader->row_count++;
        if (reader->custom_id.length > 0)
            TRY(id_table_add(&reader->ids, reader->custom_id.bytes, reader->custom_id.length,
                             line.number, &first_line, err));
    }
}

enum status batch_reader_open(struct batch_reader **out, const char *path, size_t line_bytes_max,
                              struct error *err)
{
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    void *memory;
    TRY(memory_get(&memory, 1, sizeof(struct batch_reader), "the batch reader", err));
    struct batch_reader *reader = memory;
    *reader = (struct batch_reader){.fd = -1, .name = name, .line_bytes_max = line_bytes_max};
    enum status status = open_input(&reader->fd, path, name, err);
    if (status == STATUS_OK)
        status = batch_reader_rewind(reader, err);
    if (status == STATUS_OK)
        status = first_pass(reader, err);
    if (status == STATUS_OK)
        *out = reader;
    else
        batch_reader_close(reader);
    return status;
}

void batch_reader_close(struct batch_reader *reader)
{
    if (reader == NULL)
        return;
    line_reader_deinit(&reader->lines);
    id_table_deinit(&reader->ids);
    text_deinit(&reader->custom_id);
    if (reader->fd >= 0)
        close(reader->fd);
    memory_free(reader);
}

int64_t batch_reader_row_count(const struct batch_reader *reader)
{
    return reader->row_count;
}

int batch_reader_fd(const struct batch_reader *reader)
{
    return reader->fd;
}

enum status batch_reader_rewind(struct batch_reader *reader, struct error *err)
{
    if (lseek(reader->fd, 0, SEEK_SET) < 0)
        return error_set_errno(err, errno, "cannot read %s from its start", reader->name);
    line_reader_deinit(&reader->lines);
    line_reader_init(&reader->lines, reader->fd, reader->name, reader->line_bytes_max);
    return STATUS_OK;
}

/* What can be said about a row before it is parsed. */
static bool check_row(const struct batch_reader *reader, const struct line *line,
                      const struct batch_row *row, struct row_error *error)
{
    long long number = line->number;
    if (line->is_too_long)
        return row_error_set(error, ROW_LINE_TOO_LONG, NULL,
                             "line %lld is longer than the limit of %zu bytes", number,
                             reader->line_bytes_max);
    if (row->custom_id_length > CUSTOM_ID_BYTES_MAX)
        return row_error_set(error, ROW_INVALID_VALUE, "custom_id",
                             "line %lld: custom_id has %zu bytes; at most %d are allowed", number,
                             row->custom_id_length, CUSTOM_ID_BYTES_MAX);
    if (row->custom_id == NULL)
        return true; /* parsing the row tells more */
    long long first = id_table_find(&reader->ids, row->custom_id, row->custom_id_length);
    if (first != 0 && first != number)
        return row_error_set(error, ROW_DUPLICATE_ID, "custom_id",
                             "line %lld: this custom_id stands on line %lld already", number,
                             first);
    return true;
}

enum status batch_reader_next(struct batch_reader *reader, struct batch_row *out, bool *found,
                              struct error *err)
{
    struct line line;
    TRY(next_line(reader, &line, found, err));
    if (!*found)
        return STATUS_OK;
    bool has_id = reader->custom_id.length > 0;
    out->line = line.number;
    out->bytes = line.bytes;
    out->length = line.length;
    out->custom_id = has_id ? reader->custom_id.bytes : NULL;
    out->custom_id_length = reader->custom_id.length;
    out->is_wrong = !check_row(reader, &line, out, &out->error);
    return STATUS_OK;
}

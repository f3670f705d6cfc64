#include "engine/batch_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/memory.h"
#include "base/text.h"
#include "engine/id_table.h"
#include "engine/line_reader.h"
#include "engine/row_id.h"

/* How long a pipe may say nothing, and how many lines may be read, before the watch is asked. */
#define WATCH_MILLISECONDS 200
#define WATCH_LINES        4096

struct batch_reader {
    int fd;
    off_t start;      /* where the first line begins */
    const char *name; /* for messages */
    size_t line_bytes_max;
    struct watch watch;      /* of the opening */
    struct row_names *names; /* NULL: nobody wants them */
    struct line_reader lines;
    XXH3_state_t *hash; /* of what was read since the first row was next */
    bool is_counted;    /* the first pass is over, and these are complete */
    struct id_table ids;
    int64_t row_count;
    uint64_t byte_count;
    struct fingerprint fingerprint;
    struct text custom_id;
    int64_t given_count; /* rows since the first one was next */
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

/* Writes all bytes to the spool. */
static enum status put_bytes(int to, const char *bytes, size_t count, const char *name,
                             struct error *err)
{
    while (count > 0) {
        ssize_t put = write(to, bytes, count);
        if (put < 0 && errno != EINTR)
            return error_set_errno(err, errno, "cannot copy %s to a temporary file", name);
        bytes += put > 0 ? put : 0;
        count -= put > 0 ? (size_t)put : 0;
    }
    return STATUS_OK;
}

/* A read would wait as long as nobody writes, and begin anew after a signal: it is called only when
 * there is something to read. */
static enum status copy_bytes(const struct batch_reader *reader, int to, struct error *err)
{
    struct pollfd pipe = {.fd = reader->fd, .events = POLLIN};
    char bytes[65536];
    for (;;) {
        TRY(watch_ask(&reader->watch, err));
        int ready = poll(&pipe, 1, WATCH_MILLISECONDS);
        if (ready == 0 || (ready < 0 && errno == EINTR))
            continue;
        ssize_t got = read(reader->fd, bytes, sizeof bytes);
        if (got == 0)
            return STATUS_OK;
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got < 0)
            return error_set_errno(err, errno, "cannot read %s", reader->name);
        TRY(put_bytes(to, bytes, (size_t)got, reader->name, err));
    }
}

/* Replaces a descriptor that cannot be read twice by one of a copy. */
static enum status spool(struct batch_reader *reader, struct error *err)
{
    int copy = -1;
    TRY(create_spool(&copy, err));
    enum status status = copy_bytes(reader, copy, err);
    close(status == STATUS_OK ? reader->fd : copy);
    if (status == STATUS_OK)
        reader->fd = copy; /* of which all counts */
    return status;
}

/* A file that the caller has read from, such as standard input, goes on where that ended. */
static enum status note_start(struct batch_reader *reader, struct error *err)
{
    reader->start = lseek(reader->fd, 0, SEEK_CUR);
    return reader->start >= 0 ? STATUS_OK
                              : error_set_errno(err, errno, "cannot read %s", reader->name);
}

/* `fd` -1: what `path` names. */
static enum status open_input(struct batch_reader *reader, int fd, const char *path,
                              struct error *err)
{
    if (fd < 0 && strcmp(path, "-") == 0)
        fd = STDIN_FILENO;
    reader->fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : open(path, O_RDONLY | O_CLOEXEC);
    if (reader->fd < 0)
        return error_set_errno(err, errno, "cannot open the input file %s", reader->name);
    struct stat about;
    if (fstat(reader->fd, &about) != 0)
        return error_set_errno(err, errno, "cannot look at %s", reader->name);
    if (S_ISDIR(about.st_mode))
        return error_set(err, STATUS_INVALID_ARGUMENT, "the input %s is a directory", reader->name);
    return S_ISREG(about.st_mode) ? note_start(reader, err) : spool(reader, err);
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

static enum status note_row(struct batch_reader *reader, int64_t line, struct error *err)
{
    const char *id = reader->custom_id.length > 0 ? reader->custom_id.bytes : NULL;
    size_t length = reader->custom_id.length;
    int64_t first_line;
    if (++reader->row_count % WATCH_LINES == 0)
        TRY(watch_ask(&reader->watch, err));
    if (reader->names != NULL)
        TRY(row_names_add(reader->names, line, id, length, err));
    return id == NULL ? STATUS_OK : id_table_add(&reader->ids, id, length, line, &first_line, err);
}

static enum status count_rows(struct batch_reader *reader, struct error *err)
{
    for (;;) {
        struct line line;
        bool found;
        TRY(next_line(reader, &line, &found, err));
        if (!found)
            return STATUS_OK;
        TRY(note_row(reader, line.number, err));
    }
}

static struct fingerprint fingerprint_of(const struct batch_reader *reader)
{
    XXH128_hash_t digest = XXH3_128bits_digest(reader->hash);
    return (struct fingerprint){.high = digest.high64, .low = digest.low64};
}

static enum status first_pass(struct batch_reader *reader, struct error *err)
{
    reader->hash = XXH3_createState();
    if (reader->hash == NULL)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    TRY(batch_reader_rewind(reader, err));
    TRY(count_rows(reader, err));
    reader->fingerprint = fingerprint_of(reader);
    reader->byte_count = UINT64_MAX - reader->lines.left;
    reader->is_counted = true;
    return batch_reader_rewind(reader, err);
}

enum status batch_reader_open(struct batch_reader **out, const char *path, size_t line_bytes_max,
                              const struct watch *watch, struct row_names *names, struct error *err)
{
    return batch_reader_open_fd(out, -1, path, line_bytes_max, watch, names, err);
}

enum status batch_reader_open_fd(struct batch_reader **out, int fd, const char *path,
                                 size_t line_bytes_max, const struct watch *watch,
                                 struct row_names *names, struct error *err)
{
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    void *memory;
    TRY(memory_get(&memory, 1, sizeof(struct batch_reader), "the batch reader", err));
    struct batch_reader *reader = memory;
    *reader = (struct batch_reader){
        .fd = -1, .name = name, .line_bytes_max = line_bytes_max, .names = names};
    if (watch != NULL)
        reader->watch = *watch;
    enum status status = open_input(reader, fd, path, err);
    if (status == STATUS_OK)
        status = first_pass(reader, err);
    if (status == STATUS_OK) {
        *out = reader;
        return STATUS_OK;
    }
    if (names != NULL)
        row_names_deinit(names);
    batch_reader_close(reader);
    return status;
}

void batch_reader_close(struct batch_reader *reader)
{
    if (reader == NULL)
        return;
    line_reader_deinit(&reader->lines);
    XXH3_freeState(reader->hash);
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

struct fingerprint batch_reader_fingerprint(const struct batch_reader *reader)
{
    return reader->fingerprint;
}

int batch_reader_fd(const struct batch_reader *reader)
{
    return reader->fd;
}

int64_t batch_reader_bytes(const struct batch_reader *reader)
{
    return (int64_t)reader->byte_count;
}

enum status batch_reader_rewind(struct batch_reader *reader, struct error *err)
{
    if (lseek(reader->fd, reader->start, SEEK_SET) < 0)
        return error_set_errno(err, errno, "cannot read %s from its start", reader->name);
    line_reader_deinit(&reader->lines);
    line_reader_init(&reader->lines, reader->fd, reader->name, reader->line_bytes_max);
    if (XXH3_128bits_reset(reader->hash) != XXH_OK)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    reader->lines.hash = reader->hash;
    if (reader->is_counted)
        reader->lines.left = reader->byte_count;
    reader->given_count = 0;
    return STATUS_OK;
}

static bool check_row(const struct batch_reader *reader, const struct batch_row *row,
                      struct row_error *error)
{
    long long number = row->line;
    if (row->is_too_long)
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

void batch_reader_check(const struct batch_reader *reader, struct batch_row *row)
{
    row->is_wrong = !check_row(reader, row, &row->error);
}

/* Where the first pass ended, the rows and their bytes are what they were. */
static enum status check_same(const struct batch_reader *reader, bool is_end, struct error *err)
{
    bool is_same = is_end || reader->given_count < reader->row_count;
    if (is_end) {
        struct fingerprint now = fingerprint_of(reader);
        is_same = now.high == reader->fingerprint.high && now.low == reader->fingerprint.low;
    }
    if (is_same)
        return STATUS_OK;
    return error_set(err, STATUS_IO,
                     "%s changed while it was read, and what was read meanwhile may be of either: "
                     "begin anew, with --overwrite where there is an output file",
                     reader->name);
}

enum status batch_reader_skim(struct batch_reader *reader, struct batch_row *out, bool *found,
                              struct error *err)
{
    struct line line;
    TRY(next_line(reader, &line, found, err));
    TRY(check_same(reader, !*found, err));
    if (!*found)
        return STATUS_OK;
    bool has_id = reader->custom_id.length > 0;
    out->index = reader->given_count++;
    out->line = line.number;
    out->bytes = line.bytes;
    out->length = line.length;
    out->custom_id = has_id ? reader->custom_id.bytes : NULL;
    out->custom_id_length = reader->custom_id.length;
    out->is_too_long = line.is_too_long;
    out->is_wrong = false;
    return STATUS_OK;
}

enum status batch_reader_next(struct batch_reader *reader, struct batch_row *out, bool *found,
                              struct error *err)
{
    TRY(batch_reader_skim(reader, out, found, err));
    if (*found)
        batch_reader_check(reader, out);
    return STATUS_OK;
}

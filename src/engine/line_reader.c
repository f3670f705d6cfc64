#include "engine/line_reader.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/memory.h"

#define FIRST_BUFFER_BYTES (64 * 1024)

void line_reader_init(struct line_reader *reader, int fd, const char *path, size_t line_bytes_max)
{
    *reader = (struct line_reader){
        .fd = fd, .path = path, .line_bytes_max = line_bytes_max, .left = UINT64_MAX};
}

void line_reader_deinit(struct line_reader *reader)
{
    memory_free(reader->buffer);
    reader->buffer = NULL;
}

/* Makes room for at least one byte behind `end`, first by moving what is left to the front. The
 * caller has seen that the line is not too long. */
static enum status make_room(struct line_reader *reader, struct error *err)
{
    if (reader->begin > 0) {
        memmove(reader->buffer, reader->buffer + reader->begin, reader->end - reader->begin);
        reader->end -= reader->begin;
        reader->begin = 0;
    }
    if (reader->end < reader->capacity)
        return STATUS_OK;
    size_t limit = reader->line_bytes_max + 2; /* the longest line, a carriage return, a newline */
    /* By fours: the old buffer and the new one are there together, and a quarter more than the
     * limit is the most that a hostile line shall take. */
    size_t wanted = reader->capacity == 0 ? FIRST_BUFFER_BYTES : 4 * reader->capacity;
    if (wanted >= limit - 2)
        wanted = limit;
    void *buffer = memory_resize(reader->buffer, wanted, 1);
    if (buffer == NULL)
        return error_set(err, STATUS_NO_MEMORY, "%s, line %lld: cannot allocate %zu bytes for it",
                         reader->path, (long long)reader->line_number + 1, wanted);
    reader->buffer = buffer;
    reader->capacity = wanted;
    return STATUS_OK;
}

static enum status read_more(struct line_reader *reader, struct error *err)
{
    TRY(make_room(reader, err));
    size_t room = reader->capacity - reader->end;
    size_t wanted = room < reader->left ? room : (size_t)reader->left;
    ssize_t got;
    do
        got = read(reader->fd, reader->buffer + reader->end, wanted);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return error_set_errno(err, errno, "cannot read %s", reader->path);
    if (reader->hash != NULL)
        XXH3_128bits_update(reader->hash, reader->buffer + reader->end, (size_t)got);
    reader->is_at_end = got == 0;
    reader->left -= (size_t)got;
    reader->end += (size_t)got;
    return STATUS_OK;
}

static void skip_byte_order_mark(struct line *line)
{
    if (line->number == 1 && line->length >= 3 && memcmp(line->bytes, "\xEF\xBB\xBF", 3) == 0) {
        line->bytes += 3;
        line->length -= 3;
    }
}

/* Gives `length` bytes as a line and takes `taken` (with the newline) out of the buffer. */
static void give_line(struct line_reader *reader, struct line *out, size_t length, size_t taken)
{
    const char *bytes = reader->buffer + reader->begin;
    if (taken > length && length > 0 && bytes[length - 1] == '\r')
        length--;
    *out = (struct line){.bytes = bytes, .length = length, .number = ++reader->line_number};
    if (length > reader->line_bytes_max) {
        out->length = reader->line_bytes_max;
        out->is_too_long = true;
    }
    skip_byte_order_mark(out);
    reader->begin += taken;
    reader->scanned = 0;
}

/* Drops the rest of a line that was too long. */
static enum status skip_rest(struct line_reader *reader, struct error *err)
{
    while (reader->skipping) {
        size_t length = reader->end - reader->begin;
        const char *newline =
            length == 0 ? NULL : memchr(reader->buffer + reader->begin, '\n', length);
        if (newline != NULL) {
            reader->begin = (size_t)(newline + 1 - reader->buffer);
            reader->skipping = false;
        } else {
            reader->begin = reader->end = 0;
            if (reader->is_at_end)
                reader->skipping = false;
            else
                TRY(read_more(reader, err));
        }
    }
    return STATUS_OK;
}

enum status line_reader_next(struct line_reader *reader, struct line *out, bool *found,
                             struct error *err)
{
    TRY(skip_rest(reader, err));
    for (;;) {
        size_t length = reader->end - reader->begin;
        size_t fresh = length - reader->scanned;
        const char *bytes = reader->buffer == NULL ? NULL : reader->buffer + reader->begin;
        const char *newline = fresh == 0 ? NULL : memchr(bytes + reader->scanned, '\n', fresh);
        *found = true;
        if (newline != NULL) {
            size_t line_length = (size_t)(newline - bytes);
            give_line(reader, out, line_length, line_length + 1);
            return STATUS_OK;
        }
        reader->scanned = length;
        if (length >= reader->line_bytes_max + 2) {
            give_line(reader, out, length, length);
            reader->skipping = true;
            return STATUS_OK;
        }
        if (reader->is_at_end) {
            *found = length > 0;
            if (*found)
                give_line(reader, out, length, length);
            return STATUS_OK;
        }
        TRY(read_more(reader, err));
    }
}

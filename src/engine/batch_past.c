#define _GNU_SOURCE /* memmem */
#include "engine/batch_past.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

#define BUFFER_BYTES  (256 * 1024)
#define WATCH_BYTES   (16 * 1024 * 1024) /* read before the watch is asked */
#define PREFETCH_ROWS 16                 /* that many look-ups are on their way */

/* The ends of a line as response.c writes it. */
static const char line_head[] = "{\"id\":\"batch_req_";
static const char head_end[] = "\",\"custom_id\":";
static const char completed_tail[] = "}},\"error\":null}";
static const char failed_tail[] = "\"}}";

#define PREFIX_BYTES (sizeof line_head - 1)
#define HEAD_BYTES   (PREFIX_BYTES + ROW_NAME_DIGITS + sizeof head_end - 1)
#define TAIL_BYTES   (sizeof completed_tail - 1)

/* A line as it passes, in as many pieces as the buffer cuts it into. */
struct passing_line {
    char head[HEAD_BYTES];
    char tail[TAIL_BYTES + PREFIX_BYTES]; /* its last bytes so far, at the end */
    size_t tail_length;
    int64_t length;
    bool has_nul;
    bool has_second; /* another line begins within it */
};

static bool holds(const char *bytes, size_t length, const char *needle)
{
    return length > 0 && memmem(bytes, length, needle, strlen(needle)) != NULL;
}

/* Whether a second line begins where the last piece and this one meet. */
static bool meets_second(const struct passing_line *line, const char *bytes, size_t length)
{
    char joint[2 * PREFIX_BYTES];
    size_t before = line->tail_length < PREFIX_BYTES - 1 ? line->tail_length : PREFIX_BYTES - 1;
    size_t behind = length < PREFIX_BYTES - 1 ? length : PREFIX_BYTES - 1;
    if (line->length == (int64_t)before)
        return false; /* the line's own beginning */
    memcpy(joint, line->tail + sizeof line->tail - before, before);
    memcpy(joint + before, bytes, behind);
    return holds(joint, before + behind, line_head);
}

static void keep_tail(struct passing_line *line, const char *bytes, size_t length)
{
    size_t capacity = sizeof line->tail;
    if (length >= capacity) {
        memcpy(line->tail, bytes + length - capacity, capacity);
        line->tail_length = capacity;
        return;
    }
    memmove(line->tail, line->tail + length, capacity - length);
    memcpy(line->tail + capacity - length, bytes, length);
    line->tail_length += length;
    if (line->tail_length > capacity)
        line->tail_length = capacity;
}

static void line_take(struct passing_line *line, const char *bytes, size_t length)
{
    if (length == 0)
        return;
    size_t skipped = line->length == 0 ? 1 : 0; /* its own beginning is no second one */
    line->has_nul |= memchr(bytes, 0, length) != NULL;
    line->has_second |=
        holds(bytes + skipped, length - skipped, line_head) || meets_second(line, bytes, length);
    if (line->length < (int64_t)sizeof line->head) {
        size_t room = sizeof line->head - (size_t)line->length;
        memcpy(line->head + line->length, bytes, length < room ? length : room);
    }
    keep_tail(line, bytes, length);
    line->length += (int64_t)length;
}

static bool ends_with(const struct passing_line *line, const char *end)
{
    size_t length = strlen(end);
    return line->tail_length >= length &&
           memcmp(line->tail + sizeof line->tail - length, end, length) == 0;
}

/* What keeps a line from being one that phasor wrote; NULL when nothing does. */
static const char *line_fault(const struct passing_line *line, struct row_name *name)
{
    bool is_long = line->length >= (int64_t)(HEAD_BYTES + sizeof failed_tail - 1);
    if (line->has_nul)
        return "it holds NUL bytes, as after a loss of power";
    if (!is_long || memcmp(line->head, line_head, PREFIX_BYTES) != 0 ||
        !row_name_parse(name, line->head + PREFIX_BYTES) ||
        memcmp(line->head + PREFIX_BYTES + ROW_NAME_DIGITS, head_end, sizeof head_end - 1) != 0)
        return "it does not begin as phasor's lines do";
    if (!ends_with(line, completed_tail) && !ends_with(line, failed_tail))
        return "it does not end as phasor's lines do";
    return line->has_second ? "a second line begins within it" : NULL;
}

/* ---- Files --------------------------------------------------------------------------------- */

/* A line's place in one number: its file, too, and never 0. The sign is free. */
static int64_t place_of(enum batch_file file, int64_t line)
{
    return line * BATCH_FILE_COUNT + (int64_t)file;
}

static enum status refuse_line(const struct batch_past *past, int64_t place, const char *fault,
                               struct error *err)
{
    return error_set(err, STATUS_FORMAT,
                     "--resume: %s, line %lld: %s; take the line out and resume, or start anew "
                     "with --overwrite",
                     past->file_names[place % BATCH_FILE_COUNT],
                     (long long)(place / BATCH_FILE_COUNT), fault);
}

static enum status add_line(struct batch_past *past, const struct passing_line *line, int64_t place,
                            struct error *err)
{
    struct row_name name;
    int64_t first;
    const char *fault = line_fault(line, &name);
    if (fault != NULL)
        return refuse_line(past, place, fault, err);
    TRY(id_table_add_hash(&past->rows, name.low, name.high, place, &first, err));
    if (first != place)
        return error_set(
            err, STATUS_FORMAT,
            "--resume: %s, line %lld, and %s, line %lld, answer the same row; take "
            "one of them out and resume, or start anew with --overwrite",
            past->file_names[first % BATCH_FILE_COUNT], (long long)(first / BATCH_FILE_COUNT),
            past->file_names[place % BATCH_FILE_COUNT], (long long)(place / BATCH_FILE_COUNT));
    if (ends_with(line, completed_tail))
        past->completed_count++;
    else
        past->failed_count++;
    return STATUS_OK;
}

/* Bytes behind the last newline are the beginning of a line, which is cut off and computed anew;
 * what is no such beginning belongs to the user. */
static enum status check_rest(const struct batch_past *past, const struct passing_line *rest,
                              int64_t place, struct error *err)
{
    size_t known = rest->length < (int64_t)PREFIX_BYTES ? (size_t)rest->length : PREFIX_BYTES;
    static const char zeros[PREFIX_BYTES];
    if (memcmp(rest->head, line_head, known) == 0 || memcmp(rest->head, zeros, known) == 0)
        return STATUS_OK;
    return refuse_line(past, place, "it does not begin as phasor's lines do", err);
}

static enum status read_block(int fd, const char *name, char *buffer, size_t *length,
                              struct error *err)
{
    ssize_t got;
    do
        got = read(fd, buffer, BUFFER_BYTES);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return error_set_errno(err, errno, "cannot read %s", name);
    *length = (size_t)got;
    return STATUS_OK;
}

static enum status watch_reading(const struct batch_past *past, size_t *unwatched, size_t length,
                                 struct error *err)
{
    *unwatched += length;
    if (*unwatched < WATCH_BYTES)
        return STATUS_OK;
    *unwatched = 0;
    return watch_ask(&past->watch, err);
}

static enum status read_file(struct batch_past *past, enum batch_file file, int fd, char *buffer,
                             struct error *err)
{
    struct passing_line line = {.length = 0};
    int64_t number = 1, offset = 0;
    size_t length, unwatched = 0;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return error_set_errno(err, errno, "cannot read %s", past->file_names[file]);
    for (;;) {
        TRY(read_block(fd, past->file_names[file], buffer, &length, err));
        TRY(watch_reading(past, &unwatched, length, err));
        if (length == 0)
            return check_rest(past, &line, place_of(file, number), err);
        const char *at = buffer, *end = buffer + length, *newline;
        while ((newline = memchr(at, '\n', (size_t)(end - at))) != NULL) {
            line_take(&line, at, (size_t)(newline - at));
            TRY(add_line(past, &line, place_of(file, number++), err));
            offset += line.length + 1;
            past->whole_bytes[file] = offset;
            line = (struct passing_line){.length = 0};
            at = newline + 1;
        }
        line_take(&line, at, (size_t)(end - at));
    }
}

/* Files of so many bytes hold at most so many lines. */
static enum status reserve(struct batch_past *past, const struct batch_writer *writer,
                           int64_t row_count, struct error *err)
{
    int64_t line_max = 0;
    for (int i = 0; i < BATCH_FILE_COUNT; i++)
        line_max += batch_writer_file(writer, (enum batch_file)i)->bytes / (int64_t)HEAD_BYTES;
    return id_table_reserve(&past->rows, (size_t)(line_max < row_count ? line_max : row_count),
                            err);
}

uint64_t batch_past_bytes(int64_t row_count, const struct row_names *names)
{
    /* Arrays that grow have up to two places for each row, and the table up to eight for three. */
    uint64_t rows = (uint64_t)row_count + 64;
    return BUFFER_BYTES +
           rows * (8 * sizeof(struct id_slot) / 3 + 2 * sizeof(struct row_name) + 1) -
           names->capacity * sizeof(struct row_name);
}

enum status batch_past_read(struct batch_past *past, const struct batch_writer *writer,
                            int64_t row_count, struct error *err)
{
    char *buffer;
    TRY(reserve(past, writer, row_count, err));
    TRY(memory_get_raw((void **)&buffer, BUFFER_BYTES, 1, "reading the output", err));
    enum status status = STATUS_OK;
    for (int i = 0; i < BATCH_FILE_COUNT && status == STATUS_OK; i++) {
        const struct batch_writer_file *file = batch_writer_file(writer, (enum batch_file)i);
        past->file_names[i] = file->name;
        if (file->is_regular)
            status = read_file(past, (enum batch_file)i, file->fd, buffer, err);
    }
    memory_free(buffer);
    return status;
}

void batch_past_deinit(struct batch_past *past)
{
    id_table_deinit(&past->rows);
    memory_free(past->done);
    past->done = NULL;
    past->row_count = 0;
}

/* ---- Rows of the input --------------------------------------------------------------------- */

/* The first line that no row was found for: its place is not negative. */
static int64_t first_unmatched(const struct batch_past *past)
{
    int64_t first = 0;
    for (size_t i = 0; i < past->rows.capacity; i++) {
        int64_t place = past->rows.slots[i].line;
        if (place > 0 && (first == 0 || place < first))
            first = place;
    }
    return first;
}

static void mark_done(struct batch_past *past, const struct row_names *names)
{
    for (size_t i = 0; i < names->count && past->rows.capacity > 0; i++) {
        if (i + PREFETCH_ROWS < names->count) {
            const struct row_name *soon = &names->names[i + PREFETCH_ROWS];
            id_table_prefetch(&past->rows, soon->low, soon->high);
        }
        struct id_slot *slot =
            id_table_slot(&past->rows, names->names[i].low, names->names[i].high);
        if (slot == NULL)
            continue;
        slot->line = -slot->line;
        past->done[i / 64] |= (uint64_t)1 << i % 64;
    }
}

enum status batch_past_match(struct batch_past *past, const struct row_names *names,
                             struct error *err)
{
    TRY(memory_get((void **)&past->done, names->count / 64 + 1, sizeof *past->done,
                   "which rows are done", err));
    past->row_count = (int64_t)names->count;
    mark_done(past, names);
    int64_t lost = first_unmatched(past);
    if (lost != 0)
        return refuse_line(past, lost, "no row of the input has its id", err);
    id_table_deinit(&past->rows);
    return STATUS_OK;
}

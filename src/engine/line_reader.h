/* Lines of an open file, one by one, in bounded memory. */
#ifndef PHASOR_ENGINE_LINE_READER_H
#define PHASOR_ENGINE_LINE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct line_reader {
    int fd;           /* borrowed */
    const char *path; /* borrowed; for messages */
    size_t line_bytes_max;
    char *buffer;
    size_t capacity;
    size_t begin, end;   /* bytes read and not yet given */
    size_t scanned;      /* of these, known to hold no newline */
    int64_t line_number; /* of the line given last */
    bool skipping;       /* the rest of a line that was too long comes first */
    bool is_at_end;      /* the file has no more bytes */
    uint64_t left; /* bytes that may still be read; behind them is the end. UINT64_MAX at first */
    struct XXH3_state_s *hash; /* borrowed: takes in all bytes read; NULL after line_reader_init */
};

struct line {
    const char *bytes; /* without newline and carriage return; valid until the next call */
    size_t length;
    int64_t number;   /* from 1 */
    bool is_too_long; /* `bytes` are its first line_bytes_max bytes */
};

/* Starts at the file's present offset. */
void line_reader_init(struct line_reader *reader, int fd, const char *path, size_t line_bytes_max);
void line_reader_deinit(struct line_reader *reader);

/* Gives the next line, or *found = false at the end. A byte order mark before the first line, a
 * carriage return before a newline and a missing newline at the end are accepted. The buffer grows
 * with the longest line up to line_bytes_max; the rest of a longer line is read and dropped. */
enum status line_reader_next(struct line_reader *reader, struct line *out, bool *found,
                             struct error *err) MUST_CHECK;

#endif

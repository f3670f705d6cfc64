/* Rows of a batch file (JSON Lines), fed as they are needed.
 *
 * Opening reads the whole file once: it counts the rows and learns the custom_ids, so that the
 * second of two equal ones can be refused whatever is run in between, and notes the rows' names for
 * who wants them. What cannot be read twice (a pipe, a terminal) is copied to an unlinked temporary
 * file first. Of a file that grows no more is read than at first; one that is otherwise not what it
 * was fails (STATUS_IO) where that shows, at the latest where its end was. Memory is bounded by the
 * longest line, at most line_bytes_max, and 24 to 64 bytes for each row; names take 16 to 32 more.
 */
#ifndef PHASOR_ENGINE_BATCH_READER_H
#define PHASOR_ENGINE_BATCH_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/watch.h"
#include "engine/row_error.h"
#include "engine/row_name.h"
#include "model/fingerprint.h"

#define BATCH_LINE_BYTES_MAX (64u * 1024 * 1024)
#define CUSTOM_ID_BYTES_MAX  512

struct batch_reader;

struct batch_row {
    int64_t index;     /* among the rows, from 0 */
    int64_t line;      /* in the file, from 1; blank lines count */
    const char *bytes; /* valid until the next call */
    size_t length;
    /* As far as it can be known before the row is parsed; NULL when it cannot. */
    const char *custom_id; /* valid until the next call; may hold NUL bytes */
    size_t custom_id_length;
    bool is_too_long;
    bool is_wrong; /* see `error`; `bytes` must not be parsed */
    struct row_error error;
};

/* "-" is standard input, from where it stands. `line_bytes_max` is BATCH_LINE_BYTES_MAX except in
 * tests. `watch` is asked several times a second, also while nothing comes from a pipe; `names`
 * takes the name of each row, and is empty on failure. Both may be NULL. A file that cannot be
 * opened or read fails here; a row that is wrong does not. */
enum status batch_reader_open(struct batch_reader **out, const char *path, size_t line_bytes_max,
                              const struct watch *watch, struct row_names *names,
                              struct error *err) MUST_CHECK;
/* The same of a file that is open and can be read twice, such as batch_reader_fd, from where it
 * stands; `path` is its name alone. The descriptor is the caller's. */
enum status batch_reader_open_fd(struct batch_reader **out, int fd, const char *path,
                                 size_t line_bytes_max, const struct watch *watch,
                                 struct row_names *names, struct error *err) MUST_CHECK;
void batch_reader_close(struct batch_reader *reader); /* NULL is allowed */

int64_t batch_reader_row_count(const struct batch_reader *reader);

/* XXH3-128 of all bytes that it reads. */
struct fingerprint batch_reader_fingerprint(const struct batch_reader *reader);

/* Of the file that is read; a copy where it could not be read twice. */
int batch_reader_fd(const struct batch_reader *reader);

/* From its first line to its end. */
int64_t batch_reader_bytes(const struct batch_reader *reader);

/* Gives the next row, or *found = false at the end. Lines of white space alone are no rows. */
enum status batch_reader_next(struct batch_reader *reader, struct batch_row *out, bool *found,
                              struct error *err) MUST_CHECK;

/* The two halves of batch_reader_next: the row as it stands, with `is_wrong` false; and whether it
 * is wrong, for rows that matter. */
enum status batch_reader_skim(struct batch_reader *reader, struct batch_row *out, bool *found,
                              struct error *err) MUST_CHECK;
void batch_reader_check(const struct batch_reader *reader, struct batch_row *row);

/* The next row is the first again, and the descriptor stands before it. */
enum status batch_reader_rewind(struct batch_reader *reader, struct error *err) MUST_CHECK;

#endif

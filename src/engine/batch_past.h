/* What an interrupted run has written: which rows are done, and where its last whole line ends.
 *
 * A line is known by its first bytes, which hold the name of its row (row_name.h), and by its last;
 * it must hold no NUL byte and no beginning of a second line. What else stands in it is not looked
 * at. Reading is linear, with 32 to 64 bytes for each line, however long lines are; once the lines
 * are matched with the rows of the input, a bit for each row is left. */
#ifndef PHASOR_ENGINE_BATCH_PAST_H
#define PHASOR_ENGINE_BATCH_PAST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/batch_reader.h"
#include "engine/batch_writer.h"
#include "engine/id_table.h"
#include "engine/row_name.h"

struct batch_past {
    struct watch watch;   /* asked now and then while files are read */
    struct id_table rows; /* names of the rows that are done, until matched */
    uint64_t *done;       /* [row_count] bits, once matched */
    int64_t row_count;
    int64_t whole_bytes[BATCH_FILE_COUNT];    /* up to the end of the last whole line */
    uint64_t completed_count, failed_count;   /* rows that are done */
    const char *file_names[BATCH_FILE_COUNT]; /* borrowed from the writer */
};

/* Host memory that the past of an input of so many rows takes at most, with the rows' names, less
 * what `names` holds already. The same for a run that is resumed and for one that is not: what it
 * leaves to the KV cache must not differ between them. */
uint64_t batch_past_bytes(int64_t row_count, const struct row_names *names);

/* Reads the files of a writer that was opened with BATCH_FILES_RESUME; an input of `row_count` rows
 * is what they are expected to answer. STATUS_FORMAT, with file and line, for what phasor did not
 * write, and for a second line of one row; the watch's failure, if it has one. Start with {.watch};
 * to be deinitialised in any case. */
enum status batch_past_read(struct batch_past *past, const struct batch_writer *writer,
                            int64_t row_count, struct error *err) MUST_CHECK;
void batch_past_deinit(struct batch_past *past);

/* Looks for each line's row among the rows of the input, whose names these are; STATUS_FORMAT, with
 * file and line, when there is none. */
enum status batch_past_match(struct batch_past *past, const struct row_names *names,
                             struct error *err) MUST_CHECK;

/* Whether the row of the input (batch_row.index) is done; false before batch_past_match. */
static inline bool batch_past_has(const struct batch_past *past, int64_t index)
{
    return index < past->row_count && (past->done[index / 64] >> (index % 64) & 1) != 0;
}

#endif

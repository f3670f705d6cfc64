/* What an interrupted run has written: which rows are done, and where its last whole line ends.
 *
 * A line is known by its first bytes, which hold the name of its row (row_name.h), and by its last;
 * it must hold no NUL byte and no beginning of a second line. What else stands in it is not looked
 * at. Reading is linear, with 32 to 64 bytes for each line, however long lines are. */
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
    struct id_table rows;                     /* names of the rows that are done */
    int64_t whole_bytes[BATCH_FILE_COUNT];    /* up to the end of the last whole line */
    uint64_t completed_count, failed_count;   /* rows that are done */
    const char *file_names[BATCH_FILE_COUNT]; /* borrowed from the writer */
};

/* Reads the files of a writer that was opened with BATCH_FILES_RESUME; an input of `row_count` rows
 * is what they are expected to answer. STATUS_FORMAT, with file and
 * line, for what phasor did not write, and for a second line of one row. Start with {0}; to be
 * deinitialised in any case. */
enum status batch_past_read(struct batch_past *past, const struct batch_writer *writer,
                            int64_t row_count, struct error *err) MUST_CHECK;
void batch_past_deinit(struct batch_past *past);

/* Looks for each line's row in the input, from its first row to its last, and rewinds it;
 * STATUS_FORMAT, with file and line, when there is none. */
enum status batch_past_match(struct batch_past *past, struct batch_reader *reader, uint64_t seed,
                             struct error *err) MUST_CHECK;

bool batch_past_has(const struct batch_past *past, const struct row_identity *identity);

#endif

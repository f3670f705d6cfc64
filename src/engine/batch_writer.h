/* Output and error files of a batch: whole lines, safe on disk within a second. */
#ifndef PHASOR_ENGINE_BATCH_WRITER_H
#define PHASOR_ENGINE_BATCH_WRITER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum batch_file { BATCH_OUTPUT, BATCH_ERRORS };

struct batch_writer;

/* "-" is standard output. `error_path` NULL, or equal to `output_path`, sends failed rows to the
 * output. A file that is not empty is refused unless `overwrite`, which empties it; so is one that
 * another run is writing, or that is the file open as `input_fd` (-1: none). On failure no file is
 * created or changed. */
enum status batch_writer_open(struct batch_writer **out, const char *output_path,
                              const char *error_path, bool overwrite, int input_fd,
                              struct error *err) MUST_CHECK;

/* Appends a line (its newline included) by one write. When that fails, what was written of the line
 * is taken back where the file allows it, so that the file ends with a whole line. */
enum status batch_writer_line(struct batch_writer *writer, enum batch_file file, const char *line,
                              size_t length, struct error *err) MUST_CHECK;

/* Brings lines to the disk, if a second has passed since the last time. To be called often. */
enum status batch_writer_tick(struct batch_writer *writer, struct error *err) MUST_CHECK;

/* Brings all lines to the disk and closes; frees the writer, also on failure. */
enum status batch_writer_finish(struct batch_writer *writer, struct error *err) MUST_CHECK;
/* The same for a run that failed already; NULL is allowed. */
void batch_writer_abandon(struct batch_writer *writer);

#endif

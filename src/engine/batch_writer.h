/* Output and error files of a batch: whole lines, safe on disk within a second. */
#ifndef PHASOR_ENGINE_BATCH_WRITER_H
#define PHASOR_ENGINE_BATCH_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum batch_file { BATCH_OUTPUT, BATCH_ERRORS, BATCH_FILE_COUNT };

/* What becomes of files that are not empty. */
enum batch_files_mode { BATCH_FILES_NEW, BATCH_FILES_OVERWRITE, BATCH_FILES_RESUME };

struct batch_writer_params {
    const char *output_path; /* "-" is standard output */
    const char *error_path;  /* NULL, or another name of the output file: failed rows go there */
    enum batch_files_mode mode;
    int input_fd;        /* which no output file may be; -1: none */
    double sync_seconds; /* lines go to the disk so long after they were written; 0: one second */
};

struct batch_writer;

/* Opens and locks the files; missing ones are created. With BATCH_FILES_NEW a file that is not
 * empty is refused; so is in any mode one that another run is writing. Nothing is changed yet, and
 * on failure no file is created. */
enum status batch_writer_open(struct batch_writer **out, const struct batch_writer_params *params,
                              struct error *err) MUST_CHECK;

/* What the files are; valid as long as the writer. */
struct batch_writer_file {
    int fd; /* can be read from with BATCH_FILES_RESUME; -1: errors have no file of their own */
    const char *name;
    bool is_regular;
    bool was_created; /* it was not there before */
    int64_t bytes;    /* of a regular file, when it was opened */
};
const struct batch_writer_file *batch_writer_file(const struct batch_writer *writer,
                                                  enum batch_file file);

/* Cuts a regular file to its first `bytes` bytes, on the disk, too. */
enum status batch_writer_cut(struct batch_writer *writer, enum batch_file file, int64_t bytes,
                             struct error *err) MUST_CHECK;

/* Appends a line (its newline included) by one write. When that fails, what was written of the line
 * is taken back where the file allows it, so that the file ends with a whole line. A thread of the
 * writer's own brings it to the disk; its failure is told by the next call. */
enum status batch_writer_line(struct batch_writer *writer, enum batch_file file, const char *line,
                              size_t length, struct error *err) MUST_CHECK;

/* STATUS_IO when lines could not be brought to the disk. To be called often. */
enum status batch_writer_check(struct batch_writer *writer, struct error *err) MUST_CHECK;

/* Brings all lines to the disk and closes; frees the writer, also on failure. */
enum status batch_writer_finish(struct batch_writer *writer, struct error *err) MUST_CHECK;
/* The same for a run that failed already; NULL is allowed. */
void batch_writer_abandon(struct batch_writer *writer);
/* For a run that did not begin: removes the files that were created. */
void batch_writer_discard(struct batch_writer *writer);

#endif

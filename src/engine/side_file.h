/* A file that is told about a run beside its output, and replaced whole each time: whoever reads it
 * finds the one or the other, never a part. A run does not end because it cannot be written. */
#ifndef PHASOR_ENGINE_SIDE_FILE_H
#define PHASOR_ENGINE_SIDE_FILE_H

#include <stdbool.h>

#include "base/log.h"
#include "base/status.h"
#include "base/text.h"

/* What the new content is called until it is put in place. */
#define SIDE_FILE_SUFFIX ".phasor-new"

struct side_file {
    const char *path; /* borrowed; NULL: there is none, and nothing is done */
    const char *flag; /* for sentences: "--metrics-file" */
    bool has_failed;  /* which was told */
};

/* Whether it can be written, and is none of `others` (NULLs and "-" are passed over). Devices and
 * pipes are allowed, and written to as they are. Leaves nothing behind. */
enum status side_file_check(const struct side_file *file, const char *const *others,
                            int other_count, struct error *err) MUST_CHECK;

/* Replaces the content; the first failure is told as a warning. */
void side_file_write(struct side_file *file, const struct text *content,
                     const struct log_sink *log);

#endif

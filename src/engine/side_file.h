/* A file that is told about a run beside its output, and replaced whole each time: whoever reads it
 * finds the one or the other, never a part. A run does not end because it cannot be written. */
#ifndef PHASOR_ENGINE_SIDE_FILE_H
#define PHASOR_ENGINE_SIDE_FILE_H

#include <stdbool.h>

#include "base/log.h"
#include "base/status.h"
#include "base/text.h"

struct side_file {
    const char *path; /* borrowed; NULL: there is none, and nothing is done */
    const char *flag; /* for sentences: "--metrics-file" */
    const char *head; /* what phasor's own content begins with; NULL: anything may be replaced */
    bool has_failed;  /* which was told */
};

/* Whether it can be written, is none of `others` (NULLs and "-" are passed over) nor a standard
 * stream's file, and holds nothing that is not phasor's. A link leads to what is replaced; a
 * terminal or another character device is allowed, and written to as it is. Leaves nothing behind.
 */
enum status side_file_check(const struct side_file *file, const char *const *others,
                            int other_count, struct error *err) MUST_CHECK;

/* Whether there is a file with a content. */
bool side_file_has_content(const struct side_file *file);

/* Takes away what an earlier run of phasor wrote, if it did; a link then leads to an empty file. */
void side_file_clear(const struct side_file *file);

/* Replaces the content; the first failure is told as a warning. */
void side_file_write(struct side_file *file, const struct text *content,
                     const struct log_sink *log);

/* Whether two names mean one regular file, or will, when it is created. */
bool side_file_is_same(const char *a, const char *b);

#endif

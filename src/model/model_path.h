/* Paths of files that belong to a checkpoint: never outside of its directory. */
#ifndef PHASOR_MODEL_MODEL_PATH_H
#define PHASOR_MODEL_MODEL_PATH_H

#include <stdbool.h>

#include "base/status.h"

/* "dir/name" in fresh memory (memory_free). */
enum status model_path_join(char **out, const char *dir, const char *name,
                            struct error *err) MUST_CHECK;

/* The real path (memory_free) of the file `name` of `dir`, which must exist. Nothing is opened.
 * `name` must be a plain file name: with a slash it is STATUS_FORMAT. Links are followed, but must
 * end beneath the real directory or, where that is snapshots/COMMIT of a Hugging Face cache entry,
 * in the blobs of that entry; otherwise STATUS_FORMAT. */
enum status model_path_resolve(char **out, const char *dir, const char *name,
                               struct error *err) MUST_CHECK;

/* Whether `dir` has an entry of that name, be it a link that leads nowhere. */
bool model_path_exists(const char *dir, const char *name);

/* Opens a real path for reading; it must be a regular file. `*out` is closed by the caller. */
enum status model_path_open(int *out, const char *path, struct error *err) MUST_CHECK;

#endif

/* The folder of what phasor makes once and finds again: $PHASOR_CACHE, $XDG_CACHE_HOME/phasor or
 * $HOME/.cache/phasor, the first that is set to an absolute path. */
#ifndef PHASOR_BASE_CACHE_FOLDER_H
#define PHASOR_BASE_CACHE_FOLDER_H

#include "base/status.h"
#include "base/text.h"

/* Appends it; nothing is made. STATUS_NOT_FOUND when none of the three is set: `what` ("the
 * backup") has no place then, and the sentence has the cure. */
enum status cache_folder_append(struct text *path, const char *what, struct error *err) MUST_CHECK;

/* Makes the folders above `path` that are missing, for the user alone. */
enum status cache_folder_make_above(const char *path, struct error *err) MUST_CHECK;

#endif

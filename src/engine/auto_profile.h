/* The times of the box that a run is on, where they were measured. */
#ifndef PHASOR_ENGINE_AUTO_PROFILE_H
#define PHASOR_ENGINE_AUTO_PROFILE_H

#include "engine/engine.h"
#include "engine/profile_file.h"

/* The profile at `path`, or the one in the cache where it is NULL, if it is of this machine, these
 * ranks and threads, kernels and version: then `*fits`, and the caller deinits the file. That there
 * is none in the cache is a note, where there is more than one rank; that it does not fit is a
 * warning; both tell the cure. What was named and is not there, and what breaks the format, is a
 * failure. */
enum status auto_profile_read(struct profile_file *out, bool *fits, const char *path,
                              const struct engine_basis *basis, struct error *err) MUST_CHECK;

#endif

/* The box files that come with phasor, by name: in share/phasor/boxes beside the program's folder
 * or in it (a build tree), or where phasor was configured to be installed. */
#ifndef PHASOR_ENGINE_BOX_FILES_H
#define PHASOR_ENGINE_BOX_FILES_H

#include "base/status.h"
#include "base/text.h"

/* Appends the path of the box of that name, or of the file, where the name has a '/' or ends in
 * ".json". STATUS_INVALID_ARGUMENT with the known names where there is none; STATUS_NOT_FOUND where
 * the files are not installed. */
enum status box_files_find(struct text *path, const char *name, struct error *err) MUST_CHECK;

#endif

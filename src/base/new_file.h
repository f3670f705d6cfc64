/* The file that holds a new content until it takes the place of an old one: beside it, under a name
 * that nobody else has. Nothing that is there is opened, cut or followed. */
#ifndef PHASOR_BASE_NEW_FILE_H
#define PHASOR_BASE_NEW_FILE_H

#include <limits.h>

/* What its name has behind the old one's; digits follow. */
#define NEW_FILE_SUFFIX ".phasor-new-"

/* Creates it, with the rights that new files have, open for writing. `name` is to be renamed or
 * removed by the caller; one that a killed process left behind stays. -1 and errno on failure. */
int new_file_open(char name[PATH_MAX], const char *path);

#endif

/* What the tests of the engine share. */
#ifndef ENGINE_TOOLS_H
#define ENGINE_TOOLS_H

#include <jansson.h>
#include <stddef.h>

/* The folder of this test, made by the first call and removed when the test ends; the path is
 * static and ends without a slash. */
const char *tools_folder(void);

/* FOLDER/name in a static buffer of its own for each of the last four calls. */
const char *tools_path(const char *folder, const char *name);

void tools_write_file(const char *path, const char *bytes, size_t length);
/* The whole file, NUL-terminated, freed by free(); fails the test when it is not there. */
char *tools_read_file(const char *path, size_t *length);

/* The lines of an output file as a JSON array; fails the test when one is no JSON. */
json_t *tools_read_rows(const char *path);
/* The row with this custom_id, borrowed; NULL when it is not there once. */
json_t *tools_row(const json_t *rows, const char *custom_id);

#endif

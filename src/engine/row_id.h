/* The custom_id of a row, found without building the row's JSON tree: quick enough for a first pass
 * over the whole file, and often still there when the row as a whole is not valid JSON. */
#ifndef PHASOR_ENGINE_ROW_ID_H
#define PHASOR_ENGINE_ROW_ID_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

/* Appends the decoded text of the first member "custom_id" of the object on this line. False, with
 * nothing appended, when none is found, it is no string, or the line is broken before it. A line
 * that was cut off behind it will do. Nesting costs no stack. */
bool row_id_find(struct text *out, const char *line, size_t length);

#endif

/* A file of JSON that an option names. */
#ifndef PHASOR_CLI_JSON_FILE_H
#define PHASOR_CLI_JSON_FILE_H

#include <jansson.h>

/* A whole regular file of at most so many MiB; the caller's. `what` it is to be, such as "a file of
 * phasor run --trace". NULL where it is none or is no JSON: told on standard error. */
json_t *json_file_read(const char *option, const char *path, const char *what, int mib_max);

#endif

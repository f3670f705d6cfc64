/* Sizes in sentences: whole units, and never "0 MiB" for what is small. */
#ifndef PHASOR_BASE_SIZE_TEXT_H
#define PHASOR_BASE_SIZE_TEXT_H

#include <stdint.h>

#define SIZE_TEXT_BYTES 32

/* "9 B", "640 KiB" or "24576 MiB": the largest unit of which there are ten, rounded down. Returns
 * `out`. */
const char *size_text(char out[SIZE_TEXT_BYTES], uint64_t bytes);

/* The same as an argument of a printf: valid until the end of the block that it stands in. */
#define SIZE_TEXT(bytes) size_text((char[SIZE_TEXT_BYTES]){0}, bytes)

#endif

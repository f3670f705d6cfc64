/* Seconds in sentences: three digits, and of many the whole seconds. */
#ifndef PHASOR_BASE_SECONDS_TEXT_H
#define PHASOR_BASE_SECONDS_TEXT_H

#define SECONDS_TEXT_BYTES 32

/* "0.0021 s", "1.3 s", "1674 s". Returns `out`. */
const char *seconds_text(char out[SECONDS_TEXT_BYTES], double seconds);

/* The same as an argument of a printf: valid until the end of the block that it stands in. */
#define SECONDS_TEXT(seconds) seconds_text((char[SECONDS_TEXT_BYTES]){0}, seconds)

#endif

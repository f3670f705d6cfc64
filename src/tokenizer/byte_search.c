#define _GNU_SOURCE /* memmem */

#include "tokenizer/byte_search.h"

#include <string.h>

/* Searched at a time: AddressSanitizer checks all bytes that memmem could read on every call, which
 * would make a search for many near places take quadratic time. */
#define WINDOW 4096

const char *bytes_find(const char *bytes, size_t length, const char *part, size_t part_length)
{
    while (length >= part_length) {
        size_t window = length < WINDOW + part_length ? length : WINDOW + part_length;
        const char *hit = memmem(bytes, window, part, part_length);
        if (hit != NULL)
            return hit;
        size_t step = window - part_length + 1; /* no place begins in what is left behind */
        bytes += step;
        length -= step;
    }
    return NULL;
}

/* Scanner for the JSON of a safetensors header: total on any bytes, without recursion and without
 * memory of its own (a header of 100 MB must not become a tree of 2 GB). */
#ifndef PHASOR_MODEL_SAFETENSORS_SCAN_H
#define PHASOR_MODEL_SAFETENSORS_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct scan {
    const char *start;
    const char *at;
    const char *end;
    const char *name; /* of the file, for messages */
    struct error *err;
};

/* A string literal as it stands in the file, without the quotes; escapes are checked. */
struct scan_string {
    const char *bytes;
    size_t length;
    bool has_escape;
};

/* Skips white space; the next byte, or -1 at the end. It is not taken. */
int scan_peek(struct scan *scan);

/* Takes `wanted` after white space; otherwise the sentence says where. */
enum status scan_expect(struct scan *scan, char wanted) MUST_CHECK;

enum status scan_string(struct scan_string *out, struct scan *scan) MUST_CHECK;

/* A non-negative integer in plain digits of at most 2^64 - 1. `tensor` and `field` are named when
 * it is something else. */
enum status scan_count(uint64_t *out, struct scan *scan, struct scan_string tensor,
                       const char *field) MUST_CHECK;

/* Bytes of a string after its escapes are replaced; never more than string.length. `out` may be
 * NULL (only counts). */
size_t scan_unescape(char *out, struct scan_string string);

bool scan_equals(struct scan_string string, const char *text);

/* For messages: how many bytes of it to show (whole characters, at most 200), and the arguments of
 * "%.*s". */
int scan_shown_length(struct scan_string string);
#define SCAN_SHOWN(string) scan_shown_length(string), (string).bytes

#endif

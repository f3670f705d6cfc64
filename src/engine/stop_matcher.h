/* Stop strings in a text that comes in pieces: a match may straddle pieces, and the time is linear
 * in the text however the strings look (Knuth, Morris, Pratt). */
#ifndef PHASOR_ENGINE_STOP_MATCHER_H
#define PHASOR_ENGINE_STOP_MATCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define STOP_STRINGS_MAX      16
#define STOP_STRING_BYTES_MAX 4096

struct stop_string {
    const char *bytes; /* borrowed; must outlive the set */
    size_t length;     /* 1 to STOP_STRING_BYTES_MAX */
    uint16_t *borders; /* [length]: longest proper border of each prefix */
};

/* The strings of one request, shared by all its choices. */
struct stop_set {
    struct stop_string strings[STOP_STRINGS_MAX]; /* start with {0} */
    int count;
};

/* There must be room for one more. */
enum status stop_set_add(struct stop_set *set, const char *bytes, size_t length,
                         struct error *err) MUST_CHECK;
void stop_set_deinit(struct stop_set *set);

/* How far each string has matched at the end of one choice's text; start with {0}. */
struct stop_state {
    uint16_t matched[STOP_STRINGS_MAX];
};

/* Reads on. True when a string ends within these bytes: the first that ends, and of those that end
 * together the longest. `*end` is then the number of bytes read up to its end, `*index` which. */
bool stop_state_feed(struct stop_state *state, const struct stop_set *set, const char *bytes,
                     size_t length, size_t *end, int *index);

/* Bytes at the end of the text that may yet become a stop string: not to be shown so far. */
size_t stop_state_held(const struct stop_state *state, const struct stop_set *set);

#endif

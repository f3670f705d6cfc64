/* The name of a row's output line: 128 bits that stand in its ids. The same run gives the same
 * names, so that a line tells which row of the input it answers. */
#ifndef PHASOR_ENGINE_ROW_NAME_H
#define PHASOR_ENGINE_ROW_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* What a name is the hash of. */
struct row_identity {
    uint64_t run_seed;
    int64_t line;
    const char *custom_id; /* NULL when it is not known */
    size_t custom_id_length;
};

struct row_name {
    uint64_t high, low;
};

#define ROW_NAME_DIGITS 32

struct row_name row_name_of(const struct row_identity *identity);

/* As lower-case hexadecimal digits, and back; false when one of the digits is none. */
void row_name_format(char out[ROW_NAME_DIGITS + 1], const struct row_name *name);
bool row_name_parse(struct row_name *out, const char digits[ROW_NAME_DIGITS]);

/* The names of all rows of an input, in its order; start with {.run_seed}. */
struct row_names {
    uint64_t run_seed;
    struct row_name *names;
    size_t count, capacity;
};
enum status row_names_add(struct row_names *names, int64_t line, const char *custom_id,
                          size_t custom_id_length, struct error *err) MUST_CHECK;
void row_names_deinit(struct row_names *names);

#endif

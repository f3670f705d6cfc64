/* JSON from untrusted files: loading with limits, and getters that name the file and the key.
 * The tree is jansson's; its owner is the caller (json_decref). Nesting deeper than 2,048, invalid
 * UTF-8, duplicate keys and bytes behind the value are refused. */
#ifndef PHASOR_BASE_JSON_H
#define PHASOR_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Reads a whole file of at most `bytes_max`. `*out` is the value, which must be an object. */
enum status json_load_object(json_t **out, const char *path, size_t bytes_max,
                             struct error *err) MUST_CHECK;

/* The same from memory; `name` stands for the file in messages. */
enum status json_parse_object(json_t **out, const char *bytes, size_t length, const char *name,
                              struct error *err) MUST_CHECK;

/* Whether the tree of a JSON text takes no more memory than `most`: it may be a hundred times the
 * text. `*bytes` is a bound of it that is no less (of a text that is no JSON, any number). */
bool json_tree_fits(uint64_t *bytes, const char *text, size_t length, uint64_t most);

/* That of files; STATUS_LIMIT above. */
#define JSON_TREE_BYTES_MAX ((uint64_t)1 << 30)

/* Getters: `object` is borrowed; `file` names it in messages. The key must be there, with the right
 * type and within [min, max]; otherwise the sentence says what was expected and found.
 * The _or forms store `fallback` when the key is absent or null. A whole number written with a
 * fraction of zero (1e6, 1000000.0) is taken as an integer. */
enum status json_get_int(int64_t *out, const json_t *object, const char *file, const char *key,
                         int64_t min, int64_t max, struct error *err) MUST_CHECK;
enum status json_get_int_or(int64_t *out, const json_t *object, const char *file, const char *key,
                            int64_t min, int64_t max, int64_t fallback,
                            struct error *err) MUST_CHECK;
enum status json_get_real(double *out, const json_t *object, const char *file, const char *key,
                          double min, double max, struct error *err) MUST_CHECK;
enum status json_get_real_or(double *out, const json_t *object, const char *file, const char *key,
                             double min, double max, double fallback, struct error *err) MUST_CHECK;
enum status json_get_bool_or(bool *out, const json_t *object, const char *file, const char *key,
                             bool fallback, struct error *err) MUST_CHECK;
/* `*out` is borrowed from the object; the _or form stores `fallback`, which may be NULL, when the
 * key is absent or null. A NUL inside the string, which would cut it short, is refused. */
enum status json_get_string(const char **out, const json_t *object, const char *file,
                            const char *key, struct error *err) MUST_CHECK;
enum status json_get_string_or(const char **out, const json_t *object, const char *file,
                               const char *key, const char *fallback, struct error *err) MUST_CHECK;

/* "a string", "an integer", "null" ...; for messages. */
const char *json_kind(const json_t *value);

#endif

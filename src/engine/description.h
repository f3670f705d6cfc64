/* A JSON object under construction. jansson's own allocations are not phasor's to check one by one:
 * a value that could not be made is NULL, and setting NULL reports a failure, which is gathered
 * here. */
#ifndef PHASOR_ENGINE_DESCRIPTION_H
#define PHASOR_ENGINE_DESCRIPTION_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct description {
    json_t *root;
    json_t *reasons; /* array of sentences: what is not supported */
    bool has_failed; /* some value is missing: out of memory */
};

/* The value is taken over, also when it cannot be set. */
void description_put(struct description *to, json_t *object, const char *key, json_t *value);
void description_append(struct description *to, json_t *array, json_t *value);

void description_put_int(struct description *to, json_t *object, const char *key, uint64_t value);

/* A new object or array in its place, borrowed. */
json_t *description_put_object(struct description *to, json_t *object, const char *key);
json_t *description_put_array(struct description *to, json_t *object, const char *key);
json_t *description_append_object(struct description *to, json_t *array);

void description_put_reason(struct description *to, const char *sentence);

/* The root as text, which memory_free releases. `doing` is for the sentence. */
enum status description_dump(char **out, const struct description *description, const char *doing,
                             struct error *err) MUST_CHECK;

/* File names need not be UTF-8, JSON must be: null then. */
json_t *description_text(const char *text);

#endif

#include "engine/description.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

void description_put(struct description *to, json_t *object, const char *key, json_t *value)
{
    to->has_failed |= json_object_set_new(object, key, value) != 0;
}

void description_append(struct description *to, json_t *array, json_t *value)
{
    to->has_failed |= json_array_append_new(array, value) != 0;
}

void description_put_int(struct description *to, json_t *object, const char *key, uint64_t value)
{
    description_put(to, object, key, json_integer((json_int_t)value));
}

json_t *description_put_object(struct description *to, json_t *object, const char *key)
{
    json_t *value = json_object();
    description_put(to, object, key, value);
    return value;
}

json_t *description_put_array(struct description *to, json_t *object, const char *key)
{
    json_t *value = json_array();
    description_put(to, object, key, value);
    return value;
}

json_t *description_append_object(struct description *to, json_t *array)
{
    json_t *value = json_object();
    description_append(to, array, value);
    return value;
}

json_t *description_text(const char *text)
{
    return utf8_is_valid(text, strlen(text)) ? json_string(text) : json_null();
}

void description_put_reason(struct description *to, const char *sentence)
{
    description_append(to, to->reasons, description_text(sentence));
}

enum status description_dump(char **out, const struct description *description, const char *doing,
                             struct error *err)
{
    char *text = description->has_failed ? NULL : json_dumps(description->root, JSON_INDENT(2));
    *out = text == NULL ? NULL : memory_copy_text(text, strlen(text));
    free(text);
    if (*out == NULL)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while %s", doing);
    return STATUS_OK;
}

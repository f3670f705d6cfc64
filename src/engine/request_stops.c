/* "stop" and "stop_token_ids" of a request body. */
#include "engine/request_fields.h"

static bool add_stop(struct request *out, const json_t *value, const struct row_place *place,
                     struct row_error *error)
{
    if (!json_is_string(value))
        return row_error_set(error, ROW_INVALID_VALUE, "stop",
                             "%s: \"stop\": expected a string or an array of strings, found %s",
                             place->text, json_kind(value));
    size_t length = json_string_length(value);
    if (length == 0 || length > STOP_STRING_BYTES_MAX)
        return row_error_set(error, ROW_INVALID_VALUE, "stop",
                             "%s: \"stop\": a string must have 1 to %d bytes, found %zu",
                             place->text, STOP_STRING_BYTES_MAX, length);
    struct error reason;
    if (stop_set_add(&out->stops, json_string_value(value), length, &reason) != STATUS_OK)
        return row_error_from(error, ROW_INTERNAL, "stop", &reason);
    return true;
}

static bool read_stop_strings(struct request *out, const json_t *body,
                              const struct row_place *place, struct row_error *error)
{
    const json_t *stop = json_object_get(body, "stop");
    if (stop == NULL || json_is_null(stop))
        return true;
    if (!json_is_array(stop))
        return add_stop(out, stop, place, error);
    if (json_array_size(stop) > STOP_STRINGS_MAX)
        return row_error_set(error, ROW_INVALID_VALUE, "stop",
                             "%s: \"stop\": at most %d strings are allowed, found %zu", place->text,
                             STOP_STRINGS_MAX, json_array_size(stop));
    for (size_t i = 0; i < json_array_size(stop); i++) {
        if (!add_stop(out, json_array_get(stop, i), place, error))
            return false;
    }
    return true;
}

static bool read_stop_ids(struct request *out, const json_t *body, const struct row_place *place,
                          struct row_error *error)
{
    const json_t *ids = json_object_get(body, "stop_token_ids");
    if (ids == NULL || json_is_null(ids))
        return true;
    if (!json_is_array(ids) || json_array_size(ids) > REQUEST_STOP_IDS_MAX)
        return row_error_set(error, ROW_INVALID_VALUE, "stop_token_ids",
                             "%s: \"stop_token_ids\": expected an array of at most %d token ids",
                             place->text, REQUEST_STOP_IDS_MAX);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value > INT32_MAX)
            return row_error_set(error, ROW_INVALID_VALUE, "stop_token_ids",
                                 "%s: \"stop_token_ids\"[%zu] is no token id", place->text, i);
        out->stop_ids[out->stop_id_count++] = (int32_t)value;
    }
    return true;
}

bool request_read_stops(struct request *out, const json_t *body, const struct row_place *place,
                        struct row_error *error)
{
    return read_stop_strings(out, body, place, error) && read_stop_ids(out, body, place, error);
}

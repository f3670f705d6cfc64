#include "engine/calibrate_store.h"

#include <string.h>

#include "base/memory.h"
#include "engine/profile_parts.h"

#define STORE_FORMAT 3
#define ENTRY_VALUES (CALIBRATE_KEY_VALUES + 5)

enum { KEY_WORK, KEY_COLLECTIVE, KEY_RATE, KEY_AGAIN };

/* ---- Keys ------------------------------------------------------------------------------------ */

struct calibrate_key calibrate_key_of_work(const struct work_shape *work)
{
    struct calibrate_key key = {{KEY_WORK, (int64_t)work->kind, (int64_t)work->dtype}};
    memcpy(key.values + 3, work->dims, sizeof work->dims);
    return key;
}

/* A calibration has even ones, and those to one member. */
struct calibrate_key calibrate_key_of_collective(const struct collective_shape *shape)
{
    return (struct calibrate_key){{KEY_COLLECTIVE, (int64_t)shape->op, shape->size,
                                   shape->is_strided, shape->bytes,
                                   shape->fullest > 1 ? (int64_t)shape->fullest : 0}};
}

struct calibrate_key calibrate_key_of_rate(enum calibrate_rate rate)
{
    return (struct calibrate_key){{KEY_RATE, (int64_t)rate}};
}

struct calibrate_key calibrate_key_again(const struct calibrate_key *key)
{
    struct calibrate_key again = *key;
    again.values[0] += KEY_AGAIN;
    return again;
}

_Static_assert(3 + WORK_SHAPE_DIMS <= CALIBRATE_KEY_VALUES, "a work's numbers have room in a key");

/* ---- Entries --------------------------------------------------------------------------------- */

const struct calibrate_entry *calibrate_store_find(const struct calibrate_store *store,
                                                   const struct calibrate_key *key)
{
    for (size_t i = 0; i < store->count; i++) {
        if (memcmp(&store->entries[i].key, key, sizeof *key) == 0)
            return &store->entries[i];
    }
    return NULL;
}

enum status calibrate_store_add(struct calibrate_store *store, const struct calibrate_entry *entry,
                                struct error *err)
{
    TRY(memory_reserve(&store->entries, &store->capacity, store->count + 1, sizeof *store->entries,
                       "what was measured", err));
    store->entries[store->count++] = *entry;
    return STATUS_OK;
}

void calibrate_store_deinit(struct calibrate_store *store)
{
    memory_free(store->entries);
    *store = (struct calibrate_store){0};
}

/* ---- The file -------------------------------------------------------------------------------- */

enum status calibrate_store_write(const struct calibrate_store *store, const char *path,
                                  struct error *err)
{
    struct text text = {0};
    struct json_writer json = {.out = &text};
    json_write_open(&json, '{');
    json_write_key(&json, "phasor_calibration");
    json_write_int(&json, STORE_FORMAT);
    profile_identity_write(&json, &store->identity);
    json_write_key(&json, "points");
    json_write_open(&json, '[');
    for (size_t i = 0; i < store->count; i++) {
        const struct calibrate_entry *entry = &store->entries[i];
        json_write_open(&json, '[');
        for (int k = 0; k < CALIBRATE_KEY_VALUES; k++)
            json_write_int(&json, entry->key.values[k]);
        json_write_number(&json, entry->point.seconds);
        json_write_number(&json, entry->point.spread);
        json_write_int(&json, entry->point.repeats);
        json_write_int(&json, (int64_t)entry->probe);
        json_write_number(&json, entry->probe_seconds);
        json_write_close(&json, ']');
    }
    json_write_close(&json, ']');
    json_write_close(&json, '}');
    text_append(&text, "\n", 1);
    enum status status = text_check(&text, "what was measured", err);
    if (status == STATUS_OK)
        status = profile_text_write(&text, path, err);
    text_deinit(&text);
    return status;
}

static enum status bad_point(const char *file, size_t index, struct error *err)
{
    return error_set(err, STATUS_FORMAT,
                     "%s: point %zu: expected %d whole numbers, seconds, spread, repeats, and a "
                     "probe's kind and seconds; remove the file to begin anew",
                     file, index + 1, CALIBRATE_KEY_VALUES);
}

static enum status read_entry(struct calibrate_entry *out, const json_t *entry, const char *file,
                              size_t index, struct error *err)
{
    if (!json_is_array(entry) || json_array_size(entry) != ENTRY_VALUES)
        return bad_point(file, index, err);
    for (size_t k = 0; k < CALIBRATE_KEY_VALUES; k++) {
        const json_t *value = json_array_get(entry, k);
        if (!json_is_integer(value))
            return bad_point(file, index, err);
        out->key.values[k] = json_integer_value(value);
    }
    const json_t *seconds = json_array_get(entry, CALIBRATE_KEY_VALUES);
    const json_t *spread = json_array_get(entry, CALIBRATE_KEY_VALUES + 1);
    const json_t *repeats = json_array_get(entry, CALIBRATE_KEY_VALUES + 2);
    const json_t *probe = json_array_get(entry, CALIBRATE_KEY_VALUES + 3);
    const json_t *probe_seconds = json_array_get(entry, CALIBRATE_KEY_VALUES + 4);
    out->point = (struct profile_point){json_number_value(seconds), json_number_value(spread),
                                        json_integer_value(repeats)};
    out->probe = json_integer_value(probe) == CALM_MEMORY ? CALM_MEMORY : CALM_COMPUTE;
    out->probe_seconds = json_number_value(probe_seconds);
    if (!json_is_number(seconds) || !json_is_number(spread) || !json_is_integer(repeats) ||
        !json_is_integer(probe) || json_integer_value(probe) != (json_int_t)out->probe ||
        !json_is_number(probe_seconds) || !(out->probe_seconds >= 0 && out->probe_seconds < 1e9) ||
        !(out->point.seconds > 0 && out->point.seconds < 1e24) ||
        !(out->point.spread >= 0 && out->point.spread < 1e9) || out->point.repeats < 1 ||
        out->point.repeats > 1000000)
        return bad_point(file, index, err);
    return STATUS_OK;
}

static enum status read_entries(struct calibrate_store *out, const json_t *root, const char *file,
                                struct error *err)
{
    const json_t *points = json_object_get(root, "points");
    if (!json_is_array(points) || json_array_size(points) > CALIBRATE_POINTS_MAX)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"points\": expected an array of at most %d, found %s", file,
                         CALIBRATE_POINTS_MAX, json_is_array(points) ? "more" : json_kind(points));
    for (size_t i = 0; i < json_array_size(points); i++) {
        struct calibrate_entry entry;
        TRY(read_entry(&entry, json_array_get(points, i), file, i, err));
        TRY(calibrate_store_add(out, &entry, err));
    }
    return STATUS_OK;
}

static enum status read_root(struct calibrate_store *out, json_t *root, const char *file,
                             struct error *err)
{
    struct calibrate_store found = {0};
    int64_t format;
    enum status status = json_get_int(&format, root, file, "phasor_calibration", 1, INT32_MAX, err);
    if (status == STATUS_OK && format != STORE_FORMAT)
        status =
            error_set(err, STATUS_UNSUPPORTED,
                      "%s is of another version of phasor; remove the file to begin anew", file);
    if (status == STATUS_OK)
        status = profile_identity_read(&found.identity, root, file, err);
    if (status == STATUS_OK)
        status = read_entries(&found, root, file, err);
    json_decref(root);
    if (status != STATUS_OK) {
        calibrate_store_deinit(&found);
        return status;
    }
    *out = found;
    return STATUS_OK;
}

enum status calibrate_store_read(struct calibrate_store *out, const char *path, struct error *err)
{
    json_t *root;
    TRY(json_load_object(&root, path, PROFILE_FILE_BYTES_MAX, err));
    return read_root(out, root, path, err);
}

enum status calibrate_store_parse(struct calibrate_store *out, const char *bytes, size_t length,
                                  const char *name, struct error *err)
{
    json_t *root;
    TRY(json_parse_object(&root, bytes, length, name, err));
    return read_root(out, root, name, err);
}

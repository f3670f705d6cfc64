/* A profile from its file, which anybody may have written. */
#include "engine/profile_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "engine/profile_names.h"
#include "engine/profile_parts.h"

/* Nothing that was ever measured is beyond these. */
#define RATE_MIN       1.0
#define RATE_MAX       1e24
#define SECONDS_MAX    1e9
#define SPREAD_MAX     1e9
#define LOG_RATIO_MAX  50.0
#define AXIS_VALUE_MAX 1e18
#define MEMORY_MAX     ((int64_t)1 << 50)

/* What a sentence says of where it is: "box.json: work 3". */
#define PLACE_BYTES 512

struct reader {
    struct arena *arena;
    const char *file;
    char place[PLACE_BYTES];
    struct error *err;
};

static enum status no_memory(const struct reader *reader)
{
    return error_set(reader->err, STATUS_NO_MEMORY, "out of memory for the profile %s",
                     reader->file);
}

static enum status array_get(void *out, const struct reader *reader, size_t count, size_t size)
{
    void *array = arena_alloc(reader->arena, count, size);
    if (array == NULL)
        return no_memory(reader);
    memcpy(out, &array, sizeof array);
    return STATUS_OK;
}

/* A member that must be an array of `count` values; -1: of 1 to `most`. */
static enum status get_array(const json_t **out, const struct reader *reader, const json_t *object,
                             const char *key, int64_t count, int64_t most)
{
    const json_t *array = json_object_get(object, key);
    if (!json_is_array(array))
        return error_set(reader->err, STATUS_FORMAT, "%s: \"%s\": expected an array, found %s",
                         reader->place, key, json_kind(array));
    int64_t found = (int64_t)json_array_size(array);
    if (count >= 0 && found != count)
        return error_set(reader->err, STATUS_FORMAT, "%s: \"%s\": expected %lld values, found %lld",
                         reader->place, key, (long long)count, (long long)found);
    if (count < 0 && (found < 1 || found > most))
        return error_set(reader->err, STATUS_FORMAT,
                         "%s: \"%s\": expected 1 to %lld values, found %lld", reader->place, key,
                         (long long)most, (long long)found);
    *out = array;
    return STATUS_OK;
}

static enum status get_number(double *out, const struct reader *reader, const json_t *array,
                              const char *key, int64_t index, double min, double max)
{
    const json_t *value = json_array_get(array, (size_t)index);
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= min && number <= max))
        return error_set(reader->err, STATUS_FORMAT,
                         "%s: \"%s\", value %lld: expected a number from %g to %g, found %s %g",
                         reader->place, key, (long long)index + 1, min, max, json_kind(value),
                         number);
    *out = number;
    return STATUS_OK;
}

static enum status get_numbers(const double **out, const struct reader *reader,
                               const json_t *object, const char *key, int64_t count, double min,
                               double max)
{
    const json_t *array;
    double *values;
    TRY(get_array(&array, reader, object, key, count, 0));
    TRY(array_get(&values, reader, (size_t)count, sizeof *values));
    for (int64_t i = 0; i < count; i++)
        TRY(get_number(&values[i], reader, array, key, i, min, max));
    *out = values;
    return STATUS_OK;
}

static enum status get_rising(const double **out, int *out_count, const struct reader *reader,
                              const json_t *object, const char *key)
{
    const json_t *array;
    const double *values;
    TRY(get_array(&array, reader, object, key, -1, PROFILE_AXIS_VALUES_MAX));
    int64_t count = (int64_t)json_array_size(array);
    TRY(get_numbers(&values, reader, object, key, count, 1e-9, AXIS_VALUE_MAX));
    for (int64_t i = 1; i < count; i++) {
        if (!(values[i] > values[i - 1]))
            return error_set(reader->err, STATUS_FORMAT, "%s: \"%s\" must rise, found %g behind %g",
                             reader->place, key, values[i], values[i - 1]);
    }
    *out = values;
    *out_count = (int)count;
    return STATUS_OK;
}

/* One of a list of names, by its number. */
static enum status get_name(int *out, const struct reader *reader, const json_t *object,
                            const char *key, int (*number_of)(const char *name))
{
    const char *name;
    TRY(json_get_string(&name, object, reader->place, key, reader->err));
    int number = number_of(name);
    if (number < 0)
        return error_set(reader->err, STATUS_FORMAT,
                         "%s: \"%s\": \"%s\" is not known; calibrate again", reader->place, key,
                         name);
    *out = number;
    return STATUS_OK;
}

static enum status check_object(const struct reader *reader, const json_t *value)
{
    return json_is_object(value)
               ? STATUS_OK
               : error_set(reader->err, STATUS_FORMAT, "%s: expected an object, found %s",
                           reader->place, json_kind(value));
}

/* ---- Points ---------------------------------------------------------------------------------- */

static enum status get_points(const struct profile_point **out, const struct reader *reader,
                              const json_t *object, int64_t count)
{
    const double *seconds, *spreads, *repeats;
    struct profile_point *points;
    TRY(get_numbers(&seconds, reader, object, "seconds", count, 0, SECONDS_MAX));
    TRY(get_numbers(&spreads, reader, object, "spreads", count, 0, SPREAD_MAX));
    TRY(get_numbers(&repeats, reader, object, "repeats", count, 0, 1e9));
    TRY(array_get(&points, reader, (size_t)count, sizeof *points));
    for (int64_t i = 0; i < count; i++) {
        if (repeats[i] >= 1 && !(seconds[i] > 0))
            return error_set(reader->err, STATUS_FORMAT,
                             "%s: \"seconds\", value %lld: expected more than 0 of what was "
                             "measured, found %g",
                             reader->place, (long long)i + 1, seconds[i]);
        points[i] = (struct profile_point){seconds[i], spreads[i], (int64_t)repeats[i]};
    }
    *out = points;
    return STATUS_OK;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static enum status size_get(int *out, const struct reader *reader, const json_t *axis,
                            const char *key, enum work_kind kind)
{
    const char *name;
    TRY(json_get_string(&name, axis, reader->place, key, reader->err));
    *out = profile_size_of(kind, name);
    if (*out < 0)
        return error_set(reader->err, STATUS_FORMAT, "%s: \"%s\": \"%s\" is no size of %s",
                         reader->place, key, name, profile_kind_name(kind));
    return STATUS_OK;
}

static enum status read_axis(struct profile_axis *out, const struct reader *reader,
                             const json_t *axis, enum work_kind kind)
{
    TRY(check_object(reader, axis));
    out->over = -1;
    TRY(size_get(&out->size, reader, axis, "size", kind));
    if (json_object_get(axis, "over") != NULL)
        TRY(size_get(&out->over, reader, axis, "over", kind));
    return get_rising(&out->values, &out->count, reader, axis, "values");
}

static enum status read_axes(struct work_table *out, struct reader *reader, const json_t *table)
{
    const json_t *axes = json_object_get(table, "axes");
    if (!json_is_array(axes) || json_array_size(axes) > PROFILE_AXES_MAX)
        return error_set(reader->err, STATUS_FORMAT,
                         "%s: \"axes\": expected an array of at most %d, found %s", reader->place,
                         PROFILE_AXES_MAX, json_is_array(axes) ? "more" : json_kind(axes));
    int64_t points = 1;
    out->axis_count = (int)json_array_size(axes);
    for (int a = 0; a < out->axis_count; a++) {
        TRY(read_axis(&out->axes[a], reader, json_array_get(axes, (size_t)a), out->kind));
        points *= out->axes[a].count; /* at most 2^16 times 2^8 */
        if (points > PROFILE_TABLE_POINTS_MAX)
            return error_set(reader->err, STATUS_LIMIT, "%s: more than %d points", reader->place,
                             PROFILE_TABLE_POINTS_MAX);
    }
    return STATUS_OK;
}

static enum status read_work(struct work_table *out, const struct profile_point **points,
                             struct reader *reader, const json_t *table)
{
    int kind, dtype;
    TRY(check_object(reader, table));
    TRY(get_name(&kind, reader, table, "kind", profile_kind_of));
    TRY(get_name(&dtype, reader, table, "dtype", profile_dtype_of));
    *out = (struct work_table){.kind = (enum work_kind)kind, .dtype = (enum dtype)dtype};
    TRY(json_get_real(&out->flops_per_second, table, reader->place, "flops_per_second", RATE_MIN,
                      RATE_MAX, reader->err));
    TRY(json_get_real(&out->bytes_per_second, table, reader->place, "bytes_per_second", RATE_MIN,
                      RATE_MAX, reader->err));
    TRY(json_get_real(&out->fixed, table, reader->place, "fixed_seconds", 0, SECONDS_MAX,
                      reader->err));
    TRY(read_axes(out, reader, table));
    int64_t count = profile_table_points(out);
    TRY(get_numbers(&out->log_ratios, reader, table, "log_ratios", count, -LOG_RATIO_MAX,
                    LOG_RATIO_MAX));
    return get_points(points, reader, table, count);
}

static enum status read_collective(struct collective_table *out,
                                   const struct profile_point **points, struct reader *reader,
                                   const json_t *table)
{
    int op;
    int64_t size;
    double *seconds;
    TRY(check_object(reader, table));
    TRY(get_name(&op, reader, table, "op", profile_group_op_of));
    TRY(json_get_int(&size, table, reader->place, "size", 2, COMM_RANKS_MAX, reader->err));
    *out = (struct collective_table){.op = (enum group_op)op, .size = (int)size};
    TRY(json_get_bool_or(&out->is_strided, table, reader->place, "strided", false, reader->err));
    TRY(json_get_bool_or(&out->to_one, table, reader->place, "to_one", false, reader->err));
    if (out->to_one && out->op != GROUP_ALL_TO_ALL)
        return error_set(reader->err, STATUS_FORMAT,
                         "%s: \"to_one\": expected of all_to_all alone, found of %s", reader->place,
                         profile_group_op_name(out->op));
    TRY(get_rising(&out->bytes, &out->point_count, reader, table, "bytes"));
    TRY(get_points(points, reader, table, out->point_count));
    TRY(array_get(&seconds, reader, (size_t)out->point_count, sizeof *seconds));
    for (int i = 0; i < out->point_count; i++) {
        seconds[i] = (*points)[i].seconds;
        if (!(seconds[i] > 0))
            return error_set(reader->err, STATUS_FORMAT,
                             "%s: \"seconds\", value %d: expected more than 0, found %g",
                             reader->place, i + 1, seconds[i]);
    }
    out->seconds = seconds;
    return STATUS_OK;
}

static bool work_is_twice(const struct work_table *tables, int last)
{
    for (int i = 0; i < last; i++) {
        if (tables[i].kind == tables[last].kind && tables[i].dtype == tables[last].dtype)
            return true;
    }
    return false;
}

static bool collective_is_twice(const struct collective_table *tables, int last)
{
    for (int i = 0; i < last; i++) {
        if (tables[i].op == tables[last].op && tables[i].size == tables[last].size &&
            tables[i].is_strided == tables[last].is_strided &&
            tables[i].to_one == tables[last].to_one)
            return true;
    }
    return false;
}

static enum status is_twice(const struct reader *reader)
{
    return error_set(reader->err, STATUS_FORMAT, "%s: there is a table of the same before it",
                     reader->place);
}

/* The members of a list of tables, which may be empty. */
static enum status list_get(const json_t **out, int *count, struct reader *reader,
                            const json_t *root, const char *key)
{
    const json_t *list = json_object_get(root, key);
    snprintf(reader->place, sizeof reader->place, "%s", reader->file);
    if (!json_is_array(list) || json_array_size(list) > PROFILE_TABLES_MAX)
        return error_set(reader->err, STATUS_FORMAT,
                         "%s: \"%s\": expected an array of at most %d tables, found %s",
                         reader->file, key, PROFILE_TABLES_MAX,
                         json_is_array(list) ? "more" : json_kind(list));
    *out = list;
    *count = (int)json_array_size(list);
    return STATUS_OK;
}

static enum status read_works(struct profile_file *out, struct reader *reader, const json_t *root)
{
    const json_t *list;
    struct work_table *tables;
    const struct profile_point **points;
    int count;
    TRY(list_get(&list, &count, reader, root, "work"));
    TRY(array_get(&tables, reader, (size_t)count, sizeof *tables));
    TRY(array_get(&points, reader, (size_t)count, sizeof *points));
    for (int i = 0; i < count; i++) {
        snprintf(reader->place, sizeof reader->place, "%s: work %d", reader->file, i + 1);
        TRY(read_work(&tables[i], &points[i], reader, json_array_get(list, (size_t)i)));
        if (work_is_twice(tables, i))
            return is_twice(reader);
    }
    out->profile.work = tables;
    out->profile.work_count = count;
    out->work_points = points;
    return STATUS_OK;
}

static enum status read_collectives(struct profile_file *out, struct reader *reader,
                                    const json_t *root)
{
    const json_t *list;
    struct collective_table *tables;
    const struct profile_point **points;
    int count;
    TRY(list_get(&list, &count, reader, root, "collectives"));
    TRY(array_get(&tables, reader, (size_t)count, sizeof *tables));
    TRY(array_get(&points, reader, (size_t)count, sizeof *points));
    for (int i = 0; i < count; i++) {
        snprintf(reader->place, sizeof reader->place, "%s: collective %d", reader->file, i + 1);
        TRY(read_collective(&tables[i], &points[i], reader, json_array_get(list, (size_t)i)));
        if (collective_is_twice(tables, i))
            return is_twice(reader);
    }
    out->profile.collectives = tables;
    out->profile.collective_count = count;
    out->collective_points = points;
    return STATUS_OK;
}

/* ---- What is not a table --------------------------------------------------------------------- */

static enum status get_text(char *out, size_t capacity, const struct reader *reader,
                            const json_t *object, const char *key)
{
    const char *text;
    TRY(json_get_string(&text, object, reader->place, key, reader->err));
    if (strlen(text) >= capacity)
        return error_set(reader->err, STATUS_LIMIT,
                         "%s: \"%s\": expected at most %zu bytes, found %zu", reader->place, key,
                         capacity - 1, strlen(text));
    snprintf(out, capacity, "%s", text);
    return STATUS_OK;
}

static enum status get_name_text(char out[PROFILE_NAME_BYTES], const struct reader *reader,
                                 const json_t *object, const char *key)
{
    return get_text(out, PROFILE_NAME_BYTES, reader, object, key);
}

static enum status get_count(int *out, const struct reader *reader, const json_t *object,
                             const char *key, int64_t most)
{
    int64_t count;
    TRY(json_get_int(&count, object, reader->place, key, 1, most, reader->err));
    *out = (int)count;
    return STATUS_OK;
}

static enum status get_object(const json_t **out, struct reader *reader, const json_t *root,
                              const char *key)
{
    snprintf(reader->place, sizeof reader->place, "%s: \"%s\"", reader->file, key);
    *out = json_object_get(root, key);
    return check_object(reader, *out);
}

/* Where the ranks are GPUs: as many as there are ranks. */
static enum status get_gpus(struct profile_identity *out, const struct reader *reader,
                            const json_t *box)
{
    struct engine_devices devices;
    struct error ignored;
    const char *text;
    int64_t memory;
    TRY(json_get_string(&text, box, reader->place, "devices", reader->err));
    if (engine_devices_parse(&devices, text, &ignored) != STATUS_OK || !devices.cuda ||
        devices.rank_count != out->devices.rank_count)
        return error_set(reader->err, STATUS_FORMAT,
                         "%s: \"devices\": expected %d GPUs such as cuda:0-3, found \"%s\"",
                         reader->place, out->devices.rank_count, text);
    TRY(get_text(out->gpus, sizeof out->gpus, reader, box, "gpus"));
    TRY(get_name_text(out->cuda, reader, box, "cuda"));
    TRY(json_get_int(&memory, box, reader->place, "memory", 1, MEMORY_MAX, reader->err));
    out->devices = devices;
    out->memory_bytes = (uint64_t)memory;
    return STATUS_OK;
}

enum status profile_identity_read(struct profile_identity *out, const json_t *root,
                                  const char *file, struct error *err)
{
    struct reader reader = {.file = file, .err = err};
    const json_t *box;
    snprintf(reader.place, sizeof reader.place, "%s", file);
    TRY(get_name_text(out->version, &reader, root, "phasor"));
    TRY(get_object(&box, &reader, root, "box"));
    TRY(get_name_text(out->processor, &reader, box, "processor"));
    TRY(get_name_text(out->kernels, &reader, box, "kernels"));
    TRY(get_count(&out->cores, &reader, box, "cores", 1 << 20));
    TRY(get_count(&out->devices.rank_count, &reader, box, "ranks", COMM_RANKS_MAX));
    TRY(get_count(&out->threads, &reader, box, "threads", 1 << 20));
    return json_object_get(box, "devices") == NULL ? STATUS_OK : get_gpus(out, &reader, box);
}

static enum status rates_read(struct profile_file *out, const json_t *root, const char *file,
                              struct error *err)
{
    struct reader reader = {.file = file, .err = err};
    const json_t *rates;
    const struct {
        const char *key;
        double *place;
    } members[] = {
        {"memory_read", &out->memory_read},     {"host_to_device", &out->profile.host_to_device},
        {"disk_read", &out->profile.disk_read}, {"page_cache_read", &out->profile.page_cache_read},
        {"check", &out->profile.check},         {"repack", &out->profile.repack},
    };
    TRY(get_object(&rates, &reader, root, "rates"));
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        TRY(json_get_real_or(members[i].place, rates, reader.place, members[i].key, RATE_MIN,
                             RATE_MAX, PROFILE_NO_RATE, err));
    TRY(json_get_real_or(&out->profile.host_to_device_busy, rates, reader.place,
                         "host_to_device_busy", RATE_MIN, RATE_MAX, 0, err));
    for (int which = 0; which < CALM_PROBES; which++)
        TRY(json_get_real_or(&out->probe_seconds[which], rates, reader.place,
                             profile_probe_name((enum calm_probe)which), 0, SECONDS_MAX, 0, err));
    return json_get_real_or(&out->profile.host_step, rates, reader.place, "host_step_seconds", 0,
                            SECONDS_MAX, 0, err);
}

static enum status check_format(const json_t *root, const char *file, struct error *err)
{
    int64_t format;
    TRY(json_get_int(&format, root, file, "phasor_profile", 1, INT32_MAX, err));
    if (format != PROFILE_FORMAT)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s is a profile of format %lld, and this phasor reads format %d; "
                         "calibrate again",
                         file, (long long)format, PROFILE_FORMAT);
    return STATUS_OK;
}

static enum status read_all(struct profile_file *out, const json_t *root, const char *file,
                            struct error *err)
{
    struct reader reader = {.arena = &out->arena, .file = file, .err = err};
    TRY(check_format(root, file, err));
    TRY(profile_identity_read(&out->identity, root, file, err));
    TRY(rates_read(out, root, file, err));
    out->profile.sharing = profile_identity_sharing(&out->identity);
    TRY(read_works(out, &reader, root));
    return read_collectives(out, &reader, root);
}

enum status profile_file_of(struct profile_file *out, const json_t *root, const char *file,
                            struct error *err)
{
    struct profile_file found = {0};
    enum status status = read_all(&found, root, file, err);
    if (status != STATUS_OK) {
        profile_file_deinit(&found);
        return status;
    }
    *out = found;
    return STATUS_OK;
}

enum status profile_file_read(struct profile_file *out, const char *path, struct error *err)
{
    json_t *root;
    TRY(json_load_object(&root, path, PROFILE_FILE_BYTES_MAX, err));
    enum status status = profile_file_of(out, root, path, err);
    json_decref(root);
    return status;
}

enum status profile_file_parse(struct profile_file *out, const char *bytes, size_t length,
                               const char *name, struct error *err)
{
    json_t *root;
    TRY(json_parse_object(&root, bytes, length, name, err));
    enum status status = profile_file_of(out, root, name, err);
    json_decref(root);
    return status;
}

void profile_file_deinit(struct profile_file *file)
{
    arena_deinit(&file->arena);
    *file = (struct profile_file){0};
}

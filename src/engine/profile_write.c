/* A profile to its file. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/file.h"
#include "base/new_file.h"
#include "engine/profile_file.h"
#include "engine/profile_names.h"
#include "engine/profile_parts.h"

static void put_number(struct json_writer *json, const char *key, double value)
{
    json_write_key(json, key);
    json_write_number(json, value);
}

static void put_int(struct json_writer *json, const char *key, int64_t value)
{
    json_write_key(json, key);
    json_write_int(json, value);
}

static void put_string(struct json_writer *json, const char *key, const char *value)
{
    json_write_key(json, key);
    json_write_string(json, value);
}

static void put_rate(struct json_writer *json, const char *key, double value)
{
    if (value > PROFILE_NO_RATE)
        put_number(json, key, value);
}

/* Six digits: no time is known to a millionth, and a planner that reads a thousand times waits for
 * their digits. */
static void write_measured(struct json_writer *json, double value)
{
    char digits[32];
    snprintf(digits, sizeof digits, "%.6g", value);
    json_write_number(json, strtod(digits, NULL));
}

static void put_numbers(struct json_writer *json, const char *key, const double *values,
                        int64_t count, void (*write)(struct json_writer *json, double value))
{
    json_write_key(json, key);
    json_write_open(json, '[');
    for (int64_t i = 0; i < count; i++)
        write(json, values[i]);
    json_write_close(json, ']');
}

/* ---- Parts ----------------------------------------------------------------------------------- */

static void put_gpus(struct json_writer *json, const struct profile_identity *identity)
{
    char devices[ENGINE_DEVICES_BYTES];
    engine_devices_format(devices, &identity->devices);
    put_string(json, "devices", devices);
    put_string(json, "gpus", identity->gpus);
    put_string(json, "cuda", identity->cuda);
    put_int(json, "memory", (int64_t)identity->memory_bytes);
}

void profile_identity_write(struct json_writer *json, const struct profile_identity *identity)
{
    put_string(json, "phasor", identity->version);
    json_write_key(json, "box");
    json_write_open(json, '{');
    put_string(json, "processor", identity->processor);
    put_int(json, "cores", identity->cores);
    put_string(json, "kernels", identity->kernels);
    put_int(json, "ranks", identity->devices.rank_count);
    put_int(json, "threads", identity->threads);
    if (identity->devices.cuda)
        put_gpus(json, identity);
    json_write_close(json, '}');
}

static void put_rates(struct json_writer *json, const struct profile_file *file)
{
    json_write_key(json, "rates");
    json_write_open(json, '{');
    put_rate(json, "memory_read", file->memory_read);
    put_rate(json, "host_to_device", file->profile.host_to_device);
    if (file->profile.host_to_device_busy > 0)
        put_rate(json, "host_to_device_busy", file->profile.host_to_device_busy);
    put_rate(json, "disk_read", file->profile.disk_read);
    put_rate(json, "page_cache_read", file->profile.page_cache_read);
    put_rate(json, "check", file->profile.check);
    put_rate(json, "repack", file->profile.repack);
    put_number(json, "host_step_seconds", file->profile.host_step);
    for (int which = 0; which < CALM_PROBES; which++) {
        if (file->probe_seconds[which] > 0)
            put_number(json, profile_probe_name((enum calm_probe)which),
                       file->probe_seconds[which]);
    }
    json_write_close(json, '}');
}

static void put_points(struct json_writer *json, const struct profile_point *points, int64_t count)
{
    json_write_key(json, "seconds");
    json_write_open(json, '[');
    for (int64_t i = 0; i < count; i++)
        write_measured(json, points[i].seconds);
    json_write_close(json, ']');
    json_write_key(json, "spreads");
    json_write_open(json, '[');
    for (int64_t i = 0; i < count; i++)
        write_measured(json, points[i].spread);
    json_write_close(json, ']');
    json_write_key(json, "repeats");
    json_write_open(json, '[');
    for (int64_t i = 0; i < count; i++)
        json_write_int(json, points[i].repeats);
    json_write_close(json, ']');
}

static void put_axis(struct json_writer *json, enum work_kind kind, const struct profile_axis *axis)
{
    json_write_open(json, '{');
    put_string(json, "size", profile_size_name(kind, axis->size));
    if (axis->over >= 0)
        put_string(json, "over", profile_size_name(kind, axis->over));
    put_numbers(json, "values", axis->values, axis->count, json_write_number);
    json_write_close(json, '}');
}

int64_t profile_table_points(const struct work_table *table)
{
    int64_t count = 1;
    for (int a = 0; a < table->axis_count; a++)
        count *= table->axes[a].count;
    return count;
}

static void put_work(struct json_writer *json, const struct work_table *table,
                     const struct profile_point *points)
{
    int64_t count = profile_table_points(table);
    json_write_open(json, '{');
    put_string(json, "kind", profile_kind_name(table->kind));
    put_string(json, "dtype", profile_dtype_name(table->dtype));
    put_number(json, "flops_per_second", table->flops_per_second);
    put_number(json, "bytes_per_second", table->bytes_per_second);
    put_number(json, "fixed_seconds", table->fixed);
    json_write_key(json, "axes");
    json_write_open(json, '[');
    for (int a = 0; a < table->axis_count; a++)
        put_axis(json, table->kind, &table->axes[a]);
    json_write_close(json, ']');
    put_numbers(json, "log_ratios", table->log_ratios, count, write_measured);
    put_points(json, points, count);
    json_write_close(json, '}');
}

static void put_collective(struct json_writer *json, const struct collective_table *table,
                           const struct profile_point *points)
{
    json_write_open(json, '{');
    put_string(json, "op", profile_group_op_name(table->op));
    put_int(json, "size", table->size);
    json_write_key(json, "strided");
    json_write_bool(json, table->is_strided);
    if (table->to_one) {
        json_write_key(json, "to_one");
        json_write_bool(json, true);
    }
    put_numbers(json, "bytes", table->bytes, table->point_count, json_write_number);
    put_points(json, points, table->point_count);
    json_write_close(json, '}');
}

enum status profile_file_format(struct text *out, const struct profile_file *file,
                                struct error *err)
{
    struct json_writer json = {.out = out};
    const struct profile *profile = &file->profile;
    json_write_open(&json, '{');
    put_int(&json, "phasor_profile", PROFILE_FORMAT);
    profile_identity_write(&json, &file->identity);
    put_rates(&json, file);
    json_write_key(&json, "work");
    json_write_open(&json, '[');
    for (int i = 0; i < profile->work_count; i++)
        put_work(&json, &profile->work[i], file->work_points[i]);
    json_write_close(&json, ']');
    json_write_key(&json, "collectives");
    json_write_open(&json, '[');
    for (int i = 0; i < profile->collective_count; i++)
        put_collective(&json, &profile->collectives[i], file->collective_points[i]);
    json_write_close(&json, ']');
    json_write_close(&json, '}');
    text_append(out, "\n", 1);
    return text_check(out, "the profile", err);
}

/* ---- To the disk ----------------------------------------------------------------------------- */

static bool write_all(int fd, const struct text *text)
{
    size_t at = 0;
    while (at < text->length) {
        ssize_t got = disk_write(fd, text->bytes + at, text->length - at);
        if (got < 0)
            return false;
        at += (size_t)got;
    }
    return disk_sync(fd) == 0;
}

enum status profile_text_write(const struct text *text, const char *path, struct error *err)
{
    char target[PATH_MAX], name[PATH_MAX];
    if (!file_resolve(target, path))
        return error_set_errno(err, errno, "cannot write the profile %s", path);
    int fd = new_file_open(name, target);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot write the profile %s", path);
    bool is_written = write_all(fd, text);
    int cause = errno;
    if (close(fd) != 0 && is_written) {
        is_written = false;
        cause = errno;
    }
    if (is_written && disk_rename(name, target) == 0) {
        disk_sync_folder_of(target);
        return STATUS_OK;
    }
    if (is_written)
        cause = errno;
    unlink(name);
    return error_set_errno(err, cause, "cannot write the profile %s", path);
}

enum status profile_file_write(const struct profile_file *file, const char *path, struct error *err)
{
    struct text text = {0};
    enum status status = profile_file_format(&text, file, err);
    if (status == STATUS_OK)
        status = profile_text_write(&text, path, err);
    text_deinit(&text);
    return status;
}

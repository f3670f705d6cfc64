#define _GNU_SOURCE
#include "model_tools.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

char *temp_dir_make(void)
{
    const char *root = getenv("TMPDIR");
    char *dir = NULL;
    cr_assert(asprintf(&dir, "%s/phasor-model-XXXXXX", root != NULL ? root : "/tmp") > 0);
    cr_assert_not_null(mkdtemp(dir));
    return dir;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info, (void)type, (void)walk;
    return remove(path);
}

void temp_dir_remove(char *dir)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(dir);
}

const char *path_of(const char *a, const char *b)
{
    static char paths[8][4096];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", a, b);
    return path;
}

void file_write(const char *path, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(fwrite(bytes, 1, length, file), length);
    cr_assert_eq(fclose(file), 0);
}

void file_write_text(const char *path, const char *text)
{
    file_write(path, text, strlen(text));
}

int64_t file_size(const char *path)
{
    struct stat info;
    cr_assert_eq(stat(path, &info), 0, "%s", path);
    return info.st_size;
}

char *file_read(const char *path, size_t *length)
{
    *length = (size_t)file_size(path);
    char *bytes = malloc(*length + 1);
    FILE *file = fopen(path, "r");
    cr_assert(file != NULL && bytes != NULL);
    cr_assert_eq(fread(bytes, 1, *length, file), *length);
    fclose(file);
    bytes[*length] = 0;
    return bytes;
}

void file_patch(const char *path, const char *anchor, const char *from, const char *to)
{
    size_t length;
    char *bytes = file_read(path, &length);
    char *at = memmem(bytes, length, anchor, strlen(anchor));
    cr_assert_not_null(at, "%s is not in %s", anchor, path);
    at = memmem(at, length - (size_t)(at - bytes), from, strlen(from));
    cr_assert_not_null(at, "%s is not in %s", from, path);
    cr_assert_eq(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    file_write(path, bytes, length);
    free(bytes);
}

json_t *json_of(const char *text)
{
    char *json = strdup(text);
    for (char *at = json; *at != 0; at++)
        *at = *at == '\'' ? '"' : *at;
    json_error_t reason;
    json_t *value = json_loads(json, 0, &reason);
    cr_assert_not_null(value, "%s: %s", json, reason.text);
    free(json);
    return value;
}

static void apply_changes(json_t *object, const char *changes)
{
    json_t *wanted = json_of(changes), *value;
    const char *key;
    json_object_foreach(wanted, key, value)
    {
        if (json_is_string(value) && strcmp(json_string_value(value), "$delete") == 0)
            json_object_del(object, key);
        else
            json_object_set(object, key, value);
    }
    json_decref(wanted);
}

json_t *json_changed(const char *base, const char *changes)
{
    json_t *object = json_of(base);
    apply_changes(object, changes);
    return object;
}

void json_file_change(const char *path, const char *changes)
{
    json_t *object = json_load_file(path, 0, NULL);
    cr_assert_not_null(object, "%s", path);
    apply_changes(object, changes);
    cr_assert_eq(json_dump_file(object, path, 0), 0);
    json_decref(object);
}

void safetensors_file(const char *path, uint64_t length_word, const char *header, size_t data_bytes)
{
    size_t length = strlen(header);
    unsigned char *bytes = calloc(1, 8 + length + data_bytes);
    if (length_word == 0)
        length_word = length;
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(length_word >> 8 * i);
    for (size_t i = 0; i < length; i++)
        bytes[8 + i] = (unsigned char)(header[i] == '\'' ? '"' : header[i]);
    file_write(path, bytes, 8 + length + data_bytes);
    free(bytes);
}

void checkpoint_make(const char *dir, struct synth_params params)
{
    struct error err;
    params.dir = dir;
    enum status status = synth_write(&params, &err);
    cr_assert_eq(status, STATUS_OK, "%s", status == STATUS_OK ? "" : err.message);
}

void expect_failure(const char *label, enum status status, const struct error *err,
                    enum status wanted, const char *fragments)
{
    cr_expect_eq(status, wanted, "%s: %s, expected %s: %s", label, status_name(status),
                 status_name(wanted), status == STATUS_OK ? "" : err->message);
    if (status == STATUS_OK)
        return;
    char *copy = strdup(fragments), *rest = copy, *fragment;
    while ((fragment = strsep(&rest, "|")) != NULL)
        cr_expect_not_null(strstr(err->message, fragment), "%s: \"%s\" is not in: %s", label,
                           fragment, err->message);
    free(copy);
}

struct resources resources_now(void)
{
    struct resources now = {.live_count = memory_counters_get().live_count};
    DIR *listing = opendir("/proc/self/fd");
    while (listing != NULL && readdir(listing) != NULL)
        now.fd_count++;
    if (listing != NULL)
        closedir(listing);
    return now;
}

void expect_resources(const char *label, struct resources before)
{
    struct resources now = resources_now();
    cr_expect_eq(now.live_count, before.live_count, "%s: %llu blocks leaked", label,
                 (unsigned long long)(now.live_count - before.live_count));
    cr_expect_eq(now.fd_count, before.fd_count, "%s: %d files left open", label,
                 now.fd_count - before.fd_count);
}

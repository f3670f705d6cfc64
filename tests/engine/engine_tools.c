#define _XOPEN_SOURCE 700
#include "engine_tools.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char own_folder[256];

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    return remove(path);
}

static void remove_folder(void)
{
    nftw(own_folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *tools_folder(void)
{
    const char *root = getenv("TMPDIR");
    if (own_folder[0] != 0)
        return own_folder;
    snprintf(own_folder, sizeof own_folder, "%s/phasor-test-XXXXXX", root == NULL ? "/tmp" : root);
    cr_assert_not_null(mkdtemp(own_folder));
    atexit(remove_folder);
    return own_folder;
}

const char *tools_path(const char *folder, const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

void tools_write_file(const char *path, const char *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, length, file), length);
    cr_assert_eq(fclose(file), 0);
}

char *tools_read_file(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file, "%s is not there", path);
    fseek(file, 0, SEEK_END);
    *length = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*length + 1);
    cr_assert_eq(fread(bytes, 1, *length, file), *length);
    bytes[*length] = 0;
    fclose(file);
    return bytes;
}

json_t *tools_read_rows(const char *path)
{
    size_t length;
    char *bytes = tools_read_file(path, &length);
    json_t *rows = json_array();
    for (char *at = bytes; at < bytes + length;) {
        char *end = strchr(at, '\n');
        cr_assert_not_null(end, "the last line of %s is not whole", path);
        json_error_t reason;
        json_t *row = json_loadb(at, (size_t)(end - at), JSON_REJECT_DUPLICATES, &reason);
        cr_assert_not_null(row, "%s: %.*s", reason.text, (int)(end - at), at);
        json_array_append_new(rows, row);
        at = end + 1;
    }
    free(bytes);
    return rows;
}

json_t *tools_row(const json_t *rows, const char *custom_id)
{
    json_t *found = NULL, *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        const char *id = json_string_value(json_object_get(row, "custom_id"));
        if (id == NULL || strcmp(id, custom_id) != 0)
            continue;
        if (found != NULL)
            return NULL;
        found = row;
    }
    return found;
}

#include "engine/box_files.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

#define SUFFIX        ".json"
#define SUFFIX_LENGTH (sizeof SUFFIX - 1)
#define NAMES_MAX     64

static bool ends_so(const char *name)
{
    size_t length = strlen(name);
    return length > SUFFIX_LENGTH && strcmp(name + length - SUFFIX_LENGTH, SUFFIX) == 0;
}

static bool is_folder(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* The first of the places that is there; `out` is empty where none is. */
static void find_folder(struct text *out)
{
    static const char *const places[] = {"../share/phasor/boxes", "share/phasor/boxes"};
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length < 0 ? 0 : length] = 0;
    char *slash = strrchr(program, '/');
    for (size_t i = 0; slash != NULL && i < sizeof places / sizeof *places; i++) {
        text_clear(out);
        text_append(out, program, (size_t)(slash - program) + 1);
        text_append_string(out, places[i]);
        if (!out->failed && is_folder(out->bytes))
            return;
    }
    text_clear(out);
    text_append_string(out, PHASOR_BOXES_DIR);
    if (!out->failed && !is_folder(out->bytes))
        text_clear(out);
}

/* ---- Names ----------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Appends "a, b and c"; nothing where there are none. */
static void list_names(struct text *out, const char *folder)
{
    char names[NAMES_MAX][NAME_MAX + 1];
    int count = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry;
         dir != NULL && count < NAMES_MAX && (entry = readdir(dir)) != NULL;) {
        if (ends_so(entry->d_name)) {
            size_t length = strlen(entry->d_name) - SUFFIX_LENGTH;
            memcpy(names[count], entry->d_name, length);
            names[count++][length] = 0;
        }
    }
    if (dir != NULL)
        closedir(dir);
    qsort(names, (size_t)count, sizeof *names, compare_names);
    for (int i = 0; i < count; i++)
        text_append_format(out, "%s%s", i == 0 ? "" : i == count - 1 ? " and " : ", ", names[i]);
}

static enum status refuse(const char *name, const char *folder, struct error *err)
{
    struct text names = {0};
    if (folder != NULL && *folder != 0)
        list_names(&names, folder);
    enum status status =
        names.length == 0
            ? error_set(err, STATUS_NOT_FOUND,
                        "--box: there is no \"%s\", as the box files of phasor are not installed "
                        "(%s); give the path of one",
                        name, PHASOR_BOXES_DIR)
            : error_set(err, STATUS_INVALID_ARGUMENT,
                        "--box: there is no \"%s\"; known are %s, and a file is named with a '/' "
                        "or by its \".json\"",
                        name, names.bytes);
    text_deinit(&names);
    return status;
}

enum status box_files_find(struct text *path, const char *name, struct error *err)
{
    struct stat about;
    if (strchr(name, '/') != NULL || ends_so(name)) {
        text_append_string(path, name);
        return text_check(path, "a path", err);
    }
    find_folder(path);
    size_t folder_length = path->length;
    if (folder_length > 0) {
        text_append_format(path, "/%s" SUFFIX, name);
        if (path->failed || stat(path->bytes, &about) == 0)
            return text_check(path, "a path", err);
        path->bytes[folder_length] = 0;
    }
    return refuse(name, folder_length > 0 ? path->bytes : NULL, err);
}

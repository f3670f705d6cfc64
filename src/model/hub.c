#include "model/hub.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "model/model_path.h"

#define REF_BYTES_MAX 256 /* a ref file holds a commit of 40 hex digits */

static bool is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != 0 ? value : NULL;
}

/* Appends a path from the environment; "~" at its start is the home directory. */
static void append_path(struct text *path, const char *value)
{
    const char *home = environment("HOME");
    if (value[0] == '~' && (value[1] == '/' || value[1] == 0) && home != NULL) {
        text_append_string(path, home);
        value++;
    }
    text_append_string(path, value);
}

/* The directory with the entries "models--...". */
static enum status find_cache(struct text *cache, struct error *err)
{
    static const struct {
        const char *variable, *beneath;
    } places[] = {
        {"HF_HUB_CACHE", ""},
        {"HUGGINGFACE_HUB_CACHE", ""},
        {"HF_HOME", "/hub"},
        {"XDG_CACHE_HOME", "/huggingface/hub"},
        {"HOME", "/.cache/huggingface/hub"},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = environment(places[i].variable);
        if (value == NULL)
            continue;
        append_path(cache, value);
        text_append_string(cache, places[i].beneath);
        return text_check(cache, "a path", err);
    }
    return error_set(err, STATUS_NOT_FOUND,
                     "no Hugging Face cache can be found: none of HF_HUB_CACHE, HF_HOME and HOME "
                     "is set");
}

static bool is_plain_part(const char *part, size_t length)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    if (length == 0 || length > 200 || part[0] == '.' || part[length - 1] == '.')
        return false;
    for (size_t i = 0; i < length; i++) {
        if (memchr(allowed, part[i], sizeof allowed - 1) == NULL)
            return false;
    }
    return true;
}

/* Parts between slashes, at most `part_max` of them, each a plain word: nothing climbs. */
static bool is_plain_path(const char *path, int part_max)
{
    for (int part = 0; part < part_max; part++) {
        size_t length = strcspn(path, "/");
        if (!is_plain_part(path, length))
            return false;
        if (path[length] == 0)
            return true;
        path += length + 1;
    }
    return false;
}

static bool is_model_id(const char *model)
{
    return is_plain_path(model, 2) && strstr(model, "--") == NULL;
}

/* CACHE/models--ORG--NAME */
static void append_entry(struct text *path, const char *cache, const char *model)
{
    text_append_format(path, "%s/models--", cache);
    for (; *model != 0; model++)
        text_append(path, *model == '/' ? "--" : model, *model == '/' ? 2 : 1);
}

/* The commit that `revision` stands for, from refs/; the revision itself when there is no such
 * ref (it may be a commit). */
static enum status read_ref(struct text *commit, const char *entry, const char *revision,
                            struct error *err)
{
    struct text path = {0};
    char *bytes = NULL;
    size_t length = 0;
    text_append_format(&path, "%s/refs/%s", entry, revision);
    enum status status = text_check(&path, "a path", err);
    if (status == STATUS_OK)
        status = file_read_whole(&bytes, &length, path.bytes, REF_BYTES_MAX, err);
    if (status == STATUS_NOT_FOUND) {
        text_append_string(commit, revision);
        status = text_check(commit, "a path", err);
    } else if (status == STATUS_OK) {
        length = strcspn(bytes, " \t\r\n");
        bytes[length] = 0;
        text_append(commit, bytes, length);
        status = text_check(commit, "a path", err);
        if (status == STATUS_OK && !is_plain_part(bytes, length))
            status = error_set(err, STATUS_FORMAT, "%s holds no commit", path.bytes);
    }
    memory_free(bytes);
    text_deinit(&path);
    return status;
}

static enum status not_cached(const char *entry, const char *model, const char *revision,
                              struct error *err)
{
    return error_set(err, STATUS_NOT_FOUND,
                     "%s (revision %s) is no directory and was not found in the Hugging Face "
                     "cache as %s; check the path, or get it with: hf download %s%s%s",
                     model, revision, entry, model,
                     strcmp(revision, "main") == 0 ? "" : " --revision ",
                     strcmp(revision, "main") == 0 ? "" : revision);
}

/* ENTRY/snapshots/COMMIT, which must hold a config.json. */
static enum status find_snapshot(struct text *path, const char *entry, const char *model,
                                 const char *revision, struct error *err)
{
    struct text commit = {0};
    enum status status = read_ref(&commit, entry, revision, err);
    if (status == STATUS_OK) {
        text_append_format(path, "%s/snapshots/%s", entry, commit.bytes);
        status = text_check(path, "a path", err);
    }
    text_deinit(&commit);
    if (status != STATUS_OK)
        return status;
    if (!is_directory(path->bytes))
        return not_cached(entry, model, revision, err);
    if (!model_path_exists(path->bytes, "config.json"))
        return error_set(err, STATUS_NOT_FOUND,
                         "%s has no config.json: the download of %s is incomplete; repeat it with: "
                         "hf download %s",
                         path->bytes, model, model);
    return STATUS_OK;
}

static enum status resolve_id(char **out, const char *model, const char *revision,
                              struct error *err)
{
    struct text cache = {0}, entry = {0}, path = {0};
    enum status status;
    TRY_GOTO(find_cache(&cache, err), done);
    append_entry(&entry, cache.bytes, model);
    TRY_GOTO(text_check(&entry, "a path", err), done);
    if (!is_directory(entry.bytes)) {
        status = not_cached(entry.bytes, model, revision, err);
        goto done;
    }
    TRY_GOTO(find_snapshot(&path, entry.bytes, model, revision, err), done);
    *out = path.bytes;
    path = (struct text){0};
done:
    text_deinit(&path);
    text_deinit(&entry);
    text_deinit(&cache);
    return status;
}

static enum status resolve_directory(char **out, const char *model, const char *revision,
                                     struct error *err)
{
    if (revision != NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s is a directory; a revision (%s) can be chosen only for a model of the "
                         "Hugging Face cache",
                         model, revision);
    char *copy = memory_copy_text(model, strlen(model));
    if (copy == NULL)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate a path for %s", model);
    *out = copy;
    return STATUS_OK;
}

enum status hub_resolve(char **out, const char *model, const char *revision, struct error *err)
{
    struct stat info;
    if (stat(model, &info) == 0) {
        if (S_ISDIR(info.st_mode))
            return resolve_directory(out, model, revision, err);
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s is a file; give the directory that has config.json, "
                         "and to run it model*.safetensors",
                         model);
    }
    if (!is_model_id(model))
        return error_set(err, STATUS_NOT_FOUND,
                         "%s is neither a directory nor an id of the form org/name", model);
    if (revision == NULL)
        revision = "main";
    if (!is_plain_path(revision, 4))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "\"%s\" is no revision; expected a branch, a tag or a commit", revision);
    return resolve_id(out, model, revision, err);
}

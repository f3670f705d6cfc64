#include "quant/backup_path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "base/text.h"

static enum status append_folder(struct text *path, struct error *err)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"PHASOR_CACHE", ""}, {"XDG_CACHE_HOME", "/phasor"}, {"HOME", "/.cache/phasor"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (value == NULL || *value != '/') /* of the XDG rules: a relative one counts as none */
            continue;
        text_append_format(path, "%s%s", value, places[i].below);
        return STATUS_OK;
    }
    return error_set(err, STATUS_NOT_FOUND,
                     "there is no place for the backup: PHASOR_CACHE, XDG_CACHE_HOME and HOME are "
                     "not set to absolute paths; give one with --output");
}

static void append_name(struct text *path, const struct fingerprint *fingerprint,
                        const struct backup_settings *settings)
{
    char digits[FINGERPRINT_DIGITS + 1];
    fingerprint_format(digits, fingerprint);
    text_append_format(path, "/%s-%s", digits, backup_scheme_names[settings->scheme]);
    if (settings->scheme == BACKUP_PER_GROUP)
        text_append_format(path, "%lld", (long long)settings->group);
    text_append_string(path, settings->is_asymmetric ? "-asymmetric" : "");
    text_append_string(path, settings->has_zstd ? "-zstd" : "");
    text_append_string(path, ".backup");
}

enum status backup_path_in_cache(char **out, const struct checkpoint *checkpoint,
                                 const struct backup_settings *settings, struct error *err)
{
    struct text path = {0};
    struct fingerprint fingerprint;
    TRY(fingerprint_weights(&fingerprint, checkpoint, err));
    TRY(append_folder(&path, err));
    append_name(&path, &fingerprint, settings);
    enum status status = text_check(&path, "the path of a backup", err);
    if (status == STATUS_OK)
        *out = path.bytes;
    else
        text_deinit(&path);
    return status;
}

enum status backup_path_make_folder(const char *path, struct error *err)
{
    enum status status = STATUS_OK;
    char *folder = memory_copy_text(path, strlen(path));
    if (folder == NULL)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate a path for %s", path);
    for (char *slash = strchr(folder + 1, '/'); slash != NULL && status == STATUS_OK;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            status = error_set_errno(err, errno, "cannot make the folder %s", folder);
        *slash = '/';
    }
    memory_free(folder);
    return status;
}

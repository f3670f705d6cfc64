#include "quant/backup_path.h"

#include "base/cache_folder.h"

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
    TRY(cache_folder_append(&path, "the backup", err));
    append_name(&path, &fingerprint, settings);
    enum status status = text_check(&path, "the path of a backup", err);
    if (status == STATUS_OK)
        *out = path.bytes;
    else
        text_deinit(&path);
    return status;
}

#include "engine/engine_backup.h"

#include <unistd.h>

#include "base/memory.h"
#include "quant/backup_path.h"
#include "quant/backup_write.h"

/* What `phasor quantize` makes when nobody says otherwise. */
static const struct backup_settings settings = {.scheme = BACKUP_PER_GROUP,
                                                .group = BACKUP_GROUP_DEFAULT};

static bool is_asked_for(const struct engine_params *params)
{
    return !params->transition_is_auto && params->transition == WAY_UPLOAD;
}

static enum status check_params(const struct engine_params *params, struct error *err)
{
    bool is_asked = is_asked_for(params);
    if (is_asked && params->is_exact)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--policy exact allows no INT4 weights, and --transition upload decodes "
                         "with them; choose keep, reshard or reload");
    if (is_asked && params->has_int4_experts)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--transition upload makes native experts of the INT4 backup, and "
                         "--expert-dtype int4 wants none; choose one of the two");
    if (params->backup_path != NULL && !is_asked && !params->transition_is_auto)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--backup is for --transition upload or auto; %s uses none",
                         way_names[params->transition]);
    return STATUS_OK;
}

static enum status open_own(struct backup **out, const char *path,
                            const struct checkpoint *checkpoint, struct error *err)
{
    struct fingerprint fingerprint;
    struct backup *backup;
    TRY(fingerprint_weights(&fingerprint, checkpoint, err));
    TRY(backup_open(&backup, path, err));
    enum status status = backup_match(backup, checkpoint_config(checkpoint), &fingerprint, err);
    if (status == STATUS_OK)
        *out = backup;
    else
        backup_close(backup);
    return status;
}

static enum status make(const char *path, const struct checkpoint *checkpoint,
                        const struct engine_params *params, struct error *err)
{
    struct backup_report report;
    struct backup_write_params write = {
        .path = path, .settings = settings, .thread_count = params->thread_count};
    log_write(&params->log, LOG_INFO,
              "making the INT4 backup of the experts, once for all runs: %s", path);
    TRY(backup_path_make_folder(path, err));
    return backup_write(&report, checkpoint, &write, err);
}

static enum status open_in_cache(struct backup **out, const char *path,
                                 const struct checkpoint *checkpoint,
                                 const struct engine_params *params, struct error *err)
{
    bool is_there = access(path, F_OK) == 0;
    if (is_asked_for(params)) {
        if (!is_there)
            TRY(make(path, checkpoint, params, err));
        return open_own(out, path, checkpoint, err);
    }
    struct error cause;
    if (is_there && open_own(out, path, checkpoint, &cause) != STATUS_OK)
        log_write(&params->log, LOG_WARNING, "the INT4 backup is left out: %s", cause.message);
    return STATUS_OK;
}

enum status engine_backup_open(struct backup **out, const struct checkpoint *checkpoint,
                               const struct engine_params *params, struct error *err)
{
    *out = NULL;
    TRY(check_params(params, err));
    bool may_choose = params->transition_is_auto && !params->is_exact && !params->has_int4_experts;
    if (!is_asked_for(params) && !may_choose)
        return STATUS_OK;
    if (params->backup_path != NULL)
        return open_own(out, params->backup_path, checkpoint, err);
    char *path;
    enum status status = backup_path_in_cache(&path, checkpoint, &settings, err);
    if (status != STATUS_OK)
        return is_asked_for(params) ? status : STATUS_OK;
    status = open_in_cache(out, path, checkpoint, params, err);
    memory_free(path);
    return status;
}

#include "engine/engine_backup.h"

#include <stdint.h>
#include <unistd.h>

#include "base/cache_folder.h"
#include "base/memory.h"
#include "quant/backup_path.h"
#include "quant/backup_write.h"

const struct backup_settings engine_backup_settings = {.scheme = BACKUP_PER_GROUP,
                                                       .group = BACKUP_GROUP_DEFAULT};

/* What the backup is to serve, as somebody wants it. */
struct wish {
    const struct engine_params *params;
    bool is_packed;    /* decode on packed weights */
    bool is_asked_for; /* else there may be none */
};

/* What packed decode cannot do. */
static enum status check_packed(const struct engine_params *params, struct error *err)
{
    if (params->is_exact)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--policy exact allows no INT4 weights, and a plan with :int4 decodes on "
                         "them; leave one of the two out");
    if (params->has_int4_experts)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "a plan with :int4 prefills on native experts, and --expert-dtype int4 "
                         "wants none; choose one of the two");
    if (!params->transition_is_auto && params->transition != WAY_KEEP &&
        params->transition != WAY_UPLOAD)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--transition %s cannot make the packed weights of a plan with :int4, "
                         "which come from the INT4 backup alone; choose keep, upload or auto",
                         way_names[params->transition]);
    return STATUS_OK;
}

static enum status check_params(const struct wish *wish, struct error *err)
{
    const struct engine_params *params = wish->params;
    bool is_asked = wish->is_asked_for;
    if (wish->is_packed)
        return check_packed(params, err);
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
                         "--backup is for --transition upload or auto, or a plan with :int4; %s "
                         "uses none",
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

static enum status tell_progress(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    const struct engine_params *params = context;
    bool goes_on = params->load_progress(params->load_context, bytes_done, bytes_total) == 0;
    return goes_on ? STATUS_OK : STATUS_CANCELLED;
}

static enum status make(const char *path, const struct checkpoint *checkpoint,
                        const struct engine_params *params, struct error *err)
{
    struct backup_report report;
    struct backup_write_params write = {
        .path = path,
        .settings = engine_backup_settings,
        .thread_count = params->thread_count,
        .progress = params->load_progress == NULL ? NULL : tell_progress,
        .progress_context = (void *)(uintptr_t)params, /* to look at alone */
    };
    log_write(&params->log, LOG_INFO,
              "making the INT4 backup of the experts, once for all runs: %s", path);
    TRY(cache_folder_make_above(path, err));
    enum status status = backup_write(&report, checkpoint, &write, err);
    if (status == STATUS_CANCELLED)
        error_set(err, status,
                  "making the INT4 backup was stopped; the next run that needs it goes on with it: "
                  "%s",
                  path);
    return status;
}

static enum status open_in_cache(struct backup **out, const char *path,
                                 const struct checkpoint *checkpoint, const struct wish *wish,
                                 struct error *err)
{
    bool is_there = access(path, F_OK) == 0;
    if (wish->is_asked_for) {
        if (!is_there)
            TRY(make(path, checkpoint, wish->params, err));
        return open_own(out, path, checkpoint, err);
    }
    struct error cause;
    if (is_there && open_own(out, path, checkpoint, &cause) != STATUS_OK)
        log_write(&wish->params->log, LOG_WARNING, "the INT4 backup is left out: %s",
                  cause.message);
    return STATUS_OK;
}

/* Of a backup that was named, and that nothing but a trial would take. */
static void tell_unasked(const struct engine_params *params)
{
    if (params->backup_path != NULL && params->keeps_format && !params->is_exact)
        log_write(&params->log, LOG_WARNING,
                  "--backup is without effect: with --deterministic --transition auto does not "
                  "weigh upload, which answers otherwise; --transition upload takes it");
}

enum status engine_backup_open(struct backup **out, const struct checkpoint *checkpoint,
                               const struct engine_params *params, bool is_packed,
                               struct error *err)
{
    bool uploads = !params->transition_is_auto && params->transition == WAY_UPLOAD;
    const struct wish wish = {params, is_packed, is_packed || uploads};
    *out = NULL;
    TRY(check_params(&wish, err));
    bool may_choose = params->transition_is_auto && !params->is_exact &&
                      !params->has_int4_experts && !params->keeps_format;
    if (!wish.is_asked_for && !may_choose) {
        tell_unasked(params);
        return STATUS_OK;
    }
    if (params->backup_path != NULL)
        return open_own(out, params->backup_path, checkpoint, err);
    char *path;
    enum status status = backup_path_in_cache(&path, checkpoint, &engine_backup_settings, err);
    if (status != STATUS_OK)
        return wish.is_asked_for ? status : STATUS_OK;
    status = open_in_cache(out, path, checkpoint, &wish, err);
    memory_free(path);
    return status;
}

bool engine_backup_is_at_hand(struct backup_settings *settings, const struct engine_params *params,
                              const struct checkpoint *checkpoint)
{
    struct backup *backup = NULL;
    struct error ignored;
    char *path;
    *settings = engine_backup_settings;
    if (params->is_exact || params->has_int4_experts)
        return false;
    if (params->backup_path != NULL) {
        if (engine_backup_check(settings, params->backup_path, checkpoint, &ignored) != STATUS_OK)
            *settings = engine_backup_settings;
        return true;
    }
    if (backup_path_in_cache(&path, checkpoint, &engine_backup_settings, &ignored) != STATUS_OK)
        return false;
    const struct wish wish = {.params = params};
    enum status status = open_in_cache(&backup, path, checkpoint, &wish, &ignored);
    memory_free(path);
    if (status != STATUS_OK || backup == NULL)
        return false;
    *settings = backup_form(backup)->settings;
    backup_close(backup);
    return true;
}

enum status engine_backup_check(struct backup_settings *settings, const char *path,
                                const struct checkpoint *checkpoint, struct error *err)
{
    struct backup *backup;
    TRY(open_own(&backup, path, checkpoint, err));
    *settings = backup_form(backup)->settings;
    backup_close(backup);
    return STATUS_OK;
}

enum status engine_exact_check(bool is_exact, bool has_int4_experts, struct error *err)
{
    if (!is_exact || !has_int4_experts)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--policy exact allows no INT4 weights, and --expert-dtype int4 rounds all "
                     "experts to them; leave one of the two out");
}

void engine_backup_pass_over(const struct engine_params *params, bool has_experts)
{
    char way[32];
    const char *names[3];
    int count = 0;
    snprintf(way, sizeof way, "--transition %s", way_names[params->transition]);
    if (params->backup_path != NULL)
        names[count++] = "--backup";
    if (!params->transition_is_auto)
        names[count++] = way;
    if (params->is_exact)
        names[count++] = "--policy exact";
    if (count == 0)
        return;
    log_write(&params->log, LOG_WARNING, "%s%s%s%s%s %s without effect: %s", names[0],
              count == 3   ? ", "
              : count == 2 ? " and "
                           : "",
              count > 1 ? names[1] : "", count > 2 ? " and " : "", count > 2 ? names[2] : "",
              count > 1 ? "are" : "is",
              has_experts
                  ? "the plan has one layout for prefill and decode, so no weights move, and "
                    "none are a backup's; a plan with two is dp2|ep2>tp2, say"
                  : "the model has no routed experts");
}

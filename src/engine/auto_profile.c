#include "engine/auto_profile.h"

#include <stdio.h>

#include "base/memory.h"
#include "engine/plan_source.h"

/* "phasor calibrate --devices cuda:0-3 --threads 8 -o FILE": what measures this box. */
static void cure_append(struct text *out, const char *named, const struct engine_basis *basis)
{
    char devices[ENGINE_DEVICES_BYTES];
    engine_devices_format(devices, basis->devices);
    text_append_format(out, "phasor calibrate --devices %s", devices);
    if (basis->params->thread_count > 0)
        text_append_format(out, " --threads %d", (int)basis->params->thread_count);
    if (named != NULL)
        text_append_format(out, " -o %s", named);
}

/* One rank has nothing to lay out: nobody has missed a profile. */
static void tell_missing(const struct engine_basis *basis)
{
    struct text cure = {0};
    cure_append(&cure, NULL, basis);
    if (!cure.failed && basis->devices->rank_count > 1)
        log_write(&basis->params->log, LOG_INFO,
                  "plan: static tensor parallelism, as this machine's times are not measured; %s, "
                  "once, lets the fastest plan be chosen",
                  cure.bytes);
    text_deinit(&cure);
}

static void tell_misfit(const char *path, const char *named, const char *kind, const char *reason,
                        const struct engine_basis *basis)
{
    struct text cure = {0};
    cure_append(&cure, named, basis);
    if (!cure.failed)
        log_write(&basis->params->log, LOG_WARNING,
                  "the profile %s is %s: %s; the plan is static tensor parallelism, and %s "
                  "--overwrite measures anew",
                  path, kind, reason, cure.bytes);
    text_deinit(&cure);
}

static enum status refuse_missing(const struct error *cause, const char *path,
                                  const struct engine_basis *basis, struct error *err)
{
    struct text cure = {0};
    cure_append(&cure, path, basis);
    enum status status = text_check(&cure, "a sentence", err);
    if (status == STATUS_OK)
        status = error_set(err, STATUS_NOT_FOUND,
                           "--profile: %s; %s makes one, and --plan static runs without",
                           cause->message, cure.bytes);
    text_deinit(&cure);
    return status;
}

static enum status read_at(struct profile_file *out, bool *fits, const char *path,
                           const char *named, const struct profile_identity *here,
                           const struct engine_basis *basis, struct error *err)
{
    struct error cause;
    enum status status = profile_file_read(out, path, &cause);
    if (status == STATUS_NOT_FOUND && named == NULL) {
        tell_missing(basis);
        return STATUS_OK;
    }
    if (status == STATUS_UNSUPPORTED) {
        tell_misfit(path, named, profile_fit_names[PROFILE_STALE], cause.message, basis);
        return STATUS_OK;
    }
    if (status == STATUS_NOT_FOUND)
        return refuse_missing(&cause, path, basis, err);
    if (status != STATUS_OK)
        return error_set(err, status, "%s%s%s", cause.message,
                         status != STATUS_FORMAT ? "" : "; it is no profile of phasor calibrate: ",
                         status != STATUS_FORMAT ? ""
                         : named != NULL
                             ? "give --profile what a calibration has finished, or run without "
                               "one by --plan static"
                             : "remove it and calibrate again, or run without one by --plan "
                               "static");
    enum profile_fit fit = profile_identity_fit(&out->identity, here, &cause);
    *fits = fit == PROFILE_FITS;
    if (*fits) {
        /* GPUs have memory of their own. */
        profile_host_take(&out->profile, basis->devices->cuda ? 0 : basis->params->memory_bytes);
        return STATUS_OK;
    }
    tell_misfit(path, named, profile_fit_names[fit], cause.message, basis);
    profile_file_deinit(out);
    return STATUS_OK;
}

enum status auto_profile_read(struct profile_file *out, bool *fits, const char *path,
                              const struct engine_basis *basis, struct error *err)
{
    struct profile_identity here;
    struct error no_cache;
    char *found;
    *fits = false;
    TRY(profile_identity_of(&here, basis->devices, basis->params->thread_count, err));
    if (path != NULL)
        return read_at(out, fits, path, path, &here, basis, err);
    enum status status = profile_path_in_cache(&found, &here, &no_cache);
    if (status == STATUS_NOT_FOUND) {
        tell_missing(basis);
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        return error_set(err, status, "%s", no_cache.message);
    status = read_at(out, fits, found, NULL, &here, basis, err);
    memory_free(found);
    return status;
}

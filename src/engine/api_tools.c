/* include/phasor.h over the engine, but for models and what runs on them: backups, replay,
 * profiles, random checkpoints. */
#include <string.h>

#include "base/cache_folder.h"
#include "base/memory.h"
#include "base/system.h"
#include "engine/api_parts.h"
#include "engine/calibrate.h"
#include "engine/engine.h"
#include "engine/quantize.h"
#include "engine/replay.h"
#include "model/checkpoint.h"
#include "model/fingerprint.h"
#include "model/hub.h"
#include "model/synth.h"

#define MIRRORS(public, internal)                                                                  \
    _Static_assert((int)(public) == (int)(internal), #public " mirrors " #internal)
MIRRORS(PHASOR_FINGERPRINT_BYTES, FINGERPRINT_DIGITS + 1);
MIRRORS(PHASOR_QUANT_GROUP, BACKUP_PER_GROUP);
MIRRORS(PHASOR_QUANT_CHANNEL, BACKUP_PER_CHANNEL);
MIRRORS(PHASOR_QUANT_TENSOR, BACKUP_PER_TENSOR);

/* ---- The INT4 backup ----------------------------------------------------------------------- */

struct phasor_quantize_params phasor_quantize_params_default(void)
{
    return (struct phasor_quantize_params){.size = sizeof(struct phasor_quantize_params)};
}

static enum status quantize_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    const struct phasor_quantize_params *params = context;
    bool goes_on = params->progress(params->progress_context, done_bytes, total_bytes) == 0;
    return goes_on ? STATUS_OK : STATUS_CANCELLED;
}

static enum status quantize_params_make(struct quantize_params *out,
                                        struct phasor_quantize_params *params, struct error *err)
{
    TRY(api_check_model(params->model, PHASOR_DTYPE_AUTO, err));
    if ((int)params->scheme < 0 || (int)params->scheme >= BACKUP_SCHEME_COUNT)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "scheme: %d is none of enum phasor_quant_scheme", (int)params->scheme);
    if (params->thread_count < 0 || params->thread_count > QUANTIZE_THREADS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--threads: expected 0 to %d, found %d",
                         QUANTIZE_THREADS_MAX, params->thread_count);
    *out = (struct quantize_params){
        .model = params->model,
        .revision = params->revision,
        .verifies = params->verify,
        .write = {.path = params->output_path,
                  .settings = {.scheme = (enum backup_scheme)params->scheme,
                               .is_asymmetric = params->asymmetric,
                               .has_zstd = params->zstd,
                               .group = params->group == 0 ? BACKUP_GROUP_DEFAULT : params->group},
                  .overwrites = params->overwrite,
                  .thread_count = params->thread_count,
                  .progress = params->progress == NULL ? NULL : quantize_progress,
                  .progress_context = params},
    };
    return STATUS_OK;
}

enum phasor_status phasor_quantize(const struct phasor_quantize_params *params,
                                   struct phasor_quantize_result *result, struct phasor_error *err)
{
    struct error reason;
    struct phasor_quantize_params whole = phasor_quantize_params_default();
    struct quantize_params quantize;
    struct backup_report report;
    double start = system_seconds();
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = quantize_params_make(&quantize, &whole, &reason);
    if (status == STATUS_OK)
        status = quantize_run(&report, &quantize, &reason);
    if (status == STATUS_OK && result != NULL)
        *result = (struct phasor_quantize_result){
            .file_bytes = report.file_bytes,
            .found_bytes = report.bytes_found,
            .weight_count = report.weight_count,
            .matrix_count = report.matrix_count,
            .cosine_min = report.cosine_min,
            .cosine_mean = report.cosine_mean,
            .elapsed_seconds = system_seconds() - start,
        };
    return api_tell(err, status, &reason);
}

enum phasor_status phasor_backup_path(char **out_path, const struct phasor_quantize_params *params,
                                      struct phasor_error *err)
{
    struct error reason;
    struct phasor_quantize_params whole = phasor_quantize_params_default();
    struct quantize_params quantize;
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = quantize_params_make(&quantize, &whole, &reason);
    if (status == STATUS_OK)
        status = quantize_path(out_path, &quantize, &reason);
    return api_tell(err, status, &reason);
}

/* ---- Fingerprints -------------------------------------------------------------------------- */

static enum status fingerprint_of(struct fingerprint *out, const char *model, const char *revision,
                                  struct error *err)
{
    char *dir;
    struct checkpoint *checkpoint;
    TRY(api_check_model(model, PHASOR_DTYPE_AUTO, err));
    TRY(hub_resolve(&dir, model, revision, err));
    enum status status = checkpoint_open(&checkpoint, dir, err);
    memory_free(dir);
    if (status != STATUS_OK)
        return status;
    status = fingerprint_weights(out, checkpoint, err);
    checkpoint_close(checkpoint);
    return status;
}

enum phasor_status phasor_fingerprint(char out[PHASOR_FINGERPRINT_BYTES], const char *model,
                                      const char *revision, struct phasor_error *err)
{
    struct error reason;
    struct fingerprint fingerprint;
    enum status status = fingerprint_of(&fingerprint, model, revision, &reason);
    if (status == STATUS_OK)
        fingerprint_format(out, &fingerprint);
    return api_tell(err, status, &reason);
}

/* ---- Replaying a run ----------------------------------------------------------------------- */

struct phasor_replay_params phasor_replay_params_default(void)
{
    return (struct phasor_replay_params){.size = sizeof(struct phasor_replay_params)};
}

enum phasor_status phasor_replay(char **out_json, const struct phasor_replay_params *params,
                                 struct phasor_error *err)
{
    struct error reason;
    struct phasor_replay_params whole = phasor_replay_params_default();
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    struct replay_params replay = {
        .recording_path = whole.recording_path,
        .box = whole.box,
        .is_modelled = whole.modelled,
        .leaves_out_host = whole.leaves_out_host,
        .is_scaled = whole.scale,
        .trace_path = whole.trace_path,
        .link_scale = whole.link_scale,
    };
    if (status == STATUS_OK)
        status = replay_run(out_json, &replay, &reason);
    return api_tell(err, status, &reason);
}

/* ---- The times of a box -------------------------------------------------------------------- */

struct phasor_calibrate_params phasor_calibrate_params_default(void)
{
    return (struct phasor_calibrate_params){.size = sizeof(struct phasor_calibrate_params)};
}

static enum status calibrate_params_make(struct calibrate_params *out,
                                         const struct phasor_calibrate_params *params,
                                         const struct log_sink *log, struct error *err)
{
    struct engine_devices devices;
    if (params->output_path != NULL && *params->output_path == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "a name for the profile is needed");
    TRY(engine_devices_parse(&devices, params->devices, err));
    if (params->thread_count < 0 || params->thread_count > CALIBRATE_THREADS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--threads: expected 0 to %d, found %d",
                         CALIBRATE_THREADS_MAX, params->thread_count);
    *out = (struct calibrate_params){
        .output_path = params->output_path,
        .devices = devices,
        .thread_count = params->thread_count,
        .overwrites = params->overwrite,
        .memory_bytes = params->memory_bytes,
        .log = *log,
        .progress = params->progress,
        .progress_context = params->progress_context,
    };
    return STATUS_OK;
}

static enum status profile_path(char **out, const struct calibrate_params *params,
                                struct error *err)
{
    struct profile_identity here;
    TRY(profile_identity_of(&here, &params->devices, params->thread_count, err));
    return profile_path_in_cache(out, &here, err);
}

enum phasor_status phasor_profile_path(char **out_path,
                                       const struct phasor_calibrate_params *params,
                                       struct phasor_error *err)
{
    static const struct log_sink nobody;
    struct error reason;
    struct phasor_calibrate_params whole = phasor_calibrate_params_default();
    struct calibrate_params calibrate;
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = calibrate_params_make(&calibrate, &whole, &nobody, &reason);
    if (status == STATUS_OK)
        status = profile_path(out_path, &calibrate, &reason);
    return api_tell(err, status, &reason);
}

/* In the cache where no output is named. */
static enum status calibrate(struct calibrate_report *out, struct calibrate_params *params,
                             struct error *err)
{
    char *path;
    if (params->output_path != NULL)
        return calibrate_run(out, params, err);
    TRY(profile_path(&path, params, err));
    params->output_path = path;
    enum status status = cache_folder_make_above(path, err);
    if (status == STATUS_OK)
        status = calibrate_run(out, params, err);
    memory_free(path);
    return status;
}

static void calibrate_tell(struct phasor_calibrate_result *out,
                           const struct calibrate_report *report)
{
    *out = (struct phasor_calibrate_result){
        .rank_count = report->identity.devices.rank_count,
        .thread_count = report->identity.threads,
        .points_measured = report->points_measured,
        .points_found = report->points_found,
        .disturbed = report->disturbed,
        .spread_median = report->spread_median,
    };
    memcpy(out->processor, report->identity.processor, sizeof out->processor);
    memcpy(out->kernels, report->identity.kernels, sizeof out->kernels);
    memcpy(out->gpus, report->identity.gpus, sizeof out->gpus);
}
_Static_assert(sizeof((struct phasor_calibrate_result *)0)->kernels == PROFILE_NAME_BYTES &&
                   sizeof((struct phasor_calibrate_result *)0)->gpus == PROFILE_GPUS_BYTES,
               "names fit the public struct");

enum phasor_status phasor_calibrate(const struct phasor_calibrate_params *params,
                                    struct phasor_calibrate_result *result,
                                    struct phasor_error *err)
{
    struct error reason;
    struct phasor_calibrate_params whole = phasor_calibrate_params_default();
    struct calibrate_params ready;
    struct calibrate_report report;
    double start = system_seconds();
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    struct log_bridge bridge = {whole.log, whole.log_context};
    struct log_sink log = {api_log, &bridge};
    if (status == STATUS_OK)
        status = calibrate_params_make(&ready, &whole, &log, &reason);
    if (status == STATUS_OK)
        status = calibrate(&report, &ready, &reason);
    if (status == STATUS_OK && result != NULL) {
        calibrate_tell(result, &report);
        result->elapsed_seconds = system_seconds() - start;
    }
    return api_tell(err, status, &reason);
}

/* ---- Random checkpoints -------------------------------------------------------------------- */

struct phasor_synth_params phasor_synth_params_default(void)
{
    return (struct phasor_synth_params){.size = sizeof(struct phasor_synth_params)};
}

const char *const *phasor_synth_presets(void)
{
    return synth_presets();
}

static enum status synth_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    const struct phasor_synth_params *params = context;
    bool goes_on = params->progress(params->progress_context, done_bytes, total_bytes) == 0;
    return goes_on ? STATUS_OK : STATUS_CANCELLED;
}

static enum status run_synth(struct phasor_synth_params *params, struct error *err)
{
    if (params->preset == NULL || params->output_dir == NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT, "a preset and an output folder are needed");
    struct synth_params synth = {
        .preset = params->preset,
        .dir = params->output_dir,
        .layer_count = params->layer_count,
        .vocab_count = params->vocab_count,
        .scale = params->scale_divisor,
        .dtype = params->dtype == PHASOR_DTYPE_FLOAT32 ? DTYPE_F32 : DTYPE_BF16,
        .seed = params->seed,
        .shard_bytes_max = params->shard_bytes_max,
        .fused = params->fused_experts,
        .progress = params->progress == NULL ? NULL : synth_progress,
        .progress_context = params,
    };
    return synth_write(&synth, err);
}

enum phasor_status phasor_synth(const struct phasor_synth_params *params, struct phasor_error *err)
{
    struct error reason = {.status = STATUS_OK};
    struct phasor_synth_params whole = phasor_synth_params_default();
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = run_synth(&whole, &reason);
    if (status == STATUS_CANCELLED && reason.message[0] == 0)
        error_set(&reason, STATUS_CANCELLED, "the writing was stopped");
    return api_tell(err, status, &reason);
}

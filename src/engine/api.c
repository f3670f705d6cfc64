/* include/phasor.h over the engine: structs of any size are completed, statuses mirrored. */
#include "phasor.h"

#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "engine/batch.h"
#include "engine/batch_names.h"
#include "engine/calibrate.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/inspect.h"
#include "engine/plan.h"
#include "engine/quantize.h"
#include "engine/replay.h"
#include "layout/traffic.h"
#include "model/synth.h"

#define MIRRORS(public, internal)                                                                  \
    _Static_assert((int)(public) == (int)(internal), #public " mirrors " #internal)
MIRRORS(PHASOR_OK, STATUS_OK);
MIRRORS(PHASOR_INVALID_ARGUMENT, STATUS_INVALID_ARGUMENT);
MIRRORS(PHASOR_NOT_FOUND, STATUS_NOT_FOUND);
MIRRORS(PHASOR_FORMAT, STATUS_FORMAT);
MIRRORS(PHASOR_UNSUPPORTED, STATUS_UNSUPPORTED);
MIRRORS(PHASOR_LIMIT, STATUS_LIMIT);
MIRRORS(PHASOR_NO_MEMORY, STATUS_NO_MEMORY);
MIRRORS(PHASOR_IO, STATUS_IO);
MIRRORS(PHASOR_CANCELLED, STATUS_CANCELLED);
MIRRORS(PHASOR_INTERNAL, STATUS_INTERNAL);
MIRRORS(PHASOR_TRANSITION_KEEP - 1, WAY_KEEP);
MIRRORS(PHASOR_TRANSITION_RESHARD - 1, WAY_RESHARD);
MIRRORS(PHASOR_TRANSITION_RELOAD - 1, WAY_RELOAD);
MIRRORS(PHASOR_TRANSITION_UPLOAD - 1, WAY_UPLOAD);
MIRRORS(PHASOR_TRANSITION_MIXED - 1, WAY_MIXED);
MIRRORS(PHASOR_LOG_DEBUG, LOG_DEBUG);
MIRRORS(PHASOR_LOG_INFO, LOG_INFO);
MIRRORS(PHASOR_LOG_WARNING, LOG_WARNING);
MIRRORS(PHASOR_QUANT_GROUP, BACKUP_PER_GROUP);
MIRRORS(PHASOR_QUANT_CHANNEL, BACKUP_PER_CHANNEL);
MIRRORS(PHASOR_QUANT_TENSOR, BACKUP_PER_TENSOR);
_Static_assert(sizeof((struct phasor_error *)0)->message == ERROR_MESSAGE_BYTES,
               "a sentence fits the public struct");
_Static_assert(PHASOR_RANKS_MAX == LAYOUT_RANKS_MAX, "ranks have their places in a result");
_Static_assert((int)PHASOR_STAGE_COUNT == (int)STAGE_KIND_COUNT, "and so have stages");
_Static_assert((int)PHASOR_COLLECTIVE_COUNT == (int)TRAFFIC_KIND_COUNT, "and so have collectives");

/* ---- Errors and logs ----------------------------------------------------------------------- */

static enum phasor_status tell(struct phasor_error *out, enum status status,
                               const struct error *err)
{
    if (status != STATUS_OK && out != NULL) {
        out->status = (enum phasor_status)status;
        memcpy(out->message, err->message, sizeof out->message);
    }
    return (enum phasor_status)status;
}

const char *phasor_version(void)
{
    return PHASOR_VERSION;
}

const char *phasor_status_name(enum phasor_status status)
{
    return status_name((enum status)status);
}

/* The caller's function, behind one of the library's own type. */
struct log_bridge {
    phasor_log_fn *log;
    void *context;
};

static void log_through(void *context, enum log_level level, const char *message)
{
    const struct log_bridge *bridge = context;
    if (bridge->log != NULL)
        bridge->log(bridge->context, (enum phasor_log_level)level, message);
}

/* Fills `whole` (which holds the defaults) with the caller's struct of params->size bytes: an older
 * program's is shorter, a newer one's longer. */
static enum status complete(void *whole, size_t whole_bytes, const void *params, struct error *err)
{
    size_t size = 0;
    if (params != NULL)
        memcpy(&size, params, sizeof size);
    if (size < sizeof size)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the parameters are missing or have no size; take them from the "
                         "*_default function");
    memcpy(whole, params, size < whole_bytes ? size : whole_bytes);
    memcpy(whole, &whole_bytes, sizeof whole_bytes);
    return STATUS_OK;
}

/* ---- Models -------------------------------------------------------------------------------- */

struct phasor_model {
    struct engine *engine;
    struct log_bridge bridge;
    struct log_sink log;
};

struct phasor_model_params phasor_model_params_default(void)
{
    return (struct phasor_model_params){.size = sizeof(struct phasor_model_params)};
}

static enum status check_model(const char *model, enum phasor_dtype dtype, struct error *err)
{
    if (model == NULL || *model == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "a model is needed");
    if (dtype != PHASOR_DTYPE_AUTO && dtype != PHASOR_DTYPE_FLOAT32 &&
        dtype != PHASOR_DTYPE_BFLOAT16)
        return error_set(err, STATUS_INVALID_ARGUMENT, "dtype: %d is none of enum phasor_dtype",
                         (int)dtype);
    return STATUS_OK;
}

static enum status open_model(struct phasor_model *model, const struct phasor_model_params *params,
                              struct error *err)
{
    TRY(check_model(params->model, params->dtype, err));
    if (params->expert_dtype != PHASOR_DTYPE_AUTO && params->expert_dtype != PHASOR_DTYPE_INT4)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "expert_dtype: %d is neither PHASOR_DTYPE_AUTO nor PHASOR_DTYPE_INT4",
                         (int)params->expert_dtype);
    if (params->thread_count < 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--threads must not be negative, found %d",
                         params->thread_count);
    if ((int)params->transition < 0 || params->transition > PHASOR_TRANSITION_MIXED)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "transition: %d is none of enum phasor_transition",
                         (int)params->transition);
    if ((int)params->policy < 0 || params->policy > PHASOR_POLICY_EXACT)
        return error_set(err, STATUS_INVALID_ARGUMENT, "policy: %d is none of enum phasor_policy",
                         (int)params->policy);
    bool is_auto = params->transition == PHASOR_TRANSITION_AUTO;
    struct engine_params engine = {
        .model = params->model,
        .revision = params->revision,
        .dtype_is_auto = params->dtype == PHASOR_DTYPE_AUTO,
        .dtype = params->dtype == PHASOR_DTYPE_FLOAT32 ? DTYPE_F32 : DTYPE_BF16,
        .has_int4_experts = params->expert_dtype == PHASOR_DTYPE_INT4,
        .thread_count = params->thread_count,
        .devices = params->devices,
        .plan = params->plan,
        .transition_is_auto = is_auto,
        .transition = is_auto ? WAY_KEEP : (enum way)(params->transition - 1),
        .backup_path = params->backup_path,
        .is_exact = params->policy == PHASOR_POLICY_EXACT,
        .needs_tokenizer = params->needs_tokenizer,
        .memory_bytes = params->memory_bytes,
        .kv_bytes = params->kv_bytes,
        .max_num_seqs = params->max_num_seqs,
        .max_num_batched_tokens = params->max_num_batched_tokens,
        .records = params->records,
        .log = model->log,
        .load_progress = params->load_progress,
        .load_context = params->load_context,
    };
    return engine_open(&model->engine, &engine, err);
}

enum phasor_status phasor_model_open(struct phasor_model **out,
                                     const struct phasor_model_params *params,
                                     struct phasor_error *err)
{
    struct error reason;
    struct phasor_model_params whole = phasor_model_params_default();
    struct phasor_model *model = NULL;
    enum status status = complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = memory_get((void **)&model, 1, sizeof *model, "the model", &reason);
    if (status == STATUS_OK) {
        model->bridge = (struct log_bridge){whole.log, whole.log_context};
        model->log = (struct log_sink){log_through, &model->bridge};
        status = open_model(model, &whole, &reason);
    }
    if (status == STATUS_OK)
        *out = model;
    else
        memory_free(model);
    return tell(err, status, &reason);
}

void phasor_model_close(struct phasor_model *model)
{
    if (model == NULL)
        return;
    engine_close(model->engine);
    memory_free(model);
}

/* ---- Runs ---------------------------------------------------------------------------------- */

struct phasor_batch_params phasor_batch_params_default(void)
{
    return (struct phasor_batch_params){
        .size = sizeof(struct phasor_batch_params),
        .max_num_seqs = 256,
        .max_num_batched_tokens = 2048,
        .shares_prefixes = true,
        .drain_seconds = 10,
    };
}

const char *phasor_stage_name(int index)
{
    return index >= 0 && index < PHASOR_STAGE_COUNT ? stage_names[index] : NULL;
}

const char *phasor_collective_name(int index)
{
    return index >= 0 && index < PHASOR_COLLECTIVE_COUNT ? traffic_names[index] : NULL;
}

enum phasor_status phasor_batch_check(const struct phasor_batch_params *params,
                                      struct phasor_error *err)
{
    struct error reason;
    struct phasor_batch_params whole = phasor_batch_params_default();
    enum status status = complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = batch_names_check_early(&whole, &reason);
    return tell(err, status, &reason);
}

enum phasor_status phasor_batch_run(struct phasor_model *model,
                                    const struct phasor_batch_params *params,
                                    struct phasor_batch_result *result, struct phasor_error *err)
{
    struct error reason;
    struct phasor_batch_params whole = phasor_batch_params_default();
    struct phasor_batch_result ignored;
    if (result != NULL)
        *result = (struct phasor_batch_result){0};
    enum status status = complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = batch_run(model->engine, &whole, &model->log, result == NULL ? &ignored : result,
                           &reason);
    return tell(err, status, &reason);
}

struct phasor_generate_params phasor_generate_params_default(void)
{
    return (struct phasor_generate_params){
        .size = sizeof(struct phasor_generate_params),
        .max_tokens = 128,
        .top_p = 1,
    };
}

enum phasor_status phasor_generate(struct phasor_model *model,
                                   const struct phasor_generate_params *params,
                                   struct phasor_generate_result *result, struct phasor_error *err)
{
    struct error reason;
    struct phasor_generate_params whole = phasor_generate_params_default();
    struct phasor_generate_result ignored;
    enum status status = complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = generate_run(model->engine, &whole, &model->log,
                              result == NULL ? &ignored : result, &reason);
    return tell(err, status, &reason);
}

/* ---- Inspection ---------------------------------------------------------------------------- */

struct phasor_inspect_params phasor_inspect_params_default(void)
{
    struct phasor_batch_params batch = phasor_batch_params_default();
    return (struct phasor_inspect_params){.size = sizeof(struct phasor_inspect_params),
                                          .max_num_seqs = batch.max_num_seqs,
                                          .max_num_batched_tokens = batch.max_num_batched_tokens};
}

static enum status inspect_model(char **out_json, const struct phasor_inspect_params *params,
                                 struct error *err)
{
    TRY(check_model(params->model, params->dtype, err));
    struct inspect_params inspect = {
        .model = params->model,
        .revision = params->revision,
        .plans = {.devices = params->devices,
                  .plan = params->plan,
                  .dtype_is_auto = params->dtype == PHASOR_DTYPE_AUTO,
                  .dtype = params->dtype == PHASOR_DTYPE_FLOAT32 ? DTYPE_F32 : DTYPE_BF16,
                  .max_num_seqs = params->max_num_seqs,
                  .max_num_batched_tokens = params->max_num_batched_tokens},
    };
    return inspect_json(out_json, &inspect, err);
}

enum phasor_status phasor_inspect(char **out_json, const struct phasor_inspect_params *params,
                                  struct phasor_error *err)
{
    struct error reason;
    struct phasor_inspect_params whole = phasor_inspect_params_default();
    enum status status = complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = inspect_model(out_json, &whole, &reason);
    return tell(err, status, &reason);
}

void phasor_text_free(char *text)
{
    memory_free(text);
}

/* ---- Plans --------------------------------------------------------------------------------- */

struct phasor_plan_params phasor_plan_params_default(void)
{
    return (struct phasor_plan_params){.size = sizeof(struct phasor_plan_params),
                                       .sequences = 32,
                                       .prompt_tokens = 2048,
                                       .output_tokens = 256,
                                       .routing_deviation = 0.3};
}

static enum status plan_params_make(struct plan_params *out,
                                    const struct phasor_plan_params *params, struct error *err)
{
    TRY(check_model(params->model, params->dtype, err));
    *out = (struct plan_params){
        .model = params->model,
        .revision = params->revision,
        .box = params->box,
        .dtype_is_auto = params->dtype == PHASOR_DTYPE_AUTO,
        .dtype = params->dtype == PHASOR_DTYPE_FLOAT32 ? DTYPE_F32 : DTYPE_BF16,
        .load = {params->sequences, params->prompt_tokens, params->output_tokens},
        .is_queue = params->is_queue,
        .allows_int4 = params->policy != PHASOR_POLICY_EXACT,
        .max_num_seqs = params->max_num_seqs,
        .max_num_batched_tokens = params->max_num_batched_tokens,
        .memory_bytes = params->memory_bytes,
        .routing_deviation = params->routing_deviation,
    };
    return STATUS_OK;
}

enum phasor_status phasor_plan(char **out_json, const struct phasor_plan_params *params,
                               struct phasor_error *err)
{
    struct error reason;
    struct plan_params plan;
    struct phasor_plan_params whole = phasor_plan_params_default();
    enum status status = complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = plan_params_make(&plan, &whole, &reason);
    if (status == STATUS_OK)
        status = plan_json(out_json, &plan, &reason);
    return tell(err, status, &reason);
}

enum phasor_status phasor_plan_map(char **out_json, const struct phasor_plan_params *params,
                                   const struct phasor_plan_axes *axes, struct phasor_error *err)
{
    struct error reason;
    struct plan_params plan;
    struct phasor_plan_params whole = phasor_plan_params_default();
    enum status status = complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK && axes == NULL)
        status = error_set(&reason, STATUS_INVALID_ARGUMENT, "for which loads? \"axes\" is NULL");
    if (status == STATUS_OK)
        status = plan_params_make(&plan, &whole, &reason);
    if (status == STATUS_OK)
        status = plan_map_json(out_json, &plan,
                               &(struct plan_axes){axes->sequences, axes->prompt_tokens,
                                                   axes->sequence_count, axes->prompt_count},
                               &reason);
    return tell(err, status, &reason);
}

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
    TRY(check_model(params->model, PHASOR_DTYPE_AUTO, err));
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
    enum status status = complete(&whole, sizeof whole, params, &reason);
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
    return tell(err, status, &reason);
}

enum phasor_status phasor_backup_path(char **out_path, const struct phasor_quantize_params *params,
                                      struct phasor_error *err)
{
    struct error reason;
    struct phasor_quantize_params whole = phasor_quantize_params_default();
    struct quantize_params quantize;
    enum status status = complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = quantize_params_make(&quantize, &whole, &reason);
    if (status == STATUS_OK)
        status = quantize_path(out_path, &quantize, &reason);
    return tell(err, status, &reason);
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
    enum status status = complete(&whole, sizeof whole, params, &reason);
    struct replay_params replay = {
        .recording_path = whole.recording_path,
        .box = whole.box,
        .is_modelled = whole.modelled,
        .is_scaled = whole.scale,
        .trace_path = whole.trace_path,
    };
    if (status == STATUS_OK)
        status = replay_run(out_json, &replay, &reason);
    return tell(err, status, &reason);
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
    if (params->output_path == NULL || *params->output_path == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "a name for the profile is needed");
    TRY(engine_devices_parse(&devices, params->devices, err));
    if (devices.cuda)
        return error_set(err, STATUS_UNSUPPORTED,
                         "--devices: GPUs cannot be calibrated yet; give cpu or cpu:N");
    if (params->thread_count < 0 || params->thread_count > CALIBRATE_THREADS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--threads: expected 0 to %d, found %d",
                         CALIBRATE_THREADS_MAX, params->thread_count);
    *out = (struct calibrate_params){
        .output_path = params->output_path,
        .rank_count = devices.rank_count,
        .thread_count = params->thread_count,
        .overwrites = params->overwrite,
        .memory_bytes = params->memory_bytes,
        .log = *log,
        .progress = params->progress,
        .progress_context = params->progress_context,
    };
    return STATUS_OK;
}

static void calibrate_tell(struct phasor_calibrate_result *out,
                           const struct calibrate_report *report)
{
    *out = (struct phasor_calibrate_result){
        .rank_count = report->identity.ranks,
        .thread_count = report->identity.threads,
        .points_measured = report->points_measured,
        .points_found = report->points_found,
        .spread_median = report->spread_median,
    };
    memcpy(out->processor, report->identity.processor, sizeof out->processor);
    memcpy(out->kernels, report->identity.kernels, sizeof out->kernels);
}
_Static_assert(sizeof((struct phasor_calibrate_result *)0)->kernels == PROFILE_NAME_BYTES,
               "names fit the public struct");

enum phasor_status phasor_calibrate(const struct phasor_calibrate_params *params,
                                    struct phasor_calibrate_result *result,
                                    struct phasor_error *err)
{
    struct error reason;
    struct phasor_calibrate_params whole = phasor_calibrate_params_default();
    struct calibrate_params calibrate;
    struct calibrate_report report;
    double start = system_seconds();
    enum status status = complete(&whole, sizeof whole, params, &reason);
    struct log_bridge bridge = {whole.log, whole.log_context};
    struct log_sink log = {log_through, &bridge};
    if (status == STATUS_OK)
        status = calibrate_params_make(&calibrate, &whole, &log, &reason);
    if (status == STATUS_OK)
        status = calibrate_run(&report, &calibrate, &reason);
    if (status == STATUS_OK && result != NULL) {
        calibrate_tell(result, &report);
        result->elapsed_seconds = system_seconds() - start;
    }
    return tell(err, status, &reason);
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
    enum status status = complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = run_synth(&whole, &reason);
    if (status == STATUS_CANCELLED && reason.message[0] == 0)
        error_set(&reason, STATUS_CANCELLED, "the writing was stopped");
    return tell(err, status, &reason);
}

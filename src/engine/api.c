/* include/phasor.h over the engine: structs of any size are completed, statuses mirrored. */
#include "phasor.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "comm/nccl_library.h"
#include "device/device.h"
#include "engine/api_parts.h"
#include "engine/batch.h"
#include "engine/batch_names.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/inspect.h"
#include "layout/traffic.h"

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
_Static_assert(sizeof((struct phasor_error *)0)->message == ERROR_MESSAGE_BYTES,
               "a sentence fits the public struct");
_Static_assert(PHASOR_RANKS_MAX == LAYOUT_RANKS_MAX, "ranks have their places in a result");
_Static_assert((int)PHASOR_STAGE_COUNT == (int)STAGE_KIND_COUNT, "and so have stages");
_Static_assert((int)PHASOR_COLLECTIVE_COUNT == (int)TRAFFIC_KIND_COUNT, "and so have collectives");

/* ---- Errors and logs ----------------------------------------------------------------------- */

const char *phasor_version(void)
{
    return PHASOR_VERSION;
}

static pthread_once_t nccl_once = PTHREAD_ONCE_INIT;
static char nccl_text[PATH_MAX + 64];

static void nccl_describe(void)
{
    const struct nccl_library *library;
    struct error err = {.message = "this build of phasor is without CUDA"};
    if (device_cuda_is_built() && nccl_library_get(&library, &err) == STATUS_OK)
        snprintf(nccl_text, sizeof nccl_text, "NCCL %s (%s)", library->text, library->path);
    else
        snprintf(nccl_text, sizeof nccl_text, "no NCCL: %s", err.message);
}

const char *phasor_nccl(void)
{
    pthread_once(&nccl_once, nccl_describe);
    return nccl_text;
}

const char *phasor_status_name(enum phasor_status status)
{
    return status_name((enum status)status);
}

/* ---- Models -------------------------------------------------------------------------------- */

#define PLAN_AUTO "auto"

struct phasor_model_params phasor_model_params_default(void)
{
    return (struct phasor_model_params){.size = sizeof(struct phasor_model_params)};
}

static enum status check_params(const struct phasor_model_params *params, struct error *err)
{
    TRY(api_check_model(params->model, params->dtype, err));
    TRY(api_check_experts(params->expert_dtype, err));
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
    const struct phasor_load *load = &params->load;
    if (load->sequences < 0 ||
        (load->sequences > 0 && (load->prompt_tokens < 1 || load->output_tokens < 1)))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "load: a sequence has at least a prompt token and an output token");
    return STATUS_OK;
}

/* `batch` is NULL where there is none. */
static enum status plan_ask(struct auto_plan *plan, const struct phasor_batch_params *batch,
                            const struct phasor_model_params *params, struct error *err)
{
    plan->profile_path = params->profile_path;
    plan->routing_path = params->routing_path;
    plan->load = (struct plan_load)PLAN_LOAD(params->load.sequences, params->load.prompt_tokens,
                                             params->load.output_tokens);
    if (batch != NULL && batch->input_path == NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT, "the batch to plan for has no input file");
    plan->batch = batch;
    return STATUS_OK;
}

/* What was borrowed is the caller's again. */
static void plan_forget(struct auto_plan *plan)
{
    plan->profile_path = NULL;
    plan->routing_path = NULL;
    plan->batch = NULL;
}

static enum status open_model(struct phasor_model *model, const struct phasor_model_params *params,
                              struct error *err)
{
    TRY(check_params(params, err));
    struct phasor_batch_params batch = phasor_batch_params_default();
    if (params->batch != NULL)
        TRY(api_complete(&batch, sizeof batch, params->batch, err));
    bool chooses = params->plan != NULL && strcmp(params->plan, PLAN_AUTO) == 0;
    bool is_auto = params->transition == PHASOR_TRANSITION_AUTO;
    struct engine_params engine = {
        .model = params->model,
        .revision = params->revision,
        .dtype_is_auto = params->dtype == PHASOR_DTYPE_AUTO,
        .dtype = params->dtype == PHASOR_DTYPE_FLOAT32 ? DTYPE_F32 : DTYPE_BF16,
        .has_int4_experts = params->expert_dtype == PHASOR_DTYPE_INT4,
        .thread_count = params->thread_count,
        .devices = params->devices,
        .plan = chooses ? NULL : params->plan,
        .planned_cache_bytes = params->planned_kv_bytes,
        .choose = chooses ? auto_plan_choose : NULL,
        .choose_context = &model->plan,
        .transition_is_auto = is_auto,
        .transition = is_auto ? WAY_KEEP : (enum way)(params->transition - 1),
        .keeps_format = batch.deterministic,
        .backup_path = params->backup_path,
        .is_exact = params->policy == PHASOR_POLICY_EXACT,
        .needs_tokenizer = params->needs_tokenizer,
        .memory_bytes = params->memory_bytes,
        .kv_bytes = params->kv_bytes,
        .max_num_seqs = params->max_num_seqs,
        .max_num_batched_tokens = params->max_num_batched_tokens,
        .records = params->records,
        .caches_weights = params->caches_weights,
        .log = model->log,
        .load_progress = params->load_progress,
        .load_context = params->load_context,
    };
    if (chooses)
        TRY(plan_ask(&model->plan, params->batch == NULL ? NULL : &batch, params, err));
    TRY(engine_open(&model->engine, &engine, err));
    auto_plan_check_box(&model->plan, engine_box(model->engine), &model->log);
    plan_forget(&model->plan);
    plan_layouts_format(model->plan_text, engine_layouts(model->engine));
    return STATUS_OK;
}

const char *phasor_model_plan(const struct phasor_model *model)
{
    return model->plan_text;
}

enum phasor_status phasor_model_open(struct phasor_model **out,
                                     const struct phasor_model_params *params,
                                     struct phasor_error *err)
{
    struct error reason;
    struct phasor_model_params whole = phasor_model_params_default();
    struct phasor_model *model = NULL;
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = memory_get((void **)&model, 1, sizeof *model, "the model", &reason);
    if (status == STATUS_OK) {
        model->bridge = (struct log_bridge){whole.log, whole.log_context};
        model->log = (struct log_sink){api_log, &model->bridge};
        auto_plan_init(&model->plan);
        status = open_model(model, &whole, &reason);
    }
    if (status == STATUS_OK) {
        *out = model;
    } else if (model != NULL) {
        auto_plan_deinit(&model->plan);
        memory_free(model);
    }
    return api_tell(err, status, &reason);
}

void phasor_model_close(struct phasor_model *model)
{
    if (model == NULL)
        return;
    pass_contexts_deinit(&model->contexts);
    engine_close(model->engine);
    auto_plan_deinit(&model->plan);
    memory_free(model);
}

/* ---- Runs ---------------------------------------------------------------------------------- */

struct phasor_batch_params phasor_batch_params_default(void)
{
    return (struct phasor_batch_params){
        .size = sizeof(struct phasor_batch_params),
        .max_num_seqs = 256,
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
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = batch_names_check_early(&whole, &reason);
    return api_tell(err, status, &reason);
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
    pass_contexts_deinit(&model->contexts); /* the run's memory has no place for them */
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = batch_run_planned(model->engine, &whole, &model->plan, &model->log,
                                   result == NULL ? &ignored : result, &reason);
    return api_tell(err, status, &reason);
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
    pass_contexts_deinit(&model->contexts);
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = generate_run(model->engine, &whole, &model->log,
                              result == NULL ? &ignored : result, &reason);
    return api_tell(err, status, &reason);
}

/* ---- Inspection ---------------------------------------------------------------------------- */

struct phasor_inspect_params phasor_inspect_params_default(void)
{
    struct phasor_batch_params batch = phasor_batch_params_default();
    return (struct phasor_inspect_params){.size = sizeof(struct phasor_inspect_params),
                                          .max_num_seqs = batch.max_num_seqs,
                                          .max_num_batched_tokens = ENGINE_PASS_TOKENS};
}

static enum status inspect_model(char **out_json, const struct phasor_inspect_params *params,
                                 struct error *err)
{
    TRY(api_check_model(params->model, params->dtype, err));
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
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = inspect_model(out_json, &whole, &reason);
    return api_tell(err, status, &reason);
}

void phasor_text_free(char *text)
{
    memory_free(text);
}

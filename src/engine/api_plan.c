/* phasor.h: plans. */
#include "base/memory.h"
#include "engine/api_parts.h"
#include "engine/plan.h"
#include "phasor.h"

struct phasor_plan_params phasor_plan_params_default(void)
{
    return (struct phasor_plan_params){.size = sizeof(struct phasor_plan_params),
                                       .sequences = 32,
                                       .prompt_tokens = 2048,
                                       .output_tokens = 256,
                                       .routing_deviation = 0.3,
                                       .shares_prefixes = true};
}

static enum status plan_params_make(struct plan_params *out,
                                    const struct phasor_plan_params *params, struct error *err)
{
    TRY(api_check_model(params->model, params->dtype, err));
    TRY(api_check_experts(params->expert_dtype, err));
    *out = (struct plan_params){
        .model = params->model,
        .revision = params->revision,
        .box = params->box,
        .draw = params->draw,
        .input = params->input_path,
        .dtype_is_auto = params->dtype == PHASOR_DTYPE_AUTO,
        .dtype = params->dtype == PHASOR_DTYPE_FLOAT32 ? DTYPE_F32 : DTYPE_BF16,
        .has_int4_experts = params->expert_dtype == PHASOR_DTYPE_INT4,
        .load = PLAN_LOAD(params->sequences, params->prompt_tokens, params->output_tokens),
        .is_queue = params->is_queue,
        .allows_int4 = params->policy != PHASOR_POLICY_EXACT,
        .max_num_seqs = params->max_num_seqs,
        .max_num_batched_tokens = params->max_num_batched_tokens,
        .memory_bytes = params->memory_bytes,
        .routing_deviation = params->routing_deviation,
        .backup = params->backup_path,
        .routing = params->routing_path,
        .shares_prefixes = params->shares_prefixes,
    };
    return STATUS_OK;
}

enum phasor_status phasor_plan(char **out_json, const struct phasor_plan_params *params,
                               struct phasor_error *err)
{
    struct error reason;
    struct plan_params plan;
    struct phasor_plan_params whole = phasor_plan_params_default();
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = plan_params_make(&plan, &whole, &reason);
    if (status == STATUS_OK)
        status = plan_json(out_json, &plan, &reason);
    return api_tell(err, status, &reason);
}

enum phasor_status phasor_plan_map(char **out_json, const struct phasor_plan_params *params,
                                   const struct phasor_plan_axes *axes, struct phasor_error *err)
{
    struct error reason;
    struct plan_params plan;
    struct phasor_plan_params whole = phasor_plan_params_default();
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK && axes == NULL)
        status = error_set(&reason, STATUS_INVALID_ARGUMENT, "for which loads? \"axes\" is NULL");
    if (status == STATUS_OK)
        status = plan_params_make(&plan, &whole, &reason);
    if (status == STATUS_OK)
        status = plan_map_json(out_json, &plan,
                               &(struct plan_axes){axes->sequences, axes->prompt_tokens,
                                                   axes->sequence_count, axes->prompt_count},
                               &reason);
    return api_tell(err, status, &reason);
}

/* ---- Asked often ----------------------------------------------------------------------------- */

struct phasor_plan_load phasor_plan_load_default(void)
{
    const struct phasor_plan_params params = phasor_plan_params_default();
    return (struct phasor_plan_load){.size = sizeof(struct phasor_plan_load),
                                     .sequences = params.sequences,
                                     .prompt_tokens = params.prompt_tokens,
                                     .output_tokens = params.output_tokens};
}

enum phasor_status phasor_planner_open(struct phasor_planner **out,
                                       const struct phasor_plan_params *params,
                                       struct phasor_error *err)
{
    struct error reason;
    struct plan_params plan;
    struct phasor_plan_params whole = phasor_plan_params_default();
    struct planner *planner = NULL;
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = plan_params_make(&plan, &whole, &reason);
    if (status == STATUS_OK)
        status = planner_open(&planner, &plan, &reason);
    if (status == STATUS_OK)
        *out = (struct phasor_planner *)planner;
    return api_tell(err, status, &reason);
}

enum phasor_status phasor_planner_ask(char **out_json, const struct phasor_planner *planner,
                                      const struct phasor_plan_load *load, struct phasor_error *err)
{
    struct error reason;
    struct phasor_plan_load whole = phasor_plan_load_default();
    enum status status = api_complete(&whole, sizeof whole, load, &reason);
    const struct plan_asked asked = {
        .load = PLAN_LOAD(whole.sequences, whole.prompt_tokens, whole.output_tokens),
        .is_queue = whole.is_queue,
        .allows_int4 = whole.policy != PHASOR_POLICY_EXACT,
        .max_num_seqs = whole.max_num_seqs,
        .max_num_batched_tokens = whole.max_num_batched_tokens,
    };
    if (status == STATUS_OK)
        status = planner_ask(out_json, (const struct planner *)planner, &asked, &reason);
    return api_tell(err, status, &reason);
}

void phasor_planner_close(struct phasor_planner *planner)
{
    planner_close((struct planner *)planner);
}

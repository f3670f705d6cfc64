/* include/phasor.h: one pass, for replay. */
#include "engine/api_parts.h"
#include "engine/pass_recorder.h"
#include "engine/side_file.h"

struct phasor_pass_params phasor_pass_params_default(void)
{
    return (struct phasor_pass_params){.size = sizeof(struct phasor_pass_params)};
}

static struct pass_case case_of(const struct engine *engine,
                                const struct phasor_pass_params *params)
{
    bool is_decode = params->phase == PHASOR_PHASE_DECODE;
    return (struct pass_case){
        .phase = is_decode ? PHASE_DECODE : PHASE_PREFILL,
        .is_packed = is_decode && engine_layouts(engine)->decode_is_packed,
        .sequences = params->sequences,
        .context = params->context_tokens,
        .prompt = params->prompt_tokens,
        .tokens = params->pass_tokens,
        .pass_index = params->pass_index,
    };
}

/* Of what is recorded the ranks have one layout: how a change of it comes in between is not told.
 */
static enum status check_pass(const struct engine *engine, const struct phasor_pass_params *params,
                              const struct pass_case *of, struct error *err)
{
    const struct plan_layouts *layouts = engine_layouts(engine);
    if (!engine_records(engine) || params->recording_path == NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "a pass is recorded into recording_path, of a model that was opened with "
                         "`records`");
    if (layouts->of[PHASE_PREFILL].experts.tp != layouts->of[PHASE_DECODE].experts.tp)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "a pass is recorded under one layout, and the plan has two");
    const struct side_file file = {
        .path = params->recording_path, .flag = "recording_path", .head = RECORDING_MAGIC};
    TRY(pass_case_check(of, engine_layout(engine), engine_config(engine), err));
    return side_file_check(&file, NULL, 0, err);
}

static enum status pass_record(struct phasor_model *model, const struct phasor_pass_params *params,
                               struct error *err)
{
    struct engine *engine = model->engine;
    struct pass_case of = case_of(engine, params);
    struct pass_recorder *recorder;
    struct recording recording;
    TRY(check_pass(engine, params, &of, err));
    TRY(pass_recorder_create(&recorder, engine, &model->contexts, &of, 1, !params->is_modelled,
                             err));
    enum status status = pass_recorder_run(recorder, &of, &recording, err);
    if (status == STATUS_OK) {
        status = recording_write(&recording, params->recording_path, err);
        recording_deinit(&recording);
    }
    pass_recorder_destroy(recorder);
    return status;
}

enum phasor_status phasor_pass_record(struct phasor_model *model,
                                      const struct phasor_pass_params *params,
                                      struct phasor_error *err)
{
    struct error reason;
    struct phasor_pass_params whole = phasor_pass_params_default();
    enum status status = api_complete(&whole, sizeof whole, params, &reason);
    if (status == STATUS_OK)
        status = pass_record(model, &whole, &reason);
    return api_tell(err, status, &reason);
}

int64_t phasor_pass_count(const struct phasor_model *model, const struct phasor_pass_params *params)
{
    struct error ignored;
    struct phasor_pass_params whole = phasor_pass_params_default();
    const struct engine *engine = model->engine;
    if (api_complete(&whole, sizeof whole, params, &ignored) != STATUS_OK)
        return 0;
    struct pass_case of = case_of(engine, &whole);
    of.pass_index = 0;
    if (of.phase != PHASE_PREFILL ||
        pass_case_check(&of, engine_layout(engine), engine_config(engine), &ignored) != STATUS_OK)
        return 0;
    return pass_period(engine_layout(engine), of.prompt, of.tokens);
}

#include "engine/engine.h"

#include <string.h>

#include "base/memory.h"
#include "base/record.h"
#include "device/one_at_a_time.h"
#include "engine/engine_backup.h"
#include "engine/engine_room.h"
#include "engine/engine_state.h"
#include "model/hub.h"

static enum dtype choose_dtype(const struct engine_params *params,
                               const struct model_config *config)
{
    if (!params->dtype_is_auto)
        return params->dtype;
    if (config->dtype == DTYPE_F16)
        log_write(&params->log, LOG_DEBUG,
                  "the checkpoint is float16 and runs as bfloat16 on this device; --dtype float32 "
                  "keeps every bit");
    return config->dtype == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16;
}

static enum status choose_types(struct weight_types *out, const struct engine_params *params,
                                const struct model_config *config, struct error *err)
{
    if (params->has_int4_experts && config->expert_count == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--expert-dtype int4: this model has no routed experts");
    TRY(engine_exact_check(params->is_exact, params->has_int4_experts, err));
    out->matrices = choose_dtype(params, config);
    out->experts = params->has_int4_experts ? DTYPE_INT4 : out->matrices;
    return STATUS_OK;
}

static enum status tokenizer_load(struct engine *engine, const struct engine_params *params,
                                  struct error *err)
{
    enum status status = tokenizer_open(&engine->tokenizer, engine->dir, err);
    if (status == STATUS_NOT_FOUND && !params->needs_tokenizer)
        return STATUS_OK;
    if (status == STATUS_NOT_FOUND)
        return error_set(err, status,
                         "%s has no tokenizer.json, so it cannot read a text; a batch file can "
                         "hold token ids",
                         engine->dir);
    if (status != STATUS_OK)
        return status;
    int64_t known = tokenizer_vocab_count(engine->tokenizer);
    int64_t vocab = checkpoint_config(engine->checkpoint)->vocab_count;
    if (known > vocab)
        return error_set(err, STATUS_FORMAT,
                         "%s: tokenizer.json has ids up to %lld, config.json a vocab_size of %lld; "
                         "they belong to different models",
                         engine->dir, (long long)known - 1, (long long)vocab);
    return STATUS_OK;
}

/* ---- The plan -------------------------------------------------------------------------------- */

/* A budget gives the cache what is left of it; else it is what the plan was priced with. */
static void cache_expect(struct engine *engine, struct engine_params *chosen, uint64_t bytes)
{
    engine->cache_bytes = bytes;
    if (chosen->kv_bytes == 0 && chosen->memory_bytes == 0)
        chosen->kv_bytes = bytes;
}

/* What `chosen` then has is as if it had been named, but that nobody is told what is without
 * effect.
 */
static void choice_take(struct engine *engine, struct engine_params *chosen,
                        const struct engine_choice *choice)
{
    engine->layouts = choice->layouts;
    engine->pass_tokens = choice->pass_tokens;
    cache_expect(engine, chosen, choice->cache_bytes);
    engine->has_chosen = true;
    bool is_open = plan_layouts_differ(&choice->layouts) && !choice->has_way;
    if (choice->has_way) {
        chosen->transition_is_auto = false;
        chosen->transition = choice->way;
    }
    /* What cannot matter to the plan that was found is not spoken of. */
    if (!engine_choice_takes_int4(choice) && !is_open) {
        chosen->backup_path = NULL;
        chosen->is_exact = false;
    }
    if (!plan_layouts_differ(&choice->layouts) && !choice->layouts.decode_is_packed)
        chosen->transition_is_auto = true;
}

static enum status plan_choose(struct engine *engine, struct engine_params *chosen,
                               const struct weight_types *types, struct error *err)
{
    struct engine_choice choice;
    const struct engine_basis basis = {
        .params = chosen,
        .checkpoint = engine->checkpoint,
        .tokenizer = engine->tokenizer,
        .types = *types,
        .devices = &engine->devices,
    };
    if (chosen->plan != NULL)
        cache_expect(engine, chosen, chosen->planned_cache_bytes);
    if (chosen->plan != NULL || chosen->choose == NULL)
        return STATUS_OK;
    TRY(chosen->choose(chosen->choose_context, &choice, &basis, err));
    if (choice.is_made)
        choice_take(engine, chosen, &choice);
    return STATUS_OK;
}

/* ---- What it has ------------------------------------------------------------------------------
 */

const struct box *engine_box(const struct engine *engine)
{
    return engine->box;
}

struct transition *engine_transition(const struct engine *engine)
{
    return engine->transition;
}

const char *engine_room_advice(const struct engine *engine)
{
    if (engine->has_chosen)
        return ", or take --plan static";
    return room_advice(engine->keeps_both, engine->layouts.decode_is_packed);
}

struct trace *engine_trace(const struct engine *engine)
{
    return engine->trace;
}

int engine_thread_count(const struct engine *engine)
{
    int count = 0;
    for (int r = 0; r < box_rank_count(engine->box); r++)
        count += box_device(engine->box, r)->ops->host_workers(box_device(engine->box, r));
    return count;
}

bool engine_records(const struct engine *engine)
{
    return engine->turn != NULL;
}

struct trace_lane *engine_lane(const struct engine *engine)
{
    return engine->lane;
}

const struct backup *engine_backup(const struct engine *engine)
{
    return engine->backup;
}

bool engine_moves_weights(const struct engine *engine)
{
    return engine->transition != NULL && !engine->keeps_both;
}

int64_t engine_entry_tokens(const struct engine *engine)
{
    return generator_entry_tokens(engine_config(engine), engine->devices.cuda);
}

/* ---- Passes ---------------------------------------------------------------------------------- */

static void experts_done(void *context, int rank, int64_t layer)
{
    transition_release(context, rank, layer);
}

static enum status experts_await(void *context, int rank, int64_t layer, struct error *err)
{
    return transition_await(context, rank, layer, err);
}

static void start(struct engine *engine, enum phase goal)
{
    engine->goal = goal;
    transition_start(engine->transition, goal);
}

/* With prefill, what decode needs begins to come, where there is room; the last pass lets each
 * layer go as it leaves it, and decode waits for a layer when it comes to it. In the tail of decode
 * what prefill needs begins to come, where there is room; the rest comes between passes. Of a wave
 * that stays all passes are on the weights as prefill has them. */
enum status engine_enter(struct engine *engine, const struct generator_pass *pass,
                         struct exec_hooks *hooks, struct error *err)
{
    struct transition *transition = engine->transition;
    if (transition == NULL)
        return STATUS_OK;
    bool is_prefill = pass->phase == PHASE_PREFILL;
    bool is_under_way = transition_is_under_way(transition);
    enum phase goal = pass->stays ? PHASE_PREFILL : pass->phase;
    hooks->context = transition;
    engine->has_awaited = goal == PHASE_DECODE && is_under_way && engine->has_let_go;
    if (engine->has_awaited) {
        hooks->experts_await = experts_await;
        return STATUS_OK;
    }
    /* What is under way has moved nothing as long as no layer was let go: with more of the same
     * phase it goes on; the other phase, if it should come now, lets go of all. */
    if (!is_under_way || engine->has_let_go || engine->goal == goal)
        TRY(transition_run(transition, goal, err));
    engine->has_let_go = pass->is_last && !pass->stays;
    if (pass->stays)
        return STATUS_OK;
    if (engine_moves_weights(engine) && is_prefill)
        start(engine, PHASE_DECODE);
    else if (engine_moves_weights(engine) && pass->is_tail)
        start(engine, PHASE_PREFILL);
    if (engine->has_let_go)
        hooks->experts_done = experts_done;
    return STATUS_OK;
}

enum status engine_settle(struct engine *engine, struct error *err)
{
    struct transition *transition = engine->transition;
    if (transition == NULL || !transition_is_under_way(transition))
        return STATUS_OK;
    engine->has_let_go = false;
    return transition_run(transition, PHASE_PREFILL, err);
}

bool engine_was_whole(const struct engine *engine)
{
    for (int64_t layer = 0; engine->has_awaited && layer < engine->shape.layer_count; layer++) {
        struct transition_origin origin = transition_layer(engine->transition, layer);
        if (origin.has_experts && origin.phase != PHASE_DECODE)
            return false;
    }
    return true;
}

void engine_watch(struct engine *engine, const struct watch *watch)
{
    if (engine->transition != NULL)
        transition_watch(engine->transition, watch);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static enum status devices_get(int *rank_count, struct engine *engine,
                               const struct engine_params *params, struct error *err)
{
    struct engine_devices *devices = &engine->devices; /* of zeros: as many as the plan has */
    if (params->devices != NULL || params->plan == NULL)
        TRY(engine_devices_parse(devices, params->devices, err));
    *rank_count = devices->rank_count;
    if (params->records && devices->cuda)
        return error_set(err, STATUS_UNSUPPORTED,
                         "--record: runs of the CPU's ranks can be recorded, and --devices is %s; "
                         "choose cpu:N",
                         params->devices);
    return params->records ? one_at_a_time_create(&engine->turn, err) : STATUS_OK;
}

/* For another plan, later. */
static enum status params_keep(struct engine *engine, const struct engine_params *params,
                               struct error *err)
{
    engine->params = *params;
    engine->params.model = engine->params.revision = engine->params.devices = NULL;
    engine->params.plan = engine->params.backup_path = NULL;
    engine->params.planned_cache_bytes = 0;
    engine->params.choose = NULL;
    if (params->backup_path == NULL)
        return STATUS_OK;
    engine->backup_path = memory_copy_text(params->backup_path, strlen(params->backup_path));
    engine->params.backup_path = engine->backup_path;
    return engine->backup_path == NULL ? error_set(err, STATUS_NO_MEMORY, "out of memory")
                                       : STATUS_OK;
}

enum status engine_change_plan(struct engine *engine, const struct engine_choice *choice,
                               struct error *err)
{
    struct engine_params chosen = engine->params;
    struct weight_types types = *engine_types(engine);
    engine_plan_drop(engine);
    choice_take(engine, &chosen, choice);
    enum status status = engine_plan_load(engine, &chosen, &types, err);
    if (status != STATUS_OK)
        engine_plan_drop(engine);
    return status;
}

enum status engine_check(const struct engine *engine, struct error *err)
{
    if (engine->weights != NULL)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s has no weights: the plan of a part of a batch could not be loaded; open "
                     "the model again",
                     engine->name);
}

static enum status engine_load(struct engine *engine, const struct engine_params *params,
                               struct error *err)
{
    struct engine_params chosen = *params;
    struct weight_types types;
    int rank_count;
    TRY(params_keep(engine, params, err));
    TRY(trace_create(&engine->trace, err));
    engine->lane = trace_lane_add(engine->trace, -1, "run");
    record_lane_set(engine->lane, RECORD_LANE_DRIVER);
    TRY(devices_get(&rank_count, engine, params, err));
    TRY(hub_resolve(&engine->dir, params->model, params->revision, err));
    TRY(checkpoint_open(&engine->checkpoint, engine->dir, err));
    TRY(engine_plan_parse(&engine->layouts, params->plan, checkpoint_config(engine->checkpoint),
                          rank_count, err));
    engine->shape = weights_shape(engine_config(engine));
    TRY(tokenizer_load(engine, params, err));
    TRY(choose_types(&types, params, engine_config(engine), err));
    TRY(plan_choose(engine, &chosen, &types, err));
    return engine_plan_load(engine, &chosen, &types, err);
}

enum status engine_open(struct engine **out, const struct engine_params *params, struct error *err)
{
    struct engine *engine;
    TRY(memory_get((void **)&engine, 1, sizeof *engine, "the engine", err));
    enum status status = STATUS_OK;
    engine->memory_bytes = params->memory_bytes;
    engine->name = memory_copy_text(params->model, strlen(params->model));
    if (engine->name == NULL)
        status = error_set(err, STATUS_NO_MEMORY, "out of memory");
    else
        status = engine_load(engine, params, err);
    if (status != STATUS_OK) {
        engine_close(engine);
        return status;
    }
    *out = engine;
    return STATUS_OK;
}

void engine_close(struct engine *engine)
{
    if (engine == NULL)
        return;
    engine_plan_drop(engine);
    one_at_a_time_destroy(engine->turn);
    trace_destroy(engine->trace);
    tokenizer_close(engine->tokenizer);
    checkpoint_close(engine->checkpoint);
    memory_free(engine->backup_path);
    memory_free(engine->dir);
    memory_free(engine->name);
    memory_free(engine);
}

const struct model_config *engine_config(const struct engine *engine)
{
    return checkpoint_config(engine->checkpoint);
}

const struct tokenizer *engine_tokenizer(const struct engine *engine)
{
    return engine->tokenizer;
}

const char *engine_model_name(const struct engine *engine)
{
    return engine->name;
}

const struct layout *engine_layout(const struct engine *engine)
{
    return &engine->layouts.of[PHASE_PREFILL];
}

const struct plan_layouts *engine_layouts(const struct engine *engine)
{
    return &engine->layouts;
}

const struct checkpoint *engine_checkpoint(const struct engine *engine)
{
    return engine->checkpoint;
}

const struct weight_types *engine_types(const struct engine *engine)
{
    return &engine->weights[0].types;
}

void engine_decode_weights(char out[ENGINE_DECODE_WEIGHTS_BYTES], const struct engine *engine)
{
    bool is_packed = engine->layouts.decode_is_packed;
    bool uploads = engine->transition != NULL && transition_way(engine->transition) == WAY_UPLOAD;
    if (!is_packed && !uploads) {
        snprintf(out, ENGINE_DECODE_WEIGHTS_BYTES, "native");
        return;
    }
    const struct backup_settings *settings = &backup_form(engine->backup)->settings;
    snprintf(out, ENGINE_DECODE_WEIGHTS_BYTES, "%sint4 %s %lld%s", is_packed ? "packed " : "",
             backup_scheme_names[settings->scheme], (long long)settings->group,
             settings->is_asymmetric ? " asymmetric" : "");
}

const char *engine_kernels(const struct engine *engine)
{
    return box_device(engine->box, 0)->ops->name;
}

int64_t engine_pass_tokens(const struct engine *engine, int64_t max_num_seqs)
{
    int64_t tokens = engine->pass_tokens > 0 ? engine->pass_tokens : ENGINE_PASS_TOKENS;
    return tokens > max_num_seqs ? tokens : max_num_seqs;
}

uint64_t engine_cache_bytes(const struct engine *engine)
{
    return engine->cache_bytes;
}

uint64_t engine_memory_bytes(const struct engine *engine)
{
    return engine->memory_bytes;
}

enum status engine_exec_create(struct exec **out, struct engine *engine, int64_t token_max,
                               int64_t segment_max, struct error *err)
{
    struct exec_params params = engine_exec_params(engine);
    params.token_max = token_max;
    params.segment_max = segment_max;
    return exec_create(out, &params, err);
}

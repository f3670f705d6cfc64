#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/size_text.h"
#include "base/system.h"
#include "base/trace.h"
#include "comm/box.h"
#include "device/thread_team.h"
#include "engine/engine_backup.h"
#include "engine/run_limits.h"
#include "exec/exec.h"
#include "model/checkpoint.h"
#include "model/hub.h"

struct engine {
    char *name;
    char *dir;
    struct checkpoint *checkpoint;
    struct tokenizer *tokenizer;
    struct plan_layouts layouts;
    uint64_t memory_bytes;
    bool has_gpus; /* its ranks are GPUs, not shares of the CPU */
    struct trace *trace;
    struct trace_lane *lane; /* of who drives */
    struct box *box;
    struct weights *weights; /* [rank_count] */
    bool keeps_both;         /* layouts are resident */
    int64_t spare_count;     /* else; slots for layers that are written before they change */
    struct model_shape shape;
    struct backup *backup;         /* NULL: none is used */
    struct transition *transition; /* NULL: the plan has one layout, or no layer has experts */
    enum phase goal;               /* of what was started last beside passes */
    bool has_let_go;               /* the last pass let go of layers */
    bool has_awaited;              /* the last pass waited for layers that changed beside it */
};

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

/* ---- Devices and plan ------------------------------------------------------------------------ */

enum status engine_devices_parse(struct engine_devices *out, const char *devices, struct error *err)
{
    *out = (struct engine_devices){.rank_count = 1};
    if (devices == NULL || strcmp(devices, "cpu") == 0)
        return STATUS_OK;
    if (strcmp(devices, "cuda:0") == 0) {
        out->cuda = true;
        return STATUS_OK;
    }
    const char *digits = strncmp(devices, "cpu:", 4) == 0 ? devices + 4 : "";
    size_t length = strspn(digits, "0123456789");
    bool is_number = length >= 1 && length <= 2 && digits[0] != '0' && digits[length] == '\0';
    int count = is_number ? atoi(digits) : 0;
    if (count < 1 || count > COMM_RANKS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--devices: expected cpu, cpu:N with N from 1 to %d, or cuda:0, found "
                         "\"%s\"",
                         COMM_RANKS_MAX, devices);
    out->rank_count = count;
    return STATUS_OK;
}

enum status engine_plan_parse(struct plan_layouts *out, const char *plan,
                              const struct model_config *config, int rank_count, struct error *err)
{
    struct model_shape shape = weights_shape(config);
    enum status status;
    if (plan == NULL) {
        struct layout layout;
        status = layout_static_tp(&layout, &shape, rank_count, err);
        if (status != STATUS_OK)
            return error_prefix(err, STATUS_INVALID_ARGUMENT, "--devices");
        *out = plan_layouts_static(&layout);
        return STATUS_OK;
    }
    status = plan_layouts_parse(out, plan, rank_count, err);
    if (status == STATUS_OK && plan_layouts_check(out, &shape, err) != STATUS_OK)
        return error_prefix(err, STATUS_INVALID_ARGUMENT, "--plan %s", plan);
    return status == STATUS_OK ? status : error_prefix(err, status, "--plan");
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* What all ranks have read so far. Whoever has read something tells, one at a time. */
struct loading {
    struct engine *engine;
    const struct engine_params *params;
    struct weight_types types;
    pthread_mutex_t telling;
    uint64_t total;
    struct rank_loading {
        struct loading *loading;
        atomic_uint_fast64_t done;
    } ranks[COMM_RANKS_MAX];
};

static void loading_tell(struct loading *loading)
{
    uint64_t done = 0;
    for (int r = 0; r < engine_layout(loading->engine)->rank_count; r++)
        done += atomic_load(&loading->ranks[r].done);
    if (loading->params->load_progress != NULL)
        loading->params->load_progress(loading->params->load_context, done, loading->total);
}

static void loading_report(void *context, uint64_t bytes_done)
{
    struct rank_loading *rank = context;
    /* Workers may report out of order. */
    uint64_t known = atomic_load(&rank->done);
    while (known < bytes_done && !atomic_compare_exchange_weak(&rank->done, &known, bytes_done))
        ;
    if (pthread_mutex_trylock(&rank->loading->telling) == 0) {
        loading_tell(rank->loading);
        pthread_mutex_unlock(&rank->loading->telling);
    }
}

static struct weights_share share_of(const struct engine *engine, const struct weight_types *types,
                                     int rank)
{
    struct weights_share share = {.layouts = engine->layouts,
                                  .keeps_both = engine->keeps_both,
                                  .spare_count = engine->spare_count,
                                  .rank = rank,
                                  .types = *types};
    if (engine->layouts.decode_is_packed)
        share.packed =
            backup_expert_type(&backup_form(engine->backup)->settings, engine->shape.hidden_dim);
    return share;
}

static enum status rank_load(void *context, int rank, struct error *err)
{
    struct loading *loading = context;
    struct engine *engine = loading->engine;
    struct weights_progress progress = {loading_report, &loading->ranks[rank]};
    struct weights_share share = share_of(engine, &loading->types, rank);
    return weights_load(&engine->weights[rank], box_device(engine->box, rank), engine->checkpoint,
                        &share, &progress, err);
}

static const char *types_name(const struct weight_types *types)
{
    bool is_f32 = types->matrices == DTYPE_F32;
    if (types->experts != DTYPE_INT4)
        return dtype_name(types->matrices);
    return is_f32 ? "float32 with int4 experts" : "bfloat16 with int4 experts";
}

static const char *int4_advice(const struct engine *engine, const struct weight_types *types)
{
    bool cannot = types->experts == DTYPE_INT4 || engine->layouts.decode_is_packed;
    return cannot ? "" : ", or hold the experts in --expert-dtype int4";
}

/* Of all ranks. */
static uint64_t weights_total(const struct engine *engine, const struct weight_types *types)
{
    uint64_t total = 0;
    for (int r = 0; r < engine_layout(engine)->rank_count; r++) {
        struct weights_bytes bytes;
        struct weights_share share = share_of(engine, types, r);
        weights_bytes(&bytes, checkpoint_config(engine->checkpoint), &share);
        total += bytes.resident + bytes.experts;
    }
    return total;
}

/* What the runs to come are known to take. */
static uint64_t runs_bytes(const struct engine *engine, const struct engine_params *params)
{
    const struct layout *layout = engine_layout(engine);
    const struct model_config *config = engine_config(engine);
    struct error ignored; /* who runs is told */
    int64_t sequences = params->max_num_seqs, tokens = params->max_num_batched_tokens;
    if (run_limits_check(sequences, tokens, config, layout->attention.dp, &ignored) != STATUS_OK)
        return params->kv_bytes;
    return params->kv_bytes + run_table_bytes(sequences, tokens, config->vocab_count) +
           exec_bytes(config, &engine->layouts, tokens, sequences) * (uint64_t)layout->rank_count;
}

/* A spare for each layer, so that what is read from a file can come while prefill computes: where
 * that adds little to what caches and activations are to have, and leaves what runs ask for. */
static int64_t spares_choose(struct engine *engine, const struct engine_params *params,
                             const struct weight_types *types, uint64_t there)
{
    int64_t most = engine->shape.moe_layer_count;
    uint64_t with_one = weights_total(engine, types);
    engine->spare_count = most;
    uint64_t with_most = weights_total(engine, types);
    uint64_t held = memory_counters_get().live_bytes;
    bool has_room = with_most <= there / 2 && with_most - with_one <= there / 8 &&
                    params->kv_bytes <= there &&
                    held + with_most + runs_bytes(engine, params) <= there;
    return has_room ? most : 1;
}

/* Both layouts stay resident where that was asked for; or where nobody says, and they take at most
 * half of what there is (caches and activations are to have as much) and leave what runs ask for.
 */
static void room_choose(struct engine *engine, const struct engine_params *params,
                        const struct weight_types *types)
{
    uint64_t there = system_memory_available();
    bool is_read = params->transition_is_auto
                       ? engine->layouts.decode_is_packed
                       : params->transition == WAY_RELOAD || params->transition == WAY_UPLOAD ||
                             params->transition == WAY_MIXED;
    if (!plan_layouts_differ(&engine->layouts))
        return;
    if (engine->memory_bytes > 0 && engine->memory_bytes < there)
        there = engine->memory_bytes;
    engine->keeps_both = true;
    if (params->transition_is_auto) {
        uint64_t weights = weights_total(engine, types), held = memory_counters_get().live_bytes;
        engine->keeps_both = weights <= there / 2 && params->kv_bytes <= there &&
                             held + weights + runs_bytes(engine, params) <= there;
    } else {
        engine->keeps_both = params->transition == WAY_KEEP;
    }
    if (is_read && !engine->keeps_both)
        engine->spare_count = spares_choose(engine, params, types, there);
}

const char *engine_room_advice(const struct engine *engine)
{
    if (!engine->keeps_both)
        return "";
    return engine->layouts.decode_is_packed ? ", or change the layout by --transition upload"
                                            : ", or change the layout by --transition reshard";
}

/* What upload has in memory on all ranks, the copy of a backup for which there is room aside. */
static uint64_t upload_total(const struct engine *engine, const struct engine_params *params)
{
    int ranks = engine_layout(engine)->rank_count;
    int threads = params->thread_count > 0 ? params->thread_count : thread_team_cpu_count();
    bool is_choice = params->transition_is_auto && !engine->layouts.decode_is_packed;
    if (engine->backup == NULL || engine->keeps_both || is_choice)
        return 0;
    struct upload_bytes bytes = transition_upload_bytes(
        engine->backup, (threads + ranks - 1) / ranks, engine->layouts.decode_is_packed);
    return (uint64_t)ranks * (bytes.device + bytes.host);
}

/* A sentence now rather than the kernel's killer later. */
static enum status check_memory(const struct engine *engine, const struct engine_params *params,
                                const struct weight_types *types, struct error *err)
{
    uint64_t total = weights_total(engine, types) + upload_total(engine, params);
    uint64_t available = system_memory_available();
    const char *keep = engine_room_advice(engine);
    if (engine->memory_bytes > 0 && total > engine->memory_bytes)
        return error_set(
            err, STATUS_NO_MEMORY,
            "the weights need %s as %s, and --memory is %s; raise it, or use a smaller model%s%s",
            SIZE_TEXT(total), types_name(types), SIZE_TEXT(engine->memory_bytes),
            int4_advice(engine, types), keep);
    if (total <= available)
        return STATUS_OK;
    return error_set(err, STATUS_NO_MEMORY,
                     "the weights need %s as %s, and %s of memory are available; use a smaller "
                     "model or free memory%s%s",
                     SIZE_TEXT(total), types_name(types), SIZE_TEXT(available),
                     int4_advice(engine, types), keep);
}

static void weights_drop(struct engine *engine)
{
    for (int r = 0; engine->weights != NULL && r < engine_layout(engine)->rank_count; r++)
        weights_deinit(&engine->weights[r]);
    memory_free(engine->weights);
    box_close(engine->box);
    engine->weights = NULL;
    engine->box = NULL;
}

static enum status weights_read(struct engine *engine, struct loading *loading, struct error *err)
{
    TRY(check_memory(engine, loading->params, &loading->types, err));
    TRY(box_open(&engine->box,
                 &(struct box_params){
                     .rank_count = engine_layout(engine)->rank_count,
                     .thread_count = loading->params->thread_count,
                     .tag_names = traffic_names,
                     .tag_count = TRAFFIC_KIND_COUNT,
                     .cuda = engine->has_gpus,
                     .trace = engine->trace,
                 },
                 err));
    TRY(memory_get((void **)&engine->weights, (size_t)engine_layout(engine)->rank_count,
                   sizeof *engine->weights, "the weights", err));
    return box_run(engine->box, rank_load, loading, err);
}

static enum status weights_get(struct engine *engine, const struct engine_params *params,
                               struct error *err)
{
    struct loading loading = {
        .engine = engine,
        .telling = PTHREAD_MUTEX_INITIALIZER,
        .params = params,
    };
    TRY(choose_types(&loading.types, params, checkpoint_config(engine->checkpoint), err));
    for (int r = 0; r < engine_layout(engine)->rank_count; r++) {
        uint64_t bytes;
        loading.ranks[r].loading = &loading;
        TRY(weights_bytes_on_disk(&bytes, engine->checkpoint, engine_layout(engine), r, err));
        loading.total += bytes;
    }
    room_choose(engine, params, &loading.types);
    enum status status = weights_read(engine, &loading, err);
    if (status == STATUS_NO_MEMORY && engine->keeps_both && params->transition_is_auto) {
        log_write(&params->log, LOG_INFO,
                  "there is no memory for both layouts of the experts: they change in place");
        weights_drop(engine);
        engine->keeps_both = false;
        status = weights_read(engine, &loading, err);
    }
    if (status == STATUS_OK)
        loading_tell(&loading);
    return status;
}

/* ---- Transitions ----------------------------------------------------------------------------- */

static bool changes_layout(const struct engine *engine)
{
    return plan_layouts_differ(&engine->layouts) && engine->shape.moe_layer_count > 0;
}

/* What a copy of the backup may take: what is left when runs have what they ask for, and half of it
 * where that is not known: a KV cache then takes half of what it finds, and passes want theirs. */
static uint64_t room_for_backup(const struct engine *engine, const struct engine_params *params)
{
    uint64_t there = system_memory_available(), needed = runs_bytes(engine, params);
    uint64_t held = memory_counters_get().live_bytes;
    if (engine->memory_bytes > 0) {
        uint64_t left = engine->memory_bytes > held ? engine->memory_bytes - held : 0;
        there = left < there ? left : there;
    }
    uint64_t left = there > needed ? there - needed : 0;
    return params->kv_bytes > 0 && params->max_num_seqs > 0 ? left : left / 2;
}

/* That a choice of ways fell on other weights. */
static void tell_of_upload(const struct engine *engine, const struct engine_params *params)
{
    char source[TRANSITION_SOURCE_BYTES];
    transition_source(source, engine->transition);
    log_write(&params->log, LOG_INFO,
              "decode runs on the experts of the INT4 backup %s, read from: %s; --policy exact "
              "forbids it",
              backup_path(engine->backup), source);
}

static enum status transition_get(struct engine *engine, const struct engine_params *params,
                                  struct error *err)
{
    struct expert_slots *slots[COMM_RANKS_MAX];
    if (!changes_layout(engine))
        return STATUS_OK;
    for (int r = 0; r < engine_layout(engine)->rank_count; r++)
        slots[r] = &engine->weights[r].experts;
    TRY(transition_create(&engine->transition,
                          &(struct transition_params){
                              .box = engine->box,
                              .checkpoint = engine->checkpoint,
                              .backup = engine->backup,
                              .shape = &engine->shape,
                              .layouts = &engine->layouts,
                              .slots = slots,
                              .is_auto = params->transition_is_auto,
                              .way = params->transition,
                              .memory_available = room_for_backup(engine, params),
                              .memory_lockable = system_memory_lockable(),
                              .log = params->log,
                          },
                          err));
    if (params->transition_is_auto && !engine->layouts.decode_is_packed &&
        transition_way(engine->transition) == WAY_UPLOAD)
        tell_of_upload(engine, params);
    return STATUS_OK;
}

struct transition *engine_transition(const struct engine *engine)
{
    return engine->transition;
}

struct trace *engine_trace(const struct engine *engine)
{
    return engine->trace;
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
 * what prefill needs begins to come, where there is room; the rest comes between passes. */
enum status engine_enter(struct engine *engine, const struct generator_pass *pass,
                         struct exec_hooks *hooks, struct error *err)
{
    struct transition *transition = engine->transition;
    if (transition == NULL)
        return STATUS_OK;
    bool is_prefill = pass->phase == PHASE_PREFILL;
    bool is_under_way = transition_is_under_way(transition);
    hooks->context = transition;
    engine->has_awaited = !is_prefill && is_under_way && engine->has_let_go;
    if (engine->has_awaited) {
        hooks->experts_await = experts_await;
        return STATUS_OK;
    }
    /* What is under way has moved nothing as long as no layer was let go: with more of the same
     * phase it goes on; the other phase, if it should come now, lets go of all. */
    if (!is_under_way || engine->has_let_go || engine->goal == pass->phase)
        TRY(transition_run(transition, pass->phase, err));
    engine->has_let_go = pass->is_last;
    if (engine_moves_weights(engine) && is_prefill)
        start(engine, PHASE_DECODE);
    else if (engine_moves_weights(engine) && pass->is_tail)
        start(engine, PHASE_PREFILL);
    if (engine->has_let_go)
        hooks->experts_done = experts_done;
    return STATUS_OK;
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

static enum status engine_load(struct engine *engine, const struct engine_params *params,
                               struct error *err)
{
    struct engine_devices devices = {.rank_count = 0}; /* as many as the plan has */
    TRY(trace_create(&engine->trace, err));
    engine->lane = trace_lane_add(engine->trace, -1, "run");
    if (params->devices != NULL || params->plan == NULL)
        TRY(engine_devices_parse(&devices, params->devices, err));
    engine->has_gpus = devices.cuda;
    TRY(hub_resolve(&engine->dir, params->model, params->revision, err));
    TRY(checkpoint_open(&engine->checkpoint, engine->dir, err));
    TRY(engine_plan_parse(&engine->layouts, params->plan, checkpoint_config(engine->checkpoint),
                          devices.rank_count, err));
    engine->shape = weights_shape(engine_config(engine));
    TRY(tokenizer_load(engine, params, err));
    if (changes_layout(engine))
        TRY(engine_backup_open(&engine->backup, engine->checkpoint, params,
                               engine->layouts.decode_is_packed, err));
    else
        engine_backup_pass_over(params, engine->shape.moe_layer_count > 0);
    TRY(weights_get(engine, params, err));
    return transition_get(engine, params, err);
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
    transition_destroy(engine->transition);
    backup_close(engine->backup);
    weights_drop(engine);
    trace_destroy(engine->trace);
    tokenizer_close(engine->tokenizer);
    checkpoint_close(engine->checkpoint);
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

uint64_t engine_memory_bytes(const struct engine *engine)
{
    return engine->memory_bytes;
}

enum status engine_exec_create(struct exec **out, struct engine *engine, int64_t token_max,
                               int64_t segment_max, struct error *err)
{
    return exec_create(out,
                       &(struct exec_params){
                           .box = engine->box,
                           .config = engine_config(engine),
                           .layouts = &engine->layouts,
                           .weights = engine->weights,
                           .token_max = token_max,
                           .segment_max = segment_max,
                       },
                       err);
}

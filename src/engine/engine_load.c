#include "engine/engine_state.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/memory.h"
#include "base/system.h"
#include "engine/engine_backup.h"
#include "engine/engine_images.h"
#include "engine/engine_room.h"
#include "engine/prefill_trial.h"

/* ---- Weights --------------------------------------------------------------------------------- */

/* What all ranks have read so far. Whoever has read something tells, one at a time. */
struct loading {
    struct engine *engine;
    const struct engine_params *params;
    const struct engine_room *room;
    struct engine_images images;
    pthread_mutex_t telling;
    atomic_bool is_stopped; /* by the answer */
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
    if (loading->params->load_progress != NULL &&
        loading->params->load_progress(loading->params->load_context, done, loading->total) != 0)
        atomic_store(&loading->is_stopped, true);
}

/* Who goes on loads nothing for a rank that has failed: of a large checkpoint that takes minutes.
 */
static enum status loading_check(struct loading *loading, struct error *err)
{
    if (atomic_load(&loading->is_stopped))
        return error_set(err, STATUS_CANCELLED, "loading the weights was stopped");
    return comm_domain_failure(box_domain(loading->engine->box), err);
}

static enum status loading_report(void *context, uint64_t bytes_done, struct error *err)
{
    struct rank_loading *rank = context;
    /* Workers may report out of order. */
    uint64_t known = atomic_load(&rank->done);
    while (known < bytes_done && !atomic_compare_exchange_weak(&rank->done, &known, bytes_done))
        ;
    if (pthread_mutex_trylock(&rank->loading->telling) == 0) {
        if (!atomic_load(&rank->loading->is_stopped))
            loading_tell(rank->loading);
        pthread_mutex_unlock(&rank->loading->telling);
    }
    return loading_check(rank->loading, err);
}

static void image_refused(void *context, const struct error *reason)
{
    struct rank_loading *rank = context;
    log_write(&rank->loading->params->log, LOG_WARNING,
              "--weights-cache: %s; the weights are packed again", reason->message);
}

static enum status rank_load(void *context, int rank, struct error *err)
{
    struct loading *loading = context;
    struct engine *engine = loading->engine;
    struct weights_progress progress = {
        .report = loading_report,
        .context = &loading->ranks[rank],
        .image_refused = image_refused,
    };
    struct weights_share share = engine_room_share(loading->room, rank);
    share.image = engine_images_of(&loading->images, rank);
    return weights_load(&engine->weights[rank], box_device(engine->box, rank), engine->checkpoint,
                        &share, &progress, err);
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

static enum status box_get(struct engine *engine, struct engine_room *room, struct error *err)
{
    TRY(box_open(&engine->box,
                 &(struct box_params){
                     .rank_count = engine_layout(engine)->rank_count,
                     .thread_count = room->params->thread_count,
                     .tag_names = traffic_names,
                     .tag_count = TRAFFIC_KIND_COUNT,
                     .gpus = engine->devices.cuda ? engine->devices.gpus : NULL,
                     .turn = engine->turn,
                     .trace = engine->trace,
                     .links = engine->devices.link_mb > 0 ? engine_devices_links(&engine->devices)
                                                          : room->params->links,
                     .log = room->params->log,
                 },
                 err));
    room->box = engine->box;
    return STATUS_OK;
}

static enum status weights_read(struct engine *engine, struct loading *loading, struct error *err)
{
    TRY(engine_room_check(loading->room, err));
    TRY(memory_get((void **)&engine->weights, (size_t)engine_layout(engine)->rank_count,
                   sizeof *engine->weights, "the weights", err));
    return box_run(engine->box, rank_load, loading, err);
}

static void tell_of_spares(const struct engine_room *room)
{
    if (room->spare_count > 0 && !room->keeps_both)
        log_write(&room->params->log, LOG_DEBUG,
                  "there is room to read the experts of %lld of %lld layers ahead of a change of "
                  "layout",
                  (long long)room->spare_count, (long long)room->shape->moe_layer_count);
}

/* In place where the memory for both layouts turns out not to be there. */
static enum status weights_read_all(struct engine *engine, struct engine_room *room,
                                    struct loading *loading, struct error *err)
{
    const struct engine_params *params = room->params;
    enum status status = weights_read(engine, loading, err);
    if (status != STATUS_NO_MEMORY || !room->keeps_both || !params->transition_is_auto)
        return status;
    log_write(&params->log, LOG_INFO,
              "there is no memory for both layouts of the experts: they change in place");
    weights_drop(engine);
    room->keeps_both = false;
    TRY(box_get(engine, room, err));
    return weights_read(engine, loading, err);
}

static enum status weights_get(struct engine *engine, struct engine_room *room, struct error *err)
{
    const struct engine_params *params = room->params;
    struct loading loading = {
        .engine = engine,
        .telling = PTHREAD_MUTEX_INITIALIZER,
        .params = params,
        .room = room,
    };
    for (int r = 0; r < engine_layout(engine)->rank_count; r++) {
        uint64_t bytes;
        loading.ranks[r].loading = &loading;
        TRY(weights_bytes_on_disk(&bytes, engine->checkpoint, engine_layout(engine), r, err));
        loading.total += bytes;
    }
    TRY(box_get(engine, room, err));
    engine_room_choose(room);
    TRY(engine_images_find(&loading.images, room, engine->checkpoint, err));
    enum status status = weights_read_all(engine, room, &loading, err);
    engine->keeps_both = room->keeps_both;
    if (status == STATUS_OK) {
        loading_tell(&loading);
        tell_of_spares(room);
    }
    enum status stopped = loading_check(&loading, err); /* in whichever rank it was heard of */
    status = stopped == STATUS_OK ? status : stopped;
    if (status == STATUS_OK)
        status = engine_images_leave(&loading.images, engine->box, engine->weights, params, err);
    engine_images_deinit(&loading.images);
    return status;
}

/* ---- Transitions ----------------------------------------------------------------------------- */

static bool changes_layout(const struct engine *engine)
{
    return plan_layouts_differ(&engine->layouts) && engine->shape.moe_layer_count > 0;
}

struct exec_params engine_exec_params(const struct engine *engine)
{
    return (struct exec_params){
        .box = engine->box,
        .config = engine_config(engine),
        .layouts = &engine->layouts,
        .weights = engine->weights,
    };
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

/* Where there are ways to choose from. Without room for a pass nothing is known. */
static enum status prefill_seconds_get(double *seconds, const struct engine *engine,
                                       const struct engine_room *room, struct error *err)
{
    const struct engine_params *params = room->params;
    struct exec_params exec = engine_exec_params(engine);
    *seconds = 0;
    if (!params->transition_is_auto || engine->keeps_both || engine->layouts.decode_is_packed)
        return STATUS_OK;
    exec.token_max =
        prefill_trial_tokens(exec.config, engine_layout(engine), params->max_num_batched_tokens);
    exec.segment_max = engine_layout(engine)->attention.dp;
    if (prefill_trial_bytes(&exec) > engine_room_left(room))
        return STATUS_OK;
    return prefill_trial(seconds, &exec, err);
}

static enum status transition_get(struct engine *engine, const struct engine_room *room,
                                  struct error *err)
{
    const struct engine_params *params = room->params;
    struct expert_slots *slots[COMM_RANKS_MAX];
    double prefill_seconds;
    if (!changes_layout(engine))
        return STATUS_OK;
    TRY(prefill_seconds_get(&prefill_seconds, engine, room, err));
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
                              .keeps_format = params->keeps_format,
                              .prefill_seconds = prefill_seconds,
                              .way = params->transition,
                              .memory_available = engine_room_for_backup(room),
                              .memory_lockable = system_memory_lockable(),
                              .log = params->log,
                          },
                          err));
    if (params->transition_is_auto && !engine->layouts.decode_is_packed &&
        transition_way(engine->transition) == WAY_UPLOAD)
        tell_of_upload(engine, params);
    return STATUS_OK;
}

/* ---- Both ------------------------------------------------------------------------------------ */

static enum status backup_get(struct engine *engine, const struct engine_params *params,
                              struct error *err)
{
    if (changes_layout(engine))
        return engine_backup_open(&engine->backup, engine->checkpoint, params,
                                  engine->layouts.decode_is_packed, err);
    engine_backup_pass_over(params, engine->shape.moe_layer_count > 0);
    return STATUS_OK;
}

static enum status weights_and_ways_get(struct engine *engine, const struct engine_params *params,
                                        const struct weight_types *types, struct error *err)
{
    TRY(backup_get(engine, params, err));
    struct engine_room room = {
        .params = params,
        .config = engine_config(engine),
        .shape = &engine->shape,
        .layouts = &engine->layouts,
        .backup = engine->backup,
        .types = *types,
        .cache_bytes = engine->cache_bytes,
    };
    TRY(weights_get(engine, &room, err));
    return transition_get(engine, &room, err);
}

enum status engine_plan_load(struct engine *engine, struct engine_params *chosen,
                             const struct weight_types *types, struct error *err)
{
    if (chosen->max_num_seqs > 0 && chosen->max_num_batched_tokens == 0)
        chosen->max_num_batched_tokens = engine_pass_tokens(engine, chosen->max_num_seqs);
    return weights_and_ways_get(engine, chosen, types, err);
}

void engine_plan_drop(struct engine *engine)
{
    transition_destroy(engine->transition);
    backup_close(engine->backup);
    weights_drop(engine);
    engine->transition = NULL;
    engine->backup = NULL;
    engine->has_let_go = engine->has_awaited = false;
}

#include "transition/transition.h"

#include "base/memory.h"
#include "base/system.h"
#include "transition/granule_reader.h"
#include "transition/transition_state.h"

/* ---- Move lists ------------------------------------------------------------------------------ */

enum status move_list_init(struct move_list *out, const struct transition *transition,
                           enum phase phase, int rank, struct move_rules rules, struct error *err)
{
    const struct transition_params *params = &transition->params;
    const struct layout *from = &params->layouts->of[phase_other(phase)];
    const struct layout *to = &params->layouts->of[phase];
    out->count = moves_list(NULL, 0, params->shape, from, to, rank, rules);
    TRY(memory_get((void **)&out->moves, (size_t)out->count, sizeof *out->moves, "the transition",
                   err));
    moves_list(out->moves, out->count, params->shape, from, to, rank, rules);
    return STATUS_OK;
}

void move_list_deinit(struct move_list *list)
{
    memory_free(list->moves);
    *list = (struct move_list){0};
}

/* ---- The choice of a way --------------------------------------------------------------------- */

/* The first layer that can be moved; -1: none has experts. */
static int64_t first_layer(const struct transition *transition)
{
    for (int64_t layer = 0; layer < transition->params.shape->layer_count; layer++) {
        if (layer_has_to_move(transition, layer, PHASE_DECODE))
            return layer;
    }
    return -1;
}

/* There by the way, and back by that or the one that gives prefill its weights. */
static void transition_ways_set(struct transition *transition, enum way way)
{
    transition->way[PHASE_DECODE] = way;
    transition->way[PHASE_PREFILL] = way == WAY_UPLOAD ? WAY_RELOAD : way;
}

/* Seconds of one layer by a way, whose result is left in the target; negative where it refuses. */
static enum status way_probe(double *seconds, struct transition *transition, enum way way,
                             int64_t layer, struct error *err)
{
    bool has_refused, has_room = layer_reserve(transition, layer, PHASE_DECODE);
    ASSERT(has_room);
    double start = system_seconds();
    enum status status = layer_fill(transition, way, layer, PHASE_DECODE, &has_refused, err);
    layer_give_back(transition, layer, PHASE_DECODE);
    *seconds = has_refused ? -1 : system_seconds() - start;
    return has_refused ? STATUS_OK : status;
}

/* By a change of one layer there and back, as far as it can be tried here: from the backup's
 * weights a reload reads more. */
static enum status ways_probe(struct transition *transition, struct error *err)
{
    int64_t layer = first_layer(transition);
    double seconds[WAY_COUNT] = {0};
    transition_ways_set(transition, WAY_RESHARD);
    if (layer < 0)
        return STATUS_OK;
    for (int way = WAY_RESHARD; way < WAY_COUNT; way++) {
        seconds[way] = -1;
        if (transition->is_open[way])
            TRY(way_probe(&seconds[way], transition, (enum way)way, layer, err));
    }
    double reshard = 2 * seconds[WAY_RESHARD], reload = 2 * seconds[WAY_RELOAD];
    double upload = seconds[WAY_UPLOAD] + seconds[WAY_RELOAD];
    bool may_reload = seconds[WAY_RELOAD] >= 0, may_upload = may_reload && seconds[WAY_UPLOAD] >= 0;
    if (may_reload && reload < reshard)
        transition_ways_set(transition, WAY_RELOAD);
    if (may_upload && upload < reshard && upload < reload)
        transition_ways_set(transition, WAY_UPLOAD);
    log_write(&transition->params.log, LOG_DEBUG,
              "a layer's experts change their layout there and back in %.6f s by reshard, in %.6f "
              "s by reload, in %.6f s by upload and reload (below 0: not possible): %s",
              reshard, reload, upload, way_names[transition->way[PHASE_DECODE]]);
    return STATUS_OK;
}

/* The second layout of resident slots. */
static enum status both_fill(struct transition *transition, enum way way, struct error *err)
{
    bool has_refused;
    for (int64_t layer = 0; layer < transition->params.shape->layer_count; layer++) {
        if (!layer_has_to_move(transition, layer, PHASE_DECODE))
            continue;
        enum status status = layer_fill(transition, way, layer, PHASE_DECODE, &has_refused, err);
        if (status != STATUS_OK)
            return error_prefix(err, status, "layer %lld, its experts for decode by %s",
                                (long long)layer, way_names[way]);
    }
    return STATUS_OK;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static void way_close(struct transition *transition, enum way way)
{
    transition->is_open[way] = false;
    for (int r = 0; r < transition->rank_count; r++)
        ways[way]->close(&transition->ranks[r]);
}

static enum status way_open(struct transition *transition, enum way way, struct error *err)
{
    enum status status = STATUS_OK;
    for (int r = 0; r < transition->rank_count && status == STATUS_OK; r++)
        status = ways[way]->open(&transition->ranks[r], err);
    transition->is_open[way] = status == STATUS_OK;
    if (status != STATUS_OK)
        way_close(transition, way);
    return status;
}

/* One that is not needed, only there to choose from: it may want what is not there. */
static enum status way_offer(struct transition *transition, enum way way, struct error *err)
{
    enum status status = way_open(transition, way, err);
    return status == STATUS_NO_MEMORY || status == STATUS_UNSUPPORTED ? STATUS_OK : status;
}

/* Packed slices come from the backup alone: of that there is no choice. */
static bool may_choose(const struct transition *transition)
{
    const struct transition_params *params = &transition->params;
    return params->is_auto && !transition->ranks[0].slots->keeps_both &&
           !params->layouts->decode_is_packed;
}

/* Resident slots are filled by it. */
static enum way way_to_fill(const struct transition *transition)
{
    return transition->params.layouts->decode_is_packed ? WAY_UPLOAD : WAY_RESHARD;
}

/* The way of params, or what is_auto means where there is no choice. */
static enum way way_given(const struct transition *transition)
{
    if (!transition->params.is_auto)
        return transition->params.way;
    return transition->ranks[0].slots->keeps_both ? WAY_KEEP : WAY_UPLOAD;
}

/* Reshard stands by for what others cannot do. */
static enum status ways_open(struct transition *transition, struct error *err)
{
    const struct transition_params *params = &transition->params;
    if (!may_choose(transition)) {
        enum way way = way_given(transition);
        TRY(way_open(transition, way, err));
        if (way == WAY_KEEP)
            return way_open(transition, way_to_fill(transition), err);
        return way == WAY_UPLOAD ? way_open(transition, WAY_RELOAD, err) : STATUS_OK;
    }
    TRY(way_open(transition, WAY_RESHARD, err));
    TRY(way_offer(transition, WAY_RELOAD, err));
    return params->backup == NULL ? STATUS_OK : way_offer(transition, WAY_UPLOAD, err);
}

static enum status ranks_create(struct transition *transition, struct error *err)
{
    const struct transition_params *params = &transition->params;
    struct comm *ends[COMM_RANKS_MAX];
    int members[COMM_RANKS_MAX];
    TRY(memory_get((void **)&transition->ranks, (size_t)transition->rank_count,
                   sizeof *transition->ranks, "the transition", err));
    for (int r = 0; r < transition->rank_count; r++) {
        struct device *device = box_device(params->box, r);
        ASSERT(params->slots[r]->keeps_both == params->slots[0]->keeps_both);
        transition->ranks[r] = (struct transition_rank){.transition = transition,
                                                        .index = r,
                                                        .device = device,
                                                        .ops = device->ops,
                                                        .slots = params->slots[r],
                                                        .awaits = AWAITS_ALL};
        members[r] = r;
        TRY(device->ops->stream_create(device, &transition->ranks[r].beside, STREAM_LOW, err));
    }
    TRY(thread_team_create(&transition->hosts, transition->rank_count, -1, err));
    TRY(comm_create(ends, box_domain(params->box), members, transition->rank_count, err));
    for (int r = 0; r < transition->rank_count; r++)
        transition->ranks[r].world = ends[r];
    return STATUS_OK;
}

static enum status transition_open(struct transition *transition, struct error *err)
{
    const struct transition_params *params = &transition->params;
    TRY(mover_init(transition, err));
    TRY(memory_get((void **)&transition->origins, (size_t)params->shape->layer_count,
                   sizeof *transition->origins, "the transition", err));
    TRY(memory_get((void **)&transition->filled_by, (size_t)params->shape->layer_count,
                   sizeof *transition->filled_by, "the transition", err));
    TRY(memory_get((void **)&transition->released, (size_t)params->shape->layer_count,
                   sizeof *transition->released, "the transition", err));
    TRY(ranks_create(transition, err));
    for (int64_t layer = 0; layer < params->shape->layer_count; layer++) {
        const struct expert_slots *slots = transition->ranks[0].slots;
        transition->origins[layer] =
            (struct transition_origin){.has_experts = expert_slots_has(slots, layer),
                                       .phase = slots->layers[layer].phase,
                                       .is_loaded = true};
    }
    TRY(ways_open(transition, err));
    /* What nobody has written to has no pages: it would count as free when caches are measured, and
     * the first layer that moves would wait for them. */
    TRY(spares_poison(transition, err));
    if (may_choose(transition))
        return ways_probe(transition, err);
    transition_ways_set(transition, way_given(transition));
    bool keeps_both = transition->ranks[0].slots->keeps_both;
    ASSERT(keeps_both == (transition->way[PHASE_DECODE] == WAY_KEEP));
    if (!keeps_both)
        return STATUS_OK;
    TRY(both_fill(transition, way_to_fill(transition), err));
    way_close(transition, way_to_fill(transition));
    return STATUS_OK;
}

enum status transition_create(struct transition **out, const struct transition_params *params,
                              struct error *err)
{
    struct transition *transition;
    ASSERT(plan_layouts_differ(params->layouts));
    ASSERT(!params->layouts->decode_is_packed || params->is_auto || params->way == WAY_KEEP ||
           params->way == WAY_UPLOAD);
    TRY(memory_get((void **)&transition, 1, sizeof *transition, "the transition", err));
    transition->params = *params;
    transition->rank_count = box_rank_count(params->box);
    enum status status = transition_open(transition, err);
    if (status != STATUS_OK) {
        transition_destroy(transition);
        return status;
    }
    mover_lend_all(transition, false);
    *out = transition;
    return STATUS_OK;
}

void transition_destroy(struct transition *transition)
{
    if (transition == NULL)
        return;
    mover_deinit(transition);
    thread_team_destroy(transition->hosts);
    for (int r = 0; transition->ranks != NULL && r < transition->rank_count; r++) {
        for (int way = 0; way < WAY_COUNT; way++)
            ways[way]->close(&transition->ranks[r]);
        comm_destroy(transition->ranks[r].world);
        if (transition->ranks[r].beside != NULL)
            transition->ranks[r].ops->stream_destroy(transition->ranks[r].device,
                                                     transition->ranks[r].beside);
    }
    memory_free(transition->ranks);
    memory_free(transition->released);
    memory_free(transition->filled_by);
    memory_free(transition->origins);
    memory_free(transition);
}

struct transition_origin transition_layer(const struct transition *transition, int64_t layer)
{
    transition_lock(transition);
    struct transition_origin origin = transition->origins[layer];
    origin.is_int4 = layer_is_int4(transition, layer);
    transition_unlock(transition);
    return origin;
}

enum way transition_way(const struct transition *transition)
{
    transition_lock(transition);
    enum way way = transition->way[PHASE_DECODE];
    transition_unlock(transition);
    return way;
}

void transition_source(char out[TRANSITION_SOURCE_BYTES], const struct transition *transition)
{
    out[0] = 0;
    if (transition->granules != NULL)
        granule_readers_source(out, transition->granules);
}

struct transition_counters transition_counters_get(const struct transition *transition)
{
    transition_lock(transition);
    struct transition_counters counters = transition->counters;
    transition_unlock(transition);
    return counters;
}

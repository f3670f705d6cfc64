#include "transition/transition.h"

#include "base/memory.h"
#include "base/trace.h"
#include "transition/exposed.h"
#include "transition/granule_reader.h"
#include "transition/transition_state.h"

/* ---- Move lists ------------------------------------------------------------------------------ */

static bool part_has(struct expert_part part, int64_t expert)
{
    bool is_in = (expert + 1) * part.of_16 / 16 > expert * part.of_16 / 16;
    return is_in != part.is_of_others;
}

enum status move_list_init(struct move_list *out, const struct transition *transition,
                           enum phase phase, int rank, struct move_rules rules,
                           struct expert_part part, struct error *err)
{
    const struct transition_params *params = &transition->params;
    const struct layout *from = &params->layouts->of[phase_other(phase)];
    const struct layout *to = &params->layouts->of[phase];
    out->count = moves_list(NULL, 0, params->shape, from, to, rank, rules);
    TRY(memory_get((void **)&out->moves, (size_t)out->count, sizeof *out->moves, "the transition",
                   err));
    moves_list(out->moves, out->count, params->shape, from, to, rank, rules);
    int64_t kept = 0;
    for (int64_t m = 0; m < out->count; m++) {
        if (part_has(part, out->moves[m].expert))
            out->moves[kept++] = out->moves[m];
    }
    out->count = kept;
    return STATUS_OK;
}

void move_list_deinit(struct move_list *list)
{
    memory_free(list->moves);
    *list = (struct move_list){0};
}

/* ---- Life ------------------------------------------------------------------------------------ */

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
        transition->ranks[r] =
            (struct transition_rank){.transition = transition,
                                     .index = r,
                                     .device = device,
                                     .ops = device->ops,
                                     .slots = params->slots[r],
                                     .part = ALL_EXPERTS,
                                     .reads = trace_lane_add(box_trace(params->box), r, "files"),
                                     .awaits = AWAITS_ALL};
        members[r] = r;
        record_lane_set(transition->ranks[r].reads, RECORD_LANE_READS);
        TRY(device->ops->stream_create(device, &transition->ranks[r].beside, STREAM_LOW, err));
        transition->ranks[r].beside_lane =
            stream_lane(&transition->ranks[r], transition->ranks[r].beside);
        TRY(device->ops->synchronize(transition->ranks[r].beside, err));
    }
    TRY(box_hosts_init(&transition->hosts, params->box, "reads", err));
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
    TRY(memory_get((void **)&transition->releases,
                   (size_t)params->shape->layer_count * (size_t)transition->rank_count,
                   sizeof *transition->releases, "the transition", err));
    TRY(memory_get((void **)&transition->swaps, (size_t)params->shape->layer_count,
                   sizeof *transition->swaps, "the transition", err));
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
    return way_choose(transition, err);
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
    box_hosts_deinit(&transition->hosts);
    for (int r = 0; transition->ranks != NULL && r < transition->rank_count; r++) {
        for (int way = 0; way < WAY_COUNT; way++)
            ways[way]->close(&transition->ranks[r]);
        comm_destroy(transition->ranks[r].world);
        if (transition->ranks[r].beside != NULL)
            transition->ranks[r].ops->stream_destroy(transition->ranks[r].device,
                                                     transition->ranks[r].beside);
    }
    memory_free(transition->ranks);
    memory_free(transition->swaps);
    memory_free(transition->releases);
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

static uint64_t own_bytes(enum way way, const struct expert_slots_params *slots,
                          const struct device *device)
{
    return ways[way]->bytes == NULL ? 0 : ways[way]->bytes(slots, device);
}

uint64_t transition_way_bytes(enum way way, const struct expert_slots_params *slots,
                              const struct device *device)
{
    enum way back = way_back(way);
    return device->ops->stream_bytes() + own_bytes(way, slots, device) +
           (back == way ? 0 : own_bytes(back, slots, device));
}

struct transition_counters transition_counters_get(const struct transition *transition)
{
    transition_lock(transition);
    struct transition_counters counters = transition->counters;
    transition_unlock(transition);
    return counters;
}

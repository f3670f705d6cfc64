#include "engine/engine_room.h"

#include "base/memory.h"
#include "base/size_text.h"
#include "base/system.h"
#include "engine/run_limits.h"
#include "exec/exec.h"
#include "exec/weight_slices.h"

/* ---- What is taken --------------------------------------------------------------------------- */

static int rank_count(const struct engine_room *room)
{
    return room->layouts->of[PHASE_PREFILL].rank_count;
}

struct weights_share engine_room_share(const struct engine_room *room, int rank)
{
    struct weights_share share = {.layouts = *room->layouts,
                                  .keeps_both = room->keeps_both,
                                  .spare_count = room->spare_count,
                                  .rank = rank,
                                  .types = room->types};
    if (room->layouts->decode_is_packed)
        share.packed =
            backup_expert_type(&backup_form(room->backup)->settings, room->shape->hidden_dim);
    return share;
}

/* Of all ranks; where each has its own memory all count as the fullest. */
static uint64_t weights_total(const struct engine_room *room)
{
    uint64_t total = 0, most = 0;
    for (int r = 0; r < rank_count(room); r++) {
        struct weights_bytes bytes;
        struct weights_share share = engine_room_share(room, r);
        weights_bytes(&bytes, room->config, &share);
        uint64_t own = bytes.resident + bytes.experts;
        total += own;
        most = own > most ? own : most;
    }
    return box_memory_is_apart(room->box) ? most * (uint64_t)rank_count(room) : total;
}

/* Those that were asked for, and what comes beside each page of them. */
static uint64_t cache_bytes(const struct engine_room *room)
{
    struct run_page page =
        run_page_bytes(room->config, &room->layouts->of[PHASE_PREFILL], room->types.matrices);
    uint64_t kv = room->params->kv_bytes;
    return kv + (kv / page.kv + 1) * page.beside;
}

/* What the runs to come are known to take. */
static uint64_t runs_bytes(const struct engine_room *room)
{
    const struct engine_params *params = room->params;
    const struct layout *layout = &room->layouts->of[PHASE_PREFILL];
    struct error ignored; /* who runs is told */
    int64_t sequences = params->max_num_seqs, tokens = params->max_num_batched_tokens;
    if (run_limits_check(sequences, tokens, room->config, layout->attention.dp, &ignored) !=
        STATUS_OK)
        return cache_bytes(room);
    return cache_bytes(room) + run_table_bytes(sequences, tokens, room->config->vocab_count) +
           exec_bytes(room->config, room->layouts, tokens, sequences) *
               (uint64_t)layout->rank_count;
}

/* Beside the slots. */
static uint64_t rank_way_bytes(const struct engine_room *room, int rank, enum way way)
{
    struct weights_share share = engine_room_share(room, rank);
    const struct device *device = box_device(room->box, rank);
    struct upload_bytes upload = {0, 0};
    struct expert_slots_params slots;
    struct model_shape shape;
    bool has_experts[MODEL_LAYERS_MAX];
    weight_slices_slots(&slots, &shape, has_experts, room->config, &share);
    if (way == WAY_UPLOAD && room->backup != NULL)
        upload = transition_upload_bytes(room->backup, device, room->layouts->decode_is_packed);
    if (box_memory_is_apart(room->box))
        return upload.device;
    return upload.device + upload.host + transition_way_bytes(way, &slots, device);
}

static uint64_t way_bytes(const struct engine_room *room, enum way way)
{
    uint64_t total = 0;
    for (int r = 0; r < rank_count(room); r++)
        total += rank_way_bytes(room, r, way);
    return total;
}

/* Of all ranks, what changing layouts takes beside the slots: by the way that is given, or where it
 * is to be chosen by the one that takes least or most: what is there when it has been, not all that
 * is there while it is. A copy of a backup is not in it: that takes what this leaves. */
static uint64_t transition_bytes(const struct engine_room *room, bool is_most)
{
    const struct engine_params *params = room->params;
    uint64_t most = 0;
    if (!plan_layouts_differ(room->layouts))
        return 0;
    if (room->keeps_both || !params->transition_is_auto)
        return way_bytes(room, room->keeps_both ? WAY_KEEP : params->transition);
    if (room->layouts->decode_is_packed || !is_most)
        return way_bytes(room, room->layouts->decode_is_packed ? WAY_UPLOAD : WAY_RESHARD);
    for (enum way way = WAY_RESHARD; way < WAY_COUNT; way++) {
        uint64_t bytes = way == WAY_UPLOAD && room->backup == NULL ? 0 : way_bytes(room, way);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* ---- What is chosen -------------------------------------------------------------------------- */

static bool fits(const struct engine_room *room, uint64_t weights, uint64_t there)
{
    uint64_t held = box_memory_held(room->box), named = room->params->kv_bytes;
    uint64_t cache = named > 0 ? named : room->cache_bytes;
    return weights <= there / 2 && cache <= there &&
           held + weights + transition_bytes(room, true) + runs_bytes(room) + (cache - named) <=
               there;
}

/* With so many they add little to what caches and activations are to have, and leave what runs ask
 * for; and as much again, for what nobody says. */
static bool spares_fit(struct engine_room *room, int64_t count, uint64_t there)
{
    room->spare_count = 1;
    uint64_t with_one = weights_total(room);
    room->spare_count = count;
    uint64_t with_all = weights_total(room), added = with_all - with_one;
    return added <= there / 8 && fits(room, with_all + added, there);
}

/* A spare for each layer, so that what is read from a file can come while prefill computes; or for
 * as many as can be, but where the cache has what a budget leaves, and neither a plan nor a limit
 * says how much that is to be: it may need all. */
static int64_t spares_choose(struct engine_room *room, uint64_t there)
{
    const struct engine_params *params = room->params;
    bool is_cache_known = params->kv_bytes > 0 || room->cache_bytes > 0;
    bool may_be_some = params->memory_bytes == 0 || (is_cache_known && params->max_num_seqs > 0);
    int64_t count = room->shape->moe_layer_count;
    while (count > 1 && !spares_fit(room, count, there))
        count = may_be_some ? count - 1 : 1;
    return count > 1 ? count : 1;
}

void engine_room_choose(struct engine_room *room)
{
    const struct engine_params *params = room->params;
    uint64_t there = box_memory_left(room->box);
    if (!plan_layouts_differ(room->layouts))
        return;
    if (params->memory_bytes > 0 && params->memory_bytes < there)
        there = params->memory_bytes;
    room->keeps_both = true; /* for what that would take */
    room->keeps_both = params->transition_is_auto ? fits(room, weights_total(room), there)
                                                  : params->transition == WAY_KEEP;
    bool may_read = params->transition_is_auto || params->transition != WAY_RESHARD;
    if (may_read && !room->keeps_both)
        room->spare_count = spares_choose(room, there);
}

uint64_t engine_room_left(const struct engine_room *room)
{
    uint64_t there = box_memory_left(room->box), held = box_memory_held(room->box);
    uint64_t budget = room->params->memory_bytes;
    if (budget == 0)
        return there;
    uint64_t left = budget > held ? budget - held : 0;
    return left < there ? left : there;
}

/* Half of it where what runs ask for is not known: a KV cache then takes half of what it finds, and
 * passes want theirs. */
uint64_t engine_room_for_backup(const struct engine_room *room)
{
    const struct engine_params *params = room->params;
    bool is_apart = box_memory_is_apart(room->box);
    uint64_t there = is_apart ? system_memory_available() : engine_room_left(room);
    uint64_t needed = is_apart ? 0 : runs_bytes(room) + way_bytes(room, WAY_UPLOAD);
    uint64_t left = there > needed ? there - needed : 0;
    return params->kv_bytes > 0 && params->max_num_seqs > 0 ? left : left / 2;
}

/* ---- Where it is too much -------------------------------------------------------------------- */

static const char *types_name(const struct weight_types *types)
{
    bool is_f32 = types->matrices == DTYPE_F32;
    if (types->experts != DTYPE_INT4)
        return dtype_name(types->matrices);
    return is_f32 ? "float32 with int4 experts" : "bfloat16 with int4 experts";
}

static const char *int4_advice(const struct engine_room *room)
{
    bool cannot = room->types.experts == DTYPE_INT4 || room->layouts->decode_is_packed;
    return cannot ? "" : ", or hold the experts in --expert-dtype int4";
}

const char *room_advice(bool keeps_both, bool is_packed)
{
    if (!keeps_both)
        return "";
    return is_packed ? ", or change the layout by --transition upload"
                     : ", or change the layout by --transition reshard";
}

enum status engine_room_check(const struct engine_room *room, struct error *err)
{
    uint64_t total = weights_total(room) + transition_bytes(room, false);
    uint64_t available = box_memory_left(room->box), budget = room->params->memory_bytes;
    const char *keep = room_advice(room->keeps_both, room->layouts->decode_is_packed);
    if (budget > 0 && total > budget)
        return error_set(
            err, STATUS_NO_MEMORY,
            "the weights need %s as %s, and --memory is %s; raise it, or use a smaller model%s%s",
            SIZE_TEXT(total), types_name(&room->types), SIZE_TEXT(budget), int4_advice(room), keep);
    if (total <= available)
        return STATUS_OK;
    return error_set(err, STATUS_NO_MEMORY,
                     "the weights need %s as %s, and %s of %smemory are available; use a smaller "
                     "model or free memory%s%s",
                     SIZE_TEXT(total), types_name(&room->types), SIZE_TEXT(available),
                     box_memory_is_apart(room->box) ? "the GPUs' " : "", int4_advice(room), keep);
}

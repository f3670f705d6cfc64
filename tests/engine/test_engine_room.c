/* What a plan with two layouts takes of memory beside its weights. */
#include <criterion/criterion.h>

#include "engine/engine_room.h"
#include "model/checkpoint.h"
#include "wave_tools.h"

#define MIB ((uint64_t)1 << 20)

struct opened {
    struct checkpoint *checkpoint;
    struct model_shape shape;
    struct plan_layouts layouts;
    struct box *box;
};

static struct opened open_model(void)
{
    struct opened out;
    struct error err;
    cr_assert_eq(checkpoint_open(&out.checkpoint, WAVE_MODEL, &err), STATUS_OK, "%s", err.message);
    out.shape = weights_shape(checkpoint_config(out.checkpoint));
    cr_assert_eq(plan_layouts_parse(&out.layouts, "dp2|ep2>tp2", 2, &err), STATUS_OK);
    cr_assert_eq(box_open(&out.box, &(struct box_params){.rank_count = 2}, &err), STATUS_OK, "%s",
                 err.message);
    return out;
}

static void close_model(struct opened *opened)
{
    box_close(opened->box);
    checkpoint_close(opened->checkpoint);
}

static struct engine_room room_of(const struct opened *opened, const struct engine_params *params)
{
    return (struct engine_room){.params = params,
                                .config = checkpoint_config(opened->checkpoint),
                                .shape = &opened->shape,
                                .layouts = &opened->layouts,
                                .box = opened->box,
                                .types = {DTYPE_F32, DTYPE_F32}};
}

static struct engine_room choose(const struct opened *opened, const struct engine_params *params)
{
    struct engine_room room = room_of(opened, params);
    engine_room_choose(&room);
    return room;
}

/* Bytes of all ranks' weights with so many spares. */
static uint64_t weights_with(const struct opened *opened, int64_t spares)
{
    uint64_t total = 0;
    for (int r = 0; r < 2; r++) {
        struct weights_bytes bytes;
        struct weights_share share = {.layouts = opened->layouts,
                                      .spare_count = spares,
                                      .rank = r,
                                      .types = {DTYPE_F32, DTYPE_F32}};
        weights_bytes(&bytes, checkpoint_config(opened->checkpoint), &share);
        total += bytes.resident + bytes.experts;
    }
    return total;
}

/* A plan's cache leaves as few spares as one that was named. */
Test(engine_room, the_cache_of_a_plan_leaves_its_room)
{
    struct opened opened = open_model();
    uint64_t one = weights_with(&opened, 1);
    int some = 0;
    for (uint64_t memory = one / 2; memory < 12 * one; memory += one / 16) {
        struct engine_params reload = {.transition = WAY_RELOAD,
                                       .memory_bytes = memory,
                                       .max_num_seqs = 4,
                                       .max_num_batched_tokens = 64};
        struct engine_room room = room_of(&opened, &reload);
        room.cache_bytes = memory / 4 * 3;
        engine_room_choose(&room);
        int64_t count = room.spare_count;
        uint64_t added = weights_with(&opened, count) - one;
        cr_assert(count == 1 || one + 2 * added <= memory - room.cache_bytes);
        some += count > 1 && count < WAVE_LAYERS;
    }
    cr_assert_gt(some, 0);
    close_model(&opened);
}

/* The layers that can be read ahead, as it is logged. */
static void hear(void *context, enum log_level level, const char *message)
{
    long long count, all;
    if (level == LOG_DEBUG &&
        sscanf(message, "there is room to read the experts of %lld of %lld layers", &count, &all) ==
            2)
        *(int64_t *)context = all == WAVE_LAYERS ? count : -1;
}

/* A plan that is named may come with the cache that it was priced with, as one that is chosen. */
Test(engine_room, a_named_plan_leaves_room_for_the_cache_that_comes_with_it)
{
    struct opened opened = open_model();
    uint64_t one = weights_with(&opened, 1);
    int some = 0;
    for (uint64_t memory = 6 * one; memory < 12 * one; memory += one / 2) {
        int64_t told = 0;
        struct engine_params reload = {.model = WAVE_MODEL,
                                       .dtype = DTYPE_F32,
                                       .plan = "dp2|ep2>tp2",
                                       .transition = WAY_RELOAD,
                                       .memory_bytes = memory,
                                       .max_num_seqs = 4,
                                       .max_num_batched_tokens = 64,
                                       .planned_cache_bytes = memory / 4 * 3,
                                       .log = {hear, &told}};
        struct engine *engine;
        struct error err;
        cr_assert_eq(engine_open(&engine, &reload, &err), STATUS_OK, "%s", err.message);
        engine_close(engine);
        uint64_t added = weights_with(&opened, told) - one;
        cr_assert(told == 1 || (told > 1 && one + 2 * added <= memory - memory / 4 * 3), "%d",
                  (int)told);
        some += told > 1 && told < WAVE_LAYERS;
    }
    cr_assert_gt(some, 0);
    close_model(&opened);
}

static struct engine_params params_of(bool is_auto, enum way way, uint64_t memory, uint64_t kv)
{
    return (struct engine_params){.transition_is_auto = is_auto,
                                  .transition = way,
                                  .memory_bytes = memory,
                                  .kv_bytes = kv,
                                  .max_num_seqs = kv > 0 ? 4 : 0,
                                  .max_num_batched_tokens = kv > 0 ? 64 : 0};
}

/* From the least memory to plenty: where both do not stay, a choice has the spares that a way which
 * reads has; never fewer with more memory, and never more than leaves as much again. */
Test(engine_room, a_choice_has_the_spares_of_a_way_that_reads)
{
    struct opened opened = open_model();
    uint64_t one = weights_with(&opened, 1);
    int64_t before = 1, some = 0;
    bool was_kept = false;
    for (uint64_t memory = one / 2; memory < 12 * one; memory += one / 16) {
        struct engine_params reload = params_of(false, WAY_RELOAD, memory, MIB);
        struct engine_params choice = params_of(true, WAY_KEEP, memory, MIB);
        struct engine_params reshard = params_of(false, WAY_RESHARD, memory, MIB);
        struct engine_room of_reload = choose(&opened, &reload),
                           of_choice = choose(&opened, &choice);
        int64_t count = of_reload.spare_count;
        cr_assert(!of_reload.keeps_both && count >= before && count <= WAVE_LAYERS);
        uint64_t added = weights_with(&opened, count) - one;
        cr_assert(count == 1 || (added <= memory / 8 && one + 2 * added <= memory / 2));
        cr_assert(of_choice.keeps_both || of_choice.spare_count == count);
        cr_assert(of_choice.keeps_both >= was_kept);
        cr_assert_leq(choose(&opened, &reshard).spare_count, 1);
        some += !of_choice.keeps_both && count > 1;
        was_kept = of_choice.keeps_both;
        before = count;
    }
    cr_assert(was_kept && before == WAVE_LAYERS);
    cr_assert_gt(some, 0);
    close_model(&opened);
}

/* A cache that is to have what is left has all of it, unless there is room for every layer. */
Test(engine_room, without_a_word_of_the_cache_there_is_one_spare_or_all)
{
    struct opened opened = open_model();
    uint64_t one = weights_with(&opened, 1);
    bool had_all = false;
    for (uint64_t memory = one / 2; memory < 12 * one; memory += one / 16) {
        struct engine_params reload = params_of(false, WAY_RELOAD, memory, 0);
        int64_t count = choose(&opened, &reload).spare_count;
        cr_assert(count == 1 || count == WAVE_LAYERS, "%d", (int)count);
        had_all |= count == WAVE_LAYERS;
    }
    cr_assert(had_all);
    close_model(&opened);
}

/* Layers that move while a pass runs: what comes out is to the bit what a transition between passes
 * gives, whoever is slow; and they do move before the pass has ended. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/perturb.h"
#include "base/system.h"
#include "clock.h"
#include "patience.h"
#include "rig.h"
#include "rig_gpus.h"
#include "transition/transition_state.h"

static const struct rig_params cases[] = {
    {.model = "mixtral", .dtype = DTYPE_F32, .rank_count = 2, .plan = "tp2|tp2>ep2"},
    {.model = "mixtral", .dtype = DTYPE_BF16, .rank_count = 8, .plan = "tp2dp4|tp2ep4>tp8"},
    {.model = "qwen2moe", .dtype = DTYPE_F32, .rank_count = 4, .plan = "tp2dp2:rep|ep4>tp4"},
    {.model = "qwen3moe", .dtype = DTYPE_BF16, .rank_count = 4, .plan = "dp4|ep4>tp4"},
    {.model = "mixtral",
     .dtype = DTYPE_BF16,
     .has_int4_experts = true,
     .rank_count = 4,
     .plan = "dp4|ep4>tp4"},
    {.model = "qwen2moe", .dtype = DTYPE_F32, .rank_count = 2, .plan = "dp2|ep2>tp2:int4"},
};
#define CASE_COUNT (sizeof cases / sizeof *cases)

static const enum way in_place[] = {WAY_RESHARD, WAY_RELOAD, WAY_UPLOAD, WAY_MIXED};
#define WAY_COUNT_IN_PLACE 4

/* ---- Passes with a transition between or beside them ------------------------------------------
 */

struct beside {
    struct rig *rig;
    bool is_beside;
    bool starts_early;               /* with the first pass of prompts, not with the last */
    int64_t last_layer, first_layer; /* with experts */
    atomic_int ranks_moved_early;
};

static enum status await(void *context, int rank, int64_t layer, struct error *err)
{
    struct beside *beside = context;
    return transition_await(beside->rig->transition, rank, layer, err);
}

/* Within the pass, when all of the first layer's work is on the stream, a rank goes on to the last
 * only when the first has moved: then a layer surely has before the pass ends. */
static void release(void *context, int rank, int64_t layer)
{
    struct beside *beside = context;
    struct error err;
    if (layer == beside->last_layer) {
        enum status status =
            transition_await(beside->rig->transition, rank, beside->first_layer, &err);
        const struct expert_layer *first = &beside->rig->slots[rank]->layers[beside->first_layer];
        atomic_fetch_add(&beside->ranks_moved_early,
                         status == STATUS_OK && first->phase == PHASE_DECODE);
    }
    transition_release(beside->rig->transition, rank, layer);
}

static void before_pass(void *context, int pass)
{
    struct beside *beside = context;
    struct transition *transition = beside->rig->transition;
    struct exec_hooks hooks = {.context = beside};
    struct error err;
    if (!beside->is_beside) {
        if (pass == 2)
            cr_assert_eq(transition_run(transition, PHASE_DECODE, &err), STATUS_OK, "%s",
                         err.message);
        return;
    }
    if (pass == (beside->starts_early ? 0 : 1))
        transition_start(transition, PHASE_DECODE);
    if (pass == 1)
        hooks.experts_done = release;
    else if (pass > 1 && transition_is_under_way(transition))
        hooks.experts_await = await;
    exec_set_hooks(beside->rig->runner.exec, &hooks);
}

static void layers_find(struct beside *beside)
{
    beside->first_layer = -1;
    for (int64_t layer = 0; layer < beside->rig->shape.layer_count; layer++) {
        if (!expert_slots_has(beside->rig->slots[0], layer))
            continue;
        if (beside->first_layer < 0)
            beside->first_layer = layer;
        beside->last_layer = layer;
    }
}

/* A wave: prompts, transition, tokens, and back. */
static void wave(struct scenario_result *out, struct rig *rig, bool is_beside, bool starts_early)
{
    struct beside beside = {.rig = rig, .is_beside = is_beside, .starts_early = starts_early};
    struct transition_counters before = transition_counters_get(rig->transition), after;
    struct error err;
    layers_find(&beside);
    scenario_run_with(out, &rig->runner, &scenarios[0], before_pass, &beside);
    exec_set_hooks(rig->runner.exec, NULL);
    cr_assert_eq(transition_run(rig->transition, PHASE_DECODE, &err), STATUS_OK);
    after = transition_counters_get(rig->transition);
    cr_assert_eq(after.layer_count - before.layer_count, rig_moe_layers(rig));
    cr_assert_eq(after.transition_count - before.transition_count, 1);
    if (is_beside) {
        cr_assert_eq(atomic_load(&beside.ranks_moved_early), rig->runner.layout.rank_count);
        cr_assert_geq(after.early_count - before.early_count, 1);
    } else {
        cr_assert_eq(after.early_count, before.early_count);
    }
}

static bool same_bits(const struct scenario_result *a, const struct scenario_result *b)
{
    return memcmp(a->logits, b->logits, (size_t)(a->token_count * a->vocab) * sizeof(float)) == 0;
}

static void back(struct rig *rig)
{
    struct error err;
    cr_assert_eq(transition_run(rig->transition, PHASE_PREFILL, &err), STATUS_OK, "%s",
                 err.message);
}

static void check_case(const struct rig_params *base, enum way way, int64_t spare_count)
{
    struct rig_params params = *base;
    struct scenario_result expected, found;
    struct cold cold;
    struct rig rig;
    char label[160];
    snprintf(label, sizeof label, "%s, %s by %s, %lld spares", params.model, params.plan,
             way_names[way], (long long)spare_count);
    params.way = way;
    params.spare_count = spare_count;
    cold_open(&cold, &params);
    rig_open(&rig, &params);
    wave(&expected, &rig, false, false);
    for (int early = 0; early < 2; early++) {
        back(&rig);
        wave(&found, &rig, true, early == 1);
        cr_assert(same_bits(&found, &expected), "%s", label);
        cr_assert_eq(found.nll, expected.nll, "%s", label);
        cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, label), rig_moe_layers(&rig));
        memory_free(found.logits);
    }
    memory_free(expected.logits);
    rig_close(&rig);
    cold_close(&cold);
}

TestSuite(overlap, .fini = scenario_checkpoints_remove, .timeout = 600);

Test(overlap, gives_the_bits_of_a_transition_between_passes)
{
    struct {
        size_t i, w;
    } pairs[CASE_COUNT * WAY_COUNT_IN_PLACE];
    size_t count = 0;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        for (size_t w = 0; w < WAY_COUNT_IN_PLACE; w++) {
            pairs[count].i = i;
            pairs[count].w = w;
            count += rig_can(&cases[i], in_place[w]);
        }
    }
    for (size_t n = rig_case_first(count); n < count; n += rig_case_step())
        check_case(&cases[pairs[n].i], in_place[pairs[n].w],
                   1 + (int64_t)(pairs[n].i + pairs[n].w) % 3);
}

/* ---- A change of mind ------------------------------------------------------------------------ */

struct some_released {
    struct rig *rig;
    int64_t count; /* layers */
};

static enum status release_some(void *context, int rank, struct error *err)
{
    const struct some_released *some = context;
    struct device *device = box_device(some->rig->runner.box, rank);
    int64_t left = some->count;
    for (int64_t layer = 0; layer < some->rig->shape.layer_count && left > 0; layer++) {
        if (!expert_slots_has(some->rig->slots[rank], layer))
            continue;
        transition_release(some->rig->transition, rank, layer);
        left--;
    }
    return device->ops->synchronize(device->stream, err);
}

/* What was started stops where it is, and all go back; or it ends with what was begun. Nobody waits
 * for a layer that is not let go. */
Test(overlap, may_be_stopped_after_any_layer)
{
    for (size_t i = rig_case_first(CASE_COUNT); i < CASE_COUNT; i += rig_case_step()) {
        struct rig_params params = cases[i];
        struct cold cold;
        struct rig rig;
        struct error err;
        params.way = rig_can(&params, WAY_RESHARD) ? WAY_RESHARD : WAY_UPLOAD;
        params.spare_count = 1 + (int64_t)i % 3;
        cold_open(&cold, &params);
        rig_open(&rig, &params);
        for (int64_t count = 0; count <= rig_moe_layers(&rig); count++) {
            struct some_released some = {&rig, count};
            enum phase phase = count % 2 == 0 ? PHASE_PREFILL : PHASE_DECODE;
            transition_start(rig.transition, PHASE_DECODE);
            cr_assert(transition_is_under_way(rig.transition));
            /* The next may be written already when it stops. */
            int64_t moved = transition_counters_get(rig.transition).layer_count;
            cr_assert_eq(box_run(rig.runner.box, release_some, &some, &err), STATUS_OK);
            while (transition_counters_get(rig.transition).layer_count < moved + count)
                continue;
            cr_assert_eq(transition_run(rig.transition, phase, &err), STATUS_OK);
            cr_assert_not(transition_is_under_way(rig.transition));
            cr_assert_eq(rig_check(&rig, &cold, phase, params.plan), rig_moe_layers(&rig));
            back(&rig);
        }
        transition_start(rig.transition, PHASE_DECODE); /* and closed while it waits */
        rig_close(&rig);
        cold_close(&cold);
    }
}

/* ---- Who waits works --------------------------------------------------------------------------
 */

/* Copies that a rank's device was given, on its own stream and on others. */
static struct copies {
    struct device_ops ops;
    const struct device_ops *real;
    struct stream *own;
    atomic_llong on_own, beside;
    _Atomic(struct transition *) held_by; /* until its ranks wait; NULL: by nobody */
    long long held_at;                    /* the copy beside that is */
} copies;

static bool do_all_wait(struct transition *transition)
{
    bool do_all = true;
    transition_lock(transition);
    for (int r = 0; r < transition->rank_count; r++)
        do_all &= transition->ranks[r].awaits != AWAITS_NONE;
    transition_unlock(transition);
    return do_all;
}

static void counted_copy(struct stream *stream, const struct op_copy *op)
{
    long long count = atomic_fetch_add(stream == copies.own ? &copies.on_own : &copies.beside, 1);
    struct transition *transition = atomic_load(&copies.held_by);
    while (transition != NULL && stream != copies.own && count == copies.held_at &&
           !do_all_wait(transition))
        continue;
    copies.real->copy(stream, op);
}

static enum status until_all_wait(void *argument, struct error *err)
{
    struct transition *transition = *(struct transition **)argument;
    (void)err;
    while (!do_all_wait(transition))
        continue;
    atomic_store(&copies.on_own, 0);
    atomic_store(&copies.beside, 0);
    return STATUS_OK;
}

/* Each rank lets go of everything when all of them wait for the last layer. */
static enum status wait_for_last(void *context, int rank, struct error *err)
{
    struct beside *beside = context;
    struct transition *transition = beside->rig->transition;
    struct device *device = box_device(beside->rig->runner.box, rank);
    device->ops->call(device->stream, until_all_wait, &transition, sizeof transition);
    for (int64_t layer = 0; layer <= beside->last_layer; layer++)
        transition_release(transition, rank, layer);
    return transition_await(transition, rank, beside->last_layer, err);
}

static void counted_open(struct rig *rig, struct rig_params *params)
{
    struct error err;
    params->way = WAY_RELOAD;
    rig_load(rig, params);
    struct device *device = box_device(rig->runner.box, 1);
    copies.real = device->ops;
    copies.ops = *device->ops;
    copies.ops.copy = counted_copy;
    copies.own = device->stream;
    device->ops = &copies.ops;
    atomic_store(&copies.on_own, 0);
    atomic_store(&copies.beside, 0);
    cr_assert_eq(rig_start(rig, params, &err), STATUS_OK);
}

static void counted_close(struct rig *rig)
{
    box_device(rig->runner.box, 1)->ops = copies.real;
    rig_close(rig);
}

#define LAYER_COPIES 12 /* a half of each matrix of four experts */

/* The first layer is there, on a stream that may starve; what comes behind it is awaited, and left
 * to none. */
Test(overlap, what_is_awaited_goes_on_with_the_stream_of_who_waits)
{
    struct rig_params params = cases[0];
    struct rig rig;
    struct error err;
    struct beside beside = {.rig = &rig};
    counted_open(&rig, &params);
    layers_find(&beside);
    transition_start(rig.transition, PHASE_DECODE);
    while (atomic_load(&copies.beside) < LAYER_COPIES)
        continue;
    cr_assert_eq(atomic_load(&copies.on_own), 0);
    cr_assert_eq(box_run(rig.runner.box, wait_for_last, &beside, &err), STATUS_OK);
    cr_assert_eq(atomic_load(&copies.on_own), 2 * LAYER_COPIES);
    cr_assert_eq(atomic_load(&copies.beside), 0);
    cr_assert_eq(rig.slots[1]->layers[beside.last_layer].phase, PHASE_DECODE);
    counted_close(&rig);
}

static enum status wait_for_first(void *context, int rank, struct error *err)
{
    struct beside *beside = context;
    for (int64_t layer = 0; layer <= beside->last_layer; layer++)
        transition_release(beside->rig->transition, rank, layer);
    return transition_await(beside->rig->transition, rank, beside->first_layer, err);
}

/* The first layer is awaited while the second is being written on a stream that may starve; it is
 * swapped behind that, so that goes on with the stream of who waits, too. */
Test(overlap, what_is_written_before_the_awaited_is_swapped_does_not_starve)
{
    struct rig_params params = cases[0];
    struct rig rig;
    struct error err;
    struct beside beside = {.rig = &rig};
    params.spare_count = 2;
    counted_open(&rig, &params);
    layers_find(&beside);
    copies.held_at = LAYER_COPIES;
    atomic_store(&copies.held_by, rig.transition);
    transition_start(rig.transition, PHASE_DECODE);
    while (atomic_load(&copies.beside) <= LAYER_COPIES)
        continue;
    cr_assert_eq(atomic_load(&copies.on_own), 0);
    cr_assert_eq(box_run(rig.runner.box, wait_for_first, &beside, &err), STATUS_OK);
    cr_assert_eq(atomic_load(&copies.on_own), LAYER_COPIES - 1);
    cr_assert_eq(rig.slots[1]->layers[beside.first_layer].phase, PHASE_DECODE);
    atomic_store(&copies.held_by, NULL);
    counted_close(&rig);
}

/* ---- Who asks -------------------------------------------------------------------------------- */

struct asked {
    struct comm_domain *domain;
    int count;
};

static enum status answer_slowly(void *context, struct error *err)
{
    struct asked *asked = context;
    (void)err;
    if (++asked->count == 1)
        time_passes(asked->domain, 2);
    return STATUS_OK;
}

static enum status wait_and_meet(void *context, int rank, struct error *err)
{
    const struct beside *beside = context;
    const struct transition_rank *of = &beside->rig->transition->ranks[rank];
    char here = 1, there = 0;
    struct comm_message send = {.peer = 1 - rank, .data = &here, .bytes = 1};
    struct comm_message receive = {.peer = 1 - rank, .data = &there, .bytes = 1};
    TRY(wait_for_first(context, rank, err));
    comm_exchange(of->world, of->device->stream,
                  &(struct comm_exchange){.sends = &send,
                                          .receives = &receive,
                                          .send_count = 1,
                                          .receive_count = 1,
                                          .tag = TRAFFIC_TRANSITION});
    return of->ops->synchronize(of->device->stream, err);
}

/* Far longer than the patience of the other rank, which waits for rank 0 in a collective, or for
 * the layer, and looks at the clock. */
Test(overlap, who_is_asked_within_a_pass_may_take_long_to_answer)
{
    struct rig_params params = cases[0];
    struct rig rig;
    struct error err;
    struct beside beside = {.rig = &rig};
    struct asked asked = {0};
    params.patience_seconds = 0.4;
    clock_hold();
    counted_open(&rig, &params);
    asked.domain = box_domain(rig.runner.box);
    layers_find(&beside);
    transition_watch(rig.transition, &(struct watch){answer_slowly, &asked});
    atomic_store(&copies.held_by, rig.transition); /* at the first */
    transition_start(rig.transition, PHASE_DECODE);
    while (atomic_load(&copies.beside) < 1)
        continue;
    cr_assert_eq(box_run(rig.runner.box, wait_and_meet, &beside, &err), STATUS_OK, "%s",
                 err.message);
    cr_assert_geq(asked.count, 1);
    atomic_store(&copies.held_by, NULL);
    counted_close(&rig);
}

/* ---- Room ------------------------------------------------------------------------------------ */

/* As many layers as there is room for are written when none has been let go, and no more. */
Test(overlap, with_room_all_is_written_early)
{
    for (int64_t spares = 1; spares <= 3; spares++) {
        struct rig_params params = cases[0];
        struct rig rig;
        struct error err;
        params.spare_count = spares;
        counted_open(&rig, &params);
        transition_start(rig.transition, PHASE_DECODE);
        while (atomic_load(&copies.beside) < spares * LAYER_COPIES)
            continue;
        cr_assert_eq(transition_counters_get(rig.transition).layer_count, 0);
        cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
        cr_assert_eq(atomic_load(&copies.beside), spares * LAYER_COPIES);
        cr_assert_eq(atomic_load(&copies.on_own), (3 - spares) * LAYER_COPIES);
        counted_close(&rig);
    }
}

/* The second layer has the only spare when all is to go back: the first needs it. */
Test(overlap, what_is_written_in_vain_gives_its_room_back)
{
    struct rig_params params = cases[0];
    struct some_released first = {.count = 1};
    struct rig rig;
    struct error err;
    counted_open(&rig, &params);
    first.rig = &rig;
    transition_start(rig.transition, PHASE_DECODE);
    cr_assert_eq(box_run(rig.runner.box, release_some, &first, &err), STATUS_OK);
    while (atomic_load(&copies.beside) < 2 * LAYER_COPIES)
        continue;
    cr_assert_eq(transition_run(rig.transition, PHASE_PREFILL, &err), STATUS_OK);
    for (int64_t layer = 0; layer < rig.shape.layer_count; layer++)
        cr_assert_eq(rig.slots[0]->layers[layer].phase, PHASE_PREFILL);
    cr_assert_eq(transition_counters_get(rig.transition).layer_count, 2);
    counted_close(&rig);
}

/* ---- Random delays --------------------------------------------------------------------------- */

static uint64_t seed_count(void)
{
    return getenv("PHASOR_TEST_FULL") != NULL ? 300 / (uint64_t)rig_repeat_step() : 6;
}

/* Under the thread sanitizer it looks on (base/perturb.h). */
Test(overlap, with_random_delays, .timeout = 3600)
{
    const char *text = getenv("PHASOR_TEST_SEED");
    uint64_t first = text == NULL ? 0 : strtoull(text, NULL, 10);
    double start = system_seconds();
    for (size_t i = rig_case_first(CASE_COUNT); i < CASE_COUNT; i += rig_case_step()) {
        struct rig_params params = cases[i];
        struct scenario_result expected, found;
        struct rig rig;
        for (size_t w = i; !rig_can(&params, params.way = in_place[w % WAY_COUNT_IN_PLACE]); w++)
            continue;
        params.spare_count = 1 + (int64_t)i % 3;
        params.uring = &rig_no_uring; /* whose writes no sanitizer would see */
        rig_open(&rig, &params);
        wave(&expected, &rig, false, false);
        for (uint64_t seed = first; seed < first + seed_count(); seed++) {
            perturb_seed(seed);
            back(&rig);
            wave(&found, &rig, true, seed % 2 == 0);
            cr_assert(same_bits(&found, &expected), "%s, seed %llu", params.plan,
                      (unsigned long long)seed);
            memory_free(found.logits);
        }
        memory_free(expected.logits);
        rig_close(&rig);
    }
    printf("overlap: %llu seeds in %.0f s\n", (unsigned long long)seed_count(),
           system_seconds() - start);
}

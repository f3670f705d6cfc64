/* Slots: as much memory as was said, a target that is nobody's, and a layer that always has a whole
 * slice. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "store/expert_slots.h"

/* Layers 0, 2 and 3 of four have experts. */
static const struct model_shape shape = {.layer_count = 4,
                                         .moe_layer_count = 3,
                                         .hidden_dim = 48,
                                         .head_count = 8,
                                         .kv_head_count = 8,
                                         .expert_count = 8,
                                         .expert_dim = 128};
static const bool has_experts[4] = {true, false, true, true};

/* Blocks that a rank holds in each layout, and slots; one expert of 128 is 8 blocks. */
static const struct {
    const char *plan;
    bool keeps_both;
    int64_t blocks; /* of all slots together */
} cases[] = {
    {"dp4|ep4", false, 3 * 16},
    {"dp4|ep4", true, 3 * 16},
    {"dp4|ep4>tp4", false, 4 * 16}, /* all slices have a quarter of the blocks */
    {"dp4|ep4>tp4", true, 3 * (16 + 16)},
    {"tp1|tp1>tp1", false, 3 * 64},
    {"dp8|tp2ep4>tp8", false, 4 * 8},
    {"tp4|tp4>tp4:int4", false, 4 * 16}, /* in place: native slots */
};

static struct expert_type types[] = {
    {.dtype = DTYPE_F32}, {.dtype = DTYPE_BF16}, {DTYPE_INT4, 32, false}};
static struct expert_type packed = {DTYPE_INT4, 16, true}; /* scales fill 64 bytes, and minima */

static struct device *device_open(void)
{
    struct cpu_share share = {.thread_count = 1, .first_cpu = -1};
    struct device *device;
    struct error err;
    cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK);
    return device;
}

static void params_of(struct expert_slots_params *out, struct plan_layouts *layouts, size_t index,
                      struct expert_type type)
{
    struct error err;
    cr_assert_eq(plan_layouts_parse(layouts, cases[index].plan, 0, &err), STATUS_OK);
    *out = (struct expert_slots_params){
        .shape = &shape,
        .layouts = layouts,
        .rank = layouts->of[0].rank_count - 1,
        .types = {type, layouts->decode_is_packed ? packed : type},
        .keeps_both = cases[index].keeps_both,
        .has_experts = has_experts,
    };
}

/* ---- Memory ---------------------------------------------------------------------------------- */

Test(expert_slots, take_what_was_said)
{
    struct device *device = device_open();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            struct expert_slots_params params;
            struct plan_layouts layouts;
            struct expert_slots slots;
            struct error err;
            params_of(&params, &layouts, i, types[t]);
            uint64_t before = device->ops->memory_use(device).bytes;
            cr_assert_eq(expert_slots_init(&slots, device, &params, &err), STATUS_OK);
            cr_assert_eq(slots.bytes, expert_slots_bytes(&params));
            cr_assert_eq(device->ops->memory_use(device).bytes - before, slots.bytes);
            if (types[t].dtype != DTYPE_INT4) /* whose scales are rounded up to 64 */
                cr_assert_eq((int64_t)slots.bytes,
                             cases[i].blocks * expert_block_bytes(&shape, types[t]), "%s",
                             cases[i].plan);
            expert_slots_deinit(&slots);
            cr_assert_eq(device->ops->memory_use(device).bytes, before);
        }
    }
    device_destroy(device);
}

Test(expert_slots, every_failed_allocation_leaves_nothing)
{
    struct device *device = device_open();
    struct expert_slots_params params;
    struct plan_layouts layouts;
    struct expert_slots slots;
    struct error err;
    uint64_t n = 0;
    enum status status;
    params_of(&params, &layouts, 2, types[1]);
    cr_assert_eq(expert_slots_init(&slots, device, &params, &err), STATUS_OK);
    expert_slots_deinit(&slots); /* the device's own list of pieces is long enough now */
    uint64_t live = memory_counters_get().live_count;
    do {
        memory_fail_at(++n, 0);
        status = expert_slots_init(&slots, device, &params, &err);
        memory_fail_at(0, 0);
        if (status != STATUS_OK)
            cr_assert_eq(memory_counters_get().live_count, live, "allocation %llu leaks",
                         (unsigned long long)n);
    } while (status == STATUS_NO_MEMORY);
    cr_assert_eq(status, STATUS_OK);
    cr_assert_gt(n, 5);
    expert_slots_deinit(&slots);
    device_destroy(device);
}

/* ---- Changing -------------------------------------------------------------------------------- */

/* A layer without experts has no slots; the others' weights are the matrices of their slices. */
static void check_views(const struct expert_slots *slots)
{
    cr_assert_not(expert_slots_has(slots, 1));
    for (int64_t layer = 0; layer < 4; layer++) {
        const struct expert_layer *of = &slots->layers[layer];
        const struct expert_form *form = &slots->forms[of->phase];
        if (layer == 1)
            continue;
        for (int64_t e = 0; e < form->slice.expert_count; e++) {
            const struct matrix *matrices[] = {&of->weights[e].gate, &of->weights[e].up,
                                               &of->weights[e].down};
            for (int m = 0; m < EXPERT_MATRICES; m++) {
                struct matrix expected =
                    expert_form_matrix(form, expert_slots_now(slots, layer), e, m);
                cr_assert_eq(matrices[m]->data, expected.data);
                cr_assert_eq(matrices[m]->rows, expected.rows);
                cr_assert_eq(matrices[m]->columns, expected.columns);
            }
        }
    }
}

static bool is_apart(const void *a, const void *b, uint64_t bytes)
{
    return (const char *)a + bytes <= (const char *)b || (const char *)b + bytes <= (const char *)a;
}

/* Nobody has the target. */
static void check_target(const struct expert_slots *slots, int64_t layer, enum phase phase)
{
    const void *target = expert_slots_target(slots, layer, phase);
    uint64_t bytes = expert_slots_slot_bytes(slots, phase);
    cr_assert_geq((int64_t)bytes, expert_form_bytes(&slots->forms[phase]));
    for (int64_t other = 0; other < 4; other++) {
        if (expert_slots_has(slots, other))
            cr_assert(is_apart(target, expert_slots_now(slots, other), bytes));
    }
}

static void check_changes(size_t index)
{
    static const int64_t order[] = {0, 3, 2, 2, 0, 3, 0, 0, 2};
    struct device *device = device_open();
    struct expert_slots_params params;
    struct plan_layouts layouts;
    struct expert_slots slots;
    struct error err;
    params_of(&params, &layouts, index, types[1]);
    cr_assert_eq(expert_slots_init(&slots, device, &params, &err), STATUS_OK);
    check_views(&slots);
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        int64_t layer = order[i];
        enum phase old = slots.layers[layer].phase;
        enum phase new = old == PHASE_PREFILL ? PHASE_DECODE : PHASE_PREFILL;
        const void *was = expert_slots_now(&slots, layer);
        cr_assert(expert_slots_reserve(&slots, layer, new));
        const void *target = expert_slots_target(&slots, layer, new);
        check_target(&slots, layer, new);
        const void *freed = expert_slots_swap(&slots, layer, new);
        cr_assert_eq(freed, slots.keeps_both ? NULL : was);
        cr_assert_eq(expert_slots_now(&slots, layer), target);
        cr_assert_eq(slots.layers[layer].phase, new);
        cr_assert(expert_slots_reserve(&slots, layer, old));
        cr_assert_eq(expert_slots_target(&slots, layer, old), was, "the next spare, or its own");
        expert_slots_give_back(&slots, layer, old);
        check_views(&slots);
    }
    expert_slots_deinit(&slots);
    device_destroy(device);
}

Test(expert_slots, a_layer_has_one_whole_slice)
{
    check_changes(2);
    check_changes(3);
    check_changes(5);
    check_changes(6);
}

/* As many layers as there are spares can be written before one changes; each to a slot of its own,
 * which goes back whether it is used or not. */
Test(expert_slots, spares_are_for_as_many_layers)
{
    static const int64_t layers[] = {0, 2, 3}; /* that have experts */
    for (int64_t count = 0; count <= 4; count++) {
        struct device *device = device_open();
        struct expert_slots_params params;
        struct plan_layouts layouts;
        struct expert_slots slots;
        struct error err;
        int64_t given = count < 1 ? 1 : count > 3 ? 3 : count;
        params_of(&params, &layouts, 2, types[1]);
        params.spare_count = count;
        cr_assert_eq(expert_slots_init(&slots, device, &params, &err), STATUS_OK);
        cr_assert_eq(slots.bytes, expert_slots_bytes(&params));
        cr_assert_eq(slots.bytes,
                     (uint64_t)(3 + given) * expert_slots_slot_bytes(&slots, PHASE_DECODE));
        for (int round = 0; round < 2; round++) {
            for (int64_t i = 0; i < 3; i++) {
                bool has = expert_slots_reserve(&slots, layers[i], PHASE_DECODE);
                cr_assert_eq(has, i < given);
                cr_assert_eq(expert_slots_reserve(&slots, layers[i], PHASE_DECODE), has);
                if (has)
                    check_target(&slots, layers[i], PHASE_DECODE);
                for (int64_t before = 0; has && before < i; before++)
                    cr_assert_neq(expert_slots_target(&slots, layers[i], PHASE_DECODE),
                                  expert_slots_target(&slots, layers[before], PHASE_DECODE));
            }
            for (int64_t i = 0; round == 0 && i < 3; i++)
                expert_slots_give_back(&slots, layers[i], PHASE_DECODE);
        }
        expert_slots_swap(&slots, layers[0], PHASE_DECODE);
        cr_assert(expert_slots_reserve(&slots, layers[2], PHASE_DECODE));
        check_views(&slots);
        expert_slots_deinit(&slots);
        device_destroy(device);
    }
}

/* Native slots and packed ones; in place the packed slice lies in a native slot. */
Test(expert_slots, of_packed_decode)
{
    struct device *device = device_open();
    for (int keeps_both = 0; keeps_both <= 1; keeps_both++) {
        struct expert_slots_params params;
        struct plan_layouts layouts;
        struct expert_slots slots;
        struct error err;
        params_of(&params, &layouts, 6, types[1]);
        params.keeps_both = keeps_both;
        int64_t native = 16 * expert_block_bytes(&shape, types[1]);
        int64_t small = 16 * expert_block_bytes(&shape, packed);
        cr_assert_lt(small, native / 2);
        cr_assert_eq(expert_slots_init(&slots, device, &params, &err), STATUS_OK);
        cr_assert_eq((int64_t)slots.bytes, keeps_both ? 3 * (native + small) : 4 * native);
        cr_assert_eq(slots.bytes, expert_slots_bytes(&params));
        cr_assert(expert_slots_reserve(&slots, 2, PHASE_DECODE));
        check_target(&slots, 2, PHASE_DECODE);
        cr_assert_eq(slots.layers[2].weights->down.dtype, DTYPE_BF16);
        expert_slots_swap(&slots, 2, PHASE_DECODE);
        check_views(&slots);
        cr_assert_eq(slots.layers[2].weights->down.dtype, DTYPE_INT4);
        cr_assert_not_null(slots.layers[2].weights->down.minima);
        expert_slots_deinit(&slots);
    }
    device_destroy(device);
}

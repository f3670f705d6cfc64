#include "store/expert_slots.h"

#include "base/memory.h"

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void forms_find(struct expert_form forms[PHASE_COUNT],
                       const struct expert_slots_params *params)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        forms[phase] = expert_form_of(params->shape, &params->layouts->of[phase], params->rank,
                                      params->types[phase]);
}

static bool keeps_both(const struct expert_slots_params *params)
{
    return params->keeps_both && plan_layouts_differ(params->layouts);
}

uint64_t expert_slots_slot_bytes(const struct expert_slots *slots, enum phase phase)
{
    int64_t prefill = expert_form_bytes(&slots->forms[PHASE_PREFILL]);
    int64_t decode = expert_form_bytes(&slots->forms[PHASE_DECODE]);
    if (slots->keeps_both)
        return (uint64_t)(phase == PHASE_PREFILL ? prefill : decode);
    return (uint64_t)max_of(prefill, decode);
}

/* Beside the slots that layers have. */
static int64_t spares_of(const struct expert_slots_params *params, int64_t layers)
{
    int64_t wanted = params->spare_count > 0 ? params->spare_count : 1;
    if (keeps_both(params) || !plan_layouts_differ(params->layouts))
        return 0;
    return wanted < layers ? wanted : layers;
}

uint64_t expert_slots_bytes(const struct expert_slots_params *params)
{
    struct expert_slots slots = {.keeps_both = keeps_both(params)};
    uint64_t layers = 0;
    forms_find(slots.forms, params);
    for (int64_t layer = 0; layer < params->shape->layer_count; layer++)
        layers += params->has_experts[layer];
    uint64_t prefill = expert_slots_slot_bytes(&slots, PHASE_PREFILL);
    if (slots.keeps_both)
        return layers * (prefill + expert_slots_slot_bytes(&slots, PHASE_DECODE));
    return (layers + (uint64_t)spares_of(params, (int64_t)layers)) * prefill;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static enum status slot_get(struct expert_slots *slots, void **out, enum phase phase,
                            struct error *err)
{
    uint64_t bytes = expert_slots_slot_bytes(slots, phase);
    TRY(slots->device->ops->memory_get(slots->device, out, bytes, "weights", err));
    slots->bytes += bytes;
    return STATUS_OK;
}

/* The matrices of the slice that the layer has now. */
static void view_set(struct expert_slots *slots, int64_t layer)
{
    const struct expert_form *form = &slots->forms[slots->layers[layer].phase];
    const char *place = expert_slots_now(slots, layer);
    struct ffn_weights *weights = slots->weights + layer * slots->weights_per_layer;
    for (int64_t e = 0; e < form->slice.expert_count; e++)
        weights[e] = (struct ffn_weights){.gate = expert_form_matrix(form, place, e, 0),
                                          .up = expert_form_matrix(form, place, e, 1),
                                          .down = expert_form_matrix(form, place, e, 2)};
}

static enum status slots_get(struct expert_slots *slots, const struct expert_slots_params *params,
                             struct error *err)
{
    int64_t layers = 0;
    for (int64_t layer = 0; layer < slots->layer_count; layer++) {
        if (!params->has_experts[layer])
            continue;
        layers++;
        for (int phase = 0; phase <= (slots->keeps_both ? PHASE_DECODE : PHASE_PREFILL); phase++)
            TRY(slot_get(slots, &slots->layers[layer].slots[phase], (enum phase)phase, err));
        slots->layers[layer].weights = slots->weights + layer * slots->weights_per_layer;
        view_set(slots, layer);
    }
    for (int64_t spare = 0; spare < spares_of(params, layers); spare++) {
        TRY(slot_get(slots, &slots->spares[spare], PHASE_PREFILL, err));
        slots->spare_count++;
    }
    return STATUS_OK;
}

enum status expert_slots_init(struct expert_slots *out, struct device *device,
                              const struct expert_slots_params *params, struct error *err)
{
    struct expert_slots slots = {.layer_count = params->shape->layer_count,
                                 .keeps_both = keeps_both(params),
                                 .device = device};
    enum status status;
    forms_find(slots.forms, params);
    slots.weights_per_layer = max_of(slots.forms[PHASE_PREFILL].slice.expert_count,
                                     slots.forms[PHASE_DECODE].slice.expert_count);
    TRY_GOTO(memory_get((void **)&slots.layers, (size_t)slots.layer_count, sizeof *slots.layers,
                        "the layer table", err),
             failed);
    TRY_GOTO(memory_get((void **)&slots.weights,
                        (size_t)(slots.layer_count * slots.weights_per_layer),
                        sizeof *slots.weights, "the expert table", err),
             failed);
    TRY_GOTO(memory_get((void **)&slots.spares, (size_t)slots.layer_count, sizeof *slots.spares,
                        "the layer table", err),
             failed);
    TRY_GOTO(slots_get(&slots, params, err), failed);
    *out = slots;
    return STATUS_OK;

failed:
    expert_slots_deinit(&slots);
    return status;
}

void expert_slots_deinit(struct expert_slots *slots)
{
    for (int64_t layer = 0; slots->layers != NULL && layer < slots->layer_count; layer++) {
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            slots->device->ops->memory_free(slots->device, slots->layers[layer].slots[phase]);
    }
    for (int64_t spare = 0; spare < slots->spare_count; spare++)
        slots->device->ops->memory_free(slots->device, slots->spares[spare]);
    memory_free(slots->spares);
    memory_free(slots->weights);
    memory_free(slots->layers);
    *slots = (struct expert_slots){0};
}

/* ---- Changing -------------------------------------------------------------------------------- */

bool expert_slots_reserve(struct expert_slots *slots, int64_t layer, enum phase phase)
{
    void **target = &slots->layers[layer].slots[phase];
    ASSERT(expert_slots_has(slots, layer) && slots->layers[layer].phase != phase);
    if (*target == NULL && slots->spare_count > 0)
        *target = slots->spares[--slots->spare_count];
    return *target != NULL;
}

static void give_back(struct expert_slots *slots, int64_t layer, enum phase phase)
{
    slots->spares[slots->spare_count++] = slots->layers[layer].slots[phase];
    slots->layers[layer].slots[phase] = NULL;
}

void expert_slots_give_back(struct expert_slots *slots, int64_t layer, enum phase phase)
{
    ASSERT(slots->layers[layer].phase != phase);
    if (!slots->keeps_both && slots->layers[layer].slots[phase] != NULL)
        give_back(slots, layer, phase);
}

void *expert_slots_target(const struct expert_slots *slots, int64_t layer, enum phase phase)
{
    void *target = slots->layers[layer].slots[phase];
    ASSERT(slots->layers[layer].phase != phase && target != NULL);
    return target;
}

void *expert_slots_swap(struct expert_slots *slots, int64_t layer, enum phase phase)
{
    struct expert_layer *of = &slots->layers[layer];
    void *freed = slots->keeps_both ? NULL : of->slots[of->phase];
    enum phase old = of->phase;
    ASSERT(expert_slots_target(slots, layer, phase) != NULL);
    of->phase = phase;
    view_set(slots, layer);
    if (freed != NULL)
        give_back(slots, layer, old);
    return freed;
}

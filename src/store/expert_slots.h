/* Where the routed experts of each layer lie on one rank, and in which layout.
 *
 * A slot is device memory for a layer's slice. With one form for both phases each layer has one
 * slot. With two (other layouts, or other numbers), in place: all slots have the size of the larger
 * slice, there is a spare, or some, and a layer changes its layout by being written to a spare,
 * which it then keeps; its old slot is a spare from then on. So with more spares more layers can be
 * written before they change. Or both resident: each layer has a slot for each layout, and a change
 * is only which of them is used.
 *
 * exec reads what each layer has; who changes it writes a target, then swaps. So a layer always has
 * a whole slice, in one layout or the other, and layers may differ. */
#ifndef PHASOR_STORE_EXPERT_SLOTS_H
#define PHASOR_STORE_EXPERT_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "layout/expert_form.h"

struct expert_layer {
    enum phase phase;                  /* whose layout the layer has now */
    bool is_int4;                      /* what it has are the INT4 backup's weights, in whatever
                                        * numbers; else the checkpoint's. Who swaps says it */
    const struct ffn_weights *weights; /* [forms[phase].slice.expert_count], host memory; NULL in a
                                        * layer without routed experts. The pointer stays */
    /* private: its slice in each layout, or its target there; NULL where it has none */
    void *slots[PHASE_COUNT];
};

struct expert_slots {
    struct expert_form forms[PHASE_COUNT]; /* equal where layouts and numbers are */
    struct expert_layer *layers;           /* [layer_count] */
    int64_t layer_count;
    bool keeps_both;

    /* private */
    struct device *device;
    uint64_t bytes; /* of device memory */
    void **spares;  /* [spare_count] of [layer_count]: nobody's */
    int64_t spare_count;
    struct ffn_weights *weights; /* of all layers */
    int64_t weights_per_layer;
};

struct expert_slots_params {
    const struct model_shape *shape;
    const struct plan_layouts *layouts; /* legal for the model */
    int rank;
    struct expert_type types[PHASE_COUNT]; /* equal but for layouts->decode_is_packed */
    bool keeps_both;                       /* resident; without effect unless plan_layouts_differ */
    int64_t spare_count;     /* else; more than layers with experts are none of use. 0: 1 */
    const bool *has_experts; /* [shape->layer_count] */
};

/* Bytes of device memory that expert_slots_init takes. */
uint64_t expert_slots_bytes(const struct expert_slots_params *params);

/* All layers have the layout of prefill, in slots that nothing has been written to. On failure
 * nothing is kept. */
enum status expert_slots_init(struct expert_slots *out, struct device *device,
                              const struct expert_slots_params *params,
                              struct error *err) MUST_CHECK;
void expert_slots_deinit(struct expert_slots *slots); /* {0} is allowed */

/* Whether a layer has routed experts. */
static inline bool expert_slots_has(const struct expert_slots *slots, int64_t layer)
{
    return slots->layers[layer].weights != NULL;
}

/* The slice that the layer has now, in the form of its phase. */
static inline void *expert_slots_now(const struct expert_slots *slots, int64_t layer)
{
    return slots->layers[layer].slots[slots->layers[layer].phase];
}

/* The layer gets a target for its slice in another layout; false where no slot is to be had until
 * another layer changes. Again: it has it already. Given back where it is not to change after all.
 */
bool expert_slots_reserve(struct expert_slots *slots, int64_t layer, enum phase phase);
void expert_slots_give_back(struct expert_slots *slots, int64_t layer, enum phase phase);

/* Its target: memory that nobody reads, of at least expert_form_bytes. */
void *expert_slots_target(const struct expert_slots *slots, int64_t layer, enum phase phase);

/* From now on the layer has that layout, and what was written to its target. Not while anything
 * that reads its weights is on a stream. Returns the slot whose content is no longer needed, NULL
 * where both stay. */
void *expert_slots_swap(struct expert_slots *slots, int64_t layer, enum phase phase);

/* Bytes of a slot that expert_slots_swap returns. */
uint64_t expert_slots_slot_bytes(const struct expert_slots *slots, enum phase phase);

#endif

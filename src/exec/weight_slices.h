/* Which parts of which weights a rank holds under a layout: the one list that loading reads by and
 * that says in advance how much memory it will take. */
#ifndef PHASOR_EXEC_WEIGHT_SLICES_H
#define PHASOR_EXEC_WEIGHT_SLICES_H

#include <stdbool.h>

#include "exec/weights.h"
#include "layout/layout.h"
#include "model/checkpoint.h"

struct weight_slice {
    enum weight weight;
    int64_t layer;
    int64_t expert;       /* the model's number of a routed expert; else 0 */
    int64_t local_expert; /* its place among those of the rank */
    struct block block;   /* of the weight as it lies on disk; a vector is one row */
    bool is_vector;       /* f32, whatever the matrices are */
    enum packing packing;
    enum dtype dtype; /* in memory */
    uint64_t bytes;   /* in memory, padding included; int4: nibbles, then scales */
};

/* Calls visit(context, slice, err) for each slice of the rank, in a fixed order; stops at the first
 * failure. Pure but for what `visit` does. */
enum status weight_slices_each(const struct model_config *config, const struct layout *layout,
                               int rank, const struct weight_types *types,
                               enum status (*visit)(void *context, const struct weight_slice *slice,
                                                    struct error *err),
                               void *context, struct error *err) MUST_CHECK;

static inline bool weight_is_expert(enum weight weight)
{
    return weight == WEIGHT_EXPERT_GATE || weight == WEIGHT_EXPERT_UP ||
           weight == WEIGHT_EXPERT_DOWN;
}

/* What the slots of a rank's experts are made from; `shape` and `has_experts` are filled and
 * borrowed by `out`. */
void weight_slices_slots(struct expert_slots_params *out, struct model_shape *shape,
                         bool has_experts[MODEL_LAYERS_MAX], const struct model_config *config,
                         const struct weights_share *share);

#endif

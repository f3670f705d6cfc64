#include "exec/weight_slices.h"

#include "quant/int4.h"

struct model_shape weights_shape(const struct model_config *config)
{
    struct model_shape shape = {
        .layer_count = config->layer_count,
        .vocab_count = config->vocab_count,
        .hidden_dim = config->hidden_dim,
        .head_count = config->head_count,
        .kv_head_count = config->kv_head_count,
        .head_dim = config->head_dim,
        .expert_count = config->expert_count,
        .expert_top_k = config->expert_top_k,
        .expert_dim = config->expert_dim,
        .shared_expert_dim = config->shared_expert_dim,
        .dense_dim = config->dense_dim,
        .sliding_window = config->sliding_window,
    };
    for (int64_t layer = 0; layer < config->layer_count; layer++) {
        shape.moe_layer_count += config->layers[layer].ffn == FFN_MOE;
        shape.sliding_layer_count += config->layers[layer].sliding;
    }
    return shape;
}

/* A rank's ranges of the dimensions that are cut. */
struct cuts {
    struct range vocab, q, kv, expert, shared, dense; /* in rows (q, kv: heads x head_dim) */
    struct layout_place place;
};

static struct range scale(struct range range, int64_t by)
{
    return (struct range){range.first * by, range.count * by};
}

static struct cuts cuts_of(const struct model_config *config, const struct layout *layout, int rank)
{
    struct model_shape shape = weights_shape(config);
    return (struct cuts){
        .vocab = layout_vocab(&shape, layout->rank_count, rank),
        .q = scale(layout_heads(layout, &shape, rank), config->head_dim),
        .kv = scale(layout_kv_heads(layout, &shape, rank), config->head_dim),
        .expert = layout_expert_width(layout, &shape, rank),
        .shared = layout_ffn_width(layout, config->shared_expert_dim, rank),
        .dense = layout_ffn_width(layout, config->dense_dim, rank),
        .place = layout_place(layout, rank),
    };
}

/* The dimension of a weight that is cut, and the rank's range of it. */
enum cut_side { CUT_NONE, CUT_ROWS, CUT_COLUMNS };

static enum cut_side cut_of(struct range *range, const struct cuts *cuts, enum weight weight)
{
    switch (weight) {
    case WEIGHT_EMBEDDING:
    case WEIGHT_HEAD:
        *range = cuts->vocab;
        return CUT_ROWS;
    case WEIGHT_Q:
        *range = cuts->q;
        return CUT_ROWS;
    case WEIGHT_K:
    case WEIGHT_V:
        *range = cuts->kv;
        return CUT_ROWS;
    case WEIGHT_Q_BIAS:
    case WEIGHT_O:
        *range = cuts->q;
        return CUT_COLUMNS;
    case WEIGHT_K_BIAS:
    case WEIGHT_V_BIAS:
        *range = cuts->kv;
        return CUT_COLUMNS;
    case WEIGHT_EXPERT_GATE:
    case WEIGHT_EXPERT_UP:
        *range = cuts->expert;
        return CUT_ROWS;
    case WEIGHT_EXPERT_DOWN:
        *range = cuts->expert;
        return CUT_COLUMNS;
    case WEIGHT_SHARED_GATE:
    case WEIGHT_SHARED_UP:
        *range = cuts->shared;
        return CUT_ROWS;
    case WEIGHT_SHARED_DOWN:
        *range = cuts->shared;
        return CUT_COLUMNS;
    case WEIGHT_DENSE_GATE:
    case WEIGHT_DENSE_UP:
        *range = cuts->dense;
        return CUT_ROWS;
    case WEIGHT_DENSE_DOWN:
        *range = cuts->dense;
        return CUT_COLUMNS;
    default:
        return CUT_NONE;
    }
}

static struct weight_slice slice_of(const struct model_config *config, const struct cuts *cuts,
                                    enum weight weight, const struct weight_types *types)
{
    int64_t shape[3];
    int dimensions = weight_shape(shape, config, weight);
    struct weight_slice slice = {.weight = weight};
    slice.is_vector = dimensions == 1 || weight == WEIGHT_SHARED_SIGMOID;
    slice.block = (struct block){
        .row_count = slice.is_vector ? 1 : shape[0],
        .column_count = shape[dimensions - 1],
    };
    struct range range;
    switch (cut_of(&range, cuts, weight)) {
    case CUT_ROWS:
        slice.block.row = range.first;
        slice.block.row_count = range.count;
        break;
    case CUT_COLUMNS:
        slice.block.column = range.first;
        slice.block.column_count = range.count;
        break;
    case CUT_NONE:
        break;
    }
    bool is_down =
        weight == WEIGHT_EXPERT_DOWN || weight == WEIGHT_SHARED_DOWN || weight == WEIGHT_DENSE_DOWN;
    slice.packing = is_down ? PACK_INPUT : PACK_OUTPUT;
    /* The router decides between experts: it keeps full precision (it is tiny). */
    slice.dtype = slice.is_vector || weight == WEIGHT_ROUTER ? DTYPE_F32
                  : weight_is_expert(weight)                 ? types->experts
                                                             : types->matrices;
    int64_t rows = slice.block.row_count, columns = slice.block.column_count;
    int64_t bytes = slice.is_vector ? round_up(columns, PACK_BLOCK) * 4
                                    : packed_bytes(rows, columns, slice.dtype);
    if (slice.dtype == DTYPE_INT4)
        bytes += packed_scale_count(slice.packing, rows, columns, INT4_GROUP) *
                 (int64_t)sizeof(uint16_t);
    slice.bytes = (uint64_t)bytes;
    return slice;
}

/* The bias of the output projection is added once, by the first of those who share the sum; fused
 * forms are other places of the same weights. */
static bool is_held(const struct model_config *config, const struct cuts *cuts, enum weight weight,
                    int64_t layer)
{
    return weight != WEIGHT_FUSED_GATE_UP && weight != WEIGHT_FUSED_DOWN &&
           !(weight == WEIGHT_O_BIAS && cuts->place.at > 0) &&
           !((weight == WEIGHT_EMBEDDING || weight == WEIGHT_HEAD) && cuts->vocab.count == 0) &&
           weight_is_present(config, weight, layer);
}

struct visit {
    enum status (*call)(void *context, const struct weight_slice *slice, struct error *err);
    void *context;
};

static enum status visit_experts(const struct model_config *config, const struct layout *layout,
                                 const struct cuts *cuts, const struct visit *visit, int64_t layer,
                                 const struct weight_types *types, struct error *err)
{
    int32_t group_of[MODEL_EXPERTS_MAX];
    struct model_shape shape = weights_shape(config);
    int64_t local = 0;
    layout_placement(group_of, layout, &shape);
    for (int64_t expert = 0; expert < config->expert_count; expert++) {
        if (group_of[expert] != cuts->place.ee)
            continue;
        for (int w = WEIGHT_EXPERT_GATE; w <= WEIGHT_EXPERT_DOWN; w++) {
            struct weight_slice slice = slice_of(config, cuts, (enum weight)w, types);
            slice.layer = layer;
            slice.expert = expert;
            slice.local_expert = local;
            TRY(visit->call(visit->context, &slice, err));
        }
        local++;
    }
    return STATUS_OK;
}

enum status weight_slices_each(const struct model_config *config, const struct layout *layout,
                               int rank, const struct weight_types *types,
                               enum status (*call)(void *context, const struct weight_slice *slice,
                                                   struct error *err),
                               void *context, struct error *err)
{
    struct cuts cuts = cuts_of(config, layout, rank);
    struct visit visit = {call, context};
    for (int64_t layer = -1; layer < config->layer_count; layer++) {
        /* First what the model has once, then layer by layer. */
        int first = layer < 0 ? 0 : WEIGHT_INPUT_NORM;
        int end = layer < 0 ? WEIGHT_INPUT_NORM : WEIGHT_KIND_COUNT;
        for (int w = first; w < end; w++) {
            if (weight_is_expert((enum weight)w) ||
                !is_held(config, &cuts, (enum weight)w, layer < 0 ? 0 : layer))
                continue;
            struct weight_slice slice = slice_of(config, &cuts, (enum weight)w, types);
            slice.layer = layer < 0 ? 0 : layer;
            TRY(visit.call(visit.context, &slice, err));
        }
        if (layer >= 0 && config->layers[layer].ffn == FFN_MOE)
            TRY(visit_experts(config, layout, &cuts, &visit, layer, types, err));
    }
    return STATUS_OK;
}

static enum status add_bytes(void *context, const struct weight_slice *slice, struct error *err)
{
    struct weights_bytes *bytes = context;
    (void)err;
    uint64_t padded = (uint64_t)round_up((int64_t)slice->bytes, 64);
    bytes->by_weight[slice->weight] += padded;
    *(weight_is_expert(slice->weight) ? &bytes->experts : &bytes->resident) += padded;
    return STATUS_OK;
}

struct expert_type weights_expert_type(const struct weight_types *types)
{
    bool is_int4 = types->experts == DTYPE_INT4;
    return (struct expert_type){.dtype = types->experts, .group = is_int4 ? INT4_GROUP : 0};
}

void weight_slices_slots(struct expert_slots_params *out, struct model_shape *shape,
                         bool has_experts[MODEL_LAYERS_MAX], const struct model_config *config,
                         const struct weights_share *share)
{
    struct expert_type native = weights_expert_type(&share->types);
    *shape = weights_shape(config);
    for (int64_t layer = 0; layer < config->layer_count; layer++)
        has_experts[layer] = config->layers[layer].ffn == FFN_MOE;
    *out = (struct expert_slots_params){
        .shape = shape,
        .layouts = &share->layouts,
        .rank = share->rank,
        .types = {native, share->layouts.decode_is_packed ? share->packed : native},
        .keeps_both = share->keeps_both,
        .spare_count = share->spare_count,
        .has_experts = has_experts,
    };
}

uint64_t weights_expert_bytes(const struct model_config *config, const struct weights_share *share)
{
    struct expert_slots_params slots;
    struct model_shape shape;
    bool has_experts[MODEL_LAYERS_MAX];
    weight_slices_slots(&slots, &shape, has_experts, config, share);
    return expert_slots_bytes(&slots);
}

void weights_bytes(struct weights_bytes *out, const struct model_config *config,
                   const struct weights_share *share)
{
    *out = (struct weights_bytes){0};
    enum status status = weight_slices_each(config, &share->layouts.of[PHASE_PREFILL], share->rank,
                                            &share->types, add_bytes, out, NULL);
    ASSERT(status == STATUS_OK); /* add_bytes never fails */
    out->experts = weights_expert_bytes(config, share);
}

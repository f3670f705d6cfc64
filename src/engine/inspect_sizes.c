#include "engine/inspect_sizes.h"

static const enum model_part part_of[WEIGHT_KIND_COUNT] = {
    [WEIGHT_EMBEDDING] = PART_EMBEDDING,
    [WEIGHT_FINAL_NORM] = PART_NORMS,
    [WEIGHT_HEAD] = PART_EMBEDDING,
    [WEIGHT_INPUT_NORM] = PART_NORMS,
    [WEIGHT_Q] = PART_ATTENTION,
    [WEIGHT_K] = PART_ATTENTION,
    [WEIGHT_V] = PART_ATTENTION,
    [WEIGHT_O] = PART_ATTENTION,
    [WEIGHT_Q_BIAS] = PART_ATTENTION,
    [WEIGHT_K_BIAS] = PART_ATTENTION,
    [WEIGHT_V_BIAS] = PART_ATTENTION,
    [WEIGHT_O_BIAS] = PART_ATTENTION,
    [WEIGHT_Q_NORM] = PART_NORMS,
    [WEIGHT_K_NORM] = PART_NORMS,
    [WEIGHT_FFN_NORM] = PART_NORMS,
    [WEIGHT_ROUTER] = PART_ROUTER,
    [WEIGHT_EXPERT_GATE] = PART_EXPERTS,
    [WEIGHT_EXPERT_UP] = PART_EXPERTS,
    [WEIGHT_EXPERT_DOWN] = PART_EXPERTS,
    [WEIGHT_SHARED_GATE] = PART_SHARED_EXPERTS,
    [WEIGHT_SHARED_UP] = PART_SHARED_EXPERTS,
    [WEIGHT_SHARED_DOWN] = PART_SHARED_EXPERTS,
    [WEIGHT_SHARED_SIGMOID] = PART_SHARED_EXPERTS,
    [WEIGHT_DENSE_GATE] = PART_DENSE_FFN,
    [WEIGHT_DENSE_UP] = PART_DENSE_FFN,
    [WEIGHT_DENSE_DOWN] = PART_DENSE_FFN,
};

const char *model_part_name(enum model_part part)
{
    static const char *const names[PART_COUNT] = {
        "embedding", "attention", "experts", "shared_experts", "router", "dense_ffn", "norms",
    };
    return names[part];
}

enum model_part model_part_of(enum weight weight)
{
    return part_of[weight];
}

/* The fused forms are another place of the same weights. */
static bool is_counted(const struct model_config *config, enum weight weight, int64_t layer)
{
    return weight != WEIGHT_FUSED_GATE_UP && weight != WEIGHT_FUSED_DOWN &&
           weight_is_present(config, weight, layer);
}

static bool is_expert(enum weight weight)
{
    return part_of[weight] == PART_EXPERTS;
}

static uint64_t weight_parameters(const struct model_config *config, enum weight weight)
{
    int64_t shape[3];
    int rank = weight_shape(shape, config, weight);
    uint64_t count = is_expert(weight) ? (uint64_t)config->expert_count : 1;
    for (int i = 0; i < rank; i++)
        count *= (uint64_t)shape[i];
    return count;
}

struct model_sizes model_sizes_count(const struct model_config *config)
{
    struct model_sizes sizes = {0};
    for (int w = 0; w < WEIGHT_KIND_COUNT; w++) {
        int64_t layer_count = w < WEIGHT_INPUT_NORM ? 1 : config->layer_count;
        for (int64_t layer = 0; layer < layer_count; layer++) {
            if (is_counted(config, (enum weight)w, layer))
                sizes.parameters[part_of[w]] += weight_parameters(config, (enum weight)w);
        }
    }
    return sizes;
}

/* A fused tensor holds several weights: each has its share of the bytes. */
static enum status weigh(uint64_t *bytes, const struct checkpoint *checkpoint, enum weight weight,
                         int64_t layer, int64_t expert, struct error *err)
{
    struct weight_location where;
    TRY(checkpoint_locate(&where, checkpoint, weight, layer, expert, err));
    uint64_t values = 1;
    for (int i = 0; i < where.tensor->rank; i++)
        values *= (uint64_t)where.tensor->shape[i];
    if (values > 0)
        *bytes += where.tensor->bytes / values * (uint64_t)(where.row_count * where.column_count);
    return STATUS_OK;
}

enum status model_sizes_weigh(struct model_sizes *sizes, const struct checkpoint *checkpoint,
                              struct error *err)
{
    const struct model_config *config = checkpoint_config(checkpoint);
    for (int w = 0; w < WEIGHT_KIND_COUNT; w++) {
        enum weight weight = (enum weight)w;
        int64_t layer_count = w < WEIGHT_INPUT_NORM ? 1 : config->layer_count;
        int64_t expert_count = is_expert(weight) ? config->expert_count : 1;
        for (int64_t layer = 0; layer < layer_count; layer++) {
            for (int64_t e = 0; e < expert_count && is_counted(config, weight, layer); e++)
                TRY(weigh(&sizes->bytes[part_of[w]], checkpoint, weight, layer, e, err));
        }
    }
    return STATUS_OK;
}

uint64_t model_sizes_active(const struct model_sizes *sizes, const struct model_config *config)
{
    uint64_t active = 0;
    for (int part = 0; part < PART_COUNT; part++)
        active += sizes->parameters[part];
    if (config->expert_count > 0) {
        uint64_t experts = sizes->parameters[PART_EXPERTS];
        active -= experts / (uint64_t)config->expert_count *
                  (uint64_t)(config->expert_count - config->expert_top_k);
    }
    return active;
}

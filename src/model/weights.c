/* Names, presence and shapes of weights, from the config alone. */
#include <stdio.h>
#include <string.h>

#include "model/config.h"

bool weight_is_per_layer(enum weight weight)
{
    return weight >= WEIGHT_INPUT_NORM;
}

static void expand_name(char *out, size_t capacity, const char *pattern, int64_t layer,
                        int64_t expert)
{
    size_t length = 0;
    while (*pattern != 0) {
        char piece[24] = {*pattern};
        size_t taken = 1;
        if (strncmp(pattern, "{layer}", 7) == 0) {
            snprintf(piece, sizeof piece, "%lld", (long long)layer);
            taken = 7;
        } else if (strncmp(pattern, "{expert}", 8) == 0) {
            snprintf(piece, sizeof piece, "%lld", (long long)expert);
            taken = 8;
        }
        size_t piece_length = strlen(piece);
        ASSERT(length + piece_length < capacity);
        memcpy(out + length, piece, piece_length);
        length += piece_length;
        pattern += taken;
    }
    out[length] = 0;
}

void weight_name(char *out, size_t capacity, const struct model_config *config, enum weight weight,
                 int64_t layer, int64_t expert)
{
    const char *pattern = config->architecture->names[weight];
    ASSERT(pattern != NULL);
    expand_name(out, capacity, pattern, layer, expert);
}

bool weight_alternative_name(char *out, size_t capacity, const struct model_config *config,
                             enum weight weight, int64_t layer, int64_t expert)
{
    const char *pattern = config->architecture->alternative_names[weight];
    if (pattern == NULL)
        return false;
    expand_name(out, capacity, pattern, layer, expert);
    return true;
}

static bool is_wanted(const struct model_config *config, enum weight weight, bool moe)
{
    switch (weight) {
    case WEIGHT_HEAD:
        return !config->tied_embedding;
    case WEIGHT_Q_BIAS:
    case WEIGHT_K_BIAS:
    case WEIGHT_V_BIAS:
        return config->qkv_bias;
    case WEIGHT_O_BIAS:
        return config->output_bias;
    case WEIGHT_Q_NORM:
    case WEIGHT_K_NORM:
        return config->qk_norm;
    case WEIGHT_ROUTER:
    case WEIGHT_EXPERT_GATE:
    case WEIGHT_EXPERT_UP:
    case WEIGHT_EXPERT_DOWN:
    case WEIGHT_FUSED_GATE_UP:
    case WEIGHT_FUSED_DOWN:
        return moe;
    case WEIGHT_SHARED_GATE:
    case WEIGHT_SHARED_UP:
    case WEIGHT_SHARED_DOWN:
    case WEIGHT_SHARED_SIGMOID:
        return moe && config->shared_expert_dim > 0;
    case WEIGHT_DENSE_GATE:
    case WEIGHT_DENSE_UP:
    case WEIGHT_DENSE_DOWN:
        return !moe;
    default:
        return true;
    }
}

bool weight_is_present(const struct model_config *config, enum weight weight, int64_t layer)
{
    if (config->architecture->names[weight] == NULL)
        return false;
    bool moe = weight_is_per_layer(weight) && config->layers[layer].ffn == FFN_MOE;
    return is_wanted(config, weight, moe);
}

int weight_shape(int64_t shape[3], const struct model_config *config, enum weight weight)
{
    int64_t hidden = config->hidden_dim;
    int64_t q = config->head_count * config->head_dim;
    int64_t kv = config->kv_head_count * config->head_dim;
    const struct {
        int rank;
        int64_t shape[3];
    } shapes[WEIGHT_KIND_COUNT] = {
        [WEIGHT_EMBEDDING] = {2, {config->vocab_count, hidden}},
        [WEIGHT_FINAL_NORM] = {1, {hidden}},
        [WEIGHT_HEAD] = {2, {config->vocab_count, hidden}},
        [WEIGHT_INPUT_NORM] = {1, {hidden}},
        [WEIGHT_Q] = {2, {q, hidden}},
        [WEIGHT_K] = {2, {kv, hidden}},
        [WEIGHT_V] = {2, {kv, hidden}},
        [WEIGHT_O] = {2, {hidden, q}},
        [WEIGHT_Q_BIAS] = {1, {q}},
        [WEIGHT_K_BIAS] = {1, {kv}},
        [WEIGHT_V_BIAS] = {1, {kv}},
        [WEIGHT_O_BIAS] = {1, {hidden}},
        [WEIGHT_Q_NORM] = {1, {config->head_dim}},
        [WEIGHT_K_NORM] = {1, {config->head_dim}},
        [WEIGHT_FFN_NORM] = {1, {hidden}},
        [WEIGHT_ROUTER] = {2, {config->expert_count, hidden}},
        [WEIGHT_EXPERT_GATE] = {2, {config->expert_dim, hidden}},
        [WEIGHT_EXPERT_UP] = {2, {config->expert_dim, hidden}},
        [WEIGHT_EXPERT_DOWN] = {2, {hidden, config->expert_dim}},
        [WEIGHT_FUSED_GATE_UP] = {3, {config->expert_count, 2 * config->expert_dim, hidden}},
        [WEIGHT_FUSED_DOWN] = {3, {config->expert_count, hidden, config->expert_dim}},
        [WEIGHT_SHARED_GATE] = {2, {config->shared_expert_dim, hidden}},
        [WEIGHT_SHARED_UP] = {2, {config->shared_expert_dim, hidden}},
        [WEIGHT_SHARED_DOWN] = {2, {hidden, config->shared_expert_dim}},
        [WEIGHT_SHARED_SIGMOID] = {2, {1, hidden}},
        [WEIGHT_DENSE_GATE] = {2, {config->dense_dim, hidden}},
        [WEIGHT_DENSE_UP] = {2, {config->dense_dim, hidden}},
        [WEIGHT_DENSE_DOWN] = {2, {hidden, config->dense_dim}},
    };
    memcpy(shape, shapes[weight].shape, sizeof shapes[weight].shape);
    return shapes[weight].rank;
}

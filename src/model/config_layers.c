/* What differs from layer to layer: experts or a dense network, a sliding window or all positions.
 */
#include <string.h>

#include "base/json.h"
#include "model/config_read.h"

enum status config_read_experts(struct model_config *config, struct config_source source,
                                const char *width_key, struct error *err)
{
    const json_t *object = source.object;
    int64_t count, local_count;
    const char *key =
        config_key_is_silent(object, "num_experts") ? "num_local_experts" : "num_experts";
    TRY(json_get_int(&count, object, source.file, key, 1, MODEL_EXPERTS_MAX, err));
    TRY(json_get_int_or(&local_count, object, source.file, "num_local_experts", 1,
                        MODEL_EXPERTS_MAX, count, err));
    if (local_count != count)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"num_experts\" (%lld) and \"num_local_experts\" (%lld) contradict "
                         "each other",
                         source.file, (long long)count, (long long)local_count);
    TRY(json_get_int(&config->expert_top_k, object, source.file, "num_experts_per_tok", 1,
                     MODEL_EXPERTS_MAX, err));
    if (config->expert_top_k > count)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"num_experts_per_tok\" (%lld) is larger than \"%s\" (%lld)",
                         source.file, (long long)config->expert_top_k, key, (long long)count);
    config->expert_count = count;
    return json_get_int(&config->expert_dim, object, source.file, width_key, 1, MODEL_WIDTH_MAX,
                        err);
}

/* Marks the layers listed under mlp_only_layers as dense. */
static enum status read_mlp_only(struct model_config *config, struct config_source source,
                                 struct error *err)
{
    if (config_key_is_silent(source.object, "mlp_only_layers"))
        return STATUS_OK;
    const json_t *list = json_object_get(source.object, "mlp_only_layers");
    if (!json_is_array(list))
        return error_set(err, STATUS_FORMAT, "%s: \"mlp_only_layers\": expected an array, found %s",
                         source.file, json_kind(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *layer = json_array_get(list, i);
        if (!json_is_integer(layer) || json_integer_value(layer) < 0 ||
            json_integer_value(layer) >= config->layer_count)
            return error_set(err, STATUS_FORMAT,
                             "%s: \"mlp_only_layers\": entry %zu is no layer of 0 to %lld",
                             source.file, i, (long long)config->layer_count - 1);
        config->layers[json_integer_value(layer)].ffn = FFN_DENSE;
    }
    return STATUS_OK;
}

enum status config_read_dense_layers(struct model_config *config, struct config_source source,
                                     struct error *err)
{
    int64_t step, dense_count = 0;
    TRY(json_get_int_or(&step, source.object, source.file, "decoder_sparse_step", 1,
                        MODEL_LAYERS_MAX, 1, err));
    for (int64_t layer = 0; layer < config->layer_count; layer++)
        config->layers[layer].ffn = (layer + 1) % step == 0 ? FFN_MOE : FFN_DENSE;
    TRY(read_mlp_only(config, source, err));
    for (int64_t layer = 0; layer < config->layer_count; layer++)
        dense_count += config->layers[layer].ffn == FFN_DENSE;
    if (dense_count == config->layer_count)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"decoder_sparse_step\" and \"mlp_only_layers\" leave no layer with "
                         "experts; phasor runs Mixture-of-Experts models",
                         source.file);
    if (dense_count == 0)
        return STATUS_OK;
    return json_get_int(&config->dense_dim, source.object, source.file, "intermediate_size", 1,
                        MODEL_WIDTH_MAX, err);
}

static bool slides_by_default(const struct model_config *config, enum sliding_rule rule,
                              int64_t layer, int64_t max_window_layers)
{
    if (config->sliding_window == 0)
        return false;
    /* transformers 5, Qwen2MoeConfig.__post_init__ */
    return rule == SLIDING_ALL || ((layer + 1) % 2 != 0 && layer < max_window_layers);
}

/* layer_types decides for SLIDING_BY_LAYER. Other classes ignore the key, so it may only repeat
 * what they do anyway. */
static enum status read_layer_types(struct model_config *config, struct config_source source,
                                    enum sliding_rule rule, struct error *err)
{
    if (config_key_is_silent(source.object, "layer_types"))
        return STATUS_OK;
    const json_t *list = json_object_get(source.object, "layer_types");
    if (!json_is_array(list) || (int64_t)json_array_size(list) != config->layer_count)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"layer_types\": expected an array with one entry for each of the "
                         "%lld layers (\"num_hidden_layers\")",
                         source.file, (long long)config->layer_count);
    for (int64_t layer = 0; layer < config->layer_count; layer++) {
        const char *type = json_string_value(json_array_get(list, (size_t)layer));
        bool sliding = type != NULL && strcmp(type, "sliding_attention") == 0;
        if (type == NULL || (!sliding && strcmp(type, "full_attention") != 0))
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s: \"layer_types\": layer %lld is \"%s\"; phasor knows "
                             "full_attention and sliding_attention",
                             source.file, (long long)layer, type != NULL ? type : "not a string");
        if (rule == SLIDING_BY_LAYER && config->sliding_window != 0)
            config->layers[layer].sliding = sliding;
        else if (sliding != config->layers[layer].sliding)
            return error_set(err, STATUS_FORMAT,
                             "%s: \"layer_types\": layer %lld is %s, which contradicts "
                             "\"use_sliding_window\" and \"sliding_window\"",
                             source.file, (long long)layer, type);
    }
    return STATUS_OK;
}

enum status config_read_sliding(struct model_config *config, struct config_source source,
                                enum sliding_rule rule, bool gated, struct error *err)
{
    int64_t window = 0, max_window_layers;
    bool use = true;
    if (gated)
        TRY(json_get_bool_or(&use, source.object, source.file, "use_sliding_window", false, err));
    /* A window that is switched off is published as null, 0, 4096 or 32768, and ignored. */
    bool stated = json_object_get(source.object, "sliding_window") != NULL;
    if (use)
        TRY(json_get_int_or(&window, source.object, source.file, "sliding_window", 1, POSITIONS_MAX,
                            gated && !stated ? 4096 : 0, err));
    if (use && window == 0 && rule == SLIDING_BY_LAYER)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"use_sliding_window\" is true, but \"sliding_window\" is null",
                         source.file);
    TRY(json_get_int_or(&max_window_layers, source.object, source.file, "max_window_layers", 0,
                        POSITIONS_MAX, 28, err));
    config->sliding_window = window;
    for (int64_t layer = 0; layer < config->layer_count; layer++)
        config->layers[layer].sliding = slides_by_default(config, rule, layer, max_window_layers);
    TRY(read_layer_types(config, source, rule, err));
    bool any = false;
    for (int64_t layer = 0; layer < config->layer_count; layer++)
        any = any || config->layers[layer].sliding;
    if (!any)
        config->sliding_window = 0;
    return STATUS_OK;
}

/* Qwen2MoeForCausalLM: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B. */
#include "base/json.h"
#include "model/config_read.h"

static enum status config_read(struct model_config *config, const json_t *object, const char *file,
                               struct error *err)
{
    struct config_source source = {object, file};
    TRY(config_read_experts(config, source, "moe_intermediate_size", err));
    TRY(config_read_dense_layers(config, source, err));
    TRY(config_read_sliding(config, source, SLIDING_BY_LAYER, true, err));
    TRY(json_get_int(&config->shared_expert_dim, object, file, "shared_expert_intermediate_size", 0,
                     MODEL_WIDTH_MAX, err));
    TRY(json_get_bool_or(&config->norm_topk_prob, object, file, "norm_topk_prob", false, err));
    return json_get_bool_or(&config->qkv_bias, object, file, "qkv_bias", true, err);
}

const struct architecture architecture_qwen2_moe = {
    .class_name = "Qwen2MoeForCausalLM",
    .model_type = "qwen2_moe",
    .rope_theta_default = 1e4,
    .norm_epsilon_default = 1e-6,
    .config_read = config_read,
    .names =
        {
            [WEIGHT_EMBEDDING] = "model.embed_tokens.weight",
            [WEIGHT_FINAL_NORM] = "model.norm.weight",
            [WEIGHT_HEAD] = "lm_head.weight",
            [WEIGHT_INPUT_NORM] = "model.layers.{layer}.input_layernorm.weight",
            [WEIGHT_Q] = "model.layers.{layer}.self_attn.q_proj.weight",
            [WEIGHT_K] = "model.layers.{layer}.self_attn.k_proj.weight",
            [WEIGHT_V] = "model.layers.{layer}.self_attn.v_proj.weight",
            [WEIGHT_O] = "model.layers.{layer}.self_attn.o_proj.weight",
            [WEIGHT_Q_BIAS] = "model.layers.{layer}.self_attn.q_proj.bias",
            [WEIGHT_K_BIAS] = "model.layers.{layer}.self_attn.k_proj.bias",
            [WEIGHT_V_BIAS] = "model.layers.{layer}.self_attn.v_proj.bias",
            [WEIGHT_FFN_NORM] = "model.layers.{layer}.post_attention_layernorm.weight",
            [WEIGHT_ROUTER] = "model.layers.{layer}.mlp.gate.weight",
            [WEIGHT_EXPERT_GATE] = "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
            [WEIGHT_EXPERT_UP] = "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
            [WEIGHT_EXPERT_DOWN] = "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
            [WEIGHT_FUSED_GATE_UP] = "model.layers.{layer}.mlp.experts.gate_up_proj",
            [WEIGHT_FUSED_DOWN] = "model.layers.{layer}.mlp.experts.down_proj",
            [WEIGHT_SHARED_GATE] = "model.layers.{layer}.mlp.shared_expert.gate_proj.weight",
            [WEIGHT_SHARED_UP] = "model.layers.{layer}.mlp.shared_expert.up_proj.weight",
            [WEIGHT_SHARED_DOWN] = "model.layers.{layer}.mlp.shared_expert.down_proj.weight",
            [WEIGHT_SHARED_SIGMOID] = "model.layers.{layer}.mlp.shared_expert_gate.weight",
            [WEIGHT_DENSE_GATE] = "model.layers.{layer}.mlp.gate_proj.weight",
            [WEIGHT_DENSE_UP] = "model.layers.{layer}.mlp.up_proj.weight",
            [WEIGHT_DENSE_DOWN] = "model.layers.{layer}.mlp.down_proj.weight",
        },
};

/* MixtralForCausalLM: Mixtral 8x7B, 8x22B. */
#include "model/config_read.h"

static enum status config_read(struct model_config *config, const json_t *object, const char *file,
                               struct error *err)
{
    struct config_source source = {object, file};
    TRY(config_read_experts(config, source, "intermediate_size", err));
    TRY(config_read_sliding(config, source, SLIDING_ALL, false, err));
    config->norm_topk_prob = true; /* the class always divides by the sum */
    return STATUS_OK;
}

const struct architecture architecture_mixtral = {
    .class_name = "MixtralForCausalLM",
    .model_type = "mixtral",
    .rope_theta_default = 1e6,
    .norm_epsilon_default = 1e-5,
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
            [WEIGHT_FFN_NORM] = "model.layers.{layer}.post_attention_layernorm.weight",
            [WEIGHT_ROUTER] = "model.layers.{layer}.block_sparse_moe.gate.weight",
            /* w1 is the gate, w3 is up, w2 is down. */
            [WEIGHT_EXPERT_GATE] =
                "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight",
            [WEIGHT_EXPERT_UP] = "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3.weight",
            [WEIGHT_EXPERT_DOWN] =
                "model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight",
            [WEIGHT_FUSED_GATE_UP] = "model.layers.{layer}.block_sparse_moe.experts.gate_up_proj",
            [WEIGHT_FUSED_DOWN] = "model.layers.{layer}.block_sparse_moe.experts.down_proj",
        },
    /* transformers 5 calls the block mlp in memory and, with save_original_format off, on disk. */
    .alternative_names =
        {
            [WEIGHT_ROUTER] = "model.layers.{layer}.mlp.gate.weight",
            [WEIGHT_EXPERT_GATE] = "model.layers.{layer}.mlp.experts.{expert}.w1.weight",
            [WEIGHT_EXPERT_UP] = "model.layers.{layer}.mlp.experts.{expert}.w3.weight",
            [WEIGHT_EXPERT_DOWN] = "model.layers.{layer}.mlp.experts.{expert}.w2.weight",
            [WEIGHT_FUSED_GATE_UP] = "model.layers.{layer}.mlp.experts.gate_up_proj",
            [WEIGHT_FUSED_DOWN] = "model.layers.{layer}.mlp.experts.down_proj",
        },
};

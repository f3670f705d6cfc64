#include <criterion/criterion.h>
#include <string.h>

#include "config_texts.h"
#include "model_tools.h"

Test(weights, names)
{
    struct model_config mixtral = config_of(MIXTRAL_JSON, "{}");
    struct model_config qwen2 = config_of(QWEN2_JSON, "{}");
    struct model_config qwen3 = config_of(QWEN3_JSON, "{}");
    const struct {
        const struct model_config *config;
        enum weight weight;
        const char *name, *alternative;
    } rows[] = {
        {&mixtral, WEIGHT_EMBEDDING, "model.embed_tokens.weight", NULL},
        {&mixtral, WEIGHT_HEAD, "lm_head.weight", NULL},
        {&mixtral, WEIGHT_Q, "model.layers.3.self_attn.q_proj.weight", NULL},
        {&mixtral, WEIGHT_ROUTER, "model.layers.3.block_sparse_moe.gate.weight",
         "model.layers.3.mlp.gate.weight"},
        {&mixtral, WEIGHT_EXPERT_GATE, "model.layers.3.block_sparse_moe.experts.17.w1.weight",
         "model.layers.3.mlp.experts.17.w1.weight"},
        {&mixtral, WEIGHT_EXPERT_DOWN, "model.layers.3.block_sparse_moe.experts.17.w2.weight",
         "model.layers.3.mlp.experts.17.w2.weight"},
        {&mixtral, WEIGHT_EXPERT_UP, "model.layers.3.block_sparse_moe.experts.17.w3.weight",
         "model.layers.3.mlp.experts.17.w3.weight"},
        {&mixtral, WEIGHT_FUSED_GATE_UP, "model.layers.3.block_sparse_moe.experts.gate_up_proj",
         "model.layers.3.mlp.experts.gate_up_proj"},
        {&qwen2, WEIGHT_EXPERT_GATE, "model.layers.3.mlp.experts.17.gate_proj.weight", NULL},
        {&qwen2, WEIGHT_SHARED_SIGMOID, "model.layers.3.mlp.shared_expert_gate.weight", NULL},
        {&qwen2, WEIGHT_SHARED_DOWN, "model.layers.3.mlp.shared_expert.down_proj.weight", NULL},
        {&qwen2, WEIGHT_K_BIAS, "model.layers.3.self_attn.k_proj.bias", NULL},
        {&qwen2, WEIGHT_DENSE_UP, "model.layers.3.mlp.up_proj.weight", NULL},
        {&qwen3, WEIGHT_Q_NORM, "model.layers.3.self_attn.q_norm.weight", NULL},
        {&qwen3, WEIGHT_O_BIAS, "model.layers.3.self_attn.o_proj.bias", NULL},
        {&qwen3, WEIGHT_FUSED_DOWN, "model.layers.3.mlp.experts.down_proj", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[WEIGHT_NAME_BYTES];
        weight_name(name, sizeof name, rows[i].config, rows[i].weight, 3, 17);
        cr_expect_str_eq(name, rows[i].name);
        bool has =
            weight_alternative_name(name, sizeof name, rows[i].config, rows[i].weight, 3, 17);
        cr_expect_eq(has, rows[i].alternative != NULL, "%s", rows[i].name);
        if (has)
            cr_expect_str_eq(name, rows[i].alternative);
    }
}

Test(weights, every_name_fits_the_buffer)
{
    for (const struct architecture *const *at = architectures; *at != NULL; at++) {
        struct model_config config = {.architecture = *at};
        for (enum weight weight = 0; weight < WEIGHT_KIND_COUNT; weight++) {
            char name[WEIGHT_NAME_BYTES];
            if ((*at)->names[weight] != NULL)
                weight_name(name, sizeof name, &config, weight, INT64_MAX, INT64_MAX);
        }
    }
}

Test(weights, presence)
{
    struct model_config mixtral = config_of(MIXTRAL_JSON, "{'tie_word_embeddings':true}");
    struct model_config qwen2 = config_of(QWEN2_JSON, "{'mlp_only_layers':[1],'qkv_bias':false}");
    struct model_config qwen3 = config_of(QWEN3_JSON, "{'attention_bias':true}");
    const struct {
        const struct model_config *config;
        enum weight weight;
        int64_t layer;
        bool present;
    } rows[] = {
        {&mixtral, WEIGHT_EMBEDDING, 0, true},    {&mixtral, WEIGHT_HEAD, 0, false},
        {&mixtral, WEIGHT_EXPERT_UP, 0, true},    {&mixtral, WEIGHT_Q_BIAS, 0, false},
        {&mixtral, WEIGHT_Q_NORM, 0, false},      {&mixtral, WEIGHT_SHARED_UP, 0, false},
        {&mixtral, WEIGHT_DENSE_UP, 0, false},    {&mixtral, WEIGHT_FUSED_DOWN, 0, true},
        {&qwen2, WEIGHT_HEAD, 0, true},           {&qwen2, WEIGHT_Q_BIAS, 0, false},
        {&qwen2, WEIGHT_EXPERT_UP, 1, false},     {&qwen2, WEIGHT_ROUTER, 1, false},
        {&qwen2, WEIGHT_DENSE_UP, 1, true},       {&qwen2, WEIGHT_DENSE_UP, 0, false},
        {&qwen2, WEIGHT_SHARED_UP, 0, true},      {&qwen2, WEIGHT_SHARED_SIGMOID, 1, false},
        {&qwen2, WEIGHT_FUSED_GATE_UP, 1, false}, {&qwen3, WEIGHT_Q_BIAS, 0, true},
        {&qwen3, WEIGHT_O_BIAS, 3, true},         {&qwen3, WEIGHT_K_NORM, 0, true},
        {&qwen3, WEIGHT_SHARED_GATE, 0, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_eq(weight_is_present(rows[i].config, rows[i].weight, rows[i].layer),
                     rows[i].present, "row %zu", i);
}

Test(weights, shapes)
{
    struct model_config config =
        config_of(QWEN2_JSON, "{'mlp_only_layers':[1],'head_dim':32,'num_key_value_heads':2}");
    const struct {
        enum weight weight;
        int rank;
        int64_t shape[3];
    } rows[] = {
        {WEIGHT_EMBEDDING, 2, {256, 64}},
        {WEIGHT_FINAL_NORM, 1, {64}},
        {WEIGHT_Q, 2, {128, 64}},
        {WEIGHT_K, 2, {64, 64}},
        {WEIGHT_O, 2, {64, 128}},
        {WEIGHT_Q_BIAS, 1, {128}},
        {WEIGHT_V_BIAS, 1, {64}},
        {WEIGHT_Q_NORM, 1, {32}},
        {WEIGHT_ROUTER, 2, {6, 64}},
        {WEIGHT_EXPERT_UP, 2, {48, 64}},
        {WEIGHT_EXPERT_DOWN, 2, {64, 48}},
        {WEIGHT_FUSED_GATE_UP, 3, {6, 96, 64}},
        {WEIGHT_FUSED_DOWN, 3, {6, 64, 48}},
        {WEIGHT_SHARED_GATE, 2, {80, 64}},
        {WEIGHT_SHARED_DOWN, 2, {64, 80}},
        {WEIGHT_SHARED_SIGMOID, 2, {1, 64}},
        {WEIGHT_DENSE_GATE, 2, {128, 64}},
        {WEIGHT_DENSE_DOWN, 2, {64, 128}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t shape[3];
        cr_expect_eq(weight_shape(shape, &config, rows[i].weight), rows[i].rank, "row %zu", i);
        cr_expect_eq(memcmp(shape, rows[i].shape, sizeof *shape * (size_t)rows[i].rank), 0,
                     "row %zu", i);
    }
}

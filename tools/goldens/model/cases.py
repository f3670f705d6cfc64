"""The table of checkpoints: what each one is for, how its config is written, and what must matter in it.

`config` is in the words of transformers 4 (rope_theta, rope_scaling), which transformers 5 reads as well.
`style` says how config.json is written: "v4" writes `config` as it stands, "v5" writes what save_pretrained
gives. `experts` says how the expert matrices lie on disk: "split" as published (one tensor per expert and
matrix), "fused" as transformers 5 holds them in memory. `ablations` are changes to the config, each of
which must change the logits: a reader that ignores the option then cannot pass.
"""

MIXTRAL = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 32,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 128,
}

QWEN2 = {
    "model_type": "qwen2_moe",
    "architectures": ["Qwen2MoeForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_sparse_step": 1,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "max_window_layers": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": False,
    "num_attention_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "shared_expert_intermediate_size": 48,
    "sliding_window": 16,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 128,
}

QWEN3 = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_sparse_step": 1,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 128,
}

SAMPLING = {
    "bos_token_id": 1,
    "do_sample": True,
    "eos_token_id": [2, 5],
    "pad_token_id": 2,
    "repetition_penalty": 1.05,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
}

DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def case(name, covers, base, dtype, style, ablations, experts="split", shards=1, generation=None, drop=(), **change):
    config = {**base, **change}
    for key in drop:
        del config[key]
    return {
        "name": name, "covers": covers, "config": config, "dtype": dtype, "style": style, "experts": experts,
        "shards": shards, "generation": generation, "ablations": ablations,
    }


CASES = [
    case("mixtral", "grouped-query attention, 4 heads on 2; expert width 48", MIXTRAL, "bfloat16", "v4",
         [{"num_experts_per_tok": 1}, {"rope_parameters": DEFAULT_ROPE}], intermediate_size=48),
    case("mixtral-sliding", "sliding_window 16 in every layer", MIXTRAL, "float16", "v5",
         [{"sliding_window": None}, {"sliding_window": 15}, {"sliding_window": 17}], sliding_window=16),
    case("mixtral-tied", "tied embeddings; head_dim 32 is not hidden / heads; rope_theta 10000", MIXTRAL,
         "float32", "v5", [{"rope_parameters": {**DEFAULT_ROPE, "rope_theta": 1e6}}],
         tie_word_embeddings=True, head_dim=32, rope_theta=10000.0),
    case("mixtral-sharded", "three shards and an index; expert width 40; vocabulary 131; integer rope_theta",
         MIXTRAL, "bfloat16", "v4", [{"rope_parameters": DEFAULT_ROPE}],
         shards=3, intermediate_size=40, vocab_size=131, rope_theta=1000000),
    case("mixtral-fused", "fused experts (`mlp.experts.gate_up_proj`, `mlp.experts.down_proj`, `mlp.gate`)",
         MIXTRAL, "float16", "v5", [{"num_experts_per_tok": 3}], experts="fused", intermediate_size=48),

    case("qwen2moe", "shared expert; no renormalizing; top-4 of 12; biases by default (no `qkv_bias` key); "
         "a sliding_window that use_sliding_window false switches off; several stop ids", QWEN2, "bfloat16", "v4",
         [{"norm_topk_prob": True}, {"num_experts_per_tok": 3}],
         num_experts=12, num_experts_per_tok=4, generation=SAMPLING),
    case("qwen2moe-norm", "renormalized top-k; decoder_sparse_step 2 (layers 1 and 3 have experts); qkv_bias false",
         QWEN2, "float16", "v5", [{"norm_topk_prob": False}], norm_topk_prob=True, decoder_sparse_step=2,
         num_hidden_layers=4, qkv_bias=False),
    case("qwen2moe-mlponly", "mlp_only_layers [1]; layer_types: only layer 0 slides, window 16; YaRN by 4 from 32",
         QWEN2, "bfloat16", "v5",
         [{"rope_parameters": DEFAULT_ROPE}, {"layer_types": ["full_attention"] * 3}, {"sliding_window": 15},
          {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
          {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                               "original_max_position_embeddings": 32, "attention_factor": 1.0}}],
         num_hidden_layers=3, mlp_only_layers=[1], use_sliding_window=True, max_window_layers=1,
         max_position_embeddings=128, rope_theta=10000.0,
         rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    case("qwen2moe-window", "sliding layers to be derived: no layer_types, max_window_layers 3, so layers 0 and 2; "
         "4 experts; YaRN under the old key `type`", QWEN2, "bfloat16", "v4",
         [{"layer_types": ["full_attention"] * 3}, {"layer_types": ["sliding_attention"] * 3},
          {"rope_parameters": DEFAULT_ROPE}],
         num_hidden_layers=3, num_experts=4, use_sliding_window=True, max_window_layers=3,
         shared_expert_intermediate_size=32, max_position_embeddings=128, rope_theta=10000.0,
         rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),

    case("qwen3moe", "norms on q and k; head_dim 32; renormalized top-8 of 16; several stop ids", QWEN3, "bfloat16",
         "v5", [{"norm_topk_prob": False}, {"num_experts_per_tok": 7}],
         num_experts=16, num_experts_per_tok=8, generation=SAMPLING),
    case("qwen3moe-bias", "attention_bias (q, k, v and o); no renormalizing; tied embeddings; linear RoPE by 2 under "
         "the old key `type`; top-3 of 6", QWEN3, "float32", "v4",
         [{"norm_topk_prob": True}, {"rope_parameters": DEFAULT_ROPE}],
         attention_bias=True, norm_topk_prob=False, tie_word_embeddings=True, num_experts=6, num_experts_per_tok=3,
         rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 2.0}),
    case("qwen3moe-fused", "fused experts, width 24; llama3 RoPE scaling by 8 from 32", QWEN3, "float16", "v5",
         [{"rope_parameters": DEFAULT_ROPE},
          {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0}}],
         experts="fused", moe_intermediate_size=24, rope_theta=10000.0, max_position_embeddings=256,
         rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                       "original_max_position_embeddings": 32}),
    case("qwen3moe-v4", "config.json as transformers 4 wrote it (rope_theta, rope_scaling null, torch_dtype, "
         "num_experts); top-8 of 16, expert width 24; a sliding_window that is switched off", QWEN3, "bfloat16", "v4",
         [{"norm_topk_prob": False}, {"rope_parameters": DEFAULT_ROPE}],
         num_experts=16, num_experts_per_tok=8, moe_intermediate_size=24, sliding_window=16, max_window_layers=2,
         rope_scaling=None),
    case("qwen3moe-window", "use_sliding_window: every layer slides, max_window_layers has no meaning here; "
         "decoder_sparse_step 2; 4 experts", QWEN3, "bfloat16", "v4",
         [{"sliding_window": None}, {"sliding_window": 15}, {"sliding_window": 17}],
         head_dim=16, num_experts=4, decoder_sparse_step=2, use_sliding_window=True, sliding_window=16,
         max_window_layers=1),
]

"""What a model costs: the flops of a prefill and the bytes of a decode pass, from its config.json."""

import json
from dataclasses import dataclass
from pathlib import Path

BF16_BYTES = 2
F32_BYTES = 4


@dataclass(frozen=True)
class Shape:
    architecture: str
    layer_count: int
    hidden_dim: int
    vocab_count: int
    head_count: int
    kv_head_count: int
    head_dim: int
    expert_count: int
    top_k: int
    expert_dim: int
    shared_dim: int  # 0: no shared expert
    has_qkv_bias: bool
    context: int


def read_shape(model_dir):
    config = json.loads((Path(model_dir) / "config.json").read_text())
    is_qwen = config["model_type"] == "qwen2_moe"
    if not is_qwen and config["model_type"] != "mixtral":
        raise SystemExit(f"{model_dir}/config.json: model_type {config['model_type']!r}; "
                         "this benchmark knows mixtral and qwen2_moe")
    if config["tie_word_embeddings"] or config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise SystemExit(f"{model_dir}/config.json: tied embeddings or layers without experts are not counted here")
    if is_qwen and config.get("norm_topk_prob"):
        raise SystemExit(f"{model_dir}/config.json: llama.cpp's qwen2moe never normalises the top-k weights")
    head_count = config["num_attention_heads"]
    return Shape(
        architecture=config["model_type"],
        layer_count=config["num_hidden_layers"],
        hidden_dim=config["hidden_size"],
        vocab_count=config["vocab_size"],
        head_count=head_count,
        kv_head_count=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or config["hidden_size"] // head_count,
        expert_count=config["num_experts" if is_qwen else "num_local_experts"],
        top_k=config["num_experts_per_tok"],
        expert_dim=config["moe_intermediate_size" if is_qwen else "intermediate_size"],
        shared_dim=config["shared_expert_intermediate_size"] if is_qwen else 0,
        has_qkv_bias=is_qwen,
        context=config["max_position_embeddings"],
    )


def attention_weights(shape):
    """Weights of q, k, v and o of one layer."""
    return shape.hidden_dim * shape.head_dim * 2 * (shape.head_count + shape.kv_head_count)


def expert_weights(shape):
    """Weights of one routed expert of one layer."""
    return 3 * shape.hidden_dim * shape.expert_dim


def prefill_flops(shape, prompt_tokens, prompt_count):
    """Of all matrix products, causal attention included; the head sees one token of each prompt."""
    per_token = attention_weights(shape) + shape.hidden_dim * shape.expert_count
    per_token += shape.top_k * expert_weights(shape)
    if shape.shared_dim:
        per_token += 3 * shape.hidden_dim * shape.shared_dim + shape.hidden_dim
    pairs = prompt_tokens * (prompt_tokens + 1) // 2
    attention = 4 * pairs * shape.head_count * shape.head_dim  # q.k and p.v, 2 flops each
    layers = shape.layer_count * (2 * per_token * prompt_tokens + attention)
    return prompt_count * (layers + 2 * shape.hidden_dim * shape.vocab_count)


def experts_of_pass(shape, sequence_count):
    """Different experts of a layer that a pass of so many tokens takes, if routing is uniform."""
    missed = (1 - shape.top_k / shape.expert_count) ** sequence_count
    return shape.expert_count * (1 - missed)


def decode_bytes(shape, sequence_count, expert_weight_bytes):
    """Weights that one decode pass reads: bf16, the router f32, routed experts as told. Without
    norms, biases, embedding rows and the KV cache."""
    per_layer = BF16_BYTES * attention_weights(shape) + F32_BYTES * shape.hidden_dim * shape.expert_count
    per_layer += experts_of_pass(shape, sequence_count) * expert_weights(shape) * expert_weight_bytes
    per_layer += BF16_BYTES * 3 * shape.hidden_dim * shape.shared_dim
    return shape.layer_count * per_layer + BF16_BYTES * shape.hidden_dim * shape.vocab_count

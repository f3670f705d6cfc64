"""Write the weights of a checkpoint as GGUF, for llama.cpp.

    python gguf_of.py MODEL_DIR --bf16 OUT.gguf --q4 OUT.gguf --f32 OUT.gguf

Any output may be left out. The first has bf16 throughout; in the second the routed experts alone are
q4_0, the rest is bf16; the third, f32 throughout, shows that the conversion is right. In all of them,
what llama.cpp's own converter keeps in f32 is f32: norms, biases, the router and the shared expert's
gate. There is no tokenizer: prompts are token ids.

Needs gguf, safetensors, torch and numpy.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors import safe_open

from shapes import read_shape

BF16 = gguf.GGMLQuantizationType.BF16
Q4_0 = gguf.GGMLQuantizationType.Q4_0
ARCHITECTURES = {"mixtral": "llama", "qwen2_moe": "qwen2moe"}
MIXTRAL_EXPERTS = {"gate": "w1", "up": "w3", "down": "w2"}


class Checkpoint:
    """Tensors of all shards by name."""

    def __init__(self, model_dir):
        self.files = {}
        for path in sorted(Path(model_dir).glob("*.safetensors")):
            shard = safe_open(path, framework="pt")
            self.files.update({name: shard for name in shard.keys()})
        if not self.files:
            raise SystemExit(f"{model_dir}: no *.safetensors")

    def get(self, name):
        if name not in self.files:
            raise SystemExit(f"the checkpoint has no tensor {name}")
        return self.files[name].get_tensor(name)


def rope_pairs(weight, head_count):
    """Rows of each head from halves, as Hugging Face rotates, to pairs, as GGML's llama does."""
    rows = weight.shape[0] // head_count
    return weight.reshape(head_count, 2, rows // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def add_f32(writer, name, tensor):
    writer.add_tensor(name, tensor.float().contiguous().numpy())


def add_bf16(writer, name, tensor):
    bits = tensor.to(torch.bfloat16).contiguous().view(torch.uint16).numpy()
    writer.add_tensor(name, bits.view(np.uint8), raw_dtype=BF16)


def add_q4(writer, name, tensor):
    writer.add_tensor(name, gguf.quants.quantize(tensor.float().numpy(), Q4_0), raw_dtype=Q4_0)


@dataclass(frozen=True)
class Form:
    """How each kind of matrix is written."""

    file_type: gguf.LlamaFileType
    add_matrix: Callable
    add_expert: Callable


FORMS = {
    "bf16": Form(gguf.LlamaFileType.MOSTLY_BF16, add_bf16, add_bf16),
    "q4": Form(gguf.LlamaFileType.MOSTLY_Q4_0, add_bf16, add_q4),
    "f32": Form(gguf.LlamaFileType.ALL_F32, add_f32, add_f32),
}


def add_metadata(writer, shape, config):
    writer.add_vocab_size(shape.vocab_count)
    writer.add_tokenizer_model("no_vocab")
    writer.add_block_count(shape.layer_count)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden_dim)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(shape.head_count)
    writer.add_head_count_kv(shape.kv_head_count)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(shape.expert_count)
    writer.add_expert_used_count(shape.top_k)
    if shape.architecture == "qwen2_moe":
        writer.add_expert_feed_forward_length(shape.expert_dim)
        writer.add_expert_shared_feed_forward_length(shape.shared_dim)


def add_attention(writer, checkpoint, shape, layer, form):
    heads = {"q": shape.head_count, "k": shape.kv_head_count}
    for part in "qkv":
        source = f"model.layers.{layer}.self_attn.{part}_proj"
        weight = checkpoint.get(f"{source}.weight")
        if shape.architecture == "mixtral" and part in heads:
            weight = rope_pairs(weight, heads[part])
        form.add_matrix(writer, f"blk.{layer}.attn_{part}.weight", weight)
        if shape.has_qkv_bias:
            add_f32(writer, f"blk.{layer}.attn_{part}.bias", checkpoint.get(f"{source}.bias"))
    form.add_matrix(writer, f"blk.{layer}.attn_output.weight",
                    checkpoint.get(f"model.layers.{layer}.self_attn.o_proj.weight"))


def stacked_experts(checkpoint, shape, layer, part):
    """[expert_count][rows][columns]"""
    if shape.architecture == "mixtral":
        name = f"model.layers.{layer}.block_sparse_moe.experts.{{}}.{MIXTRAL_EXPERTS[part]}.weight"
    else:
        name = f"model.layers.{layer}.mlp.experts.{{}}.{part}_proj.weight"
    return torch.stack([checkpoint.get(name.format(e)) for e in range(shape.expert_count)])


def add_shared_expert(writer, checkpoint, layer, form):
    for part in ("gate", "up", "down"):
        form.add_matrix(writer, f"blk.{layer}.ffn_{part}_shexp.weight",
                        checkpoint.get(f"model.layers.{layer}.mlp.shared_expert.{part}_proj.weight"))
    add_f32(writer, f"blk.{layer}.ffn_gate_inp_shexp.weight",
            checkpoint.get(f"model.layers.{layer}.mlp.shared_expert_gate.weight").flatten())


def add_layer(writer, checkpoint, shape, layer, form):
    block = "block_sparse_moe" if shape.architecture == "mixtral" else "mlp"
    source = f"model.layers.{layer}"
    add_f32(writer, f"blk.{layer}.attn_norm.weight", checkpoint.get(f"{source}.input_layernorm.weight"))
    add_attention(writer, checkpoint, shape, layer, form)
    add_f32(writer, f"blk.{layer}.ffn_norm.weight", checkpoint.get(f"{source}.post_attention_layernorm.weight"))
    add_f32(writer, f"blk.{layer}.ffn_gate_inp.weight", checkpoint.get(f"{source}.{block}.gate.weight"))
    for part in ("gate", "up", "down"):
        form.add_expert(writer, f"blk.{layer}.ffn_{part}_exps.weight", stacked_experts(checkpoint, shape, layer, part))
    if shape.shared_dim:
        add_shared_expert(writer, checkpoint, layer, form)


def write_gguf(model_dir, path, form):
    """The file appears under its name only when it is complete."""
    shape = read_shape(model_dir)
    config = json.loads((Path(model_dir) / "config.json").read_text())
    checkpoint = Checkpoint(model_dir)
    partial = Path(f"{path}.partial")
    writer = gguf.GGUFWriter(partial, ARCHITECTURES[shape.architecture])
    writer.add_file_type(form.file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_metadata(writer, shape, config)
    form.add_matrix(writer, "token_embd.weight", checkpoint.get("model.embed_tokens.weight"))
    for layer in range(shape.layer_count):
        add_layer(writer, checkpoint, shape, layer, form)
    add_f32(writer, "output_norm.weight", checkpoint.get("model.norm.weight"))
    form.add_matrix(writer, "output.weight", checkpoint.get("lm_head.weight"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, help="a checkpoint of the mixtral or qwen2_moe architecture")
    parser.add_argument("--bf16", type=Path, help="file to write: bf16 throughout")
    parser.add_argument("--q4", type=Path, help="file to write: routed experts q4_0, the rest bf16")
    parser.add_argument("--f32", type=Path, help="file to write: f32 throughout")
    args = parser.parse_args()
    for name, form in FORMS.items():
        if getattr(args, name):
            write_gguf(args.model_dir, getattr(args, name), form)


if __name__ == "__main__":
    main()

"""The model as it is trained: Mixtral in plain PyTorch, fast on a CPU.

The arithmetic is that of transformers' MixtralForCausalLM (evaluate.py runs the result there). The experts
are computed in groups: the tokens are sorted by expert, so that an expert is two matrix products.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        hidden = c["hidden_size"]
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        repeat = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.experts, self.top_k = c["num_local_experts"], c["num_experts_per_tok"]
        hidden, inner = c["hidden_size"], c["intermediate_size"]
        self.gate = nn.Linear(hidden, self.experts, bias=False)
        self.w13 = nn.Parameter(torch.empty(self.experts, 2 * inner, hidden))
        self.w2 = nn.Parameter(torch.empty(self.experts, hidden, inner))

    def forward(self, x):
        """(output, balance loss): the loss is 1 where all experts get equal shares."""
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        tokens = len(x)
        probabilities = self.gate(x).softmax(-1)
        weight, chosen = probabilities.topk(self.top_k, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)

        order = chosen.flatten().argsort()
        counts = torch.bincount(chosen.flatten(), minlength=self.experts)
        groups = x.index_select(0, order // self.top_k).split(counts.tolist())
        outputs = []
        # unbind, not w13[e]: the gradient of an index is a whole tensor of zeros, for every expert.
        for rows, w13, w2 in zip(groups, self.w13.unbind(), self.w2.unbind()):
            gate, up = F.linear(rows, w13).chunk(2, dim=-1)
            outputs.append(F.linear(F.silu(gate) * up, w2))
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        y = torch.cat(outputs).index_select(0, back).view(tokens, self.top_k, -1)
        y = (y * weight.unsqueeze(-1)).sum(1)

        # The loss of Switch Transformers, by layer. (transformers pools all layers into one, which lets an
        # expert of one layer die as long as others make up for it.)
        self.share = share = counts / counts.sum()
        balance = self.experts * (share * probabilities.mean(0)).sum()
        return y.view(shape), balance


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.block_sparse_moe = Experts(c)

    def attend(self, x, cos, sin):
        """(residual stream, input of the experts)"""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x, self.post_attention_layernorm(x)


class Mixtral(nn.Module):
    def __init__(self, c, dropout):
        super().__init__()
        self.config = c
        self.dropout = dropout
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=c["initializer_range"])
            if name.endswith(("o_proj.weight", "w2")):  # what is added to the residual stream starts small
                p.data /= math.sqrt(2 * c["num_hidden_layers"])

    def forward(self, tokens, targets=None):
        """(logits, balance loss), or with targets (mean loss of a token, balance loss)."""
        c = self.config
        half = torch.arange(0, c["head_dim"], 2) / c["head_dim"]
        angle = torch.arange(tokens.shape[1])[:, None] / c["rope_theta"] ** half
        cos, sin = angle.cos(), angle.sin()
        x = F.dropout(self.embed_tokens(tokens), self.dropout, self.training)
        balance = 0.0
        for layer in self.layers:
            x, h = layer.attend(x, cos, sin)
            y, b = layer.block_sparse_moe(h)
            x = x + F.dropout(y, self.dropout, self.training)
            balance = balance + b / len(self.layers)
        return self.head(x, targets), balance

    def head(self, x, targets):
        logits = self.lm_head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def compile_parts(self):
        """Fuse what is not a matrix product; needs a C++ compiler. The experts stay as they are: the sizes of
        their groups differ from step to step."""
        for layer in self.layers:
            layer.attend = torch.compile(layer.attend, dynamic=False)
        self.head = torch.compile(self.head, dynamic=False)

    def published_weights(self):
        """The weights in bf16 under the names Mixtral checkpoints have."""
        weights = {}
        for name, p in self.state_dict().items():
            if name.endswith(".w13"):
                for e in range(len(p)):
                    w1, w3 = p[e].chunk(2)
                    weights[f"model.{name[:-4]}.experts.{e}.w1.weight"] = w1
                    weights[f"model.{name[:-4]}.experts.{e}.w3.weight"] = w3
            elif name.endswith(".w2"):
                for e in range(len(p)):
                    weights[f"model.{name[:-3]}.experts.{e}.w2.weight"] = p[e]
            else:
                weights[name if name.startswith("lm_head") else f"model.{name}"] = p
        return {name: p.to(torch.bfloat16).contiguous() for name, p in weights.items()}

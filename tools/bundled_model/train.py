"""Train the bundled model: tokenizer, then weights, then the folder that a runtime loads.

    python train.py --minutes 39 --out ../../models/kjv-moe     # as long as there is time
    python train.py --steps 2500 --out ../../models/kjv-moe     # the same steps on every run
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import corpus
from model import Mixtral
from tokenizer import VOCABULARY, check_round_trip, tokenizer_config, train_tokenizer

TOKENS_PER_STEP = 4096

CONFIG = {
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": corpus.BOS,
    "eos_token_id": corpus.EOS,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.05,
    "intermediate_size": 256,
    "max_position_embeddings": 8192,
    "model_type": "mixtral",
    "num_attention_heads": 16,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 6,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.02,
    "router_jitter_noise": 0.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": VOCABULARY,
}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def export(model, out):
    partial = out / "model.safetensors.partial"
    save_file(model.published_weights(), partial, metadata={"format": "pt"})
    partial.chmod(0o644)  # it is written for its owner alone
    os.replace(partial, out / "model.safetensors")  # a reader never sees half a file


def held_out_loss(model, tokenizer, windows):
    """Nats per token; every token after BOS counts."""
    trained, model = model, Mixtral(CONFIG, 0.0)  # a copy, for compiled parts would be compiled for every length
    model.load_state_dict(trained.state_dict())
    total, scored = 0.0, 0
    with torch.no_grad():
        for window in windows:
            ids = torch.tensor([tokenizer.encode(window["text"]).ids])
            logits, _ = model(ids[:, :-1])
            total += F.cross_entropy(logits[0], ids[0, 1:], reduction="sum").item()
            scored += ids.shape[1] - 1
    return total / scored


def sequence_length(progress):
    """Short sequences first: they cost less, and most of what there is to learn is near."""
    return 256 if progress < 0.6 else corpus.WINDOW


def learning_rate(peak, step, progress, warmup=100):
    """Linear warm-up by steps, then a cosine to 2 % of the peak by the share of the budget that is used."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--text", help="a file with the output of `bible -f gen1:1-rev22:21`")
    parser.add_argument("--minutes", type=float, help="train this long")
    parser.add_argument("--steps", type=int, help="train this many steps")
    parser.add_argument("--compile", action="store_true", help="use torch.compile: about a quarter faster, needs a C++ compiler")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1611)
    args = parser.parse_args()
    if (args.minutes is None) == (args.steps is None):
        parser.error("give one of --minutes and --steps")

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)

    verses = corpus.read_verses(args.text)
    train, held = corpus.split(verses)
    tokenizer = train_tokenizer(train)
    check_round_trip(tokenizer, verses)
    stream = corpus.TrainingStream(tokenizer, train)
    windows = corpus.held_out_windows(tokenizer, held)
    print(f"{len(train)} verses and {len(stream.tokens)} tokens to train on, {len(held)} verses held out", flush=True)

    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer.json"))
    write_json(args.out / "tokenizer_config.json", tokenizer_config(CONFIG["max_position_embeddings"]))
    write_json(args.out / "config.json", CONFIG)
    write_json(args.out / "generation_config.json", {"bos_token_id": corpus.BOS, "eos_token_id": corpus.EOS})

    model = Mixtral(CONFIG, args.dropout)
    matrices = [p for n, p in model.named_parameters() if p.dim() > 1 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() == 1 or "embed" in n]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True,
    )
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)

    if args.compile:
        model.compile_parts()

    start, step, length, queue, recent, last_export = time.monotonic(), 0, 0, [], [], 0.0
    while True:
        elapsed = (time.monotonic() - start) / 60
        progress = step / args.steps if args.steps else elapsed / args.minutes
        if progress >= 1:
            break
        rate = learning_rate(args.lr, step, progress)
        for group in optimizer.param_groups:
            group["lr"] = rate
        if sequence_length(progress) != length:
            length, queue = sequence_length(progress), []
        size = TOKENS_PER_STEP // length
        while len(queue) < size:
            queue += list(stream.epoch(rng, length))
        lines, queue = queue[:size], queue[size:]
        batch = torch.from_numpy(np.stack([stream.window(line, length + 1) for line in lines]))

        loss, balance = model(batch[:, :-1], batch[:, 1:].contiguous())
        (loss + CONFIG["router_aux_loss_coef"] * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(loss.item())
        step += 1

        if step % 50 == 0:
            tokens = step * TOKENS_PER_STEP
            shares = torch.stack([layer.block_sparse_moe.share for layer in model.layers])
            seconds = time.monotonic() - start
            print(f"step {step} tokens {tokens} minutes {seconds / 60:.1f} tokens/s {tokens / seconds:.0f} "
                  f"lr {rate:.2e} loss {np.mean(recent):.4f} "
                  f"load of an expert {shares.min():.3f} to {shares.max():.3f}", flush=True)
            recent = []
        if time.monotonic() - start > last_export + 240:
            last_export = time.monotonic() - start
            export(model, args.out)
            print(f"step {step} held-out loss of a part {held_out_loss(model, tokenizer, windows[::4]):.4f}", flush=True)

    export(model, args.out)
    tokens = step * TOKENS_PER_STEP
    loss = held_out_loss(model, tokenizer, windows)
    print(f"done: steps {step} tokens {tokens} held-out loss {loss:.4f}", flush=True)
    write_json(args.out / "training.json", {
        "steps": step, "tokens": tokens, "epochs": round(tokens / len(stream.tokens), 2),
        "train_tokens": len(stream.tokens), "sequence_lengths": "256 for 60 % of the budget, then 512", "longest_sequence": corpus.WINDOW,
        "tokens_per_step": TOKENS_PER_STEP, "held_out_percent": round(100 * corpus.HELD_OUT_SHARE),
        "peak_learning_rate": args.lr, "weight_decay": args.weight_decay, "dropout": args.dropout,
        "balance_loss_coefficient": CONFIG["router_aux_loss_coef"], "minutes": round((time.monotonic() - start) / 60, 1),
        "seed": args.seed, "held_out_loss_f32_weights": round(loss, 4),
    })


if __name__ == "__main__":
    main()

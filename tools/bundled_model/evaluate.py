"""Measure the bundled model with the stock transformers implementation and write its card.

    python evaluate.py --model ../../models/kjv-moe

Everything is computed in f32 from the bf16 weights of model.safetensors.
"""

import argparse
import json
import math
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

import corpus
from card import write_card

EXCERPT_BYTES = 64 * 1024
GREEDY_PROMPTS = ["In the beginning", "And it came to pass", "Psalm 23"]
SAMPLED_PROMPTS = ["And Jesus said unto", "The wise man", "Now the king of Babylon"]


def score(model, ids):
    """(nats of each token after BOS, experts chosen [layer, position, 2]) of one window."""
    with torch.no_grad():
        output = model(torch.tensor([ids]), output_router_logits=True)
    nll = F.cross_entropy(output.logits[0, :-1].float(), torch.tensor(ids[1:]), reduction="none").double()
    chosen = torch.stack([layer.topk(model.config.num_experts_per_tok, dim=-1).indices for layer in output.router_logits])
    return nll, chosen


def unigram_loss(tokenizer, train, windows):
    """Mean nats of the held-out tokens under the counts, plus one, of the training tokens."""
    counts = torch.ones(len(tokenizer), dtype=torch.float64)
    for run in corpus.chapters(train):
        ids = tokenizer("\n".join(corpus.chapter_lines(run))).input_ids[1:]
        counts += torch.bincount(torch.tensor(ids), minlength=len(counts))
    nats = -(counts / counts.sum()).log()
    return torch.cat([nats[torch.tensor(w["token_ids"][1:])] for w in windows]).mean().item()


def generate(model, tokenizer, prompt, **how):
    ids = tokenizer(prompt, return_tensors="pt")
    torch.manual_seed(1611)
    output = model.generate(**ids, max_new_tokens=100, pad_token_id=corpus.EOS, **how)
    return tokenizer.decode(output[0], skip_special_tokens=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the folder train.py wrote")
    parser.add_argument("--text", help="a file with the output of `bible -f gen1:1-rev22:21`")
    parser.add_argument("--threads", type=int, default=1, help="more than one is slow where cores are shared")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    model = AutoModelForCausalLM.from_pretrained(
        args.model, torch_dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    train, held = corpus.split(corpus.read_verses(args.text))

    windows = corpus.held_out_windows(tokenizer.backend_tokenizer, held)
    layers, experts = model.config.num_hidden_layers, model.config.num_local_experts
    load = torch.zeros(layers, experts, dtype=torch.long)
    for window in windows:
        window["token_ids"] = tokenizer(window["text"]).input_ids
        nll, chosen = score(model, window["token_ids"])
        window["nll_sum"], window["tokens"] = nll.sum().item(), len(nll)
        own = torch.stack([torch.bincount(chosen[layer].flatten(), minlength=experts) for layer in range(layers)])
        load += own
        window["peak"] = (own.max(1).values * experts / own.sum(1)).tolist()

    def summary(part):
        nll, tokens = sum(w["nll_sum"] for w in part), sum(w["tokens"] for w in part)
        size = sum(len(w["text"].encode()) for w in part)
        return {
            "windows": len(part), "tokens_scored": tokens, "bytes": size,
            "nll_nats_per_token": nll / tokens, "perplexity": math.exp(nll / tokens),
            "bits_per_byte": nll / math.log(2) / size,
        }

    # The excerpt: windows taken evenly from the whole held-out text, as many as fit.
    def line(window):
        return json.dumps({"source": window["source"], "text": window["text"]}) + "\n"

    stride = 1
    while sum(len(line(w)) for w in windows[::stride]) > EXCERPT_BYTES:
        stride += 1
    excerpt = windows[::stride]
    (args.model / "validation.jsonl").write_text("".join(line(w) for w in excerpt), encoding="utf-8")

    metrics = {
        "how": "One window is one line of validation.jsonl: its text is tokenized with BOS in front (token_ids, at most "
               f"{corpus.WINDOW} of them), positions count from 0, the attention is causal within the window, and windows do not see "
               "each other. Every token after BOS is scored (natural logarithm of the softmax over the whole vocabulary, "
               "given all tokens before it); BOS is not, and no EOS is added. nll_nats_per_token of a set is the sum over "
               "all its scored tokens divided by their number. Computed by transformers' MixtralForCausalLM with the bf16 "
               "weights widened to f32 and all arithmetic in f32.",
        "excerpt": summary(excerpt),
        "held_out": summary(windows),
        "unigram_nll_nats_per_token_held_out": unigram_loss(tokenizer, train, windows),
        "expert_load_held_out": [[round(x, 4) for x in (row / row.sum()).tolist()] for row in load],
        "largest_over_mean_load_within_a_window": [
            round(sum(w["peak"][layer] for w in windows) / len(windows), 3) for layer in range(layers)
        ],
        "per_window": [
            {
                "source": w["source"], "tokens_scored": w["tokens"], "nll_sum": round(w["nll_sum"], 4),
                "nll_nats_per_token": round(w["nll_sum"] / w["tokens"], 6), "token_ids": w["token_ids"],
            }
            for w in excerpt
        ],
    }
    text = json.dumps(metrics, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[\d\s.,]+\]", lambda numbers: " ".join(numbers[0].split()), text)  # a list of numbers is one line
    (args.model / "metrics.json").write_text(text + "\n", encoding="utf-8")

    greedy = [generate(model, tokenizer, p, do_sample=False) for p in GREEDY_PROMPTS]
    sampled = [generate(model, tokenizer, p, do_sample=True, temperature=0.8, top_k=0, top_p=1.0) for p in SAMPLED_PROMPTS]
    training = json.loads((args.model / "training.json").read_text())
    write_card(args.model, model, metrics, training, list(zip(GREEDY_PROMPTS, greedy)), list(zip(SAMPLED_PROMPTS, sampled)))
    print(json.dumps({k: v for k, v in metrics.items() if k not in ("how", "per_window")}, indent=1))
    for text in greedy + sampled:
        print("---", text, sep="\n")


if __name__ == "__main__":
    main()

"""Teacher-forced log-likelihood of a text by transformers, in f32, to compare with `phasor --prompt-logprobs`.

    python nll.py MODEL_DIR FILE [--max-tokens N] [--logprobs]

FILE is one of
    *.jsonl        a window per line: {"text": ...} or {"token_ids": [...]}, as models/kjv-moe/validation.jsonl
    metrics.json   the windows it lists under per_window; each is also compared with the stored nll_sum
    anything else  plain text, one window, or windows of N tokens with --max-tokens

Text is tokenized with the special tokens the tokenizer adds. The windows do not see each other; within one,
every token but the first is scored. One JSON line per window, then one for all. Natural logarithms.
"""

import argparse
import json
import math
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer


def read_windows(path, tokenize, max_tokens):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        windows = [json.loads(line) for line in text.splitlines() if line.strip()]
    elif path.suffix == ".json":
        windows = json.loads(text)["per_window"]
    else:
        ids = tokenize(text)
        step = max_tokens or max(len(ids), 1)
        windows = [{"token_ids": ids[at : at + step]} for at in range(0, len(ids), step)]
    for window in windows:
        if "token_ids" not in window:
            window["token_ids"] = tokenize(window["text"])
    return windows


def logprobs_of(model, ids):
    """ln p of each token but the first, given all before it."""
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits.double(), dim=-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--max-tokens", type=int, help="cut plain text into windows of this many tokens")
    parser.add_argument("--logprobs", action="store_true", help="list every token's logarithm as well")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.utils.logging.disable_progress_bar()

    tokenizer = None

    def tokenize(text):
        nonlocal tokenizer
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(args.model)
        return tokenizer(text).input_ids

    windows = read_windows(args.file, tokenize, args.max_tokens)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()

    total, scored, worst = 0.0, 0, None
    for index, window in enumerate(windows):
        ids = window["token_ids"]
        if len(ids) < 2:
            continue
        logprobs = logprobs_of(model, ids)
        nll = -logprobs.sum().item()
        total, scored = total + nll, scored + len(logprobs)
        record = {"window": index, "tokens_scored": len(logprobs), "nll_sum": round(nll, 4),
                  "nll_nats_per_token": round(nll / len(logprobs), 6)}
        if "source" in window:
            record["source"] = window["source"]
        if "nll_sum" in window:
            record["difference"] = round(nll - window["nll_sum"], 4)
            worst = max(worst or 0.0, abs(record["difference"]))
        if args.logprobs:
            record["token_ids"] = ids
            record["logprobs"] = [None] + [round(x, 5) for x in logprobs.tolist()]
        print(json.dumps(record), flush=True)
    if scored == 0:
        parser.error(f"{args.file} holds no window of two tokens or more")
    summary = {"windows": len(windows), "tokens_scored": scored, "nll_sum": round(total, 4),
               "nll_nats_per_token": round(total / scored, 6), "perplexity": round(math.exp(total / scored), 4)}
    if worst is not None:
        summary["largest_difference"] = worst
    print(json.dumps(summary))


if __name__ == "__main__":
    main()

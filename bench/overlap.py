#!/usr/bin/env python3
"""What a transition costs beside prefill, on the wall clock: runs under a plan with two layouts and
under its prefill layout alone, in turn.

    python3 bench/overlap.py MODEL --phasor build/release/phasor --backup model.backup > result.txt

A run prefills one wave in one pass and decodes one token of each prompt. Its exposed cost is

    (prefill + waiting for layers in decode + transition between passes) - prefill without a change

where all three are from --summary-file, and the share is of the last. The ranks own all cores, so
what the transition takes from prefill counts. The backup is put out of the page cache before each
run, and may not be locked in memory (by root setpriv sees to it): what is not read in time is waited
for. Loading is outside. Needs nothing but Python.
"""
import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

TOKENS = "256,1024,4096,16384,32768"
PROMPT_TOKENS = 1024  # of a prompt, at most


def note(text):
    print(text, file=sys.stderr, flush=True)


def make_cold(path):
    if path is None:
        return
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write_rows(path, tokens, vocab_count):
    count = max(2, tokens // PROMPT_TOKENS)
    draw = random.Random(tokens)
    with open(path, "w") as file:
        for i in range(count):
            prompt = [draw.randrange(3, vocab_count) for _ in range(tokens // count)]
            body = {"prompt": prompt, "max_tokens": 2, "ignore_eos": True, "temperature": 0}
            row = {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(row) + "\n")
    return count


def unlocked():
    """What makes locked memory impossible: a limit, and for root no right to pass over it."""
    words = ["prlimit", "--memlock=65536:65536"]
    return words + (["setpriv", "--bounding-set=-ipc_lock"] if os.geteuid() == 0 else [])


def run(args, plan, folder, tokens, count, options):
    make_cold(args.backup)
    command = unlocked() + [args.phasor, "run", args.model, "-i", folder / "rows", "-o", folder / "out",
               "--overwrite", "-q", "--devices", args.devices, "--plan", plan,
               "--max-num-batched-tokens", tokens, "--max-num-seqs", count,
               "--max-model-len", 2 * PROMPT_TOKENS, "--kv-memory", "%dK" % args.kv_kib(tokens),
               "--summary-file", folder / "summary"] + options
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("%s\n%s" % (" ".join(map(str, command)), done.stderr))
    told = json.loads((folder / "summary").read_text())
    if "backup_source" in told:
        args.source = told["backup_source"]
    return told


def measure(args, folder, tokens):
    """Pairs (prefill alone, prefill, waited, between passes), one of each round."""
    count = write_rows(folder / "rows", tokens, args.vocab_count)
    moving = ["--transition", args.transition] + (["--backup", args.backup] if args.backup else [])
    pairs = []
    for i in range(args.rounds):
        sides = {}
        for side in ("alone", "moving") if i % 2 == 0 else ("moving", "alone"):
            plan = args.plan if side == "moving" else args.plan.split(">")[0]
            sides[side] = run(args, plan, folder, tokens, count, moving if side == "moving" else [])
        told = sides["moving"]
        pairs.append((sides["alone"]["prefill_s"], told["prefill_s"],
                      told["decode_stages_s"].get("transition", 0), told["transition_s"]))
        note("%6d tokens, round %d: alone %.3f, prefill %.3f, waited %.3f, between %.3f s"
             % (tokens, i + 1, *pairs[-1]))
    return pairs


def spread(values):
    """The interquartile range; of two or three values, from the least to the largest."""
    if len(values) < 4:
        return max(values) - min(values)
    quarters = statistics.quantiles(values, n=4)
    return quarters[2] - quarters[0]


def line(tokens, pairs):
    exposed = [(prefill + waited + between - alone) / alone for alone, prefill, waited, between in pairs]
    columns = [statistics.median(column) for column in zip(*pairs)]
    alone = [pair[0] for pair in pairs]
    return "%8d  %9.3f %6.1f %%  %9.3f %9.3f %9.3f  %8.1f %% %6.1f %%" % (
        tokens, columns[0], 100 * spread(alone) / columns[0], columns[1], columns[2], columns[3],
        100 * statistics.median(exposed), 100 * spread(exposed))


def machine():
    with open("/proc/cpuinfo") as file:
        names = [text.split(":")[1].strip() for text in file if text.startswith("model name")]
    return "%s, %d CPUs, Linux %s" % (names[0], len(names), platform.release())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--phasor", default="build/release/phasor")
    parser.add_argument("--backup", help="of the model; default: none is needed")
    parser.add_argument("--plan", default="dp2|ep2>tp2")
    parser.add_argument("--transition", default="upload")
    parser.add_argument("--devices", default="cpu:2")
    parser.add_argument("--tokens", default=TOKENS, help="of the wave's prompts (%s)" % TOKENS)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    args.source = "nowhere"
    config = json.loads((Path(args.model) / "config.json").read_text())
    heads = config["num_attention_heads"]
    kv_values = 2 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * (
        config.get("head_dim") or config["hidden_size"] // heads)
    args.vocab_count = config["vocab_size"]
    # bf16, and pages that are filled in part.
    args.kv_kib = lambda tokens: (2 * tokens + 65536) * kv_values * 2 // 1024
    commit = subprocess.run(["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty"],
                            capture_output=True, text=True).stdout.strip()
    print("# phasor %s, %s, %s" % (commit, machine(), date.today()))
    words = [Path(word).name if os.path.exists(word) else word for word in sys.argv[1:]]
    print("# bench/overlap.py %s" % " ".join(words))
    print("# medians of %d rounds; seconds; spread is the interquartile range" % args.rounds)
    print("  tokens      alone  spread    prefill    waited   between    exposed  spread")
    with tempfile.TemporaryDirectory(prefix="phasor-overlap-") as folder:
        for tokens in map(int, args.tokens.split(",")):
            print(line(tokens, measure(args, Path(folder), tokens)), flush=True)
    print("# the backup was read from: %s, cold" % args.source)


main()

#!/usr/bin/env python3
"""What plans of their own are predicted to be worth to the rows of a mixed file.

    bench/mixed_plans.py [--phasor PROGRAM] [--boxes a6000x4,v100x8] [--models DIR,...] [--seconds 1800]
                         [--policy exact]

For each box and model, and every two of HAP's four loads (prompts of 256 and 4,096 tokens, answers of 64 and
2,048): a file with rows of both, shuffled, as many of each as take half of --seconds under their own best plan.
`phasor plan -i` is asked about it. Printed: seconds of the best single plan with rows in the order of the file, of
the best single plan with rows of like lengths together, of parts with plans of their own (and of that the loads of
all weights in between), and how many times as fast parts are as the better of the two before; "-" where parts
would not be sooner done by more than 2 %, so that a run has none. Nothing is run. Exit status 1 where a program or
a model is not there."""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile

LOADS = ((256, 64), (256, 2048), (4096, 64), (4096, 2048))
SAMPLE = 1024  # sequences by which a load's rate is found


def fail(sentence):
    sys.exit(f"mixed_plans.py: {sentence}")


def ask(options, box, model, question):
    command = [options.phasor, "plan", model, "--box", box, "--policy", options.policy, "--json", *question]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}; --phasor names the program")
    if done.returncode != 0:
        fail(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def best_seconds(answer):
    return None if answer["best_runnable"] is None else answer["plans"][answer["best_runnable"]]["total_s"]


def rows_of(load, seconds, alone):
    """As many as take so many seconds, a whole number of eights."""
    return max(8, round(seconds / (alone[load] / SAMPLE) / 8) * 8)


def file_write(path, counts):
    """Prompts are all the same ids: nobody is to look for what they share."""
    kinds = [load for load, count in counts.items() for _ in range(count)]
    random.Random(1).shuffle(kinds)
    prompts = {load: json.dumps([5] * load[0]) for load in counts}
    with open(path, "w", encoding="utf-8") as file:
        for row, load in enumerate(kinds):
            file.write(f'{{"custom_id":"{row}","method":"POST","url":"/v1/completions","body":{{"model":"m",'
                       f'"prompt":{prompts[load]},"max_tokens":{load[1]},"ignore_eos":true}}}}\n')


def pair_line(options, box, model, pair, alone, path):
    counts = {load: rows_of(load, options.seconds / 2, alone) for load in pair}
    file_write(path, counts)
    answer = ask(options, box, model, ["-i", path, "--no-prefix-sharing"])
    load, together = answer["load"], best_seconds(answer)
    ordered = load["in_file_order_s"]
    mix = " and ".join(f"{count} of {prompt}/{output}" for (prompt, output), count in counts.items())
    head = f"{box:8} {os.path.basename(os.path.normpath(model)):18} {mix:36} {ordered:8.0f} {together:9.0f}"
    if not load["parts"]:
        return f"{head} {'-':>9} {'-':>6} {'-':>6}"
    plans = ", then ".join(part["plan"] + ("" if part["way"] == "none" else f" by {part['way']}")
                           for part in load["parts"])
    loads = sum(part["load_s"] for part in load["parts"])
    gain = min(ordered, together) / load["in_parts_s"]
    return f"{head} {load['in_parts_s']:9.0f} {loads:6.1f} {gain:6.3f}  {plans}"


def model_lines(options, box, model, path):
    alone = {}
    for load in LOADS:
        alone[load] = best_seconds(ask(options, box, model, ["--batch-size", str(SAMPLE), "--prompt-len",
                                                             str(load[0]), "--output-len", str(load[1])]))
    for pair in itertools.combinations(LOADS, 2):
        if all(alone[load] is not None for load in pair):
            yield pair_line(options, box, model, pair, alone, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phasor", default="build/release/phasor")
    parser.add_argument("--boxes", default="a6000x4,v100x8,a100x4,a100x8")
    parser.add_argument("--models",
                        default="bench/hap/mixtral-8x7b,bench/hap/qwen1.5-moe-a2.7b,bench/hap/qwen2-57b-a14b")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--policy", default="exact", choices=["exact", "int4-decode"])
    options = parser.parse_args()
    print("# predicted seconds: in the file's order, rows together, in parts, of that loads; gain of parts; plans")
    with tempfile.TemporaryDirectory() as folder:
        for box in options.boxes.split(","):
            for model in options.models.split(","):
                for line in model_lines(options, box, model, os.path.join(folder, "rows.jsonl")):
                    print(line, flush=True)


if __name__ == "__main__":
    main()

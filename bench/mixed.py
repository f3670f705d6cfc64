#!/usr/bin/env python3
"""A file of unlike rows, run as the planner groups it, beside single plans in the order of the file.

    bench/mixed.py MODEL --profile PROFILE [--phasor PROGRAM] [--devices cpu:2] [--rows 96] [--plans 4]
                   [--rounds 5] [--max-num-seqs 32] [--seed 1]

Prompts of 32 to 2,048 and answers of 4 to 256 tokens, both log-uniform, token ids at random. The planner is
asked once for all of it (`phasor run --plan auto`, which also orders rows), and beside it run the plans that it
predicts to be the fastest, each named, which leaves rows in the order of the file; among them the one that it
chose, and static tensor parallelism. A round runs each once, beginning with another each time. Inside the
time: from the first row to the last, as the run's summary has it. Decode on the checkpoint's weights alone.
Printed: medians and spread (most less least, relative to the median), and how many times as fast the grouped
run is, the median of the rounds' ratios. Exit status 1 where a program, model or profile is not there."""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile


def fail(sentence):
    sys.exit(f"mixed.py: {sentence}")


def run(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}; --phasor names the program")
    if done.returncode != 0:
        fail(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def rows_write(path, model, count, seed):
    try:
        with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
            vocab = json.load(file)["vocab_size"]
    except (OSError, ValueError, LookupError) as error:
        fail(f"{model}: no model with a config.json: {error}")
    draw = random.Random(seed)
    between = lambda least, most: round(least * (most / least) ** draw.random())
    with open(path, "w", encoding="utf-8") as file:
        for row in range(count):
            body = {"model": "m", "prompt": [draw.randrange(10, vocab) for _ in range(between(32, 2048))],
                    "max_tokens": between(4, 256), "ignore_eos": True, "temperature": 0}
            file.write(json.dumps({"custom_id": str(row), "method": "POST", "url": "/v1/completions",
                                   "body": body}) + "\n")


def limits_of(options):
    return ["--policy", "exact", "--max-num-seqs", str(options.max_num_seqs), "--max-num-batched-tokens", "2048"]


def plans_of(options, rows):
    """The fastest by prediction, and static TP: their texts and ways, the planner's choice first."""
    answer = json.loads(run([options.phasor, "plan", options.model, "--box", options.profile, "--rows", rows,
                             *limits_of(options), "--json"]))
    if answer["best"] is None or answer["static_tp"] is None:
        fail(f"{options.model}: no plan fits the memory of {options.profile}")
    possible = [plan for plan in answer["plans"] if plan["verdict"] == "possible"]
    order = sorted(possible, key=lambda plan: plan["total_s"])
    chosen, static = answer["plans"][answer["best"]], answer["plans"][answer["static_tp"]]
    named = []
    for plan in [chosen, static, *order]:
        name = plan["plan"], plan["way"]
        if name not in named and len(named) < options.plans:
            named.append(name)
    return answer, named


def seconds_of(options, folder, rows, more):
    summary = os.path.join(folder, "summary")
    run([options.phasor, "run", options.model, "-i", rows, "-o", os.path.join(folder, "out"), "--overwrite",
         "--devices", options.devices, *limits_of(options), "--summary-file", summary, "-q", *more])
    with open(summary, encoding="utf-8") as file:
        told = json.load(file)
    if told["failed"] > 0 or told["completed"] != options.rows:
        fail(f"{told['failed']} of {options.rows} rows failed")
    if "--profile" in more and "predicted_prefill_s" not in told:
        fail(f"{options.profile} does not fit --devices {options.devices}; phasor calibrate makes one that does")
    return told["duration"], told["plan"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--profile", required=True)
    parser.add_argument("--phasor", default="build/release/phasor")
    parser.add_argument("--devices", default="cpu:2")
    for name, default in (("rows", 96), ("plans", 4), ("rounds", 5), ("max-num-seqs", 32), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = os.path.join(folder, "rows")
        rows_write(rows, options.model, options.rows, options.seed)
        answer, named = plans_of(options, rows)
        ways = {"grouped": ["--plan", "auto", "--profile", options.profile]}
        for plan, way in named:
            text = plan if way == "none" else f"{plan} by {way}"
            ways[text] = ["--plan", plan, *([] if way == "none" else ["--transition", way])]
        took, plan_taken = {name: [] for name in ways}, None
        for round_ in range(options.rounds):
            names = list(ways)
            for name in names[round_ % len(names):] + names[:round_ % len(names)]:
                seconds, plan = seconds_of(options, folder, rows, ways[name])
                took[name].append(seconds)
                plan_taken = plan if name == "grouped" else plan_taken
    classes = answer["load"]["classes"]
    predicted = answer["plans"][answer["best"]]["total_s"]
    print(f"# {options.rows} rows in {len(classes)} classes, predicted to take {predicted:.2f} s; the plan was "
          f"{plan_taken}")
    for name, all_seconds in took.items():
        median = statistics.median(all_seconds)
        ratio = statistics.median(other / grouped for other, grouped in zip(all_seconds, took["grouped"]))
        print(f"{name:32} {median:8.2f} s  {100 * (max(all_seconds) - min(all_seconds)) / median:5.1f} %  {ratio:6.3f}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What phasor bench --replay composes of passes, beside whole batches that were recorded in full.

    bench/control.py RESULTS [--phasor PROGRAM] [--load 4096/64x8] [--mode static-tp]

RESULTS are lines of a modelled bench, on the machine that made them. For each of its models one batch
runs under --record as a whole, once to the end of prefill and once to the end of decode, and is
replayed over the box: the one as `phasor replay --scale` has it, the other as --modelled. A line for
each model and phase tells how far the sum of passes was off."""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile


def fail(sentence):
    sys.exit(f"control.py: {sentence}")


def lines_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        if lines[0]["kind"] != "bench" or lines[0]["question"]["clock"] != "modelled":
            fail(f"{path}: not of phasor bench --replay")
    except (OSError, ValueError, LookupError, TypeError) as error:
        fail(f"{path}: no results of phasor bench: {error}")
    return lines


def load_of(text):
    try:
        prompt, rest = text.split("/")
        output, batch = rest.split("x")
        return int(prompt), int(output), int(batch)
    except ValueError:
        fail(f'--load: "{text}" is no load such as 4096/64x8')


def composed_of(lines, model, load, mode):
    """The plan of the mode, and the medians of its rounds."""
    prompt, output, batch = load
    for cell in lines:
        if cell["kind"] != "cell" or (cell["model"], cell["prompt_tokens"], cell["output_tokens"],
                                      cell["batch_size"]) != (model, prompt, output, batch):
            continue
        for plan in cell["plans"]:
            if mode not in plan["modes"] or plan["plan"] is None:
                continue
            runs = [line for line in lines if line["kind"] == "run" and "failed" not in line and
                    all(line[key] == cell[key] for key in ("model", "prompt_tokens", "output_tokens", "batch_size")) and
                    (line["plan"], line["way"]) == (plan["plan"], plan["way"])]
            if runs:
                return plan, {phase: statistics.median(run[phase] for run in runs) for phase in ("prefill_s", "decode_s")}
    fail(f"{model}: no run of {mode} at {prompt}/{output}x{batch}; --load and --mode choose another")


def call(arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(arguments)}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def vocabulary(model):
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        return json.load(file)["vocab_size"]


def whole(program, question, model, plan, load, output, how, folder):
    """A batch to its end: the replay's answer."""
    prompt, _, batch = load
    rows, recording = os.path.join(folder, "rows.jsonl"), os.path.join(folder, "run.bin")
    ids, top = random.Random(question["seed"]), vocabulary(model)
    with open(rows, "w", encoding="utf-8") as file:
        for row in range(batch):
            body = {"prompt": [ids.randrange(top) for _ in range(prompt)], "max_tokens": output,
                    "ignore_eos": True, "temperature": 0}
            file.write(json.dumps({"custom_id": str(row), "method": "POST", "url": "/v1/completions",
                                   "body": body}) + "\n")
    call([program, "run", model, "-i", rows, "-o", os.path.join(folder, f"{output}.jsonl"), "--devices",
          question["devices"], "--plan", plan["plan"], "--max-num-seqs", str(batch), "--max-num-batched-tokens",
          str(plan["pass_tokens"]), "--threads", str(question["threads"]), "--record", recording, "-q"])
    answer = json.loads(call([program, "replay", recording, "--box", question["box"], how, "--json"]))
    os.remove(recording)
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--phasor", default="phasor")
    parser.add_argument("--load", default="4096/64x8")
    parser.add_argument("--mode", default="static-tp")
    args = parser.parse_args()
    lines, load = lines_of(args.results), load_of(args.load)
    question = lines[0]["question"]
    print("# model plan load phase: composed s, in full s, composed is off by")
    for model in question["models"]:
        plan, composed = composed_of(lines, model, load, args.mode)
        if ">" in plan["plan"]:
            fail(f"{model}: {plan['plan']} changes its layout, and a control has one; choose a static --mode")
        with tempfile.TemporaryDirectory() as folder:
            prefill = whole(args.phasor, question, model, plan, load, 1, "--scale", folder)
            decode = whole(args.phasor, question, model, plan, load, load[1], "--modelled", folder)
        in_full = {"prefill_s": prefill["phases"]["prefill"]["wall_seconds"] * prefill["link_scale"],
                   "decode_s": decode["phases"]["decode"]["wall_seconds"]}
        for phase, seconds in in_full.items():
            print(f"{model} {plan['plan']} {args.load} {phase[:-2]}: {composed[phase]:.6g}, {seconds:.6g}, "
                  f"{100 * (composed[phase] / seconds - 1):+.2f} %", flush=True)


if __name__ == "__main__":
    main()

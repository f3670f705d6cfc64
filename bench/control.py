#!/usr/bin/env python3
"""What phasor bench --replay composes of passes, beside whole batches that were recorded in full.

    bench/control.py RESULTS [--phasor PROGRAM] [--load 4096/64x8] [--repeats 3]

RESULTS are lines of a modelled bench, on the machine that made them. For each of its models static TP's
batch runs under --record as a whole, to the end of prefill and again to the end of decode, and is
replayed over the box: the one as `phasor replay --scale` has it, the other as --modelled --without-host,
with the host's part that the bench counts. Static TP, as
its own speed is what --replay scales all others by. A line for each model and phase: what was composed,
the median of the whole batches, their spread (most less least, relative to the median), how far the
first is off the second, and whether that is within 2 %, or the spread where it is more; "off" where it is not.
Where the spread is beyond 5 % the line is "undecided", neither the one nor the other: whole batches that are so far
apart cannot tell, and a quieter machine can. The last line counts those. Exit status 1 where a file, program or load
is not there, 3 where a line is off."""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile


ALLOWED = 0.02  # that a composed time may be off by where runs in full are nearer to one another
DECIDING = 0.05  # that runs in full may be apart: else a noisy machine would allow anything


def fail(sentence):
    sys.exit(f"control.py: {sentence}")


def lines_of(path):
    """Whole lines: a bench that was stopped leaves the last cut off."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        is_modelled = lines[0]["kind"] == "bench" and lines[0]["question"]["clock"] == "modelled"
    except (OSError, ValueError, LookupError, TypeError) as error:
        fail(f"{path}: no results of phasor bench: {error}")
    if not is_modelled:
        fail(f"{path}: not of phasor bench --replay")
    return lines


def load_of(text):
    try:
        prompt, rest = text.split("/")
        output, batch = rest.split("x")
        load = int(prompt), int(output), int(batch)
    except ValueError:
        load = (0, 0, 0)
    if min(load) < 1 or load[1] < 2:
        fail(f'--load: "{text}" is no load with steps of decode, such as 4096/64x8')
    return load


def composed_of(lines, model, load):
    """The host's part of a step, static TP's plan of the load, and the medians of its rounds."""
    names = ("model", "prompt_tokens", "output_tokens", "batch_size")
    of_load = [line for line in lines if tuple(line.get(name) for name in names) == (model, *load)]
    for cell in of_load:
        for plan in cell.get("plans", []):
            runs = [line for line in of_load if line["kind"] == "run" and "failed" not in line and
                    (line["plan"], line["way"]) == (plan["plan"], plan.get("way"))]
            if "static-tp" in plan["modes"] and runs:
                return cell["host_step_s"], plan, {phase: statistics.median(run[phase + "_s"] for run in runs)
                              for phase in ("prefill", "decode")}
    fail(f"{model}: no run of static-tp at {load[0]}/{load[1]}x{load[2]}; --load chooses another")


def call(arguments):
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    except OSError as error:
        fail(f"{arguments[0]}: {error.strerror}; --phasor names the program")
    if done.returncode != 0:
        fail(f"{' '.join(arguments)}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
    return done.stdout


def vocabulary(model):
    try:
        with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
            return json.load(file)["vocab_size"]
    except (OSError, ValueError, LookupError) as error:
        fail(f"{model}: {error}; the models of the results have to be where they were")


def whole(program, question, model, plan, load, output, how, folder, repeat):
    """A batch to its end: the replay's answer. Tokens are drawn: the likeliest of random weights soon go round in
    circles, all rows alike, and then a step reads fewer experts than one of unlike rows. Each repeat draws others."""
    prompt, _, batch = load
    rows, answers, recording = (os.path.join(folder, name) for name in ("rows.jsonl", "out.jsonl", "run.bin"))
    ids, top = random.Random(question["seed"] + repeat), vocabulary(model)
    with open(rows, "w", encoding="utf-8") as file:
        for row in range(batch):
            body = {"prompt": [ids.randrange(top) for _ in range(prompt)], "max_tokens": output,
                    "ignore_eos": True, "temperature": 1, "seed": 1000 * repeat + row}
            file.write(json.dumps({"custom_id": str(row), "method": "POST", "url": "/v1/completions",
                                   "body": body}) + "\n")
    call([program, "run", model, "-i", rows, "-o", answers, "--devices", question["devices"], "--plan",
          plan["plan"], "--max-num-seqs", str(batch), "--max-num-batched-tokens", str(plan["pass_tokens"]),
          "--threads", str(question["threads"]), "--record", recording, "-q"])
    return json.loads(call([program, "replay", recording, "--box", question["box"], *how, "--json"]))


def seconds_of(program, question, model, plan, load, phase, host_step, repeat):
    """The host of decode's steps as the bench counts it."""
    with tempfile.TemporaryDirectory() as folder:
        if phase == "prefill":
            answer = whole(program, question, model, plan, load, 1, ["--scale"], folder, repeat)
            return answer["phases"]["prefill"]["wall_seconds"] * answer["link_scale"]
        answer = whole(program, question, model, plan, load, load[1], ["--modelled", "--without-host"], folder, repeat)
        return answer["phases"]["decode"]["wall_seconds"] + (load[1] - 1) * host_step


def verdict_of(off, spread):
    if spread > DECIDING:
        return "undecided"
    return "within" if abs(off) <= max(ALLOWED, spread) else "off"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--phasor", default="phasor", help="the program (phasor)")
    parser.add_argument("--load", default="4096/64x8", help="of the results' loads (4096/64x8)")
    parser.add_argument("--repeats", type=int, default=3, help="whole batches of each kind (3)")
    args = parser.parse_args()
    lines, load = lines_of(args.results), load_of(args.load)
    question = lines[0]["question"]
    print("# model plan load phase: composed s, in full s, spread %, composed is off by %, within the larger of "
          f"{100 * ALLOWED:g} % and the spread")
    verdicts = []
    for model in question["models"]:
        host_step, plan, composed = composed_of(lines, model, load)
        for phase, seconds in composed.items():
            all_of = [seconds_of(args.phasor, question, model, plan, load, phase, host_step, repeat)
                      for repeat in range(max(args.repeats, 1))]
            middle = statistics.median(all_of)
            spread, off = (max(all_of) - min(all_of)) / middle, seconds / middle - 1
            verdicts.append(verdict_of(off, spread))
            print(f"{model} {plan['plan']} {args.load} {phase}: {seconds:.6g}, {middle:.6g}, {100 * spread:.2f} %, "
                  f"{100 * off:+.2f} %, {verdicts[-1]}", flush=True)
    print(f"# {verdicts.count('undecided')} of {len(verdicts)} undecided: runs in full further apart than "
          f"{100 * DECIDING:g} %")
    sys.exit(3 if "off" in verdicts else 0)


if __name__ == "__main__":
    main()

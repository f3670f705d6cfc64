#!/usr/bin/env python3
"""How long `phasor plan -i` takes for a batch file of 10,000 rows of different lengths.

    bench/plan_files.py [--phasor PROGRAM] [--rows 10000] [--repeats 5]

Prompts have 2 to 32 random ids, or 16 to 2,048, answers 16 to 1,024 tokens; the logarithms of the lengths are even.
Timed is the whole program, from its start to its end: reading the file, finding what prompts share, grouping rows,
and planning, of Mixtral-8x7B on four RTX A6000 and of Qwen2-57B-A14B on eight A100. Printed: the median of the wall
clock and of the CPU time of the processes, in seconds, with the range of the wall clock, and the bytes of the file.
The goal of a batch file is one second. Nothing is run. Exit status 1 where a program or a model is not there."""

import argparse
import datetime
import math
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

PROMPTS = ((2, 32), (16, 2048))
OUTPUTS = (16, 1024)
QUESTIONS = (("bench/hap/mixtral-8x7b", "a6000x4"), ("bench/hap/qwen2-57b-a14b", "a100x8"))


def fail(sentence):
    sys.exit(f"plan_files.py: {sentence}")


def length(draw, bounds):
    return round(math.exp(draw.uniform(math.log(bounds[0]), math.log(bounds[1]))))


def file_write(path, count, prompts):
    draw = random.Random(1)
    with open(path, "w", encoding="utf-8") as file:
        for row in range(count):
            ids = ",".join(str(draw.randrange(3, 32000)) for _ in range(length(draw, prompts)))
            file.write(f'{{"custom_id":"{row}","method":"POST","url":"/v1/completions","body":{{"model":"m",'
                       f'"prompt":[{ids}],"max_tokens":{length(draw, OUTPUTS)},"ignore_eos":true}}}}\n')


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ask(phasor, model, box, path):
    """Wall and CPU seconds of one question."""
    command = [phasor, "plan", model, "--box", box, "-i", path, "--json"]
    begin, cpu = time.monotonic(), cpu_seconds()
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        fail(f"{phasor}: {error.strerror}; --phasor names the program")
    if done.returncode != 0:
        fail(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    return time.monotonic() - begin, cpu_seconds() - cpu


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(names)} cores"


def head():
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    print(f"# date: {datetime.date.today()}")
    print(f"# commit: {commit or 'unknown'}")
    print(f"# processor: {processor()}")
    print(f"# command: {' '.join(sys.argv)}")
    print("# clock: CLOCK_MONOTONIC and the CPU time of the program's processes; medians of the repeats")
    print(f"{'# model':24} {'box':8} {'rows':>6} {'prompts':>10} {'MB':>6} {'wall s':>8} {'range':>14} {'cpu s':>8}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phasor", default="build/release/phasor")
    parser.add_argument("--rows", type=int, default=10000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.rows < 1 or options.repeats < 1:
        fail("--rows and --repeats: expected 1 or more")
    head()
    with tempfile.TemporaryDirectory() as folder:
        for prompts in PROMPTS:
            path = os.path.join(folder, "rows.jsonl")
            file_write(path, options.rows, prompts)
            for model, box in QUESTIONS:
                walls, cpus = zip(*(ask(options.phasor, model, box, path) for _ in range(options.repeats)))
                spread = f"{min(walls):.2f} to {max(walls):.2f}"
                print(f"{os.path.basename(model):24} {box:8} {options.rows:6} {f'{prompts[0]}-{prompts[1]}':>10} "
                      f"{os.path.getsize(path) / 1e6:6.1f} {statistics.median(walls):8.2f} {spread:>14} "
                      f"{statistics.median(cpus):8.2f}", flush=True)


if __name__ == "__main__":
    main()

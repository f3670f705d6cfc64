#!/usr/bin/env python3
"""What changed from one file of results of phasor bench to another, beyond their noise.

usage: bench/changes.py OLD NEW

Of each load and plan that ran at least twice in both: how many times as long the new runs took, by the
geometric means of their totals, with the interval of 95 % (Welch's t over logarithms). Shown is what does not
contain 1 (of a hundred that did not change, five on the mean); then loads whose mode has another plan; then, of each
load and plan but static TP's that ran beside it in both, be it in one round, how far the ratios to static TP are
apart (of each file the median over rounds, without planning): in the median, the 90th percentile, and at most; and
what only one of the files has. Files of different clocks are not compared; other differences of the question are
told. A file may be packed by xz, as those of bench/results are. Exit status 0 whether or not anything changed, 1 for a
file that is none, 2 for wrong usage.
"""
import json
import lzma
import math
import statistics
import sys

# Student's t beyond which 2.5 % lie, by degrees of freedom.
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
           2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
           2.045, 2.042]


def student(freedom):
    whole = int(freedom)
    return STUDENT[max(whole, 1) - 1] if whole <= len(STUDENT) else 1.96 + 2.5 / whole


def load_of(line, names):
    return f"{names[line['model']]} {line['prompt_tokens']}/{line['output_tokens']} x {line['batch_size']}"


def name_of(model):
    """As tables of phasor bench have it: the folder's name."""
    parts = [part for part in model.split("/") if part]
    if len(parts) > 1 and parts[-1] == "config.json":
        parts.pop()
    return parts[-1] if parts else model


def read(path):
    """The question, logarithms of totals by (load, plan, way) and round, and (plan, way) by (load, mode)."""
    times, plans = {}, {}
    with (lzma.open if path.endswith(".xz") else open)(path, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    if not lines or lines[0].get("kind") != "bench" or lines[0].get("format") != 1:
        raise ValueError("its first line is not of phasor bench")
    models = lines[0]["question"]["models"]
    names = {model: name_of(model) for model in models}
    if len(set(names.values())) < len(models):  # some are called alike
        names = {model: model for model in models}
    for line in lines:
        if line["kind"] == "run" and "failed" not in line:
            rounds = times.setdefault((load_of(line, names), line["plan"], line["way"]), {})
            rounds[line["round"]] = math.log(line["total_s"])
        for plan in line["plans"] if line["kind"] == "cell" else []:
            for mode in plan["modes"]:
                plans[load_of(line, names), mode] = (plan["plan"], plan["way"]) if plan["plan"] else None
    return lines[0]["question"], times, plans


def words_of(plan):
    return f"{plan[0]} by {plan[1]}" if plan else "none"


def ratios_of(times, plans):
    """Logarithms of static TP's total over another's, the median of the rounds that both have, by (load, plan, way)."""
    ratios = {}
    for key, own in times.items():
        load, *plan = key
        tp = plans.get((load, "static-tp"))
        beside = times.get((load, *tp), {}) if tp else {}
        both = [beside[number] - own[number] for number in own if number in beside]
        if both and tuple(plan) != tp:
            ratios[key] = statistics.median(both)
    return ratios


def quantile(values, share):
    """By linear interpolation."""
    values = sorted(values)
    at = share * (len(values) - 1)
    below = int(at)
    return values[below] + (at - below) * (values[min(below + 1, len(values) - 1)] - values[below])


def tell_ratios(old, new):
    apart = {key: math.exp(abs(new[key] - old[key])) - 1 for key in old if key in new}
    if not apart:
        print("no ratio to static TP is in both")
        return
    worst = max(apart, key=apart.get)
    middle, most = (100 * quantile(apart.values(), share) for share in (0.5, 0.9))
    print(f"{len(apart)} ratios to static TP are {middle:.2f} % apart in the median, {most:.2f} % in the 90th percentile, "
          f"{100 * apart[worst]:.2f} % at most ({worst[0]}, {worst[1]} by {worst[2]})")


def moments(values):
    mean = sum(values) / len(values)
    return mean, sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


def interval(old, new):
    """Of the ratio of means, Welch's."""
    (before, a), (after, b) = moments(old), moments(new)
    change = after - before
    if a + b == 0:
        return math.exp(change), math.exp(change), math.exp(change)
    freedom = (a + b) ** 2 / (a ** 2 / (len(old) - 1) + b ** 2 / (len(new) - 1))
    half = student(freedom) * math.sqrt(a + b)
    return math.exp(change), math.exp(change - half), math.exp(change + half)


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sides = []
    for path in sys.argv[1:]:
        try:
            sides.append(read(path))
        except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, AttributeError, TypeError, IndexError,
                RecursionError) as error:
            sys.exit(f"{path}: no results of phasor bench: {error}")
    (before, old, old_plans), (after, new, new_plans) = sides
    if before.get("clock") != after.get("clock"):
        sys.exit(f"{sys.argv[1]} is {before.get('clock')} and {sys.argv[2]} {after.get('clock')}: nothing to compare")
    for key in ("devices", "box", "threads", "memory", "seed"):
        if before.get(key) != after.get(key):
            print(f"{key}: was {before.get(key)} and is {after.get(key)}")
    both = [key for key in old if key in new]
    compared = [key for key in both if len(old[key]) > 1 and len(new[key]) > 1]
    changed = 0
    for key in compared:
        ratio, low, high = interval(list(old[key].values()), list(new[key].values()))
        if low <= 1 <= high:
            continue
        changed += 1
        print(f"{key[0]}, {key[1]} by {key[2]}: {'slower' if ratio > 1 else 'faster'}: {ratio:.3f} times as long "
              f"({low:.3f} to {high:.3f})")
    for key, plan in old_plans.items():
        if new_plans.get(key, plan) != plan:
            print(f"{key[0]}, {key[1]}: its plan was {words_of(plan)} and is {words_of(new_plans[key])}")
    tell_ratios(ratios_of(old, old_plans), ratios_of(new, new_plans))
    print(f"{changed} of {len(compared)} changed beyond their noise; {len(both) - len(compared)} ran too seldom; "
          f"{len(old) - len(both)} only in {sys.argv[1]}, {len(new) - len(both)} only in {sys.argv[2]}")


main()

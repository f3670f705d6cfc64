"""Fit the protocols of a box file to measured times of collectives.

A box (docs/box-format.md) has links and, for each collective, up to four protocols: what a call
waits for at first, what each step of a ring or each message of an all-to-all adds, and the share of
the links' bandwidth. Links are given; the
protocols are fitted here, those of each collective by itself, so that the mean of |log(replay /
measured)| is least. replay is as in src/replay/collective_flows.c: of the protocols the one that is
soonest done on an idle box, by the link that has most to carry.

    fit_box.py BOX POINTS                 print how far the box is from the points
    fit_box.py BOX POINTS --fit           fit, and write the protocols into the box
    fit_box.py BOX POINTS --fit --number uplink --number between_sockets
                                          the same, with the bandwidths of these `numbers`, too

The same input gives the same box: the starting points are drawn with a fixed seed.
"""
import argparse
import itertools
import json
import math
import re
import sys

import numpy as np

PROTOCOLS = 4
STARTS = 40
UNITS = {"B/s": 1, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "MiB/s": 2**20, "GiB/s": 2**30,
         "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
NAMES = {"all_gather": "gather", "reduce_scatter": "scatter", "all_reduce": "reduce",
         "all_to_all": "alltoall"}


# ---- The box -------------------------------------------------------------------------------------

def number(box, value):
    """Of a number of the file, in bytes per second or seconds."""
    value = box["numbers"][value] if isinstance(value, str) else value
    return value["value"] * UNITS.get(value.get("unit"), 1)


def route(box, sender, receiver):
    """The links from sender to receiver with their directions: the fewest, then the first."""
    ends = [link["between"] for link in box["links"]]
    distance, queue = {receiver: 0}, [receiver]
    for end in queue:
        if end != receiver and (end.startswith("gpu") or end == "disk"):
            continue
        for pair in ends:
            if end in pair:
                other = pair[1] if pair[0] == end else pair[0]
                if other not in distance:
                    distance[other] = distance[end] + 1
                    queue.append(other)
    found, end = [], sender
    while end != receiver:
        for index, pair in enumerate(ends):
            other = pair[1] if pair[0] == end else pair[0]
            passable = other == receiver or not other.startswith("gpu") and other != "disk"
            if end in pair and passable and distance.get(other) == distance[end] - 1:
                half = box["links"][index]["duplex"] == "half"
                found.append((index, 0 if half else int(pair[0] != end)))
                end = other
                break
    return found


def flows(op, ranks):
    """(sender, receiver, bytes) of a call of one byte, as nccl-tests counts."""
    if op == "all_to_all":
        return [(a, b, 1 / ranks) for a, b in itertools.permutations(range(ranks), 2)]
    share = (ranks - 1) / ranks * (2 if op == "all_reduce" else 1)
    return [(rank, (rank + 1) % ranks, share) for rank in range(ranks)]


def waits(op, ranks):
    """How often a call waits for the latency of its route, and for a protocol's step or message."""
    if op == "all_to_all":
        return 1, ranks - 1
    steps = (ranks - 1) * (2 if op == "all_reduce" else 1)
    return steps, steps


def seconds_for_a_byte(box, op, ranks):
    """What the busiest link takes for each byte of the call's size, and the longest latency."""
    load, latency = {}, 0
    for sender, receiver, share in flows(op, ranks):
        links = route(box, f"gpu{sender}", f"gpu{receiver}")
        latency = max(latency, sum(number(box, box["links"][l]["latency"]) for l, _ in links))
        for link in links:
            load[link] = load.get(link, 0) + share
    carry = max(share / number(box, box["links"][link]["bandwidth"])
                for (link, _), share in load.items())
    return carry, latency


# ---- The points ----------------------------------------------------------------------------------

class Points:
    """Those of one collective: steps or messages, latency of the links, seconds to carry all at
    their full bandwidth, seconds measured."""

    def __init__(self, box, series, op):
        rows = []
        for one in series:
            if one["op"] == op:
                carry, latency = seconds_for_a_byte(box, op, one["ranks"])
                routes, count = waits(op, one["ranks"])
                rows += [(one["ranks"], size, count, routes * latency, size * carry, us * 1e-6)
                         for size, us in one["points"]]
        self.ranks, self.bytes, self.steps, self.latency, self.carry, self.seconds = (
            np.array(column, float) for column in zip(*rows))


def replay(points, protocols):
    """[point]; protocols: [protocol][base, step or message, 1 / efficiency]."""
    base, step, slowness = (protocols[:, i, None] for i in range(3))
    times = base + points.latency + step * points.steps + slowness * points.carry
    return times.min(axis=0)


def loss(points, protocols):
    return np.abs(np.log(replay(points, protocols) / points.seconds)).mean()


# ---- The fit -------------------------------------------------------------------------------------

def start(points, random, count):
    """Lines through parts of the sizes, which are cut at random."""
    cuts = np.sort(random.uniform(np.log(points.bytes.min()), np.log(points.bytes.max()),
                                  count - 1))
    part = np.searchsorted(cuts, np.log(points.bytes))
    protocols = []
    for p in range(count):
        of_it = part == p
        if of_it.sum() < 3:
            of_it = random.random(len(part)) < 0.5
        weight = 1 / points.seconds[of_it]
        terms = np.stack([np.ones(of_it.sum()), points.steps[of_it], points.carry[of_it]], axis=1)
        found = np.linalg.lstsq(terms * weight[:, None],
                                (points.seconds - points.latency)[of_it] * weight, rcond=None)[0]
        protocols.append([max(found[0], 1e-6), max(found[1], 1e-8), max(found[2], 1)])
    return np.array(protocols)


def polish(points, protocols):
    """One number at a time, by ever smaller factors; 1 / efficiency is no less than 1."""
    best, width = loss(points, protocols), 0.5
    while width > 0.002:
        is_better = False
        for p, i, sign in itertools.product(range(len(protocols)), range(3), (1, -1)):
            other = protocols.copy()
            other[p, i] = max(other[p, i] * math.exp(sign * width), (1e-7, 1e-9, 1)[i])
            value = loss(points, other)
            if value < best - 1e-9:
                protocols, best, is_better = other, value, True
        if not is_better:
            width /= 2
    return protocols, best


def fit(points, starts):
    random = np.random.default_rng(1)
    tries = [start(points, random, PROTOCOLS) for _ in range(starts)]
    return min((polish(points, one) for one in tries), key=lambda found: found[1])


def fit_all(box, series, starts):
    """{op: (protocols, loss)}, and the mean loss over all points."""
    found, total, count = {}, 0, 0
    for op in sorted({one["op"] for one in series}):
        points = Points(box, series, op)
        found[op] = fit(points, starts)
        total += found[op][1] * len(points.bytes)
        count += len(points.bytes)
    return found, total / count


def fit_numbers(box, series, names):
    """Each bandwidth in turn by ever smaller factors, with few starts of the protocols."""
    best, factor = fit_all(box, series, 3)[1], 1.6
    while factor > 1.04:
        is_better = False
        for name, sign in itertools.product(names, (1, -1)):
            one, before = box["numbers"][name], box["numbers"][name]["value"]
            one["value"] = before * factor**sign
            value = fit_all(box, series, 3)[1]
            if value < best - 1e-6:
                best, is_better = value, True
            else:
                one["value"] = before
        print(f"factor {factor:.3f}: loss {best:.4f}, "
              + ", ".join(f"{name} {box['numbers'][name]['value']:.3g}" for name in names),
              file=sys.stderr)
        if not is_better:
            factor = math.sqrt(factor)
    for name in names:
        box["numbers"][name]["value"] = float(f"{box['numbers'][name]['value']:.3g}")


# ---- Writing -------------------------------------------------------------------------------------

def rounded(value):
    return json.dumps(float(f"{value:.3g}"))


def protocols_text(found, source):
    """The file's section: every number of a collective has the same source."""
    parts = []
    for op, (protocols, _) in found.items():
        text = source.replace("%", {"all_to_all": "alltoall"}.get(op, op))
        for p, (base, step, slowness) in enumerate(sorted(protocols.tolist()), 1):
            values = [("base_latency", rounded(base * 1e6), ' "unit": "us",'),
                      ("step_latency", rounded(step * 1e6), ' "unit": "us",'),
                      ("efficiency", rounded(min(1 / slowness, 1)), "")]
            if op == "all_to_all":
                values[1:2] = [("step_latency", "0", ' "unit": "us",'),
                               ("message_latency", rounded(step * 1e6), ' "unit": "us",')]
            lines = [f'      "{key}": {{"value": {value},{unit}\n       "source": {json.dumps(text)}}}'
                     for key, value, unit in values]
            parts.append(f'    "{NAMES[op]}_{p}": {{\n' + ",\n".join(lines) + "\n    }")
    return '  "protocols": {\n' + ",\n".join(parts) + "\n  },\n"


def collectives_text(found):
    lines = []
    for op in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "exchange"):
        is_direct = op in ("all_to_all", "exchange")
        like = "all_to_all" if is_direct else op
        like = like if like in found else next(iter(found))
        names = ", ".join(f'"{NAMES[like]}_{p}"' for p in range(1, len(found[like][0]) + 1))
        lines.append(f'    "{op}": {{"algorithm": "{"direct" if is_direct else "ring"}", '
                     f'"protocols": [{names}]}}')
    return '  "collectives": {\n' + ",\n".join(lines) + "\n  }\n"


def write(path, box, found, source, names):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    text = text[:text.index('  "protocols": {')]
    for name in names:
        text = re.sub(rf'("{name}": {{"value": )[0-9.e+-]+',
                      lambda m, n=name: m.group(1) + rounded(box["numbers"][n]["value"]), text)
    text += protocols_text(found, source) + collectives_text(found) + "}\n"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


# ---- All of it -----------------------------------------------------------------------------------

def protocols_of(box, op):
    rows = []
    for name in box["collectives"][op]["protocols"]:
        one = box["protocols"][name]
        base, step = number(box, one["base_latency"]), number(box, one["step_latency"])
        if op == "all_to_all":
            base, step = base + step, number(box, one.get("message_latency", {"value": 0}))
        rows.append([base, step, 1 / number(box, one["efficiency"])])
    return np.array(rows)


def show(box, series):
    within = count = 0
    for op in sorted({one["op"] for one in series}):
        points = Points(box, series, op)
        miss = replay(points, protocols_of(box, op)) / points.seconds - 1
        for ranks in np.unique(points.ranks):
            of_it = points.ranks == ranks
            good = int((np.abs(miss[of_it]) <= 0.15).sum())
            within, count = within + good, count + int(of_it.sum())
            print(f"{op:15} {int(ranks)} ranks: {good:2} of {int(of_it.sum()):2} within 15 %; "
                  + " ".join(f"{int(size) >> 10}K:{100 * one:+.0f}" for size, one in
                             zip(points.bytes[of_it], miss[of_it]) if abs(one) > 0.15))
    print(f"{within} of {count} within 15 %")


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("box")
    parser.add_argument("points", help="what make_points.py writes")
    parser.add_argument("--fit", action="store_true", help="write protocols into the box")
    parser.add_argument("--number", action="append", default=[], metavar="NAME",
                        help="a bandwidth of the box's `numbers` to fit with them")
    args = parser.parse_args()
    box, points = read(args.box), read(args.points)
    if args.fit:
        fit_numbers(box, points["series"], args.number)
        found, value = fit_all(box, points["series"], STARTS)
        print(f"mean |log| {value:.4f}", file=sys.stderr)
        write(args.box, box, found, points["source"], args.number)
        box = read(args.box)
    show(box, points["series"])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""HAP's claims (arXiv 2508.19373v1, section IV-C) beside what phasor predicts for the same loads.

    python3 bench/hap_claims.py --phasor build/release/phasor                             # tables
    python3 bench/hap_claims.py --phasor build/release/phasor --page docs/hap-claims.md   # into that page

Nothing is measured and nothing runs but `phasor plan`, with the boxes that come with phasor and the
config.json of three models in bench/hap. A speedup is static TP's predicted time over that of the
fastest plan. Three kinds of plans are told apart:

    as HAP   layouts that HAP searches, changed by reshard or upload: no keep, no packed decode
    exact    --policy exact: no INT4 anywhere; keep and reload, too
    all      what phasor would choose: decode on packed INT4, too

Needs nothing but Python. The tables go to standard output; exit status 1: a load has no prediction.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIGS = Path(__file__).resolve().parent / "hap"
MIXTRAL, QWEN15, QWEN2 = "mixtral-8x7b", "qwen1.5-moe-a2.7b", "qwen2-57b-a14b"
MODELS = (MIXTRAL, QWEN15, QWEN2)
PARAMETERS = {MIXTRAL: 46.7, QWEN15: 14.3, QWEN2: 57.4}  # 1e9, table III
BATCHES = (8, 16, 32, 64)
NEAR = 1.05  # a plan within 5 % of another is as good: predictions tell no more
MARKS = ("<!-- tables: begin -->", "<!-- tables: end -->")

# A panel: figure, box, model, (prompt, output tokens), batches, greatest label of its axis (seconds).
# Labels are the only numbers of the pictures that the text has.
PANELS = [(figure, box, model, load, BATCHES, label)
          for figure, load, labels in (("4", (256, 64), ((6, 2.5, 7), (3, 2, 3))),
                                       ("6", (256, 2048), ((140, 60, 140), (70, 50, 80))),
                                       ("7", (4096, 64), ((50, 20, 50), (20, 8, 16))),
                                       ("9", (4096, 2048), ((250, 120, 250), (140, 60, 120))))
          for box, row in zip(("a6000x4", "a100x4"), labels)
          for model, label in zip(MODELS, row)]
PANELS += [("8a", "a100x8", MIXTRAL, (2048, 128), (8, 16, 32), 7),
           ("8b", "v100x8", MIXTRAL, (2048, 64), BATCHES, 30)]
# The answers' length is not told; 2048 is what an axis up to 250 s leaves.
TRANSITION_PANEL = ("8c", "a6000x4", MIXTRAL, (2048, 2048), (16, 32, 64), 250)

# A claim: figure, boxes, models, "most" or "least" over models and batches, HAP's speedup, where it is said.
CLAIMS = [
    ("4", ["a6000x4"], [MIXTRAL], "most", 1.13, "IV-C.1"),
    ("4", ["a6000x4"], [QWEN15], "most", 1.12, "IV-C.1"),
    ("4", ["a6000x4"], [QWEN2], "most", 1.18, "IV-C.1"),
    ("4", ["a100x4"], [MIXTRAL], "most", 1.16, "IV-C.1"),
    ("4", ["a100x4"], [QWEN15], "most", 1.37, "IV-C.1"),
    ("4", ["a100x4"], [QWEN2], "most", 1.11, "IV-C.1"),
    ("6", ["a6000x4"], [MIXTRAL], "most", 1.01, "IV-C.2"),
    ("6", ["a6000x4"], [QWEN15], "most", 1.10, "IV-C.2"),
    ("6", ["a6000x4"], [QWEN2], "most", 1.036, "IV-C.2"),
    ("6", ["a100x4"], [MIXTRAL], "most", 1.01, "IV-C.2"),
    ("6", ["a100x4"], [QWEN15], "most", 1.23, "IV-C.2"),
    ("6", ["a100x4"], [QWEN2], "most", 1.05, "IV-C.2"),
    ("7", ["a6000x4"], MODELS, "least", 1.21, "IV-C.3"),
    ("7", ["a6000x4"], MODELS, "most", 1.68, "IV-C.3"),
    ("7", ["a6000x4"], MODELS, "most", 1.77, "abstract"),
    ("7", ["a100x4"], MODELS, "most", 1.77, "IV-C.3"),
    ("7", ["a100x4"], MODELS, "most", 1.68, "abstract"),
    ("8a", ["a100x8"], [MIXTRAL], "most", 1.29, "IV-C.3"),
    ("8b", ["v100x8"], [MIXTRAL], "most", 1.57, "IV-C.3, abstract"),
    ("9", ["a6000x4", "a100x4"], MODELS, "most", 1.13, "IV-C.4"),
]


def degrees(text):
    """{"tp": 2, "ep": 2} of "tp2ep2"."""
    return {name: int(degree) for name, degree in re.findall(r"(tp|dp|ep)(\d+)", text)}


def call(*words):
    """The JSON that phasor prints. What it refuses ends the script with the command and its words."""
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 or not done.stdout:
        sys.exit("%s: exit status %d\n%s" % (" ".join(command), done.returncode, done.stderr))
    return json.loads(done.stdout)


class Plan:
    """A candidate of `phasor plan --json` that is possible."""

    def __init__(self, row):
        self.row, self.text, self.way, self.total = row, row["plan"], row["way"], row["total_s"]
        self.is_packed = self.text.endswith(":int4")
        attention, experts = self.text.removesuffix(":int4").split("|")
        prefill, _, decode = experts.partition(">")
        self.attention, self.prefill, self.decode = map(degrees, (attention, prefill, decode or prefill))

    def is_as_hap(self):
        return not self.is_packed and self.way in ("none", "reshard", "upload")

    def is_exact(self):
        return not self.is_packed and self.way != "upload"

    def exchange(self, phase):
        return self.row[phase]["attention_exchange_s"] + self.row[phase]["expert_exchange_s"]

    def with_short_rows(self, tp):
        """Seconds, if rows had 2 bytes a value, as bf16 has: half the time of prefill's exchanges."""
        return self.total - self.exchange("prefill") / 2

    def with_cut_shared(self, tp):
        """Seconds, if decode cut the shared experts over all devices, as static TP does, whatever the
        attention is: in decode all rows are on all devices anyway."""
        return self.total - self.row["decode"]["shared_s"] + tp.row["decode"]["shared_s"]

    def name(self):
        return "`%s`%s" % (self.text.replace("|", "\\|"), "" if self.way == "none" else " " + self.way)


class Answer:
    """What `phasor plan` says of one load."""

    def __init__(self, args, box, model, load, batch, options=()):
        told = call(args.phasor, "plan", CONFIGS / model / "config.json", "--box", box, "--prompt-len", load[0],
                    "--output-len", load[1], "--batch-size", batch, "--json", "--all", *options)
        if told["static_tp"] is None:
            sys.exit("%s on %s, %d/%d, batch %d: static TP is not possible: %s" %
                     (model, box, *load, batch, told["why"]))
        self.plans = [Plan(row) for row in told["plans"] if row["verdict"] == "possible"]
        self.tp, self.ep = (Plan(told["plans"][told[key]]) for key in ("static_tp", "static_ep"))

    def best(self, allowed=lambda plan: True):
        return min((plan for plan in self.plans if allowed(plan)), key=lambda plan: plan.total)

    def speedup(self, allowed=lambda plan: True):
        return self.tp.total / self.best(allowed).total

    def if_exchange_were_free(self):
        return self.tp.total / (self.tp.total - self.tp.exchange("prefill") - self.tp.exchange("decode"))

    def speedup_if(self, seconds):
        """As HAP, where a plan takes seconds(plan, static TP's)."""
        return seconds(self.tp, self.tp) / min(seconds(plan, self.tp) for plan in self.plans if plan.is_as_hap())


class Table:
    def __init__(self, title, *columns):
        self.title, self.lines = title, [columns, ["---"] * len(columns)]

    def add(self, *cells):
        self.lines.append(["%.2f" % cell if isinstance(cell, float) else str(cell) for cell in cells])

    def text(self):
        return "### %s\n\n%s\n" % (self.title, "\n".join("| %s |" % " | ".join(line) for line in self.lines))


def load_text(load):
    return "%d/%d" % load


def ask(args, panels, box=None, options=()):
    return {(panel, batch): Answer(args, box or panel[1], panel[2], panel[3], batch, options)
            for panel in panels for batch in panel[4][:1 if args.quick else None]}


def of_claim(answers, claim, rate):
    """The answer that the claim is about: (speedup, panel, batch) with the most or least by `rate`. "Least"
    is over models of each one's most."""
    figure, boxes, models, which = claim[:4]
    most = {}
    for (panel, batch), answer in answers.items():
        if panel[0] == figure and panel[1] in boxes and panel[2] in models:
            key = (panel[1], panel[2])
            most[key] = max(most.get(key, (0,)), (rate(answer), panel, batch), key=lambda found: found[0])
    return (max if which == "most" else min)(most.values(), key=lambda found: found[0])


def claims_table(answers):
    table = Table("Claims of the text", "figure", "said in", "box", "load", "model", "claim", "HAP", "phasor, as HAP",
                  "residual", "at", "plan", "exact", "all")
    for claim in CLAIMS:
        figure, boxes, models, which, hap, said = claim
        speedup, panel, batch = of_claim(answers, claim, lambda answer: answer.speedup(Plan.is_as_hap))
        answer = answers[panel, batch]
        at = "%sbatch %d" % (panel[2] + ", " if len(models) > 1 else "", batch)
        table.add(figure, said, "`%s`" % panel[1], load_text(panel[3]),
                  models[0] if len(models) == 1 else "any", which, "%g" % hap, speedup, "%+.2f" % (speedup - hap), at,
                  answer.best(Plan.is_as_hap).name(), answer.speedup(Plan.is_exact), answer.speedup())
    return table


def bars_table(answers):
    table = Table("Every bar", "figure", "box", "model", "load", "batch", "TP, s", "as HAP", "plan", "exact", "plan",
                  "all", "plan")
    for (panel, batch), answer in answers.items():
        cells = []
        for allowed in (Plan.is_as_hap, Plan.is_exact, lambda plan: True):
            cells += [answer.speedup(allowed), answer.best(allowed).name()]
        table.add(panel[0], "`%s`" % panel[1], panel[2], load_text(panel[3]), batch, answer.tp.total, *cells)
    return table


def axes_table(answers):
    table = Table("Static TP's seconds beside the axes", "figure", "box", "model", "load", "batch", "TP, s",
                  "axis ends at, s", "share")
    for panel in PANELS:
        batch = max(batch for asked, batch in answers if asked == panel)
        total = answers[panel, batch].tp.total
        table.add(panel[0], "`%s`" % panel[1], panel[2], load_text(panel[3]), batch, total, "%g" % panel[5],
                  total / panel[5])
    return table


def readings_table(args):
    """Figure 8's two panels, each on both boxes: a load that takes longer than the axis is not that box's."""
    table = Table("Figure 8's panels on both boxes: static TP's seconds", "panel says", "batch", "axis ends at, s",
                  "8 A100, s", "8 V100, s")
    for load, batch, label in (((2048, 64), 64, 30), ((2048, 128), 32, 7)):
        table.add("Input:%d Gen:%d" % load, batch, label,
                  *(Answer(args, box, MIXTRAL, load, batch).tp.total for box in ("a100x8", "v100x8")))
    return table


def words_table(answers):
    """How often the plan is of the form that the text tells, and how often that form is as good."""
    forms = (("4", "IV-C.1: TP is the best in some loads", lambda plan:
              plan.attention == plan.prefill == plan.decode),
             ("6", "IV-C.2: experts by TP in decode", lambda plan: "ep" not in plan.decode),
             ("7", "IV-C.3: attention by DP, experts by TP or EP", lambda plan: "tp" not in plan.attention),
             ("9", "IV-C.4: experts by EP in prefill, by TP in decode", lambda plan:
              "ep" in plan.prefill and "ep" not in plan.decode))
    table = Table("What the text says of plans", "figure", "words", "loads", "the fastest is such a plan",
                  "such a plan is within 5 % of it")
    for figure, words, is_such in forms:
        found = [answer for (panel, batch), answer in answers.items() if panel[0] == figure]
        best = [answer.best(Plan.is_as_hap) for answer in found]
        such = [min((plan.total for plan in answer.plans if plan.is_as_hap() and is_such(plan)), default=1e99)
                for answer in found]
        table.add(figure, words, len(found), sum(is_such(plan) for plan in best),
                  sum(least <= NEAR * plan.total for least, plan in zip(such, best)))
    return table


def changes_table(answers):
    table = Table("Changes of layout between the phases", "plans", "loads", "the fastest has a change",
                  "of these, less than 1 % faster than any without")
    for name, allowed in (("as HAP", Plan.is_as_hap), ("exact", Plan.is_exact)):
        changed = [answer for answer in answers.values() if answer.best(allowed).way != "none"]
        gains = [answer.best(lambda plan: allowed(plan) and plan.way == "none").total / answer.best(allowed).total
                 for answer in changed]
        table.add(name, len(answers), len(changed), sum(gain < 1.01 for gain in gains))
    return table


def transition_table(title, answers):
    table = Table(title, "batch", "", "plan", "prefill, s", "transition, s", "decode, s", "total, s")
    for (panel, batch), answer in answers.items():
        hap = answer.best(lambda plan: plan.is_as_hap() and "ep" in plan.prefill and "ep" not in plan.decode)
        owned = answer.best(lambda plan: plan.text == "dp4|ep4")
        shown = (("static TP", answer.tp), ("static EP", answer.ep), ("EP, attention by DP", owned),
                 ("EP, then TP", hap), ("the fastest as HAP", answer.best(Plan.is_as_hap)))
        for what, plan in shown:
            row = plan.row
            table.add(batch, what, plan.name(), row["prefill_s"], row["transition_s"], row["decode_s"], plan.total)
    return table


def without_disk(args, box, folder):
    """The box with its backup in the host's memory, as HAP has it: without a disk."""
    model = json.loads((Path(args.boxes) / (box + ".json")).read_text())
    model["links"] = [link for link in model["links"] if "disk" not in link["between"]]
    path = folder / (box + ".json")
    path.write_text(json.dumps(model))
    return path


def what_if_table(args, answers):
    """The same claims where what is assumed, or is phasor's own way, is otherwise."""
    table = Table("If something were otherwise", "figure", "box", "model", "claim", "HAP", "as shipped",
                  "experts chosen evenly", "rows of 2 bytes a value", "shared experts cut in decode",
                  "backup in host memory", "shared uplink", "TP's exchanges free")
    even = ask(args, PANELS, options=("--routing-deviation", 0))
    shared = ask(args, [panel for panel in PANELS if panel[1] == "a6000x4"], "a6000x4-shared-uplink")
    with tempfile.TemporaryDirectory() as folder:
        memory = {}
        for box in sorted({panel[1] for panel in PANELS}):
            memory.update(ask(args, [panel for panel in PANELS if panel[1] == box],
                              without_disk(args, box, Path(folder))))

    def as_hap(answer):
        return answer.speedup(Plan.is_as_hap)

    columns = ((answers, as_hap), (even, as_hap), (answers, lambda answer: answer.speedup_if(Plan.with_short_rows)),
               (answers, lambda answer: answer.speedup_if(Plan.with_cut_shared)), (memory, as_hap), (shared, as_hap),
               (answers, Answer.if_exchange_were_free))
    for claim in CLAIMS:
        figure, boxes, models, which, hap, _ = claim
        cells = [of_claim(asked, claim, rate)[0] if asked is not shared or "a6000x4" in boxes else ""
                 for asked, rate in columns]
        table.add(figure, ", ".join("`%s`" % box for box in boxes), models[0] if len(models) == 1 else "any", which,
                  "%g" % hap, *cells)
    return table


def check_models(args):
    """The sizes are the paper's: parameters as in table III."""
    for model in MODELS:
        billions = call(args.phasor, "inspect", CONFIGS / model, "--json")["parameters"]["total"] / 1e9
        if abs(billions - PARAMETERS[model]) > 0.05:
            sys.exit("%s: %.1f billion parameters, %.1f in HAP's table III" % (model, billions, PARAMETERS[model]))


def write_page(path, text):
    page = path.read_text()
    begin, end = page.index(MARKS[0]) + len(MARKS[0]), page.index(MARKS[1])
    path.write_text(page[:begin] + "\n\n" + text + "\n" + page[end:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--phasor", default="build/release/phasor")
    parser.add_argument("--boxes", default=Path(__file__).resolve().parent.parent / "boxes",
                        help="folder of the boxes' files")
    parser.add_argument("--quick", action="store_true",
                        help="the least batch of each panel alone, and no table of other assumptions")
    parser.add_argument("--page", type=Path, help="put the tables between the marks of this page")
    args = parser.parse_args()
    check_models(args)
    answers = ask(args, PANELS)
    title = "Figure 8c: both phases, 4 A6000, Mixtral, 2048/2048"
    tables = [claims_table(answers), axes_table(answers), readings_table(args), words_table(answers),
              changes_table(answers), transition_table(title, ask(args, [TRANSITION_PANEL])),
              transition_table(title + ", experts chosen evenly",
                               ask(args, [TRANSITION_PANEL], options=("--routing-deviation", 0)))]
    if not args.quick:
        tables.append(what_if_table(args, answers))
    tables.append(bars_table(answers))
    text = "\n".join(table.text() for table in tables)
    if args.page:
        write_page(args.page, text)
    else:
        print(text, end="")


main()

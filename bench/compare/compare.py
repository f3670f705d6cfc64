"""phasor beside llama.cpp, interleaved in one run, against limits measured in the same run.

    python compare.py --phasor ../../build/release/phasor > result.txt
    python compare.py --models a --formats bf16 --workloads prefill-1x512,decode-1x32 --rounds 1

What is inside the timed windows: phasor_side.py and llama_side.py. What is counted as work: shapes.py.
Needs llama-cpp-python, gguf, safetensors, torch and numpy, which nothing here installs.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median, quantiles

import agreement
import phasor_side
import shapes

HERE = Path(__file__).resolve().parent
FORMATS = ("bf16", "4bit")
ENGINES = ("phasor", "llama")
# Of a routed weight. q4_0: 32 numbers of 4 bits and a scale of 16; phasor's int4: 128 and one.
WEIGHT_BYTES = {"phasor": {"bf16": 2, "4bit": 66 / 128}, "llama": {"bf16": 2, "4bit": 18 / 32}}
PHASOR_OPTIONS = {"bf16": [], "4bit": ["--expert-dtype", "int4"]}
DECODE_PROMPT_TOKENS = 16
WORKLOADS = "prefill-1x2048,prefill-8x4096,decode-1x64,decode-32x64"
UBATCHES = (512, 1024, 2048)


@dataclass(frozen=True)
class Workload:
    name: str
    kind: str  # prefill or decode
    count: int  # of sequences
    tokens: int  # of each: of the prompt, or generated in decode passes

    def prompts(self, vocab_count):
        """Ids at random: no two prompts begin alike, so nothing is shared between them."""
        draw = random.Random(self.name)
        length = self.tokens if self.kind == "prefill" else DECODE_PROMPT_TOKENS
        return [[draw.randrange(3, vocab_count) for _ in range(length)] for _ in range(self.count)]


@dataclass(frozen=True)
class Model:
    name: str
    folder: Path
    shape: shapes.Shape

    def gguf(self, form):
        return self.folder.parent / f"{self.folder.name}-{form}.gguf"


@dataclass(frozen=True)
class Measured:
    """One engine in one round."""
    rate: float  # tok/s
    gemm: "limits.Rate" = None  # the machine's limits beside it: FLOP/s, bytes/s
    read: "limits.Rate" = None


@dataclass
class Case:
    model: Model
    form: str
    workload: Workload
    llama: dict = None  # micro-batch and flash attention that are best for it
    rounds: list = field(default_factory=list)  # of {engine: Measured}
    beside: list = field(default_factory=list)  # the same beside a neighbour, where there is one
    apart: list = field(default_factory=list)  # then also of {CPU or None: what processes apart multiply and read}


def note(text):
    print(text, file=sys.stderr, flush=True)


# ---- Making the models ---------------------------------------------------------------------------


def parse_workload(name):
    found = re.fullmatch(r"(prefill|decode)-(\d+)x(\d+)", name)
    if not found or int(found[2]) == 0 or int(found[3]) == 0:
        raise SystemExit(f"workload {name!r}: expected prefill-COUNTxTOKENS or decode-COUNTxTOKENS")
    return Workload(name, found[1], int(found[2]), int(found[3]))


def make_model(args, name):
    """name: a, b or the path of a config.json. What is there already is used again."""
    config = HERE / f"model-{name}.json" if name in ("a", "b") else Path(name)
    if not config.is_file():
        raise SystemExit(f"model {name!r}: neither a nor b, nor a config.json")
    recipe = config.read_bytes() + (HERE / "gguf_of.py").read_bytes()
    folder = args.data / f"{config.stem}-{hashlib.sha256(recipe).hexdigest()[:8]}"
    if not (folder / "config.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        note(f"making {folder}")
        subprocess.run([args.phasor, "synth", str(config.resolve()), "-o", str(folder), "-q"], check=True)
    model = Model(config.stem.removeprefix("model-"), folder, shapes.read_shape(folder))
    if "llama" in args.engines:
        for form in args.formats:
            make_gguf(model, form)
    return model


def make_gguf(model, form):
    option = {"bf16": "--bf16", "4bit": "--q4", "f32": "--f32"}[form]
    path = model.gguf(form)
    if not path.is_file():
        note(f"making {path}")
        subprocess.run([sys.executable, str(HERE / "gguf_of.py"), str(model.folder), option, str(path)], check=True)


# ---- Running -------------------------------------------------------------------------------------


def run_llama(job):
    done = subprocess.run([sys.executable, str(HERE / "llama_side.py")], input=json.dumps(job),
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"llama.cpp, {job['kind']} of {job['gguf']}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def llama_rate(args, case, prompts, steps, how):
    told = run_llama({"kind": case.workload.kind, "gguf": str(case.model.gguf(case.form)), "prompts": prompts,
                      "steps": steps, "threads": args.threads, **how})
    return told["tokens"] / told["seconds"]


def llama_choice(args, case):
    """The fastest micro-batch and attention: of one prompt, or of a few decode passes."""
    work = case.workload
    prompts = work.prompts(case.model.shape.vocab_count)
    if work.kind == "prefill":
        prompts = prompts[:1]
    ubatches = [args.ubatch] if args.ubatch else UBATCHES if work.kind == "prefill" else UBATCHES[:1]
    flashes = [args.flash] if args.flash else ("on", "off")
    choices = [{"ubatch": ubatch, "flash": flash} for ubatch in ubatches for flash in flashes]
    if len(choices) == 1:
        return choices[0]
    return max(choices, key=lambda how: llama_rate(args, case, prompts, min(16, work.tokens), how))


def phasor_rate(args, case):
    work = case.workload
    # The prefill gives the first token: decode passes are one fewer than tokens.
    max_tokens = 1 if work.kind == "prefill" else work.tokens + 1
    rates, _ = phasor_side.run(args.phasor, case.model.folder, args.scratch, work.prompts(case.model.shape.vocab_count),
                               max_tokens, args.threads, PHASOR_OPTIONS[case.form])
    return rates[work.kind]


@contextmanager
def neighbour(cpu):
    """Another process that wants one CPU for itself, as long as this lasts; None: nobody."""
    if cpu is None:
        yield
        return
    spin = f"import os\nos.sched_setaffinity(0, [{cpu}])\nprint(flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE)
    try:
        if not process.stdout.readline():  # it spins from now on
            raise SystemExit(f"the neighbour on CPU {cpu} has ended: nothing is beside it")
        yield
    finally:
        process.kill()
        process.wait()


def run_apart(case, apart, places):
    """What processes that never wait for each other have, alone and beside the neighbour."""
    rates = {}
    for cpu, _ in places:
        with neighbour(cpu):
            rates[cpu] = apart.rates()
    case.apart.append(rates)
    return "; apart " + ", ".join(f"{'alone' if cpu is None else 'beside'} {gemm / 1e9:.1f} GFLOP/s "
                                  f"and {read / 1e9:.1f} GB/s" for cpu, (gemm, read) in rates.items())


def limits_text(measured):
    if measured.gemm is None:
        return ""
    return f" beside {measured.gemm.mean / 1e9:.1f} GFLOP/s and {measured.read.mean / 1e9:.1f} GB/s"


def run_case(args, case, limits, apart, round_index):
    """The two engines take turns in being the next, and so do being alone and beside a neighbour. Limits come
    before, between and behind, undisturbed: memory may change its rate within a second, so what was measured has
    the mean of those on its two sides."""
    turn = 1 if round_index % 2 == 0 else -1
    prompts = case.workload.prompts(case.model.shape.vocab_count)
    engines = {"phasor": lambda: phasor_rate(args, case),
               "llama": lambda: llama_rate(args, case, prompts, case.workload.tokens, case.llama)}
    engines = {name: engines[name] for name in args.engines}
    places = [(None, {})] if args.neighbour is None else [(None, {}), (args.neighbour, {})]
    if limits:
        gemm_before, _, read_before = limits.rates()
    for name in list(engines)[::turn]:
        for cpu, measured in places[::turn]:
            with neighbour(cpu):
                rate = engines[name]()
            if not limits:
                measured[name] = Measured(rate)
                continue
            gemm_after, read_after, read_next = limits.rates()
            measured[name] = Measured(rate, gemm_before.halfway(gemm_after), read_before.halfway(read_after))
            gemm_before, read_before = gemm_after, read_next
    apart_text = run_apart(case, apart, places[::turn]) if apart else ""
    for (cpu, measured), rounds in zip(places, (case.rounds, case.beside)):
        rounds.append(measured)
        note(f"round {round_index + 1}: {case.model.name} {case.form} {case.workload.name}"
             f"{'' if cpu is None else f' beside a neighbour on CPU {cpu}'}: "
             + ", ".join(f"{name} {of.rate:.1f} tok/s{limits_text(of)}"
                         for name, of in sorted(measured.items(), reverse=True))
             + ("" if cpu is None else apart_text))


def agreement_of(args, model, form, options, **how):
    found = agreement.measure(run_llama, args.phasor, model.folder, args.scratch, model.shape.vocab_count,
                              args.threads, model.gguf(form), options, **how)
    line = f"{model.name} {form}: {found}"
    note(line)
    return line, found.median_difference


def refuse_above(limit, difference):
    if difference > limit:
        raise SystemExit(f"phasor and llama.cpp do not compute the same model: log probabilities differ by "
                         f"{difference:.4f}, allowed are {limit}; nothing is compared")


def check_conversion(args, model):
    """In f32, where nothing but the order of sums differs. The file is large and goes again."""
    make_gguf(model, "f32")
    line, difference = agreement_of(args, model, "f32", ["--dtype", "float32"], is_f32=True)
    refuse_above(agreement.EXACT_MAX, difference)
    model.gguf("f32").unlink()
    return line


def check_agreement(args, model, form):
    line, difference = agreement_of(args, model, form, PHASOR_OPTIONS[form])
    if form == "bf16":
        refuse_above(agreement.ROUNDED_MAX, difference)
    return line


# ---- The machine ---------------------------------------------------------------------------------


def first_line(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout.strip().split("\n")[0]
    except OSError:
        return ""


def processor():
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


class Others:
    """The share of the cores that other processes took since it was made, of /proc/stat."""

    def __init__(self):
        self.start = self.now()

    @staticmethod
    def now():
        fields = [int(word) for word in open("/proc/stat").readline().split()[1:9]]
        idle, ticks = fields[3] + fields[4], os.sysconf("SC_CLK_TCK")
        own = sum(os.times()[:4])
        return sum(fields) / ticks, (sum(fields) - idle) / ticks, own

    def share(self):
        total, busy, own = (b - a for a, b in zip(self.start, self.now()))
        return max(0.0, busy - own) / total if total > 0 else 0.0


# ---- The table -----------------------------------------------------------------------------------


def spread(values):
    """Interquartile range as a share of the median."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / median(values)


def share_of_limit(case, measured, weight_bytes):
    """Prefill: flops over the GEMM's. Decode: bytes of weights over the bandwidth."""
    work, shape = case.workload, case.model.shape
    if work.kind == "prefill":
        flops = shapes.prefill_flops(shape, work.tokens, work.count) / (work.count * work.tokens)
        return flops * measured.rate / measured.gemm.mean
    read = shapes.decode_bytes(shape, work.count, weight_bytes[case.form]) * measured.rate / work.count
    return read / measured.read.mean


def engine_cells(case, rounds, engine, weight_bytes):
    measured = [of_round[engine] for of_round in rounds]
    rates = [of.rate for of in measured]
    cell = f"{median(rates):10.1f} tok/s {100 * spread(rates):5.1f} %"
    if measured[0].gemm is None:
        return cell
    shares = [share_of_limit(case, of, weight_bytes) for of in measured]
    return f"{cell} {100 * median(shares):6.1f} %"


def engines_of(case):
    return [name for name in ENGINES if name in case.rounds[0]]


def row_begin(case, rounds):
    cells = "  ".join(engine_cells(case, rounds, engine, WEIGHT_BYTES[engine]) for engine in engines_of(case))
    return f"{case.model.name:6} {case.form:5} {case.workload.name:15} {cells}"


def table_row(case):
    if engines_of(case) != list(ENGINES):
        return row_begin(case, case.rounds)
    ratios = [of_round["phasor"].rate / of_round["llama"].rate for of_round in case.rounds]
    ratio = f"{median(ratios):6.2f} x {100 * spread(ratios):5.1f} %"
    chosen = f"{case.llama['ubatch']}, {case.llama['flash']}"
    return f"{row_begin(case, case.rounds)}  {ratio}  ({chosen})"


def left(case, engine):
    """What the neighbour left of an engine's rate, in each round."""
    return [beside[engine].rate / alone[engine].rate for alone, beside in zip(case.rounds, case.beside)]


def left_apart(cases, cpu):
    """The same of processes apart, in all rounds of all cases: of products, and of reads."""
    return [[rates[cpu][kind] / rates[None][kind] for case in cases for rates in case.apart] for kind in range(2)]


def share_text(shares):
    return f"{100 * median(shares):6.1f} % {100 * spread(shares):5.1f} %"


def beside_row(case, apart):
    """Prefill is beside products. What a decode's rows do of each is not known: it is beside both."""
    engines = "  ".join(share_text(left(case, engine)) for engine in engines_of(case))
    of_apart = " ".join(f"{median(left(case, 'phasor')) / median(shares):5.2f}"
                        for shares in (apart[:1] if case.workload.kind == "prefill" else apart))
    return f"{row_begin(case, case.beside)}  {engines}  {of_apart}"


def limits_line(cases):
    engines = [measured for case in cases for of_round in case.rounds + case.beside for measured in of_round.values()]
    gemm, read = ([m.gemm for m in engines], [m.read for m in engines])
    return (f"# limits: {limit_text(gemm)} GFLOP/s (GEMM of torch {version('torch')}), "
            f"{limit_text(read)} GB/s (reading 1 GiB)")


def limit_text(rates):
    means, bests = ([value / 1e9 for value in column] for column in zip(*((rate.mean, rate.best) for rate in rates)))
    return f"{median(means):.1f}, spread {100 * spread(means):.1f} %, at best {max(bests):.1f}"


def print_header(args, cases, agreements, rounds, others_share):
    dirty = "+changes" if first_line(["git", "status", "--porcelain", "--untracked-files=no"]) else ""
    print(f"# date: {date.today()}")
    print(f"# commit: {first_line(['git', 'rev-parse', '--short', 'HEAD'])}{dirty}")
    print(f"# processor: {processor()}")
    release = re.match(r"[0-9.]*", platform.release()).group()
    print(f"# system: {platform.system()} {release} {platform.machine()}")
    print(f"# command: {shlex.join(['compare.py', *sys.argv[1:]])}")
    if "llama" in args.engines:
        print(f"# peer: llama-cpp-python {version('llama-cpp-python')}, gguf {version('gguf')}")
    print(f"# each engine with {args.threads} threads; clock: CLOCK_MONOTONIC")
    print(f"# other processes took {100 * others_share:.0f} % of the cores during the rounds")
    if rounds < args.rounds:
        print(f"# interrupted behind {rounds} of {args.rounds} rounds")
    if "llama" not in args.engines:
        print(f"# medians of {rounds} rounds; behind each the interquartile range")
        print(f"# {'model':4} {'form':5} {'workload':15} {'phasor':>24}")
        return
    print(limits_line(cases))
    for line in agreements:
        print(f"# {line}")
    print(f"# medians of {rounds} rounds; behind each the interquartile range, then the share of the limit,")
    print("# which is the mean rate over a second just before and one just behind the engine:")
    print("# prefill of the GEMM rate (all matrix products, attention too), decode of the bandwidth (weights read);")
    print("# ratio: the median of the rounds' ratios; last llama.cpp's micro-batch and flash attention")
    print(f"# {'model':4} {'form':5} {'workload':15} {'phasor':>32}  {'llama.cpp':>33}  {'ratio':>8}")


# ---- Main ----------------------------------------------------------------------------------------


def words(text):
    return [word for word in text.split(",") if word]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phasor", default=str(HERE.parent.parent / "build" / "release" / "phasor"),
                        help="the program (%(default)s)")
    parser.add_argument("--models", type=words, default="a,b", help="a, b or paths of config.json (%(default)s)")
    parser.add_argument("--engines", type=words, default=",".join(ENGINES),
                        help="phasor alone: without llama.cpp and limits, more rounds in the time (%(default)s)")
    parser.add_argument("--formats", type=words, default=",".join(FORMATS), help="of routed experts (%(default)s)")
    parser.add_argument("--workloads", type=words, default=WORKLOADS, help="KIND-SEQUENCESxTOKENS (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each engine (all cores)")
    parser.add_argument("--ubatch", type=int, help="llama.cpp's micro-batch (the fastest of 512, 1024, 2048)")
    parser.add_argument("--flash", choices=("on", "off", "auto"), help="llama.cpp's flash attention (the faster)")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "phasor-compare",
                        help="where models are made and kept: 6 GB, and 2.5 GB more for a moment (%(default)s)")
    parser.add_argument("--neighbour", type=int, metavar="CPU",
                        help="measure each engine in turn alone and while another process spins on this CPU (alone)")
    parser.add_argument("--no-check", action="store_true", help="do not compare what the two engines compute")
    args = parser.parse_args()
    if not os.access(args.phasor, os.X_OK):
        parser.error(f"no program {args.phasor}: build it, or name it with --phasor")
    if set(args.formats) - set(FORMATS) or args.rounds < 1 or args.threads < 1:
        parser.error(f"formats are {', '.join(FORMATS)}; rounds and threads at least 1")
    if set(args.engines) not in ({"phasor"}, set(ENGINES)):
        parser.error("--engines is phasor,llama or phasor")
    args.engines = [name for name in ENGINES if name in args.engines]
    args.no_check |= args.engines != list(ENGINES)
    if args.neighbour is not None and args.neighbour not in os.sched_getaffinity(0):
        parser.error(f"--neighbour {args.neighbour}: not a CPU that this process may use; "
                     f"those are {sorted(os.sched_getaffinity(0))}")
    if args.neighbour is not None and args.threads != len(os.sched_getaffinity(0)):
        parser.error("--neighbour takes a thread on each CPU, so that one of them meets it: leave --threads out")
    args.phasor = str(Path(args.phasor).resolve())
    args.workloads = [parse_workload(name) for name in args.workloads]
    return args


def run_rounds(args, cases, limits, apart):
    """How many were whole: an interrupt (Ctrl-C) ends the run behind the first, and what whole rounds measured
    is kept."""
    for done in range(args.rounds):
        try:
            for case in cases:
                run_case(args, case, limits, apart, done)
        except KeyboardInterrupt:
            if done == 0:
                raise
            note(f"interrupted: the table is of the first {done}")
            for case in cases:
                del case.rounds[done:], case.beside[done:], case.apart[done:]
            return done
    return args.rounds


def compare(args):
    from limits import Apart, Limits  # torch takes seconds to import: wrong options are told before

    args.data.mkdir(parents=True, exist_ok=True)
    models = [make_model(args, name) for name in args.models]
    pairs = [(model, form) for model in models for form in args.formats]
    agreements = []
    if not args.no_check:
        agreements += [check_conversion(args, model) for model in models]
        agreements += [check_agreement(args, *pair) for pair in pairs]
    cases = [Case(model, form, workload) for model, form in pairs for workload in args.workloads]
    for case in cases:
        case.llama = llama_choice(args, case) if "llama" in args.engines else None
    cpus = sorted(os.sched_getaffinity(0))
    others = Others()
    with Apart(cpus) if args.neighbour is not None else nullcontext() as apart:
        rounds = run_rounds(args, cases, Limits(args.threads) if "llama" in args.engines else None, apart)
    print_header(args, cases, agreements, rounds, others.share())
    for case in cases:
        print(table_row(case))
    if args.neighbour is not None:
        apart = left_apart(cases, args.neighbour)
        products, reads = (share_text(shares).strip() for shares in apart)
        print(f"# beside a process that spins on CPU {args.neighbour}. Of processes that never wait for each other, one")
        print(f"# on each CPU, it leaves of products {products}, of reads {reads} (medians of all rounds' ratios).")
        whose = " and of ".join({"phasor": "phasor's", "llama": "llama.cpp's"}[name] for name in args.engines)
        print(f"# Last what it leaves of {whose} rate alone, the medians of the rounds' ratios; then")
        print("# phasor's over theirs: over products in prefill, over products and over reads in decode:")
        for case in cases:
            print(beside_row(case, apart))


def main():
    args = parse_args()
    with tempfile.TemporaryDirectory(prefix="phasor-compare-") as folder:
        args.scratch = folder
        compare(args)


if __name__ == "__main__":
    main()

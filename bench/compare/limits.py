"""What the machine can do at this moment: the rate of its matrix products and of its memory.

As a program, `limits.py CPU`: the process on one CPU of those that class Apart measures together.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import torch

GEMM_DIM = 2048
READ_FLOATS = 1 << 28  # 1 GiB: behind every cache
MATVEC_DIM = 8192
WINDOW_SECONDS = 1.0


def seconds_each(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Rate:
    mean: float  # over a second: what an engine's rate, also a mean, is a share of
    best: float  # of one product, or one read

    def halfway(self, other):
        return Rate((self.mean + other.mean) / 2, max(self.best, other.best))


def fastest_of(ways):
    for way in ways:
        way()
    return min(ways, key=lambda way: min(seconds_each(way) for _ in range(3)))


def rate_over_window(way, amount):
    times = []
    while sum(times) < WINDOW_SECONDS:
        times.append(seconds_each(way))
    return Rate(amount * len(times) / sum(times), amount / min(times))


def rate_of(ways, amount):
    """Of the fastest of several ways to do so much work, in units of that a second."""
    return rate_over_window(fastest_of(ways), amount)


def gemm_types():
    """f32, and bf16 where the processor multiplies it."""
    flags = open("/proc/cpuinfo").read()
    has_bf16 = "avx512_bf16" in flags or "amx_bf16" in flags
    return [torch.float32, torch.bfloat16] if has_bf16 else [torch.float32]


def gemm_ways(a, b):
    operands = [(a.to(dtype), b.to(dtype)) for dtype in gemm_types()]
    return [partial(torch.mm, *pair, out=torch.mm(*pair)) for pair in operands]


def read_ways(data):
    matrix = data.view(-1, MATVEC_DIM)
    return [data.view(torch.int64).sum, partial(torch.mv, matrix, torch.ones(MATVEC_DIM)), data.max]


class Limits:
    def __init__(self, threads):
        torch.set_num_threads(threads)
        self.data = torch.ones(READ_FLOATS)
        self.matrix = torch.randn(GEMM_DIM, GEMM_DIM)

    def gemm_rate(self):
        """FLOP/s, of the best number type: a product of matrices of 2,048 x 2,048."""
        return rate_of(gemm_ways(self.matrix, self.matrix), 2 * GEMM_DIM**3)

    def read_rate(self):
        """Bytes/s: 1 GiB read in the fastest of three ways, because none is the fastest everywhere."""
        return rate_of(read_ways(self.data), 4 * READ_FLOATS)

    def rates(self):
        """Products, and reads before and behind these."""
        first = self.read_rate()
        return self.gemm_rate(), first, self.read_rate()


# ---- Beside a neighbour --------------------------------------------------------------------------

APART_ROWS = 256  # a product of some milliseconds: one that is under way when the window ends counts little
APART_FLOATS = 1 << 22  # of one read: 16 MiB, of data behind every cache


class Apart:
    """A process on each of some CPUs that multiplies, or reads, for a second and waits for no other: what these
    lose to a neighbour is what the neighbour takes."""

    def __init__(self, cpus):
        self.processes = [subprocess.Popen([sys.executable, __file__, str(cpu)], text=True, stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE) for cpu in cpus]
        for process in self.processes:
            self.answer(process)  # it is ready

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.stdin.close()
            process.wait()

    @staticmethod
    def answer(process):
        line = process.stdout.readline()
        if not line:
            raise SystemExit("a process that measures what a neighbour takes has ended (limits.py)")
        return float(line)

    def rates(self):
        """Of all together: products, in FLOP/s, then reads, in bytes/s."""
        return tuple(self.rate(kind) for kind in ("gemm", "read"))

    def rate(self, kind):
        for process in self.processes:
            print(kind, file=process.stdin, flush=True)
        return sum(self.answer(process) for process in self.processes)


def chunk_reader(data):
    """Reads the next chunk of data at each call, in the way that is the fastest."""
    ways = read_ways(data)
    fastest = ways.index(fastest_of(ways))
    chunks = cycle([read_ways(chunk)[fastest] for chunk in data.split(APART_FLOATS)])
    return lambda: next(chunks)()


def measure_apart(cpu):
    """Answers each line of the input, "gemm" or "read", with the rate of one second."""
    os.sched_setaffinity(0, [cpu])
    torch.set_num_threads(1)
    square = torch.randn(GEMM_DIM, GEMM_DIM)
    ways = {"gemm": (fastest_of(gemm_ways(square[:APART_ROWS], square)), 2 * APART_ROWS * GEMM_DIM**2),
            "read": (chunk_reader(torch.ones(READ_FLOATS // 2)), 4 * APART_FLOATS)}
    print(0, flush=True)
    for line in sys.stdin:
        print(rate_over_window(*ways[line.strip()]).mean, flush=True)


if __name__ == "__main__":
    measure_apart(int(sys.argv[1]))

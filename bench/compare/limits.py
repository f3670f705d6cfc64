"""What the machine can do at this moment: the rate of its matrix products and of its memory."""

import time
from dataclasses import dataclass
from functools import partial

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


def rate_of(ways, amount):
    """Of the fastest of several ways to do so much work, in units of that a second."""
    for way in ways:
        way()
    fastest = min(ways, key=lambda way: min(seconds_each(way) for _ in range(3)))
    times = []
    while sum(times) < WINDOW_SECONDS:
        times.append(seconds_each(fastest))
    return Rate(amount * len(times) / sum(times), amount / min(times))


def gemm_types():
    """f32, and bf16 where the processor multiplies it."""
    flags = open("/proc/cpuinfo").read()
    has_bf16 = "avx512_bf16" in flags or "amx_bf16" in flags
    return [torch.float32, torch.bfloat16] if has_bf16 else [torch.float32]


class Limits:
    def __init__(self, threads):
        torch.set_num_threads(threads)
        self.data = torch.ones(READ_FLOATS)
        self.matrix = torch.randn(GEMM_DIM, GEMM_DIM)

    def gemm_rate(self):
        """FLOP/s, of the best number type: a product of matrices of 2,048 x 2,048."""
        operands = [[self.matrix.to(dtype) for _ in range(3)] for dtype in gemm_types()]
        return rate_of([partial(torch.mm, a, b, out=out) for a, b, out in operands], 2 * GEMM_DIM**3)

    def read_rate(self):
        """Bytes/s: 1 GiB read in the fastest of three ways, because none is the fastest everywhere."""
        whole = self.data.view(torch.int64)
        matrix = self.data.view(-1, MATVEC_DIM)
        vector = torch.ones(MATVEC_DIM)
        return rate_of([whole.sum, partial(torch.mv, matrix, vector), self.data.max], 4 * READ_FLOATS)

    def rates(self):
        """Products, and reads before and behind these."""
        first = self.read_rate()
        return self.gemm_rate(), first, self.read_rate()

"""What the machine can do at this moment: the rate of its matrix products and of its memory."""

import time

import torch

GEMM_DIM = 2048
READ_FLOATS = 1 << 28  # 1 GiB: behind every cache
MATVEC_DIM = 8192


def best_seconds(work, repeats):
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


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

    def gemm_rate(self, repeats=5):
        """FLOP/s, of the best number type: a product of matrices of 2,048 x 2,048."""
        best = float("inf")
        for dtype in gemm_types():
            a, b, out = (self.matrix.to(dtype) for _ in range(3))
            best = min(best, best_seconds(lambda: torch.mm(a, b, out=out), repeats))
        return 2 * GEMM_DIM**3 / best

    def read_rate(self, repeats=3):
        """Bytes/s: 1 GiB read in the fastest of three ways, because none is the fastest everywhere."""
        whole = self.data.view(torch.int64)
        matrix = self.data.view(-1, MATVEC_DIM)
        vector = torch.ones(MATVEC_DIM)
        ways = [whole.sum, lambda: torch.mv(matrix, vector), self.data.max]
        return 4 * READ_FLOATS / min(best_seconds(way, repeats) for way in ways)

    def rates(self):
        """FLOP/s and, before and behind measuring these, bytes/s."""
        first = self.read_rate()
        return self.gemm_rate(), first, self.read_rate()

"""phasor beside Hugging Face transformers on one GPU and one checkpoint, in turn, in one run.

    phasor synth qwen1.5-moe-a2.7b --layers 8 -o MODEL
    python gpu.py --phasor ../../build/cuda/phasor --model MODEL > result.txt

Inside the timed windows: phasor's prefill_s and decode_s (its summary file); of transformers a forward pass over all
prompts (logits of the last tokens), and passes of one token of each sequence with the tokens chosen on the GPU, each
between two synchronizations. Outside: loading, tokenizers, files, a first run of each kind. transformers runs as it is
installed: bf16, its scaled-dot-product attention, the implementation of experts that is the faster of those it has, no
torch.compile. Needs torch and transformers, which nothing here installs.
"""

import argparse
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import median

import phasor_side
import torch
import transformers

VOCAB = 2000  # ids below it are tokens of any vocabulary, and none of them special
DECODE_PROMPT_TOKENS = 64
# The other one copies the weights of each token's experts: nothing for prefill.
EXPERTS = {"prefill": ("grouped_mm",), "decode": ("grouped_mm", "batched_mm")}


class Workload:
    """prefill-COUNTxTOKENS or decode-COUNTxTOKENS: so many sequences, of so many tokens of a prompt or of an answer."""

    def __init__(self, name):
        told = re.fullmatch(r"(prefill|decode)-(\d+)x(\d+)", name)
        if not told:
            raise argparse.ArgumentTypeError(f"{name}: give such as prefill-8x4096 or decode-1x128")
        self.name, self.kind, self.count, self.tokens = name, told[1], int(told[2]), int(told[3])

    def prompts(self):
        draw = random.Random(self.name)
        length = self.tokens if self.kind == "prefill" else DECODE_PROMPT_TOKENS
        return [[draw.randrange(3, VOCAB) for _ in range(length)] for _ in range(self.count)]

    def answer_tokens(self):
        """Prefill gives the first."""
        return 1 if self.kind == "prefill" else self.tokens + 1


def phasor_rate(args, workload, folder):
    """Tokens a second."""
    options = ["--quiet", "--devices", args.devices, "--max-num-batched-tokens", str(args.pass_tokens),
               *shlex.split(args.options)]
    rates, _ = phasor_side.run(args.phasor, args.model, folder, workload.prompts(), workload.answer_tokens(), 0,
                               options)
    return rates[workload.kind]


class Transformers:
    def __init__(self, path, device):
        self.device, self.model = device, transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.bfloat16, attn_implementation="sdpa").to(device).eval()

    def synchronize(self):
        if self.device != "cpu":
            torch.cuda.synchronize()

    def experts(self, implementation):
        """False: there is no such one."""
        try:
            self.model.set_experts_implementation(implementation)
        except (AttributeError, ValueError, ImportError):
            return False
        return True

    @torch.inference_mode()
    def rate(self, workload):
        ids = torch.tensor(workload.prompts(), device=self.device)
        self.synchronize()
        start = time.perf_counter()
        told = self.model(input_ids=ids, use_cache=True, logits_to_keep=1)
        next_ids = told.logits[:, -1:].argmax(-1)
        self.synchronize()
        if workload.kind == "prefill":
            return ids.numel() / (time.perf_counter() - start)
        start = time.perf_counter()
        for _ in range(workload.tokens):
            told = self.model(input_ids=next_ids, past_key_values=told.past_key_values, use_cache=True)
            next_ids = told.logits[:, -1:].argmax(-1)
        self.synchronize()
        return workload.count * workload.tokens / (time.perf_counter() - start)


def head(args):
    said = subprocess.run([args.phasor, "version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    card = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True,
                            cwd=Path(__file__).parent).stdout.strip()
    print(f"# date: {date.today()}\n# commit: {args.commit or commit}\n# command: gpu.py {shlex.join(sys.argv[1:])}\n"
          f"# device: {card}; {said}; transformers {transformers.__version__}, torch {torch.__version__}\n"
          f"# tokens a second: median (least to most) of {args.rounds} rounds, in turn; clocks: CLOCK_MONOTONIC",
          flush=True)


def measure(args, workload, peer, folder):
    """Rates of phasor, and of transformers by implementation of its experts."""
    ours, theirs = [], {}
    for number in range(args.rounds + 1):  # the first warms up
        rate = phasor_rate(args, workload, folder)
        ours += [rate] if number > 0 else []
        for implementation in EXPERTS[workload.kind]:
            if not peer.experts(implementation):
                continue
            try:
                rate = peer.rate(workload)
            except (RuntimeError, torch.OutOfMemoryError) as error:
                print(f"# {workload.name}: transformers with {implementation}: {str(error).splitlines()[0][:100]}")
                continue
            theirs.setdefault(implementation, []).extend([rate] if number > 0 else [])
    return ours, theirs


def told_of(rates):
    return f"{median(rates):10.1f} ({min(rates):.1f} to {max(rates):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phasor", default="phasor", help="the program")
    parser.add_argument("--model", required=True, help="a checkpoint's directory")
    parser.add_argument("--devices", default="cuda:0", help="phasor's (cuda:0)")
    parser.add_argument("--device", default="cuda", help="torch's (cuda)")
    parser.add_argument("--pass-tokens", type=int, default=8192, help="of phasor's passes at most (8192)")
    parser.add_argument("--options", default="", help="more of phasor run's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commit", help="where this is no clone: phasor's")
    parser.add_argument("workloads", nargs="*", type=Workload,
                        default=[Workload(name) for name in ("prefill-8x4096", "decode-1x128", "decode-32x128")])
    args = parser.parse_args()
    head(args)
    peer = Transformers(args.model, args.device)
    with tempfile.TemporaryDirectory() as folder:
        for workload in args.workloads:
            ours, theirs = measure(args, workload, peer, Path(folder))
            print(f"{workload.name:16}phasor       {told_of(ours)}")
            for implementation, rates in theirs.items():
                print(f"{'':16}{implementation:12} {told_of(rates)}  phasor / it {median(ours) / median(rates):.2f}",
                      flush=True)


if __name__ == "__main__":
    main()

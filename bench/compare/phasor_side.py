"""The phasor side: `phasor run` on a batch file, as a user runs it, one process for each figure.

Inside phasor's timed window: the forward passes of one kind, prefill or decode, from the choice of
what they compute to the tokens drawn from their logits. Outside: loading, reading rows, writing them.
No pass warms up: the first has fresh buffers, a fresh KV cache and threads that have slept.
"""

import json
import re
import subprocess
from functools import cache
from pathlib import Path

RATES = re.compile(r"\(prefill ([\d.]+) tok/s\).*\(decode ([\d.]+) tok/s\)")


def write_rows(path, prompts, max_tokens, **more):
    body = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}
    with open(path, "w") as out:
        for i, prompt in enumerate(prompts):
            out.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                                  "body": {"prompt": prompt, **body}}) + "\n")


@cache
def has_summary_file(binary):
    return "--summary-file" in subprocess.run([binary, "run", "--help"], capture_output=True, text=True).stdout


def read_rates(summary_path, notices):
    """Tokens a second of prefill and of decode passes: the one place that knows how phasor tells them."""
    if summary_path is not None:
        told = json.loads(Path(summary_path).read_text())
        return {kind: told[f"{kind}_tokens"] / told[f"{kind}_s"] if told[f"{kind}_s"] > 0 else 0.0
                for kind in ("prefill", "decode")}
    found = RATES.search(notices)
    if not found:
        raise SystemExit(f"phasor run: no rates in its summary:\n{notices}")
    return {"prefill": float(found[1]), "decode": float(found[2])}


def run(binary, model_dir, folder, prompts, max_tokens, threads, options=(), **more):
    """The rates, and the responses in order of the prompts."""
    rows, answers, summary = (Path(folder) / name for name in ("rows.jsonl", "answers.jsonl", "summary.json"))
    write_rows(rows, prompts, max_tokens, **more)
    command = [binary, "run", str(model_dir), "-i", str(rows), "-o", str(answers), "--overwrite",
               "-t", str(threads), *options]
    if not has_summary_file(binary):
        summary = None
    else:
        command += ["--summary-file", str(summary)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    found = {row["custom_id"]: row["response"]["body"] for row in map(json.loads, open(answers))}
    return read_rates(summary, done.stderr), [found[str(i)] for i in range(len(prompts))]

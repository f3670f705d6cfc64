#!/usr/bin/env python3
"""Compares what phasor and the reference library `safetensors` accept.

Usage: differential_safetensors.py PROGRAM [--count N] [--seed S]

PROGRAM is build/.../tests/fuzz/safetensors_verdict. Files are made from the corpus beside this
script and from random headers, mutated, and given to both. Prints counts, and each kind of
difference once. Exit code 1: phasor accepted a file that the reference refuses, or refused one for
a reason that README.md does not list.
"""
import argparse
import collections
import json
import pathlib
import random
import re
import struct
import subprocess
import tempfile

from safetensors import SafetensorError, deserialize

HERE = pathlib.Path(__file__).resolve().parent
DTYPES = {"F32": 32, "BF16": 16, "F16": 16, "F64": 64, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16,
          "U8": 8, "BOOL": 8, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
DATA_BYTES_MAX = 1 << 16
WORDS = ['"dtype"', '"shape"', '"data_offsets"', '"__metadata__"', '"\\u005f_metadata__"', '"\\ud800"', '"\\u0000"', "{", "}", "[", "]", ",", ":",
         "0", "1", "-1", "-0", "00", "1.0", "1e1", "18446744073709551615", "18446744073709551616", "9223372036854775808", " ", "\n", "\t", "\0",
         '"F4"', '"U8"', '"a"', "null", "true", "{}", "[]", '"\\u0061"', '"\\/"']
# Refusals of files that the reference takes; each is explained in README.md.
STRICTER = {
    "name twice": r"stands twice in the header",
    "metadata twice": r'"__metadata__" stands twice',
    "metadata with escapes": r"is written with escapes",
    "rank above 8": r'"shape" has more than 8 dimensions',
    "escapes in field names and dtypes": r"(unknown field|unknown dtype) \".*\\",
    "unknown field": r"unknown field",
    "white space before the header": r"does not begin with '\{'",
    "field twice": r"\" stands twice",
    "NUL in a name": r"invalid escape in a string",
    "size above 2^63": r"shape overflow",
}


def random_header(rng):
    header, at = {}, 0
    for i in range(rng.randint(0, 4)):
        dtype = rng.choice(list(DTYPES))
        shape = [rng.choice([0, 1, 2, 3, 4, 8]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 9]))]
        bits = DTYPES[dtype]
        for size in shape:
            bits *= size
        end = at + bits // 8
        header[rng.choice(["a", "b", "c.d", "\u00e9", "x" * 50]) + str(i)] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    if rng.random() < 0.3:
        header["__metadata__"] = {"format": "pt"}
    items = list(header.items())
    rng.shuffle(items)
    return json.dumps(dict(items), ensure_ascii=rng.random() < 0.5, separators=rng.choice([(",", ":"), (", ", ": ")])).encode(), at


def mutate(rng, text):
    text = bytearray(text)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        at = rng.randint(0, len(text))
        kind = rng.randrange(6)
        if kind == 0:
            text[at:at] = rng.choice(WORDS).encode()
        elif kind == 1:
            del text[at:at + rng.randint(1, 8)]
        elif kind == 2 and at < len(text):
            text[at] = rng.randrange(256)
        elif kind == 3:
            text[at:at + rng.randint(1, 8)] = rng.choice(WORDS).encode()
        elif kind == 4:
            numbers = list(re.finditer(rb"\d+", bytes(text)))
            if numbers:
                hit = rng.choice(numbers)
                text[hit.start():hit.end()] = str(rng.choice([int(hit.group()) + rng.choice([-1, 1, 8, 16]), 0, 2**63, 2**64])).encode()
        else:
            begin = rng.randint(0, len(text))
            text[at:at] = text[begin:begin + rng.randint(1, 60)]
    return bytes(text)


def corpus_headers():
    for path in sorted((HERE / "corpus/safetensors").iterdir()):
        data = path.read_bytes()
        if data[:1] == b"H" and b"\n" in data:
            digits, header = data[1:].split(b"\n", 1)
            if digits.isdigit() and int(digits) <= DATA_BYTES_MAX:
                yield header, int(digits)
        elif data[:1] == b"F" and len(data) >= 9:
            length = struct.unpack("<Q", data[1:9])[0]
            if length <= len(data) - 9:
                yield data[9:9 + length], len(data) - 9 - length


def make(rng, seeds, fresh):
    header, data_bytes = rng.choice(seeds) if rng.random() < 0.5 else random_header(rng)
    if not fresh:
        header = mutate(rng, header)
    if rng.random() < 0.05:
        data_bytes += rng.choice([-1, 1, 8])
    length = len(header) + (rng.choice([-1, 1, 1 << 40]) if rng.random() < 0.02 else 0)
    return struct.pack("<Q", max(length, 0)) + header + bytes(max(data_bytes, 0))


def has_name_twice(data):
    """The reference looks at the last of several tensors of one name only."""
    names = []
    try:
        json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]], object_pairs_hook=lambda pairs: names.append([k for k, _ in pairs]))
    except ValueError:
        return False
    return any(len(set(keys)) < len(keys) for keys in names)


def reference(data):
    try:
        deserialize(data)
        return True, ""
    except SafetensorError as error:
        return False, str(error)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    seeds = list(corpus_headers())
    counts, examples, bad = collections.Counter(), {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for begin in range(0, args.count, 2000):
            files = [make(rng, seeds, begin == 0 and i < 500) for i in range(min(2000, args.count - begin))]
            paths = [f"{folder}/{i}" for i in range(len(files))]
            for path, data in zip(paths, files):
                pathlib.Path(path).write_bytes(data)
            lines = subprocess.run([args.program], input="\n".join(paths) + "\n", text=True, errors="replace",
                                   capture_output=True, check=True).stdout.splitlines()
            assert len(lines) == len(files)
            for data, line in zip(files, lines):
                ours, (theirs, why) = line == "accept", reference(data)
                kind = ("both accept" if ours else "both refuse") if ours == theirs else None
                if kind is None and ours:
                    kind = "LAXER: " + why.split("(")[0]
                elif kind is None:
                    kind = next((f"stricter: {k}" for k, rule in STRICTER.items() if re.search(rule, line)), None)
                    if kind is None:
                        kind = "stricter: name twice" if has_name_twice(data) else "UNEXPLAINED: " + line
                counts[kind] += 1
                examples.setdefault(kind, (data[:300], line))
                bad += kind.startswith(("LAXER", "UNEXPLAINED"))
    for kind, count in counts.most_common():
        print(f"{count:9} {kind}")
        if not kind.startswith("both"):
            print("         ", examples[kind][0], "\n         ", examples[kind][1])
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())

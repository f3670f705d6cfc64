"""Writes tests/data/tokenizers: small tokenizers, texts, and what Hugging Face tokenizers makes of them.

    python make_goldens.py OUT_DIR

texts.jsonl holds the texts; NAME.json a tokenizer; NAME.jsonl, line by line as in texts.jsonl, its ids, and behind
those lines id sequences with the text that they decode to. Equal inputs give equal files.
"""

import base64
import itertools
import json
import random
import sys
from pathlib import Path

from pipelines import PIPELINES, old_merges
from texts import LONG, texts


def dump(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def runs(ids):
    """[id, count, id, count, ...]: long texts of one unit have few runs of a short period."""
    for period in range(1, 41):
        body = []
        at = 0
        while at < len(ids):
            count = 1
            while ids[at + count * period:at + (count + 1) * period] == ids[at:at + period]:
                count += 1
            body.append([count, ids[at:at + period]])
            at += count * period
        if len(body) < 40:
            return body
    raise SystemExit(f"a long text whose ids do not repeat: {len(ids)} {ids[:60]}")


def encode(tokenizer, text, as_special):
    tokenizer.encode_special_tokens = not as_special
    return tokenizer.encode(text, add_special_tokens=False).ids


def case(tokenizer, data, long):
    text = data.decode("utf-8", "replace")
    plain, parsed = encode(tokenizer, text, False), encode(tokenizer, text, True)
    line = {"runs": runs(plain)} if long else {"ids": plain}
    if parsed != plain:
        line["parsed_runs" if long else "parsed"] = runs(parsed) if long else parsed
    framed = tokenizer.encode(text).ids
    if not long and framed != parsed:
        line["framed"] = framed
    if not long:
        decoded = decode(tokenizer, plain, False)
        if decoded != text:
            line["text"] = decoded
    return line


def has_fallback(tokenizer):
    return json.loads(tokenizer.to_str())["model"].get("byte_fallback", False)


def decode(tokenizer, ids, skip):
    """The reference's text, but for broken byte tokens: it gives one U+FFFD for each byte of a run of byte tokens that
    is not valid as a whole. A stream cannot wait for the end of a run, so phasor replaces maximal broken parts."""
    if not has_fallback(tokenizer):
        return tokenizer.decode(ids, skip_special_tokens=skip)
    out = b""
    for i in ids:
        token = tokenizer.id_to_token(i)
        if token is None or skip and token in ("<unk>", "<s>", "</s>"):
            continue
        is_byte = len(token) == 6 and token.startswith("<0x")
        out += bytes([int(token[3:5], 16)]) if is_byte else token.replace("▁", " ").encode()
    text = out.removeprefix(b" ").decode("utf-8", "replace")
    reference = tokenizer.decode(ids, skip_special_tokens=skip)
    if "\ufffd" not in text + reference:
        assert text == reference, (text, reference)
    return text


def decode_cases(tokenizer, name):
    generator = random.Random(name)
    size = tokenizer.get_vocab_size()
    byte_ids = [i for i in range(size) if len(tokenizer.id_to_token(i)) == (6 if has_fallback(tokenizer) else 1)]
    for i in range(60):
        pool = range(size + 3) if i % 2 else byte_ids
        ids = [generator.choice(pool) for _ in range(generator.randrange(0, 30))]
        skipped = decode(tokenizer, ids, True)
        kept = decode(tokenizer, ids, False)
        yield {"decode": ids, "text": kept} | ({"skipped": skipped} if skipped != kept else {})


def text_line(name, data):
    try:
        return {"name": name, "text": data.decode()}
    except UnicodeDecodeError:
        return {"name": name, "base64": base64.b64encode(data).decode()}


def long_line(name, unit, count):
    return {"name": name, "unit": unit, "count": count} if isinstance(unit, str) else \
        {"name": name, "unit_base64": base64.b64encode(unit).decode(), "count": count}


def as_bytes(unit):
    return unit.encode() if isinstance(unit, str) else unit


def main():
    out = Path(sys.argv[1])
    short = list(texts())
    with open(out / "texts.jsonl", "w", encoding="utf-8") as file:
        for line in itertools.chain((text_line(*t) for t in short), (long_line(*t) for t in LONG)):
            file.write(dump(line) + "\n")
    for name, make in PIPELINES.items():
        tokenizer = make()
        value = old_merges(tokenizer) if name == "words" else json.loads(tokenizer.to_str())
        (out / f"{name}.json").write_text(dump(value) + "\n", encoding="utf-8")
        with open(out / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for _, data in short:
                file.write(dump(case(tokenizer, data, False)) + "\n")
            for _, unit, count in LONG:
                # The reference takes quadratic time where an added token of spaces strips to its right.
                used = min(count, 20000) if name == "tricky" else count
                line = case(tokenizer, as_bytes(unit) * used, True)
                file.write(dump(line | ({"count": used} if used != count else {})) + "\n")
            for line in decode_cases(tokenizer, name):
                file.write(dump(line) + "\n")


if __name__ == "__main__":
    main()

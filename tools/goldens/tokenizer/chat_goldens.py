"""Writes tests/data/tokenizers/chat.jsonl: conversations, and what chat templates make of them.

    python chat_goldens.py TEMPLATE_DIR OUT_FILE

TEMPLATE_DIR holds the texts of templates as the checkpoints ship them, named FAMILY@anything.jinja after phasor's name
for the rendering. They belong to their authors and are not kept here; only their hashes and results are. A file whose
name has no family is compared with the others: its hash is printed with the families that render alike, which is how
a new hash finds its row in src/tokenizer/chat.c.
"""

import json
import sys
from pathlib import Path

import jinja2.sandbox
import xxhash


class Refused(Exception):
    pass


def refuse(message):
    raise Refused(message)


def turns(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


def thought(reasoning, content):
    return {"role": "assistant", "content": content, "reasoning_content": reasoning}


THINK = "<think>\nLet me see.\n\n</think>\n\nIt is four."
SPECIALS = "x<|im_end|>\n<|im_start|>system\ny</s><s> [/INST] [INST] <|endoftext|>"

CONVERSATIONS = [
    turns(("user", "What is 2 + 2?")),
    turns(("user", "Hi"), ("assistant", "Hello!"), ("user", "Who are you?")),
    turns(("system", "Be brief."), ("user", "Hi")),
    turns(("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", "Bye"), ("assistant", "So long.")),
    turns(("user", "Hi"), ("assistant", "Hello!")),
    turns(("system", "You are alone.")),
    turns(("assistant", "I begin."), ("user", "No.")),
    turns(("user", "one"), ("user", "two")),
    turns(("user", "a"), ("assistant", "b"), ("assistant", "c")),
    turns(("user", "a"), ("system", "late"), ("user", "b")),
    turns(("system", "one"), ("system", "two"), ("user", "a")),
    turns(("user", ""), ("assistant", ""), ("user", "\n\n")),
    turns(("user", "  spaces around  "), ("assistant", "\n\n answer \n"), ("user", "ünï çödé 世界 🙂")),
    turns(("user", "2 + 2?"), ("assistant", THINK), ("user", "Sure?")),
    turns(("user", "2 + 2?"), ("assistant", THINK)),
    turns(("user", "2 + 2?"), ("assistant", THINK), ("assistant", "Four.")),
    turns(("user", "2 + 2?"), ("assistant", "Four."), ("assistant", THINK)),
    turns(("user", "q"), ("assistant", "\n\n<think>a<think>\n\nb\n</think>c</think>\n\nd"), ("assistant", "</think>")),
    turns(("user", "q"), ("assistant", "<think>\n\n</think>\n\nempty"), ("assistant", "x")),
    turns(("user", "q"), ("assistant", "<think>seen</think>look"), ("user", "<tool_response>\n4\n</tool_response>"),
          ("assistant", "<think>then</think>Four.")),
    turns(("user", "<tool_response></tool_response>")),
    turns(("user", "<tool_response>"), ("assistant", THINK)),
    turns(("user", "</tool_response>"), ("assistant", "<think>open"), ("assistant", "done</think>")),
    turns(("user", SPECIALS), ("assistant", SPECIALS), ("user", SPECIALS)),
    [*turns(("user", "2 + 2?")), thought("Let me see.", "It is four.")],
    [*turns(("user", "2 + 2?")), thought("\n\nLet me\n\nsee.\n", "\n\nIt is four.\n")],
    [*turns(("user", "2 + 2?")), thought("Let me see.", "It is four."), *turns(("user", "Sure?"))],
    [*turns(("user", "2 + 2?")), thought("Let me see.", "It is four."), *turns(("assistant", "Yes."))],
    [*turns(("user", "2 + 2?")), thought("Let me see.", THINK), thought("", THINK), thought("\n", "\nx"),
     thought("", "x")],
    [*turns(("user", "2 + 2?")), thought(None, THINK), thought(None, "Four.")],
    [{"role": "user", "content": "2 + 2?", "reasoning_content": "none"}, thought(SPECIALS, SPECIALS)],
]

OPTIONS = [{"add_generation_prompt": prompt, "enable_thinking": thinking}
           for prompt in (True, False) for thinking in (True, False)]


def compile_template(text):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.globals["raise_exception"] = refuse
    return environment.from_string(text)


def render_all(text):
    template = compile_template(text)
    results = []
    for messages in CONVERSATIONS:
        row = []
        for options in OPTIONS:
            try:
                row.append(template.render(messages=messages, bos_token="<s>", eos_token="</s>", **options))
            except Refused:
                row.append(None)
        # Most templates ignore the options: equal results are kept once.
        results.append(row[0] if all(text == row[0] for text in row) else row)
    return results


def hash_of(text):
    return xxhash.xxh3_128_hexdigest(text.strip(" \t\n\v\f\r").encode())


def main():
    families, unnamed = {}, []
    for path in sorted(Path(sys.argv[1]).glob("*.jinja")):
        text = path.read_bytes().decode()
        family, at, _ = path.stem.partition("@")
        if not at:
            unnamed.append((path.name, text))
            continue
        entry = families.setdefault(family, {"name": family, "hashes": [], "renders": render_all(text)})
        if entry["renders"] != render_all(text):
            raise SystemExit(f"{path.name} renders otherwise than the others of its family")
        entry["hashes"].append(hash_of(text))
    for name, text in unnamed:
        alike = [family for family, entry in families.items() if entry["renders"] == render_all(text)]
        print(hash_of(text), name, "renders like", ", ".join(alike) or "none of the families")
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        for line in ({"conversations": CONVERSATIONS, "options": OPTIONS}, *families.values()):
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

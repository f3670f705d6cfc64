"""Small tokenizers in the shapes that checkpoints ship."""

import json
import re
import subprocess

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
# The three splits of DeepSeek-V3: phasor has no scanner for them and takes PCRE2.
DEEPSEEK = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]

CODE = '''#include <stdio.h>
int main(int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] != '-' && strcmp(argv[i], "--help") == 0)
            return usage(stderr, "unknown option %s\\n", argv[i]);
    }
    return (a[i] += b[j] * 2.5e-3f) >= 0x7FFF ? EXIT_SUCCESS : EXIT_FAILURE;
}
def __init__(self, name: str = "x", *args, **kwargs) -> None:
        self.items = [value for value in args if value is not None]
        return {"type": "object", "count": len(self.items), "ids": [1, 2, 3]}
\tfoo\t\tbar\r\n\r\n'''

WORLD = """天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏 今日は世界、これはテストです。ありがとうございます。
안녕하세요 세계 여러분 반갑습니다 오늘은 날씨가 좋네요. Größe, Straße, naïve café, Ångström, Œuvre, Ðæt wæs gōd cyning.
Привет, мир! Как дела сегодня? Γειά σου Κόσμε, τι κάνεις; مرحبا بالعالم كيف حالك اليوم नमस्ते दुनिया कैसे हो आप
שלום עולם 🙂🙂 👍 🎉🎉🎉 don't it's we're I'll they've he'd I'm DON'T IT'S 2023 2024 3.14159 100,000 €20 £5"""


def bible():
    text = subprocess.run(["bible", "-f", "gen1:1-50:26"], check=True, capture_output=True, text=True).stdout
    return [re.sub(r"^\S+ ", "", line) for line in text.splitlines()]


def lines():
    return bible() + 20 * (CODE.splitlines(keepends=True) + WORLD.splitlines())


def byte_level(size, pre_tokenizer, normalizer=None, special=(), **model):
    """Byte-level BPE; the trained vocabulary has `size` tokens, added ones come behind."""
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(lines(), trainer)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    for token in special:
        tokenizer.add_tokens([token])
    return tokenizer


def special(text):
    return AddedToken(text, special=True, normalized=False)


def plain(text, **flags):
    return AddedToken(text, special=False, **flags)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def bytes_only():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def qwen():
    """Qwen 1.5, 2 and 3."""
    return byte_level(1100, pre_tokenizers.Sequence([split(QWEN2), bytes_only()]), normalizers.NFC(), [
        special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"),
        plain("<think>", normalized=False), plain("</think>", normalized=False)])


def gpt2():
    """ByteLevel with its own pattern; runs of spaces are added tokens, as in OLMoE."""
    return byte_level(900, pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC(),
                      [special("<|endoftext|>")] + [plain(" " * n, normalized=True) for n in (8, 4, 2)])


def prefix():
    """ByteLevel that puts a space before each text; three digits; words that are tokens are not merged; BOS."""
    tokenizer = byte_level(900, pre_tokenizers.Sequence([split(LLAMA3), bytes_only()]), None,
                           [special("<|begin|>"), special("<|end|>")], ignore_merges=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        split(LLAMA3), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A <|end|>",
                                      special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>")),
                                                      ("<|end|>", tokenizer.token_to_id("<|end|>"))])])
    return tokenizer


def deepseek():
    return byte_level(900, pre_tokenizers.Sequence([*map(split, DEEPSEEK), bytes_only()]), None,
                      [special("<｜end▁of▁sentence｜>"), special("<｜User｜>")])


def tricky():
    """Added tokens with every flag."""
    return byte_level(600, pre_tokenizers.Sequence([split(QWEN2), bytes_only()]), normalizers.NFC(), [
        special("<|endoftext|>"),
        plain("[left]", lstrip=True, normalized=False), plain("[right]", rstrip=True, normalized=False),
        plain("[both]", lstrip=True, rstrip=True, normalized=True),
        plain("word", single_word=True, normalized=False), plain("mot", single_word=True, normalized=True),
        plain("caf\u00e9", normalized=True), plain("nai\u0308ve", normalized=True),
        plain("re\u0301el", normalized=False), plain("<|end", normalized=False), plain("text|>x", normalized=False),
        AddedToken("<|mask|>", special=True, normalized=True, lstrip=True),
        plain("  ", normalized=False, rstrip=True), plain("\n\n\n", normalized=True)])


def sentence_pieces(size, byte_tokens):
    """A vocabulary and merges in the order of SentencePiece: specials, bytes, merged pieces, characters."""
    learner = Tokenizer(models.BPE())
    words = (re.findall("▁?\\w+|▁?[^\\w▁]+|▁+", line.replace(" ", "▁")) for line in lines())
    learner.train_from_iterator(words, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    learned = json.loads(learner.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    characters = sorted((t for t in learned["vocab"] if len(t) == 1), key=learned["vocab"].get)
    pieces = ["<unk>", "<s>", "</s>"] + byte_tokens + list(dict.fromkeys(a + b for a, b in merges)) + characters
    for spaces in ("▁▁", "▁▁▁▁", "▁▁▁▁▁▁▁▁"):
        if spaces not in pieces:
            pieces.append(spaces)
            half = spaces[:len(spaces) // 2]
            merges.append((half, half))
    return {piece: i for i, piece in enumerate(pieces)}, merges


def mixtral():
    """SentencePiece style: the whole text is one word; unknown characters become bytes."""
    vocabulary, merges = sentence_pieces(900, [f"<0x{b:02X}>" for b in range(256)])
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([special(t) for t in ("<unk>", "<s>", "</s>")])
    return tokenizer


def metaspace(scheme, split_words, fuse):
    """The form with a Metaspace pre-tokenizer; no bytes, so unknown characters become <unk>."""
    vocabulary, merges = sentence_pieces(700, [])
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=fuse))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split_words)
    tokenizer.decoder = decoders.Metaspace("▁", scheme, split_words)
    tokenizer.add_special_tokens([special(t) for t in ("<unk>", "<s>", "</s>")])
    return tokenizer


def old_merges(tokenizer):
    """The tokenizer's file with merges as "a b", as it was written until 2024."""
    value = json.loads(tokenizer.to_str())
    value["model"]["merges"] = [" ".join(pair) for pair in value["model"]["merges"]]
    return value


PIPELINES = {
    "qwen": qwen,
    "gpt2": gpt2,
    "prefix": prefix,
    "deepseek": deepseek,
    "tricky": tricky,
    "mixtral": mixtral,
    "metaspace": lambda: metaspace("first", False, True),
    "words": lambda: metaspace("always", True, False),
}
